"""A twin of the four cards of `l20-tp4-262k.yaml` that counts as Qwen 3 does, in a process of its own.

The twin's own tokenizer is four bytes a token. Here a chat is rendered by the model's template and
cut by the `tokenizers` library, so that the gate counts with the model's files, as it does in front
of a real server, and what it counts can be compared. Arguments: the tokenizer's folder, how many
times faster than in life the time runs. Prints its URL; once its standard input is closed, what
became of the engine, as JSON.
"""

import asyncio
import json
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import tokenizers
from aiohttp import web

from gateway.tokens.files import read_files
from gateway.tokens.local import LocalCounter
from gateway.tokens.profile import profile_for
from gateway.twin import faces, tokenizer
from gateway.twin.profiles import L20X4
from gateway.twin.server import TwinServer

FOLDER = Path(sys.argv[1])
TURN = "<|im_start|>"  # an added token: what stands before and after it is merged apart

_files = read_files(FOLDER, None)
assert _files.text is not None
_local = LocalCounter(_files.text, _files.template, profile_for("0.5.17"))
_vocabulary = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


@lru_cache(maxsize=20_000)
def _ids(piece: str) -> bytes:
    return tokenizer.from_ids(_vocabulary.encode(piece, add_special_tokens=False).ids)


def _cut(text: str) -> bytes:
    first, *turns = text.split(TURN)
    return _ids(first) + b"".join(_ids(TURN + turn) for turn in turns)


def _chat(body: dict[str, Any]) -> bytes:
    text, continued = _local.rendered(body)
    return _cut(text) + (_cut(continued) if continued else b"")


def _render(messages: list[dict[str, Any]], tools: list[Any] | None = None) -> bytes:
    return _chat({"messages": messages, "tools": tools})


async def _tokenize(self: faces.Face, request: web.Request) -> web.Response:
    body = await request.json()
    cut = _cut(body["prompt"]) if "prompt" in body else _chat(body)
    count = tokenizer.count(cut)
    return web.json_response({"tokens": [], "count": count, "max_model_len": L20X4.context})


async def main() -> None:
    """Serve until standard input ends."""
    tokenizer.render = _render
    faces.Face.tokenize = _tokenize  # type: ignore[method-assign,assignment]
    async with TwinServer(L20X4, speed=float(sys.argv[2])) as twin:
        print(twin.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        print(json.dumps({"retractions": twin.retractions, "crashes": twin.crashes}), flush=True)


asyncio.run(main())
