"""What Ollama's clients ask before they chat: which models there are, what one can do, which version.

The gate answers from what it knows of its servers: names, contexts, and with which parsers they were
started. What Ollama knows of files (sizes, dates, quantisation) is not known here and is told as
nothing.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from gateway.edge import body as bodies
from gateway.edge import models, replies
from gateway.edge.dialects import Invalid, guard
from gateway.edge.routes import Quick
from gateway.edge.voices import OLLAMA
from gateway.gate import Shed

if TYPE_CHECKING:
    from gateway.edge.backends import Fleet
    from gateway.edge.callers import Callers
    from gateway.edge.dialects import Body
    from gateway.upstream.facts import ServerFacts

VERSION: Final = "0.12.6"
"""The Ollama whose API this is: thoughts, schemas, names of tools in results. Clients refuse older ones
than they need (VS Code asks for 0.6.4)."""

SHOW_BYTES: Final = 64 * 1024
"""Largest question about one model; it has a name in it."""

SHOW_S: Final = 10.0
"""How long that question may take to come, seconds."""

NO_DATE: Final = "1970-01-01T00:00:00Z"
NEVER: Final = "9999-12-31T23:59:59Z"
"""When a model is unloaded: not as long as its server runs."""


async def answer(
    quick: Quick, request: web.BaseRequest, callers: Callers, fleet: Fleet
) -> web.StreamResponse:
    """The answer to one of these routes. Raises nothing but cancellation."""
    if quick is Quick.VERSION:
        return web.json_response({"version": VERSION})
    try:
        known = callers.visible(callers.known(request), _served(fleet), lambda facts: facts.context)
        if quick is not Quick.SHOW:
            listed = _loaded if quick is Quick.PS else _listed
            return web.json_response({"models": [listed(*one) for one in known.items()]})
        asked = _asked(bodies.parse(await bodies.read(request, SHOW_BYTES, SHOW_S)))
    except (Invalid, bodies.Unread, Shed) as error:
        return models.plain(models.no(error), OLLAMA)
    except ConnectionError:
        return web.Response(status=models.GONE)
    for name in (asked, guard.untagged(asked)):
        if name in known:
            return web.json_response(_shown(known[name]))
    return models.plain(_unknown(asked), OLLAMA)


def _served(fleet: Fleet) -> dict[str, ServerFacts]:
    """Each model with the facts of that server whose context is the largest. Raises Shed."""
    found: dict[str, ServerFacts] = {}
    ready = [backend for backend in fleet if backend.ready]
    if not ready:
        raise Shed(models.nobody(fleet), None)
    for backend in ready:
        if (facts := backend.facts) is None:
            continue
        for name in facts.models:
            if name not in found or found[name].context < facts.context:
                found[name] = facts
    return found


def _tagged(name: str) -> str:
    """Ollama's clients put `:latest` behind a name without a tag, and look for that in the list."""
    return name if ":" in name else f"{name}:latest"


def _listed(name: str, facts: ServerFacts) -> Body:
    name = _tagged(name)
    return {
        "name": name,
        "model": name,
        "modified_at": NO_DATE,
        "size": 0,
        "digest": hashlib.sha256(name.encode()).hexdigest(),
        "details": _details(facts),
    }


def _loaded(name: str, facts: ServerFacts) -> Body:
    entry = _listed(name, facts)
    del entry["modified_at"]
    return {**entry, "expires_at": NEVER, "size_vram": 0, "context_length": facts.context}


def _shown(facts: ServerFacts) -> Body:
    family = facts.model_type or "unknown"
    can = {
        "completion": facts.is_generation,
        "embedding": not facts.is_generation,
        "vision": facts.has_images,
        "tools": bool(facts.tool_parser),
        "thinking": facts.thinks_apart,
    }
    return {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "modified_at": NO_DATE,
        "details": _details(facts),
        "model_info": {"general.architecture": family, f"{family}.context_length": facts.context},
        "capabilities": [name for name, can_do in can.items() if can_do],
    }


def _details(facts: ServerFacts) -> dict[str, Any]:
    family = facts.model_type
    return {
        "parent_model": "",
        "format": "",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": "",
        "quantization_level": "",
    }


def _asked(body: Body) -> str:
    name = guard.name(body.get("model")) or guard.name(body.get("name"))  # its older word
    if name is None:
        raise Invalid("model is missing", "model")
    return name


def _unknown(name: str) -> replies.Answer:
    error = {"message": f"model '{name}' not found", "code": "not_found", "param": "model"}
    return replies.Answer(404, error, {replies.SOURCE: "gateway"})
