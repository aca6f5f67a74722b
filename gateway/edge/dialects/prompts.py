"""Routes that read a prompt and generate nothing: embeddings, classify, score, rerank.

They reserve what their prompts take, each in whole pages, and no output. Each text of a list is a
prompt of its own to the engine; for score and rerank each item or document is one, with the query in
front of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.edge import voices
from gateway.edge.dialects import FIRST, Body, Engine, Intent, Invalid, guard, hazards
from gateway.tokens import Kind

if TYPE_CHECKING:
    from gateway.core.model import Grant


class _Prompts:
    """What they have in common. `field` holds the prompts, or what each prompt ends with."""

    voice: voices.Voice = voices.OPENAI
    since = FIRST
    steered = False  # no field, and the header is not read (0.5.6-0.5.23)
    named = False
    kind: Kind
    field: str
    needs: tuple[str, ...] = ()

    def read(self, body: Body) -> Intent:
        """See `Dialect.read`."""
        guard.check(body)
        for field in (*self.needs, self.field):
            if body.get(field) is None:
                msg = f"{field} is missing"
                raise Invalid(msg, field)
        given = body[self.field]
        return Intent(
            kind=self.kind,
            cap=0,
            usual=None,
            n=1,
            stream=False,
            model=guard.name(body.get("model")),
            prompts=self._number(given),
        )

    def write(self, body: Body, intent: Intent, grant: Grant, rid: str, engine: Engine) -> bytes:  # noqa: ARG002
        """See `Dialect.write`."""
        out = guard.strip(body)
        if self.named:
            out["rid"] = _rids(out[self.field], rid)
        return guard.dump(out)

    def _number(self, given: object) -> int:
        return guard.prompts(given)


PARTS = ("text", "image", "video")
"""What an item may hold that is no text."""


class Embeddings(_Prompts):
    """POST /v1/embeddings."""

    kind = Kind.INPUT
    field = "input"
    named = True

    def read(self, body: Body) -> Intent:
        """See `Dialect.read`."""
        if body.get("embed_overrides") is not None:
            raise Invalid(
                "embed_overrides: vectors in a prompt can not be counted", "embed_overrides"
            )
        given = body.get("input")
        for item in given if isinstance(given, list) else ():
            if isinstance(item, dict) and all(item.get(part) is None for part in PARTS):
                msg = f"an item of input must have a {', or a '.join(PARTS)}"  # else a 500
                raise Invalid(msg, "input")
        return super().read(body)

    def _number(self, given: object) -> int:
        items = isinstance(given, list) and bool(given) and isinstance(given[0], dict)
        return len(given) if items and isinstance(given, list) else super()._number(given)


class Classify(_Prompts):
    """POST /v1/classify."""

    kind = Kind.INPUT
    field = "input"
    named = True


QUIET = frozenset({"score", "rerank", "embeddings", "classify", "ollamaembed", "ollamaembeddings"})
"""Dialects that ask a server for no words."""


class _Scored(_Prompts):
    """A server that generates makes scores of the log-probabilities of tokens that are named to it, and
    that is what ends some of them beside anything else: a score and a chat in one step at a genuine 0.5.17.
    One that is asked for scores alone makes as many as it can.
    """

    def write(self, body: Body, intent: Intent, grant: Grant, rid: str, engine: Engine) -> bytes:
        """See `Dialect.write`."""
        if engine.talks and hazards.names_kill(engine):
            version = ".".join(map(str, engine.version))
            msg = (
                f"scores end SGLang {version} when anything else runs beside them, and this server is asked "
                "for words as well; use one that is for scores alone, or 0.5.23"
            )
            raise Invalid(msg)
        return super().write(body, intent, grant, rid, engine)


class Score(_Scored):
    """POST /v1/score: the query with each item."""

    kind = Kind.SCORE
    field = "items"
    needs = ("query",)


class Rerank(_Scored):
    """POST /v1/rerank: the query with each document, in the reranker's template."""

    kind = Kind.RERANK
    field = "documents"
    needs = ("query",)

    def _number(self, given: object) -> int:
        return max(1, len(given)) if isinstance(given, list) else 1


def _rids(given: object, rid: str) -> str | list[str]:
    """One id for a prompt, a list of them for a list of prompts. A single object in a list is a prompt that is no
    list to the engine, which then trips over a list of ids: a bare 500 (0.5.6-0.5.23)."""
    if not isinstance(given, list) or not given or isinstance(given[0], int | float):
        return rid
    if len(given) == 1 and isinstance(given[0], dict):
        return rid
    return [f"{rid}_{i}" for i in range(len(given))]
