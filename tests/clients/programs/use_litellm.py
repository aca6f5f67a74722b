"""LiteLLM as a library: one call each through its OpenAI and its Anthropic client."""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is fetched at import
import litellm

litellm.telemetry = False
URL = sys.argv[1]
TURNS = [{"role": "user", "content": "Tell me about the sea."}]
found = {}
for name, model, base in (
    ("openai", "openai/tiny", f"{URL}/v1"),
    ("anthropic", "anthropic/tiny", URL),
):
    args = {
        "model": model,
        "api_base": base,
        "api_key": "sk-any",
        "messages": TURNS,
        "max_tokens": 8,
    }
    answer = litellm.completion(num_retries=0, **args)
    pieces = [
        chunk.choices[0].delta.content or ""
        for chunk in litellm.completion(num_retries=0, stream=True, **args)
        if chunk.choices
    ]
    found[name] = {"output": answer.usage.completion_tokens, "text": "".join(pieces)}
    try:
        long = [{"role": "user", "content": "sea " * 9000}]
        litellm.completion(num_retries=0, **{**args, "messages": long})
    except litellm.BadRequestError as error:
        found[name]["long"] = str(error)
print(json.dumps(found))
