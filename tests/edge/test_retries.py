"""Retries that come too early, too often: damped while there is no room, and never where there is."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from gateway.core.model import Code, Refusal
from gateway.edge import counting, replies
from gateway.edge import retries as module
from gateway.edge.retries import COUNTED, Retries
from tests.edge.rig import CHAT, TEXT, chat
from tests.edge.test_refusals import FULL
from tests.fakes.behaviour import Behaviour

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.edge.rig import Got, Rig

SAME = chat(30, max_tokens=5)
ONE = {"queue": {"max_requests": 1}}


@asynccontextmanager
async def crowded(rig: Rig) -> AsyncIterator[None]:
    """The pool is taken and the queue is full."""
    hold = asyncio.Event()
    rig.engine.default = Behaviour(tokens=2, hold=hold, hold_at=1)
    running = asyncio.ensure_future(rig.post(TEXT, FULL))
    await rig.engine.arrived()
    waiting = asyncio.ensure_future(rig.chat(max_tokens=5))
    await rig.queued()
    yield
    rig.engine.default = Behaviour(tokens=1)
    hold.set()
    assert {got.status for got in await asyncio.gather(running, waiting)} == {200}


@pytest.fixture
def counts(monkeypatch) -> list[Any]:
    """One item for each time that a body is counted."""
    found: list[Any] = []
    count = counting.count

    async def counted(*args: Any) -> Any:
        found.append(args)
        return await count(*args)

    monkeypatch.setattr(counting, "count", counted)
    return found


class Clock:
    """The gate's, with what a test adds. The loop's own goes by milliseconds: a request that comes within
    the one in which another was refused may have been under way then, and is no retry."""

    def __init__(self, rig: Rig) -> None:
        self.ahead = 0.0
        self._now = rig.app.gate.now
        rig.app.gate.now = self.read  # type: ignore[method-assign]

    def read(self) -> float:
        return self._now() + self.ahead


async def again(
    rig: Rig, times: int = 1, body: Any = SAME, path: str = CHAT, **kwargs: Any
) -> list[Got]:
    """Ask for the same so many times, each a moment after the answer to the one before."""
    if not isinstance(getattr(rig.app.gate.now, "__self__", None), Clock):
        Clock(rig)
    clock = rig.app.gate.now.__self__  # type: ignore[attr-defined]
    found = []
    for _ in range(times):
        clock.ahead += 0.01
        found.append(await rig.post(path, body, **kwargs))
    return found


def after(got: Got) -> int:
    return int(got.headers["retry-after"])


def how(rig: Rig) -> list[str | None]:
    """Of the records, oldest first."""
    return [record["retry"] for record in reversed(rig.records)]


async def metric(rig: Rig, kind: str) -> float:
    text = (await rig.control("/metrics")).body.decode()
    line = f'kvgate_retries_total{{client="anyone",how="{kind}"}} '
    return sum(float(one.removeprefix(line)) for one in text.splitlines() if one.startswith(line))


async def test_beyond_the_budget_an_early_retry_costs_no_count_and_is_told_a_longer_time(
    start, counts
) -> None:
    async with start(ONE) as rig, crowded(rig):
        before, seen = len(counts), len(rig.engine.seen)
        got = await again(rig, 9)
        assert {(one.status, one.code) for one in got} == {(429, "queue_full")}
        assert how(rig) == [None, *["early"] * 4, *["damped"] * 4]
        assert len(counts) - before == 5
        assert len(rig.engine.seen) == seen
        told = [after(one) for one in got]
        assert all(5 <= one <= 7 for one in told[:5])
        assert told[5] < told[6] < told[7]
        assert 8 <= told[5] <= 14, "doubled"
        assert 44 <= told[8] <= 59, "as long as SDKs obey, and not all at once"
        early, damped = got[4].error["message"], got[8].error["message"]
        assert "s before the time it was told" in early
        assert "was refused 8 times, last 0 s ago" in damped
        assert "'anyone' does so more often than its retry budget allows" in damped
        assert "there is still no room" in damped
        assert got[8].error["needed"] == got[0].error["needed"]
        assert rig.records[0]["retry_after_s"] == told[8]
        assert rig.records[0]["prompt_tokens"] is None
        assert (await metric(rig, "early"), await metric(rig, "damped")) == (4, 4)


async def test_where_there_is_room_a_retry_is_admitted_whatever_was_before(start) -> None:
    async with start(ONE) as rig:
        async with crowded(rig):
            await again(rig, 12)
            assert how(rig)[-1] == "damped"
            budgets = rig.app.data._retries._budgets
            spent = budgets._clients["anyone"].retried
        (got,) = await again(rig)
        assert got.status == 200
        assert "x-kvgate-max-tokens" in got.headers
        assert rig.records[0]["retry"] == "early"
        assert budgets._clients["anyone"].retried <= spent, "what is admitted is not counted"


async def test_room_in_line_is_given_to_a_retry_as_well(start) -> None:
    async with start({"queue": {"max_requests": 2}}) as rig:
        async with crowded(rig):
            second = asyncio.ensure_future(rig.chat(17, max_tokens=5))
            await rig.queued(2)
            await again(rig, 8)
            assert how(rig)[-1] == "damped"
            second.cancel()
            await rig.queued(1)
            one_more = asyncio.ensure_future(again(rig))
            await rig.queued(2)
        assert [got.status for got in await one_more] == [200]


async def test_who_comes_back_when_told_to_is_judged_as_ever(start) -> None:
    async with start(ONE) as rig:
        clock = Clock(rig)
        async with crowded(rig):
            told = []
            for _ in range(12):
                (got,) = await again(rig)
                told.append(after(got))
                clock.ahead += told[-1]
            assert all(5 <= one <= 7 for one in told)
            assert how(rig) == [None, *["kept"] * 11]
            assert await metric(rig, "kept") == 11


async def test_a_retry_by_its_own_word_is_told_a_longer_time_and_counted(start, counts) -> None:
    """Its body is another each time, as with a date in it: nobody knows what it takes."""
    async with start(ONE) as rig, crowded(rig):
        before = len(counts)
        sent = [chat(30, max_tokens=5, user=str(i)) for i in range(8)]
        says = [{"x-stainless-retry-count": str(i % 3)} for i in range(8)]
        got = []
        for body, one in zip(sent, says, strict=True):
            got += await again(rig, body=body, headers=one)
        assert how(rig) == [None, "early", "early", None, "early", "early", None, "early"]
        assert len(counts) - before == 8
        assert "before the time it was told" in got[1].error["message"]
        for i in range(8, 11):
            headers = {"x-stainless-retry-count": "1"}
            got += await again(rig, body=chat(30, max_tokens=5, user=str(i)), headers=headers)
        assert after(got[-1]) >= 4 * 5
        assert "retry budget" in got[-1].error["message"]


async def test_switched_off_nothing_is_said_or_kept(start, counts) -> None:
    bodies = []
    for budget in ("off", 4):
        queue = {"max_requests": 1, "retry_budget": budget}
        async with start({"queue": queue}) as rig, crowded(rig):
            before = len(counts)
            got = await again(rig, 9)
            bodies.append([one.body for one in got])
            if budget == "off":
                assert how(rig) == [None] * 9
                assert len(counts) - before == 9
                assert all(5 <= after(one) <= 7 for one in got)
                assert rig.app.data._retries._budgets is None
    assert len({*bodies[0]}) == 1
    assert bodies[1][0] == bodies[0][0]
    assert bodies[0][0] not in bodies[1][1:]


@pytest.mark.parametrize("admission", ["off", "shadow"])
async def test_where_admission_is_off_nothing_is_looked_at(start, monkeypatch, admission) -> None:
    def never(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(Retries, "met", never)
    async with start({"admission": admission, **ONE}) as rig:
        for _ in range(6):
            assert (await rig.post(CHAT, SAME)).status == 200
        assert how(rig) == [None] * 6


async def test_no_body_is_looked_at_before_its_client_was_refused(start, monkeypatch) -> None:
    made: list[int] = []
    mark = Retries._mark

    def counted(self: Retries, trip: Any, data: bytes) -> bytes | None:
        made.append(len(data))
        return mark(self, trip, data)

    monkeypatch.setattr(Retries, "_mark", counted)
    async with start(ONE) as rig:
        for _ in range(3):
            assert (await rig.post(CHAT, SAME)).status == 200
        assert (await rig.post(CHAT, {"messages": 5})).status == 400
        assert made == []
        async with crowded(rig):
            assert len(made) == 1, "of the one that waits"
            await rig.post(CHAT, SAME)
            assert len(made) == 2


async def test_what_waited_and_was_refused_is_known_again(start) -> None:
    async with start({"queue": {"max_requests": 3, "max_wait_s": 0.1}}) as rig:
        hold = asyncio.Event()
        rig.engine.default = Behaviour(tokens=2, hold=hold, hold_at=1)
        running = asyncio.ensure_future(rig.post(TEXT, FULL))
        await rig.engine.arrived()
        for got in await again(rig, 2):
            assert (got.status, got.code) == (503, "queue_timeout")
        assert how(rig) == [None, "early"]
        hold.set()
        await running


async def test_a_quota_is_told_by_its_end_and_not_counted_for(start, counts) -> None:
    quota = {"tokens": 30, "window_s": 1000.0}
    async with start({"clients": [{"name": "anyone", "quota": quota}]}) as rig:
        rig.engine.default = Behaviour(tokens=5)
        assert (await rig.post(CHAT, SAME)).status == 200
        before = len(counts)
        got = await again(rig, 9)
        assert {one.code for one in got} == {"quota_exceeded"}
        assert len(counts) - before == 5
        assert all(990 <= after(one) <= 1000 for one in got)
        assert how(rig)[-1] == "damped"
        assert "tokens used of your quota of 30" in got[-1].error["message"]


async def test_a_reload_forgets_what_was_told(start) -> None:
    async with start(ONE) as rig, crowded(rig):
        await again(rig, 9)
        path = rig.app.reload.file
        path.write_text(json.dumps(json.loads(path.read_text()) | {"drain_s": 0.3}))
        assert (await rig.control("/reload", "POST")).status == 200
        (got,) = await again(rig)
        assert rig.records[0]["retry"] is None
        assert 5 <= after(got) <= 7


async def test_other_refusals_are_not_counted(start) -> None:
    async with start() as rig:
        for _ in range(8):
            got = await rig.post(CHAT, chat(30, n=1000))
            assert got.code == "invalid_request"
        assert how(rig) == [None] * 8
    assert {Code.NO_BACKEND, Code.DRAINING, Code.COOLING_DOWN}.isdisjoint(COUNTED)


async def test_a_request_is_another_by_route_address_and_what_routes_look_at(start) -> None:
    routes = [{"when": {"header": {"name": "x-team", "value": "red"}}, "to": "gpu0"}]
    async with start({"routes": routes}) as rig:
        known = rig.app.data._retries

        class Trip:
            def __init__(self, path: str = CHAT, remote: str = "::1", **headers: str) -> None:
                self.request = self
                self.rel_url = self
                self.raw_path_qs, self.remote = path, remote
                self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

        trips = [Trip(), Trip(TEXT), Trip(remote="::2"), Trip(x_team="red"), Trip(x_other="red")]
        made = [known._mark(trip, b"{}") for trip in trips]  # type: ignore[arg-type]
        assert len(set(made)) == 4
        assert made[4] == made[0]
        assert known._mark(trips[0], b"{ }") != made[0]  # type: ignore[arg-type]
        assert all(len(one or b"") == 16 for one in made)
        large = bytes(module.LARGEST + 1)
        assert known._mark(trips[0], large) is None  # type: ignore[arg-type]


async def test_many_prompts_are_not_kept(start, counts) -> None:
    async with start(ONE) as rig, crowded(rig):
        before = len(counts)
        await again(rig, 8, {"prompt": ["a b"] * 20, "max_tokens": 5}, TEXT)
        assert how(rig)[-1] == "early"
        assert len(counts) - before == 8
        told = rig.app.data._retries._budgets._clients["anyone"].told
        assert [one.ticket for one in told.values()] == [None]


async def test_what_is_told_in_a_stream_has_no_time_and_nobody_comes_before_it(start) -> None:
    queue = {"max_requests": 3, "max_wait_s": 0.2, "heartbeat_s": 0.02}
    async with start({"queue": queue}) as rig:
        hold = asyncio.Event()
        rig.engine.default = Behaviour(tokens=2, hold=hold, hold_at=1)
        running = asyncio.ensure_future(rig.post(TEXT, FULL))
        await rig.engine.arrived()
        for _ in range(3):
            got = await rig.post(CHAT, SAME | {"stream": True})
            assert got.status == 200
            assert b"queue_timeout" in got.body
        assert how(rig) == [None] * 3
        hold.set()
        await running


async def test_the_time_that_counts_is_the_one_in_the_header() -> None:
    for wait_s, code, seconds in (
        (0.2, Code.CLIENT_LIMIT, 1),
        (4.1, Code.QUEUE_FULL, 5),
        (150.0, Code.CLIENT_LIMIT, 59),
        (3000.5, Code.QUOTA_EXCEEDED, 3001),
        (None, Code.QUOTA_EXCEEDED, 5),
    ):
        refusal = Refusal(code, "no", retry_after_s=wait_s)
        assert replies.retry_after(refusal) == seconds
        assert replies.refused(refusal).headers["retry-after"] == str(seconds)


async def test_while_a_client_cools_down_somewhere_its_retries_are_judged_in_full(
    start, counts, monkeypatch
) -> None:
    """A server that it may not use now may take it a moment later."""
    async with start(ONE) as rig, crowded(rig):
        monkeypatch.setattr(rig.app.deaths.failures, "cools", lambda _: True)
        before = len(counts)
        await again(rig, 9)
        assert len(counts) - before == 9
        assert how(rig)[-1] == "early"
