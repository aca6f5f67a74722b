"""One event loop that outlives the session, for plugins that ask for a loop in plain tests.

looptime's plugin calls `get_event_loop()` around every test, sync ones included; the loop made for
it there is dropped, unclosed, by the next async test, which our warnings-are-errors turns into a
failure of whatever test runs then.
"""

import asyncio

import pytest


@pytest.fixture(scope="session", autouse=True)
def _a_loop_to_find():
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()
