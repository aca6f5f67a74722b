"""Fixtures of the cases: the loop that `kvgate serve` runs on, and the world they are told in."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from tests.cases import world as worlds

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping
    from pathlib import Path


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Timers and transports of uvloop differ from the stock ones."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., Any]:
    """`async with world(policy, **engine) as rig:`; see `world.world`."""
    return partial(worlds.world, tmp_path)


@pytest.fixture
def two(tmp_path: Path) -> Callable[..., Any]:
    """`async with two(policy, **engine) as (rig, second):`; see `world.two_servers`."""
    return partial(worlds.two_servers, tmp_path)
