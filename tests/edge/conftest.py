"""Fixtures: `rig`, a gate with no policy before a healthy engine; `start`, to make others."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from tests.edge.rig import running

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from tests.edge.rig import Rig


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that `kvgate serve` runs on: its timers and transports differ from the stock one's."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Any]:
    """`async with start(policy, **engine) as rig:`; see `rig.running`."""
    return partial(running, tmp_path)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """A gate that is ready, and at rest afterwards."""
    async with running(tmp_path) as one:
        yield one
