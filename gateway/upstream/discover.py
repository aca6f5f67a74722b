"""Ask a server who it is: at each of its starts, never twice at once, never for ever.

Three questions, cheapest first. /v1/models is answered by the HTTP process alone, so it tells an
absent, a loading and a locked server apart without touching the scheduler. /server_info goes
through the scheduler (it waits up to one forward step, and for ever behind a hung one; 0.5.6
serialises such calls and does not survive a cancelled one well), so it is asked last but one, once,
under a time limit. /model_info only adds what nothing else says; the facts stand without it.
"""

from __future__ import annotations

import asyncio
from typing import Literal, NoReturn

from gateway.tasks import spawn
from gateway.upstream.ask import Asker, AskError, Headers, Wrong, ask, bearer, read
from gateway.upstream.facts import (
    NotSGLangError,
    ServerFacts,
    Version,
    parse_adapters,
    parse_server,
)
from gateway.upstream.fields import as_dict
from gateway.upstream.loads import LoadsFacts, parse_loads
from gateway.upstream.scrape import RankSignals, parse_metrics

Kind = Literal[
    "unreachable", "no_way", "tls", "starting", "hung", "not_sglang", "unauthorized", "ours"
]

V1_LOADS_SINCE: Version = (0, 5, 12)
"""Before: /get_load. It was dropped in 0.5.23."""

SNAPSHOT_SINCE: Version = (0, 5, 17)
"""From here /v1/loads reads shared memory; before, it asks the scheduler."""

METRICS_LIMIT = 4 << 20
"""Bytes. /metrics of a small server is 150 kB (0.5.23); each rank and each priority adds to it."""


class DiscoveryError(Exception):
    """The server could not be used. The message is for people: what was seen, what to do."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind: Kind = kind


_flying: dict[int, asyncio.Task[ServerFacts | DiscoveryError]] = {}
"""The discovery under way, by the client's id; whoever asks meanwhile shares its answer. A task
holds its client, so an id cannot pass to another client while it is here."""


async def discover(client: Asker, *, api_key: str | None, timeout_s: float) -> ServerFacts:
    """Everything the server says about itself. `timeout_s` limits each of up to five requests.

    Concurrent calls for one client share one set of requests (and the first one's arguments); a
    caller that is cancelled does not take it away from the others.
    Raises DiscoveryError.
    """
    task = _flying.get(id(client))
    if task is None:
        task = spawn(_outcome(client, bearer(api_key), timeout_s), "discover")
        _flying[id(client)] = task
        task.add_done_callback(lambda _: _flying.pop(id(client)))
    outcome = await asyncio.shield(task)
    if isinstance(outcome, DiscoveryError):
        raise outcome
    return outcome


async def loads(
    client: Asker, version: Version | None, *, api_key: str | None, timeout_s: float
) -> LoadsFacts | None:
    """What the server holds now; None where it does not say. Raises AskError.

    A server of unknown version is asked as a recent one.
    """
    recent = version is None or version >= V1_LOADS_SINCE
    target = "/v1/loads?include=core" if recent else "/get_load"
    try:
        body = await ask(client, target, bearer(api_key), timeout_s=timeout_s)
    except AskError as error:
        if error.status in _MISSING:
            return None
        raise
    return parse_loads(body)


async def metrics(
    client: Asker, version: Version | None, *, api_key: str | None, timeout_s: float
) -> dict[int, RankSignals]:
    """What the server's metrics say of each rank. Raises AskError. No trip to the scheduler."""
    headers = bearer(api_key)
    body = await read(client, "/metrics", headers, timeout_s=timeout_s, limit=METRICS_LIMIT)
    return parse_metrics(body, version)


async def adapters(client: Asker, *, api_key: str | None, timeout_s: float) -> tuple[str, ...]:
    """The LoRA adapters that it lists now: they come and go while it runs. Raises AskError."""
    return parse_adapters(await ask(client, "/v1/models", bearer(api_key), timeout_s=timeout_s))


async def generates(client: Asker, *, api_key: str | None, timeout_s: float) -> bool:
    """Whether the server made a token for /health in time (by default that is what it does).

    Only a yes means something: behind one long prefill a healthy server says no (0.5.6-0.5.23).
    """
    try:
        await ask(client, "/health", bearer(api_key), timeout_s=timeout_s)
    except AskError as error:
        return error.wrong is Wrong.GARBLED  # a 200 with an empty body is no JSON
    return True


async def _outcome(
    client: Asker, headers: Headers, timeout_s: float
) -> ServerFacts | DiscoveryError:
    """An error is a value here: those who wait raise it, and nobody else needs to hear of it."""
    try:
        return await _discover(client, headers, timeout_s)
    except DiscoveryError as error:
        return error


async def _discover(client: Asker, headers: Headers, timeout_s: float) -> ServerFacts:
    models = await _ask(client, ("/v1/models",), headers, timeout_s)
    if "data" not in as_dict(models):
        raise DiscoveryError("not_sglang", f"/v1/models lists no models; {_CHECK_URL}")
    info = await _ask(client, ("/server_info", "/get_server_info"), headers, timeout_s)
    try:
        model_info = await _ask(client, ("/model_info", "/get_model_info"), headers, timeout_s)
    except DiscoveryError:
        model_info = None
    try:
        return parse_server(info, models, model_info)
    except NotSGLangError as error:
        raise DiscoveryError("not_sglang", str(error)) from error


async def _ask(
    client: Asker, targets: tuple[str, ...], headers: Headers, timeout_s: float
) -> object:
    """The JSON of the first target the server knows: a newer name first, its older one after."""
    for target in targets:
        try:
            return await ask(client, target, headers, timeout_s=timeout_s)
        except AskError as error:
            if error.status in _MISSING and target is not targets[-1]:
                continue
            _explain(error, target, timeout_s)
    raise AssertionError("targets is never empty")


_MISSING = (404, 405)
_LOCKED = (401, 403)
_SERVER_ERROR = 500
_CHECK_URL = "check that the backend's url is an SGLang server's own"


def _explain(error: AskError, target: str, timeout_s: float) -> NoReturn:
    """Say in words what a failed question means, and what to do about it."""
    through_scheduler = "server_info" in target
    kind: Kind
    if error.status in _LOCKED:
        kind = "unauthorized"
        said = f"{target} wants a key (status {error.status}); give the backend SGLang's --api-key"
    elif error.status is not None and error.status >= _SERVER_ERROR:
        kind = "starting"
        said = f"{target} answers {error.status}: still loading; if that lasts, look at its log"
    elif error.status is not None:
        kind = "not_sglang"
        said = f"{target} answers {error.status}; {_CHECK_URL}"
    elif error.wrong is Wrong.SILENT and through_scheduler:
        kind = "hung"
        said = (
            f"its HTTP side answers but its scheduler was silent for {timeout_s:g} s; "
            "if that lasts, look at its log and restart it"
        )
    elif error.wrong is Wrong.SILENT:
        kind = "hung"
        said = (
            f"it accepts connections but was silent for {timeout_s:g} s; "
            "it is dying, stopped, or something else listens on that port"
        )
    elif error.wrong is Wrong.GARBLED:
        kind = "not_sglang"
        said = f"{target} does not answer in JSON; {_CHECK_URL}"
    elif error.wrong is Wrong.OURS:
        kind = "ours"
        said = str(error).rstrip(".")
    elif error.wrong is Wrong.NO_WAY:
        kind = "no_way"
        said = (
            f"{str(error).rstrip('.')}; look at the network, the name server and the machine, or "
            "check the backend's url"
        )
    elif error.wrong is Wrong.TLS:
        kind = "tls"
        said = (
            f"{str(error).rstrip('.')}; look at the certificate of the backend's url (authorities of "
            "your own: SSL_CERT_FILE)"
        )
    else:
        kind = "unreachable"
        said = f"{str(error).rstrip('.')}; start the server, or check the backend's url"
    raise DiscoveryError(kind, said) from error
