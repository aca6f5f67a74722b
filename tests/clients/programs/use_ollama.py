"""The Ollama client, as it comes, against the URL in its arguments. Prints what it saw as JSON.

With a second argument only that is tried: a server that calls a tool, or embeddings.
"""

import base64
import json
import struct
import sys
import zlib

import ollama

client = ollama.Client(host=sys.argv[1])
TURNS = [{"role": "user", "content": "Tell me about the sea."}]
EIGHT = {"num_predict": 8, "temperature": 0.5, "seed": 7}


def read_file(path: str) -> str:
    """Read a file.

    Args:
      path: Where it is
    """
    return path


def chat(**fields):
    return client.chat("tiny", **{"messages": TURNS, "options": EIGHT, **fields})


def refused(**fields):
    try:
        chat(**fields)
    except ollama.ResponseError as error:
        return [error.status_code, error.error]
    return None


def called(part):
    return [[one.function.name, dict(one.function.arguments)] for one in part or ()]


def png() -> bytes:
    """A black square of 8 × 8."""
    parts = [(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0))]
    parts += [(b"IDAT", zlib.compress(b"\0" * 72)), (b"IEND", b"")]
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


if "embed" in sys.argv:
    many = client.embed("tiny", ["the sea", "a lake"], truncate=False, dimensions=2)
    try:
        client.embed("tiny", "sea " * 9000)
        status = 200
    except ollama.ResponseError as error:
        status = error.status_code
    found = {
        "many": [list(one) for one in many.embeddings],
        "tokens": many.prompt_eval_count,
        "times": many.total_duration >= many.load_duration >= 0,
        "one": [list(one) for one in client.embed("tiny", "the sea").embeddings],
        "none": client.embed("tiny", "").embeddings,
        "old": list(client.embeddings("tiny", "the sea").embedding),
        "long": status,
    }
    print(json.dumps(found))
    sys.exit()

if "tools" in sys.argv:
    turns = [
        *TURNS,
        {"role": "assistant", "content": "", "tool_calls": [
            {"function": {"name": "read_file", "arguments": {"path": "sea.txt"}}}
        ]},
        {"role": "tool", "tool_name": "read_file", "content": "blue"},
    ]  # fmt: skip
    parts = list(chat(messages=turns, tools=[read_file], think=True, stream=True))
    whole = chat(messages=turns, tools=[read_file])
    found = {
        "stream": [called(part.message.tool_calls) for part in parts],
        "thinking": "".join(part.message.thinking or "" for part in parts),
        "whole": called(whole.message.tool_calls),
    }
    print(json.dumps(found))
    sys.exit()

whole, parts = chat(), list(chat(stream=True))
text = client.generate("tiny", prompt="The sea", options=EIGHT, system="be brief")
raw = list(client.generate("tiny", prompt="The sea", options=EIGHT, raw=True, stream=True))
long = chat(options={"num_predict": 10**6})
found = {
    "whole": whole.eval_count,
    "text": bool(whole.message.content),
    "stream": [part.eval_count for part in parts if part.done],
    "pieces": len(parts),
    "reason": whole.done_reason,
    "times": whole.total_duration >= whole.load_duration + whole.eval_duration > 0,
    "generate": [text.eval_count, text.prompt_eval_count > raw[-1].prompt_eval_count],
    "raw": [len(raw), raw[-1].eval_count, bool(raw[0].response)],
    "clamped": long.done_reason,
    "tools": chat(tools=[read_file]).prompt_eval_count > whole.prompt_eval_count,
    "schema": chat(format={"type": "object", "properties": {}}).eval_count,
    "models": [one.model for one in client.list().models],
    "loaded": [one.context_length for one in client.ps().models],
    "shown": client.show("tiny:latest").capabilities,
    "load": client.generate("tiny").done_reason,
    "long": refused(messages=[{"role": "user", "content": "a " * 20000}]),
    "image": refused(
        messages=[{"role": "user", "content": "?", "images": [base64.b64encode(png()).decode()]}]
    ),
    "bad": refused(options={"num_predict": 1.5}),
}
print(json.dumps(found))
