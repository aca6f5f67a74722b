"""Fixtures: `rig`, a gate with no policy before a healthy engine; `start`, to make others."""

from __future__ import annotations

import io
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import structlog
import uvloop

from gateway.observe import log
from tests.edge.rig import running

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from pathlib import Path

    from tests.edge.rig import Rig


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that `kvgate serve` runs on: its timers and transports differ from the stock one's."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Everything that is logged, at the most talkative level."""
    monkeypatch.setattr(log, "_lines", log._lines)  # back to how an earlier test left it
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    stream = io.StringIO()
    log.configure("debug", stream)
    root.setLevel(logging.DEBUG)
    yield stream
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Any]:
    """`async with start(policy, **engine) as rig:`; see `rig.running`."""
    return partial(running, tmp_path)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """A gate that is ready, and at rest afterwards."""
    async with running(tmp_path) as one:
        yield one
