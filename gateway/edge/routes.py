"""What is let through. An allow-list: whatever is not here does not exist, the engine's admin
routes above all, whatever the method, the encoding of the path or an upgrade header says.

A path is compared byte for byte as it came. Nothing is decoded or normalised first, so there is no
second spelling of a route that the engine would understand and this table would not. What follows
`/v1/models/` is a name that is looked for in a list here, and never goes on to an engine.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from gateway.edge.dialects import Dialect
from gateway.edge.dialects.anthropic import Messages
from gateway.edge.dialects.ollama import OllamaChat, OllamaGenerate
from gateway.edge.dialects.ollama_embed import OllamaEmbed, OllamaEmbeddings
from gateway.edge.dialects.openai import Chat, Text
from gateway.edge.dialects.prompts import Classify, Embeddings, Rerank, Score
from gateway.edge.dialects.responses import Responses
from gateway.edge.dialects.sglang import Generate
from gateway.edge.voices import ANTHROPIC, OLLAMA, OPENAI, Voice

if TYPE_CHECKING:
    from aiohttp import web


class Quick(StrEnum):
    """Routes that cost the engine no generation."""

    MODELS = "models"  # the list of those that are served, or one of them: see `models`
    COUNT = "count"  # Anthropic's count of a prompt: the gate's own counter answers
    ALIVE = "alive"  # agents probe the root before they begin: answered here
    TAGS = "tags"  # Ollama's list of models, as the three below: see `catalogue`
    PS = "ps"  # those that are loaded, which all are
    SHOW = "show"  # what one of them can do
    VERSION = "version"


Route = Dialect | Quick

ROUTES: dict[tuple[str, str], Route] = {
    ("POST", "/v1/chat/completions"): Chat(),
    ("POST", "/v1/completions"): Text(),
    ("POST", "/generate"): Generate(),
    ("POST", "/v1/messages"): Messages(),
    ("POST", "/v1/messages/count_tokens"): Quick.COUNT,
    ("POST", "/v1/responses"): Responses(),
    ("POST", "/v1/embeddings"): Embeddings(),
    ("POST", "/v1/classify"): Classify(),
    ("POST", "/v1/score"): Score(),
    ("POST", "/v1/rerank"): Rerank(),
    ("POST", "/api/chat"): OllamaChat(),
    ("POST", "/api/generate"): OllamaGenerate(),
    ("POST", "/api/embed"): OllamaEmbed(),
    ("POST", "/api/embeddings"): OllamaEmbeddings(),
    ("GET", "/api/tags"): Quick.TAGS,
    ("GET", "/api/ps"): Quick.PS,
    ("POST", "/api/show"): Quick.SHOW,
    ("GET", "/api/version"): Quick.VERSION,
    ("GET", "/v1/models"): Quick.MODELS,
    ("GET", "/"): Quick.ALIVE,
    ("HEAD", "/"): Quick.ALIVE,
}

MODEL = "/v1/models/"
"""Begins the one path that does not stand in the table: a model's name, with slashes or without."""

METHODS: dict[str, tuple[str, ...]] = {}
for _method, _path in ROUTES:
    METHODS[_path] = (*METHODS.get(_path, ()), _method)

DEEPEST = max(path.count("/") for path in METHODS)
"""Pieces of the longest path: more of one are not looked at, which may have thousands."""


def methods(raw_path: str) -> tuple[str, ...]:
    """The methods of the route at a path; none where there is no route."""
    return METHODS.get(raw_path) or (("GET",) if _names_a_model(raw_path) else ())


def voice(raw_path: str) -> Voice:
    """How errors are told where there is no route."""
    if raw_path.startswith("/v1/messages"):
        return ANTHROPIC
    return OLLAMA if raw_path.startswith("/api/") else OPENAI


def find(method: str, raw_path: str) -> Route | None:
    """The route of a request, or None where there is none."""
    if method == "GET" and _names_a_model(raw_path):
        return Quick.MODELS
    return ROUTES.get((method, raw_path))


def by_websocket(request: web.BaseRequest) -> bool:
    """Whether a route that is here is asked to be spoken with by a websocket."""
    wanted = request.headers.get("upgrade", "").lower()
    return (
        request.method == "GET"
        and wanted == "websocket"
        and bool(methods(request.rel_url.raw_path))
    )


def why_not(raw_path: str) -> str:
    """What is said where there is none."""
    if taken := methods(raw_path):
        return f"this route takes {' and '.join(taken)}"
    near = _meant(raw_path)
    return f"there is no such route here{f'; do you mean {near}?' if near else ''}"


def _meant(raw_path: str) -> str | None:
    """The route that a base address with a /v1 too few or too many, or a slash, missed. Only to be told."""
    pieces = [piece for piece in raw_path.split("/") if piece][-DEEPEST:]
    for start in range(len(pieces)):
        rest = "/".join(pieces[start:])
        for path in (f"/{rest}", f"/v1/{rest}"):
            if path in METHODS:
                return path
    return None


def _names_a_model(raw_path: str) -> bool:
    return raw_path.startswith(MODEL) and raw_path != MODEL
