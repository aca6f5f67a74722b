"""A client without sockets: answers as a server of a given profile would, on a virtual clock."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from typing import Any

from gateway.upstream.errors import Failure, UpstreamError
from tests.fakes import profile
from tests.fakes.profile import Profile, RankUse, Start


def refused() -> UpstreamError:
    return UpstreamError(Failure.CONNECT, "No connection.", sent=False, answered=False)


@dataclass(frozen=True)
class Scripted:
    """An answer; also the one way to say a status."""

    status: int = 200
    body: bytes = b"{}"

    async def read_all(self, limit: int) -> bytes:
        return self.body

    def close(self) -> None:
        """Nothing is held."""


def status(code: int) -> Scripted:
    return Scripted(code)


class ScriptedClient:
    """`mood` is up, refused, silent (accepts, says nothing) or frozen (the scheduler hangs).

    `override` gives single routes another answer: JSON, a `Scripted`, an exception, or a function
    that returns one of them or a wait. Asking two questions at once fails the test.
    """

    def __init__(self, **changes: Any) -> None:
        self.profile = Profile(**changes)
        self.boot = Start.of(self.profile)
        self.mood = "up"
        self.override: dict[str, Any] = {}
        self.use = [RankUse()] * self.profile.dp
        self.latency_s = 0.001
        self.asked: list[tuple[float, str]] = []
        self.headers: list[tuple[tuple[str, str], ...]] = []
        self.busy = False

    def times(self, path: str) -> list[float]:
        return [at for at, asked in self.asked if asked == path]

    def restart(self, **changes: Any) -> None:
        self.profile = replace(self.profile, **changes)
        self.boot = Start.of(self.profile)

    async def request(self, method, target, headers, body=b"") -> Scripted:
        assert not self.busy, f"{target} was asked while another question was open"
        assert method == "GET"
        self.busy = True
        path = target.partition("?")[0]
        self.asked.append((asyncio.get_running_loop().time(), path))
        self.headers.append(tuple(headers))
        try:
            return await self._answer(path)
        finally:
            self.busy = False

    async def _answer(self, path: str) -> Scripted:
        if self.mood == "refused":
            raise refused()
        if self.mood == "silent" or (self.mood == "frozen" and "server_info" in path):
            await asyncio.Event().wait()
        await asyncio.sleep(self.latency_s)
        answer = self.override[path] if path in self.override else self._body(path)
        if callable(answer):
            answer = answer()
        if asyncio.iscoroutine(answer):
            await answer
        if isinstance(answer, Exception):
            raise answer
        return (
            answer if isinstance(answer, Scripted) else Scripted(body=json.dumps(answer).encode())
        )

    def _body(self, path: str) -> Any:
        old = self.profile.number < (0, 5, 12)
        info = profile.server_info(self.profile, self.boot)
        model = profile.model_info(self.profile)
        bodies = {
            "/v1/models": profile.models(self.profile),
            "/get_server_info": info,
            "/get_model_info": model,
        }
        if old:
            bodies["/get_load"] = profile.get_load(self.use)
        else:
            bodies |= {
                "/server_info": info,
                "/model_info": model,
                "/v1/loads": profile.loads(self.profile, self.use),
            }
        return bodies.get(path, status(404))
