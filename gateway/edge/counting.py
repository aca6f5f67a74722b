"""How long a prompt is: for admission, and for POST /v1/messages/count_tokens by the same counter.

On that route the engine is not asked for anything: where the gate has the model's tokenizer, not at
all, and else for the count that a request would have needed as well (0.5.12 and later; the route
there counts by the same way, on the engine's HTTP loop). Nothing is reserved, no record is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from gateway.core.model import Code, Refusal
from gateway.edge import body as bodies
from gateway.edge import models
from gateway.edge.dialects import Intent, Invalid, anthropic, guard
from gateway.edge.voices import ANTHROPIC
from gateway.gate import Shed
from gateway.tokens import Busy, CountRefused, Kind

if TYPE_CHECKING:
    from collections.abc import Hashable

    from gateway.edge.backend import Backend
    from gateway.edge.callers import Callers
    from gateway.edge.dialects import Body
    from gateway.edge.lobby import Lobby
    from gateway.policy.schema import Policy
    from gateway.tokens import Counted, Counter, Known


METHOD = "x-kvgate-count-method"
"""How far the number is to be trusted: `exact` is the server's own, `estimate` close, `bound` never low."""


A_TURN_S = 0.25
"""How long a turn at being counted is taken to be where a client is told when to come back, seconds: a text
of 250,000 tokens takes 0.05 to 0.2, and others have their turns in between. Of what was not counted nobody
knows how long it is."""


async def count(backends: list[Backend], kind: Kind, body: Body, size: int, client: str) -> Counted:
    """The count of the ready servers' model; the largest where models differ. `size` in bytes.
    Of servers that count alike one is asked: eight would count each prompt eight times.

    Raises Invalid where there is no prompt to count, and Shed where no server is ready, or where too
    much of this client waits to be counted.
    """
    counters: dict[Hashable, Counter] = {}
    for backend in backends:
        if backend.ready and backend.counter is not None:
            counters.setdefault(backend.counter.kin, backend.counter)
    known: Known | None = {} if len(counters) > 1 else None
    best: Counted | None = None
    try:
        for counter in counters.values():
            counted = await counter.count(kind, body, size, client, known=known)
            if best is None or counted.total > best.total:
                best = counted
    except CountRefused as refused:
        raise Invalid(str(refused)) from None
    except Busy as busy:
        raise Shed(_too_much(client, busy.waiting), None) from None
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
        data = await lobby.turnstile.read(request, rule.name, policy.limits)
        body = callers.named(rule.name, bodies.parse(data))
        intent = _intent(body)
        backends = await lobby.for_model(intent.model, rule, len(data))
        found = await count(backends, intent.kind, body, len(data), rule.name)
        told = {"input_tokens": found.total}
        return web.json_response(told, headers={METHOD: found.method.value})
    except (Invalid, bodies.Unread, Shed) as error:
        return models.plain(models.no(error), ANTHROPIC)
    except RecursionError:
        return models.plain(models.no(Invalid(bodies.TOO_DEEP)), ANTHROPIC)
    except ConnectionError:
        return web.Response(status=models.GONE)


def _too_much(client: str, waiting: int) -> Refusal:
    """The refusal of what stands behind others of its own client: the more these are, the later the time."""
    words = (
        f"{waiting} large requests of client {client!r} wait to be counted, and this one cannot be "
        "counted in time; others' are counted meanwhile"
    )
    return Refusal(Code.CLIENT_LIMIT, words, retry_after_s=A_TURN_S * (waiting + 1))


def _intent(body: Body) -> Intent:
    anthropic.check(body)
    model = guard.name(body.get("model"))
    return Intent(Kind.MESSAGES, cap=0, usual=None, n=1, stream=False, model=model)
