"""The gate of the second act: the product itself, with the policy of the dual-3090 box."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from gateway.app import App
from gateway.demo.crowd import AGENTS, HEADER, PEOPLE
from gateway.policy.schema import Backend, Client, HeaderMatch, Policy, Queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from gateway.twin.server import TwinServer

MAX_OUTPUT = {"gpu0": 16_384, "gpu1": 32_000}
"""As in policies/dual-3090.yaml: what the box's owner settled on."""

MAX_REQUESTS = 32
MAX_WAIT_S = 120.0
"""As there; in box seconds."""

READY_S = 10.0
"""The servers are up already; discovery asks each a handful of questions on loopback."""

DRAIN_S = 0.5
"""Everybody has left when the gate is stopped."""


def policy_for(servers: Mapping[str, TwinServer], speed: float) -> Policy:
    """policies/dual-3090.yaml with these URLs, free ports, and two clients told apart by a header."""
    return Policy(
        backends=tuple(
            Backend(name=name, url=server.url, max_output_tokens=MAX_OUTPUT[name])
            for name, server in servers.items()
        ),
        clients=tuple(
            Client(name=team, header=(HeaderMatch(name=HEADER, value=team),))
            for team in (PEOPLE, AGENTS)
        ),
        reservation="declared",
        queue=Queue(max_requests=MAX_REQUESTS, max_wait_s=MAX_WAIT_S / speed),
        listen="127.0.0.1:0",
        control="127.0.0.1:0",
        drain_s=DRAIN_S,
    )


@contextlib.asynccontextmanager
async def gate(policy: Policy) -> AsyncIterator[App]:
    """A gate that takes work. Raises TimeoutError if its servers do not get ready."""
    app = App(policy)
    await app.start()
    try:
        async with asyncio.timeout(READY_S):
            while not all(backend.ready for backend in app.fleet):  # noqa: ASYNC110 - once, briefly
                await asyncio.sleep(0.02)
        yield app
    finally:
        await app.stop()
