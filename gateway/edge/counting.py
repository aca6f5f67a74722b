"""How long a prompt is: for admission, and for POST /v1/messages/count_tokens by the same counter.

On that route the engine is not asked for anything: where the gate has the model's tokenizer, not at
all, and else for the count that a request would have needed as well (0.5.12 and later; the route
there counts by the same way, on the engine's HTTP loop). Nothing is reserved, no record is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from gateway.edge import body as bodies
from gateway.edge import models
from gateway.edge.dialects import Intent, Invalid, anthropic, guard
from gateway.edge.voices import ANTHROPIC
from gateway.gate import Shed
from gateway.tokens import CountRefused, Kind

if TYPE_CHECKING:
    from gateway.edge.backend import Backend
    from gateway.edge.callers import Callers
    from gateway.edge.dialects import Body
    from gateway.edge.lobby import Lobby
    from gateway.policy.schema import Policy
    from gateway.tokens import Counted


METHOD = "x-kvgate-count-method"
"""How far the number is to be trusted: `exact` is the server's own, `estimate` close, `bound` never low."""


async def count(backends: list[Backend], kind: Kind, body: Body, size: int) -> Counted:
    """The count of the ready servers' model; the largest where models differ. `size` in bytes.

    Raises Invalid where there is no prompt to count, and Shed where no server is ready.
    """
    counters = {id(b.counter): b.counter for b in backends if b.ready and b.counter is not None}
    best: Counted | None = None
    try:
        for counter in counters.values():
            counted = await counter.count(kind, body, size)
            if best is None or counted.total > best.total:
                best = counted
    except CountRefused as refused:
        raise Invalid(str(refused)) from None
    if best is None:
        raise Shed(models.nobody(backends), None)
    return best


async def answer(
    request: web.BaseRequest,
    callers: Callers,
    policy: Policy,
    lobby: Lobby,
) -> web.StreamResponse:
    """The number of tokens. Raises nothing but cancellation."""
    try:
        rule = callers.who(request)
        data = await bodies.read(request, policy.limits.body_bytes, policy.limits.body_s)
        body = callers.named(rule.name, bodies.parse(data))
        intent = _intent(body)
        backends = await lobby.for_model(intent.model, rule, len(data))
        found = await count(backends, intent.kind, body, len(data))
        told = {"input_tokens": found.total}
        return web.json_response(told, headers={METHOD: found.method.value})
    except (Invalid, bodies.Unread, Shed) as error:
        return models.plain(models.no(error), ANTHROPIC)
    except RecursionError:
        return models.plain(models.no(Invalid(bodies.TOO_DEEP)), ANTHROPIC)
    except ConnectionError:
        return web.Response(status=models.GONE)


def _intent(body: Body) -> Intent:
    anthropic.check(body)
    model = guard.name(body.get("model"))
    return Intent(Kind.MESSAGES, cap=0, usual=None, n=1, stream=False, model=model)
