"""Three SDKs, as they come, on streams that break off. Prints the code and the words that each raised with."""

import json
import sys

import anthropic
import ollama
import openai

URL = sys.argv[1]
TURNS = [{"role": "user", "content": "Tell me about the sea."}]
of_openai = openai.OpenAI(base_url=URL + "/v1", api_key="sk-any", max_retries=0)
of_anthropic = anthropic.Anthropic(base_url=URL, api_key="sk-any", max_retries=0)
of_ollama = ollama.Client(host=URL)


def drain(streamed):
    with streamed as stream:
        for _ in stream:
            pass


def raised(kind, ask):
    """What the last of the pieces brought."""
    try:
        ask()
    except kind as error:
        return error
    raise SystemExit("nothing was raised")


def of(error):
    return [error.code, error.message]


def chats():
    return drain(of_openai.chat.completions.create(model="tiny", messages=TURNS, stream=True))


def texts():
    return drain(of_openai.completions.create(model="tiny", prompt="The sea", stream=True))


def responses():
    return drain(of_openai.responses.create(model="tiny", input="The sea", stream=True))


def helped():
    return drain(of_openai.responses.stream(model="tiny", input="The sea"))


def messages():
    return drain(of_anthropic.messages.stream(model="tiny", max_tokens=8, messages=TURNS))


def lines():
    return list(of_ollama.chat("tiny", messages=TURNS, stream=True))


told = raised(anthropic.APIStatusError, messages).body["error"]
print(
    json.dumps(
        {
            "chat": of(raised(openai.APIError, chats)),
            "completions": of(raised(openai.APIError, texts)),
            "responses": of(raised(openai.APIError, responses)),
            "responses with help": of(raised(openai.APIError, helped)),
            "messages": [told["code"], told["message"]],
            "ollama": ["upstream_error", raised(ollama.ResponseError, lines).error],
        }
    )
)
