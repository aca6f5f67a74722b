"""A gate that stays up for all examples of a test, before a server that answers anything.

Hypothesis calls a plain function for each example, so the loop is driven from outside: `Host.check`
runs one example to its end, and then nothing may be left of it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from hypothesis import HealthCheck, Phase, given, settings

from gateway.core.model import Outcome
from gateway.edge import handler
from tests.edge import rig as rigs
from tests.fakes import dialects
from tests.fakes.sglang import FakeSGLang

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from hypothesis import strategies as st

    from tests.edge.rig import Rig
    from tests.fakes.http1 import Received, Wire

HANG_S = 10.0
"""An example that is not over by then hangs: every limit of the fuzzed gate is below."""

POLICY = {
    "limits": {
        "first_byte_s": 1,
        "answer_s": 1,
        "idle_s": 1,
        "connect_s": 1,
        "release_grace_s": 0.2,
        "body_bytes": 1 << 20,
    },
    "queue": {"max_wait_s": 1},
    "observe": {"recent": 5},
}

QUICK, LONG = 20, 1500
"""Examples in the default suite, and among the slow tests."""

WAITING = 500
"""The same where a server lets us wait: a seventh of a second each, on the mean."""

EXAMPLES = [
    pytest.param(QUICK, id="quick"),
    pytest.param(LONG, id="long", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
]
FEWER = [
    EXAMPLES[0],
    pytest.param(WAITING, id="long", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
]


class Anything(FakeSGLang):
    """A server that takes every body and remembers it; `answer` is what it sends back."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(**changes)
        self.answer: bytes | None = None
        self.bodies: list[Any] = []

    async def _generate(self, wire: Wire, received: Received) -> None:
        self.bodies.append(json.loads(received.body))
        if self.answer is not None:
            await wire.send(self.answer)
            wire.close()
            return
        said = {"index": 0, "finish_reason": "stop", "text": "w", "message": {"content": "w"}}
        await wire.answer(200, json.dumps({"choices": [said]}).encode())

    def _tokenize(self, body: Any) -> tuple[int, Any]:
        try:
            return 200, {"count": dialects.count(body)}
        except Exception:  # noqa: BLE001 - what a body it cannot read is to a real server
            return 400, {"message": "no"}


class Host:
    """The gate under fuzz."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rig: Rig) -> None:
        self.loop = loop
        self.rig = rig
        self.ends: Counter[str] = Counter()
        self.last: Any = None
        tell = rig.app.journal.request

        def told(record: Any) -> None:
            self.ends[record.id] += 1
            self.last = record
            tell(record)

        rig.app.journal.request = told  # type: ignore[method-assign]

    @property
    def engine(self) -> Anything:
        engine = self.rig.engine
        assert isinstance(engine, Anything)
        return engine

    def check(self, example: Coroutine[Any, Any, None]) -> None:
        """Run one example; it comes to rest, and each of its requests has ended once."""
        self.loop.run_until_complete(self._check(example))

    async def _check(self, example: Coroutine[Any, Any, None]) -> None:
        self.engine.bodies.clear()
        self.engine.seen.clear()
        async with asyncio.timeout(HANG_S):
            await self.rig.ready()
            await example
            await self.rig.until(lambda: not self.rig.left_over(), 5)
        assert set(self.ends.values()) <= {1}
        assert len(self.ends) == self.rig.handled
        assert self.last is None or isinstance(self.last.outcome, Outcome)


@contextmanager
def hosted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **engine: Any) -> Iterator[Host]:
    """A `Host`; on leaving, the quiesce check of the rig but for its count of records."""
    monkeypatch.setattr(rigs, "FakeSGLang", Anything)
    monkeypatch.setattr(handler, "PAUSE_S", 0.01)
    loop = uvloop.new_event_loop()
    running = rigs.running(tmp_path, POLICY, quiet=False, **engine)
    rig = loop.run_until_complete(running.__aenter__())
    failed: BaseException | None = None
    try:
        yield Host(loop, rig)
    except BaseException as error:
        failed = error
        raise
    finally:
        kind = None if failed is None else type(failed)
        try:
            loop.run_until_complete(running.__aexit__(kind, failed, None))
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


def fuzz(strategy: st.SearchStrategy[Any], examples: int, check: Callable[[Any], None]) -> None:
    """`check` every example. The quick ones are the same each time."""
    quick = examples <= 3 * QUICK

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=quick,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def run(example: Any) -> None:
        check(example)

    run()
