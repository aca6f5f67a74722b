"""Who is calling, and what of it is theirs: their rule, their routes, their models by any name.

One value for each policy in force, so that a reload changes all of it at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from gateway.core.model import Code, Refusal
from gateway.edge.dialects.guard import untagged
from gateway.gate import Shed
from gateway.policy import routing
from gateway.policy.clients import Unauthorized

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aiohttp import web

    from gateway.core.model import ClientRule
    from gateway.edge.backend import Backend
    from gateway.edge.dialects import Body, Intent
    from gateway.policy.clients import Identify
    from gateway.policy.schema import Policy
    from gateway.tokens import Counted

T = TypeVar("T")


class Callers:
    """See the module. Refusals are raised as `Shed`."""

    def __init__(self, policy: Policy, identify: Identify, rules: dict[str, ClientRule]) -> None:
        self.rules = rules
        self._identify = identify
        self._aliases = policy.models
        self._rules = policy.routes
        self._routes = {c.name: frozenset[str](c.routes) for c in policy.clients if c.routes}
        self._models = {c.name: c.models for c in policy.clients if c.models}
        self._overflow = {c.name: c.overflow for c in policy.clients if c.overflow}
        told = [*self._overflow.values(), *(rule.overflow for rule in policy.routes)]
        self.trims_any = "trim" in told

    def who(self, request: web.BaseRequest) -> ClientRule:
        """The client's rule, where it is known and may call this route."""
        return self.rule(self.known(request), request.rel_url.raw_path)

    def rule(self, name: str, path: str) -> ClientRule:
        """The rule of a client that may call `path`."""
        allowed = self._routes.get(name)
        if allowed is not None and path not in allowed:
            raise _forbidden(name, "call this route", "call", sorted(allowed))
        return self.rules[name]

    def known(self, request: web.BaseRequest) -> str:
        """The client's name."""
        name = self._identify.resolve(request.headers, request.remote or "")
        if isinstance(name, Unauthorized):
            raise Shed(Refusal(Code.UNAUTHORIZED, name.message), None)
        return name

    def named(self, client: str, body: Body) -> Body:
        """A body with the name its model is served under, where the client may ask for it."""
        asked = body.get("model")
        models = self._served(client, asked)
        if not models:
            what = "use this model" if asked else "leave out which model it wants"
            raise _forbidden(client, what, "use", self._models[client])
        return body if models[0] == asked else {**body, "model": models[0]}

    def larger(self, client: str, body: Body) -> list[Body]:
        """`body` for each further model that its alias stands for, in order."""
        return [{**body, "model": model} for model in self._served(client, body.get("model"))[1:]]

    def _served(self, client: str, asked: object) -> tuple[object, ...]:
        """The models that a name stands for, as far as the client may ask for them."""
        names: tuple[object, ...] = (asked,)
        if isinstance(asked, str):
            plain = asked if asked in self._aliases else untagged(asked)
            names = self._aliases.get(plain, (plain,))
        allowed = self._models.get(client)
        if allowed is None or asked in allowed:
            return names
        return tuple(name for name in names if name in allowed)

    def routed(
        self,
        client: str,
        intent: Intent,
        counted: Counted,
        headers: Mapping[str, str],
        backends: list[Backend],
    ) -> list[Backend]:
        """Those of `backends`, all that have the model, to which the policy's rules send a request."""
        if not self._rules:
            return backends
        names = routing.servers(self._rules, _kind(client, intent, counted, headers))
        allowed = [one for one in backends if names is None or one.name in names]
        if not allowed:
            have = ", ".join(one.name for one in backends)
            words = f"its model is on {have}, and by the policy's routes it may only go to "
            raise Shed(Refusal(Code.FORBIDDEN, words + ", ".join(names or ())), None)
        return allowed

    def trims(
        self, client: str, intent: Intent, counted: Counted, headers: Mapping[str, str]
    ) -> bool:
        """Whether turns may go where a request does not fit: the client's word, else the route's."""
        told = self._overflow.get(client)
        if told is None:
            rule = routing.rule(self._rules, _kind(client, intent, counted, headers))
            told = None if rule is None else rule.overflow
        return told == "trim"

    def visible(
        self, client: str, models: dict[str, T], context: Callable[[T], int]
    ) -> dict[str, T]:
        """The models a client is shown: those it may ask for, under all their names."""
        shown = {}
        for name in [*models, *(alias for alias in self._aliases if alias not in models)]:
            found = [models[one] for one in self._served(client, name) if one in models]
            if found:
                shown[name] = max(
                    found, key=context
                )  # of an alias of several: the prompt goes where it fits
        return shown


def _kind(
    client: str, intent: Intent, counted: Counted, headers: Mapping[str, str]
) -> routing.Kind:
    """What rules look at."""
    images = bool(counted.images)
    return routing.Kind(client, intent.model, headers, counted.total, images, intent.stream)


def _forbidden(client: str, what: str, verb: str, allowed: Sequence[str]) -> Shed:
    words = f"client {client!r} may not {what}; it may {verb} {', '.join(allowed)}"
    return Shed(Refusal(Code.FORBIDDEN, words), None)
