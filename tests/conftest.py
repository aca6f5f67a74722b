"""What every test relies on."""

from __future__ import annotations

import asyncio
import gc

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import engine

# Before anybody imports it: asserts in the rig should show their values, as those of tests do.
pytest.register_assert_rewrite("tests.edge.rig")

# A loaded two-core machine makes single examples slow; the suite's own time limit bounds them. Half of
# Hypothesis' own number of examples each time, of which no two runs have the same; `make test-slow`
# goes through the same tests with six times as many.
settings.register_profile("kvgate", deadline=None, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=300)
settings.load_profile("kvgate")  # --hypothesis-profile says otherwise

# A failure is told within a minute: of Hypothesis' own five minutes for a shorter example, the suite's
# time limit would end most, and then no example is shown at all.
engine.MAX_SHRINKING_SECONDS = 20


def pytest_configure() -> None:
    """Say that there is no current event loop.

    The looptime plugin asks for it before each synchronous test; unless it has been set, asyncio
    then makes one that nobody closes, and some later test fails with the warning.
    """
    asyncio.set_event_loop(None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the slow ones those that may take longest first, so that none is left alone at the end."""
    items.sort(key=_limit, reverse=True)


def _limit(item: pytest.Item) -> float:
    own = item.get_closest_marker("timeout")
    return own.args[0] if own and item.get_closest_marker("slow") else 0


def pytest_collection_finish() -> None:
    """Leave what was collected, and all that was imported, out of later garbage collections.

    It stays to the end; to go through it again and again took an eighth of the processor time.
    """
    gc.collect()
    gc.freeze()
