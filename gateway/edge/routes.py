"""What is let through. An allow-list: whatever is not here does not exist, the engine's admin
routes above all, whatever the method, the encoding of the path or an upgrade header says.

A path is compared byte for byte as it came. Nothing is decoded or normalised first, so there is no
second spelling of a route that the engine would understand and this table would not.
"""

from __future__ import annotations

from enum import StrEnum

from gateway.edge.dialects import Dialect
from gateway.edge.dialects.openai import Chat, Text
from gateway.edge.dialects.sglang import Generate


class Quick(StrEnum):
    """Routes that cost the engine no generation."""

    MODELS = "models"  # relayed from a server that is ready
    ALIVE = "alive"  # agents probe the root before they begin: answered here


Route = Dialect | Quick

ROUTES: dict[tuple[str, str], Route] = {
    ("POST", "/v1/chat/completions"): Chat(),
    ("POST", "/v1/completions"): Text(),
    ("POST", "/generate"): Generate(),
    ("GET", "/v1/models"): Quick.MODELS,
    ("GET", "/"): Quick.ALIVE,
    ("HEAD", "/"): Quick.ALIVE,
}

METHODS: dict[str, tuple[str, ...]] = {}
for _method, _path in ROUTES:
    METHODS[_path] = (*METHODS.get(_path, ()), _method)


def find(method: str, raw_path: str) -> Route | None:
    """The route of a request, or None where there is none."""
    return ROUTES.get((method, raw_path))
