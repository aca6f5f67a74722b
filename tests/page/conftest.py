"""The gate of the edge's tests, with its page."""

from __future__ import annotations

from tests.edge.conftest import pytest_asyncio_loop_factories, rig, start

__all__ = ["pytest_asyncio_loop_factories", "rig", "start"]
