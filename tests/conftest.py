"""What every test relies on."""

from __future__ import annotations

import asyncio

from hypothesis import settings

# A loaded two-core machine makes single examples slow; the suite's own time limit bounds them.
settings.register_profile("kvgate", deadline=None)
settings.load_profile("kvgate")


def pytest_configure() -> None:
    """Say that there is no current event loop.

    The looptime plugin asks for it before each synchronous test; unless it has been set, asyncio
    then makes one that nobody closes, and some later test fails with the warning.
    """
    asyncio.set_event_loop(None)
