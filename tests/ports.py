"""A port for a program that is told one and binds it later."""

from __future__ import annotations

import contextlib
import secrets
import socket

PORTS = range(20_000, 32_000)
"""Below those that kernels hand out for port 0 (Linux: from 32768): of these another test, which runs
beside, would have it by then. By `secrets`, as each test begins with the same `random`."""


def free_port() -> int:
    """One on loopback that nobody listens on."""
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
