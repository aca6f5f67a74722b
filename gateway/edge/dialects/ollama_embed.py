"""Ollama's /api/embed and its older /api/embeddings, asked of the engine as /v1/embeddings.

The vectors are the engine's, digit by digit: they are cut out of its answer and not read, as a
thousand of them are megabytes of numbers and every stream would wait for that.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

import orjson

from gateway.edge import voices
from gateway.edge.dialects import FIRST, Body, Engine, Instead, Intent, Invalid, guard
from gateway.edge.dialects.ollama import model_in, text_in
from gateway.edge.dialects.prompts import Embeddings
from gateway.edge.dialects.teller import nanoseconds

if TYPE_CHECKING:
    from gateway.core.model import Grant
    from gateway.edge.dialects import Times

TARGET: Final = "/v1/embeddings"
EMBEDDINGS = Embeddings()

MOST_BYTES: Final = 64 << 20
"""Of one answer: 1,024 texts (`limits.max_prompts`) of 4,096 numbers, each of thirteen bytes, are 55 MB."""

_VECTOR: Final = re.compile(rb'"embedding"\s*:\s*\[')
_TOKENS: Final = re.compile(rb'"prompt_tokens"\s*:\s*(\d{1,15})\b')
_NO_NUMBERS: Final = (b'"', b"[", b"{", b"a", b"n", b"u")
"""One of these is in all that JSON has beside numbers, and in NaN and Infinity. Looking for six bytes
takes a fifth of the time of looking at each byte."""


class _Embed:
    """What both have in common. `many`: it takes a list of texts, and tells of a list of vectors."""

    voice: voices.Voice = voices.OLLAMA
    since = FIRST
    named = True
    steered = False
    many: ClassVar[bool]

    def read(self, body: Body) -> Intent:
        """See `Dialect.read`."""
        model = model_in(body)
        given = self._given(body)
        if not given:  # a client that wants the model loaded
            none = {"model": model or "", "embeddings": []} if self.many else {"embedding": []}
            known = orjson.dumps(none)
            return Intent(EMBEDDINGS.kind, 0, None, 1, stream=False, model=model, known=known)
        asked: Body = {"input": given}
        if model is not None:
            asked["model"] = model
        if self.many and (size := guard.whole(body.get("dimensions"), "dimensions")):
            asked["dimensions"] = size
        read = EMBEDDINGS.read(asked)
        number = read.prompts if self.many else None
        return replace(read, instead=Instead(TARGET, asked, partial(EmbedTeller, model, number)))

    def write(self, body: Body, intent: Intent, grant: Grant, rid: str, engine: Engine) -> bytes:
        """See `Dialect.write`."""
        return EMBEDDINGS.write(body, intent, grant, rid, engine)

    def _given(self, body: Body) -> str | list[str]:
        raise NotImplementedError


class OllamaEmbed(_Embed):
    """POST /api/embed: a text, or a list of them."""

    many = True

    def _given(self, body: Body) -> str | list[str]:
        given = body.get("input")
        if given is None or isinstance(given, str):
            return given or ""
        if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
            raise Invalid("input must be a text or a list of texts", "input")
        return given


class OllamaEmbeddings(_Embed):
    """POST /api/embeddings: the older one, one text."""

    many = False

    def _given(self, body: Body) -> str | list[str]:
        return text_in(body, "prompt")


class EmbedTeller:
    """See `Teller`. `number` is how many vectors there must be; None: one, and told as one."""

    most_bytes = MOST_BYTES

    def __init__(self, model: str | None, number: int | None, times: Times) -> None:
        self._model = model or ""
        self._number = number
        self._times = times

    def feed(self, data: bytes) -> bytes:  # noqa: ARG002 - nobody asks for a stream of vectors
        """See `Teller.feed`."""
        return b""

    def finish(self) -> bytes:
        """See `Teller.finish`."""
        return b""

    def whole(self, body: bytes) -> bytes | None:
        """See `Teller.whole`."""
        vectors: list[bytes] = []
        begins = end = 0
        while (head := _VECTOR.search(body, end)) is not None:
            begins = begins or head.start()
            end = body.find(b"]", head.end())
            vector = body[head.end() : end]
            if end < 0 or not vector or any(mark in vector for mark in _NO_NUMBERS):
                return None
            vectors.append(vector)
        if len(vectors) != (self._number or 1):
            return None
        if self._number is None:
            return b'{"embedding":[%b]}' % vectors[0]
        tokens = _TOKENS.search(body, end) or _TOKENS.search(body, 0, begins)
        times = self._times
        ending = {
            "total_duration": nanoseconds(times.now() - times.arrived),
            "load_duration": nanoseconds(times.granted - times.arrived),
            "prompt_eval_count": 0 if tokens is None else int(tokens[1]),
        }
        # Into the first and the last, so that all is put together once.
        vectors[0] = b'{"model":%b,"embeddings":[[%b' % (orjson.dumps(self._model), vectors[0])
        vectors[-1] += b"]],%b" % orjson.dumps(ending)[1:]
        return b"],[".join(vectors)
