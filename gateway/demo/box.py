"""The dual-3090 box: two servers, one on each card, that die and come back as the real ones did."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.twin.process import Life
from gateway.twin.profiles import RTX3090_GPU0, RTX3090_GPU1
from gateway.twin.server import TwinServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CARDS = {"gpu0": RTX3090_GPU0, "gpu1": RTX3090_GPU1}


@dataclass(frozen=True, slots=True)
class Death:
    """A server died. Box seconds."""

    server: str
    at: float
    back_at: float
    reason: str
    in_flight: int


@dataclass(frozen=True, slots=True)
class Box:
    """The servers by name."""

    servers: dict[str, TwinServer]

    def deaths(self) -> list[Death]:
        """Every death so far, by time."""
        return sorted(
            (
                Death(
                    name, died.at, died.at + server.process.restart_s, died.reason, died.in_flight
                )
                for name, server in self.servers.items()
                for died in server.process.deaths
            ),
            key=lambda death: death.at,
        )

    def down_s(self, until: float) -> float:
        """Server seconds of no service before `until`, both servers added up."""
        return sum(max(0.0, min(death.back_at, until) - death.at) for death in self.deaths())

    @property
    def retractions(self) -> int:
        """Requests thrown out of memory half done."""
        return sum(server.retractions for server in self.servers.values())

    @property
    def peak_waiting(self) -> int:
        """Longest queue inside an engine."""
        return max(server.peak_waiting for server in self.servers.values())

    def state(self) -> str:
        """Both servers in a few words."""
        return ", ".join(f"{name} {_state(server)}" for name, server in self.servers.items())


def _state(server: TwinServer) -> str:
    if server.process.life is not Life.READY:
        return "DOWN"
    engine = server.engine
    return f"{engine.used / engine.pool.capacity:4.0%} full"


@contextlib.asynccontextmanager
async def powered(speed: float, seed: int) -> AsyncIterator[Box]:
    """A box that has just been started, listening on free ports of 127.0.0.1."""
    async with contextlib.AsyncExitStack() as stack:
        servers = {
            name: await stack.enter_async_context(TwinServer(card, speed=speed, seed=seed))
            for name, card in CARDS.items()
        }
        yield Box(servers)
