"""The client must behave on the stock event loop as on the one that is used."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import uvloop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pytest


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    stock = {"asyncio": asyncio.new_event_loop}
    if item.path.name.startswith("test_client"):
        return {**stock, "uvloop": uvloop.new_event_loop}
    return stock
