"""The OpenAI SDK, as it comes, against the URL in its arguments. Prints what it saw as JSON."""

import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="sk-any", max_retries=0)
TURNS = [{"role": "user", "content": "Tell me about the sea."}]

answer = client.chat.completions.create(model="tiny", messages=TURNS, max_tokens=8)
stream = client.chat.completions.create(
    model="tiny", messages=TURNS, max_tokens=8, stream=True, stream_options={"include_usage": True}
)
chunks = list(stream)
text = client.completions.create(model="tiny", prompt="The sea", max_tokens=8)
found = {
    "output": answer.usage.completion_tokens,
    "stream": chunks[-1].usage.completion_tokens,
    "text": text.usage.completion_tokens,
    "models": [model.id for model in client.models.list()],
}
try:
    client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "a " * 20000}]
    )
except openai.BadRequestError as error:
    found["long"] = error.code
print(json.dumps(found))
