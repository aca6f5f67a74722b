"""The gate's shell in virtual time: every second below is exact, every await can be cancelled."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from gateway.core.admission import Admission
from gateway.core.model import (
    Ask,
    ClientRule,
    Code,
    Ended,
    Outcome,
    PoolId,
    PoolLimits,
    QueueRule,
    Refused,
    Release,
    Released,
    RequestId,
    Ticket,
)
from gateway.gate import Gate, Shed
from gateway.tasks import BEAT_S, ROOM_S
from tests.gate.steps import Cancelled, cancelled_at

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.core.model import Transition
    from gateway.gate import Lease

pytestmark = pytest.mark.looptime

POOL = PoolId("gpu0")
MAX_WAIT_S, GRACE_S, PAUSE_S = 120.0, 15.0, 1.0


class House:
    """A gate with one pool of 100 tokens, and what it told."""

    def __init__(self, **queue: Any) -> None:
        self.told: list[Transition] = []
        self.abandoned: list[Lease] = []
        rule = QueueRule(**{"max_wait_s": MAX_WAIT_S, **queue})
        core = Admission(rule, now=asyncio.get_running_loop().time())
        self.gate = Gate(core, listener=self.told.append, on_abandon=self.abandoned.append)
        self.gate.resize(POOL, PoolLimits(kv_tokens=100))
        self.gate.set_open(POOL, is_open=True)

    def lease(self, name: str, tokens: int = 100) -> Lease:
        """A lease for a request that takes `tokens`."""
        ask = Ask((1,), cap=tokens - 2)  # one prompt token and a page
        ticket = Ticket(RequestId(name), ClientRule("a"), ask, (POOL,))
        return self.gate.admit(ticket, grace_s=GRACE_S)

    async def use(self, name: str, tokens: int = 100, seconds: float = 1.0) -> float:
        """Wait, hold for some time, end. Returns when it was granted."""
        async with self.lease(name, tokens) as lease:
            at = self.gate.now()
            lease.sent()
            await asyncio.sleep(seconds)
            lease.end(Outcome.COMPLETED)
            return at

    def start(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        return asyncio.ensure_future(work)

    def why(self, name: str) -> list[Release]:
        return [t.why for t in self.told if isinstance(t, Released) and t.id == name]

    def ends(self) -> Counter[str]:
        """Terminal transitions by request."""
        return Counter(t.id for t in self.told if isinstance(t, Ended | Refused))

    @property
    def reserved(self) -> int:
        return self.gate.view().pools[0].kv.reserved

    def assert_at_rest(self) -> None:
        view = self.gate.view()
        pool = view.pools[0]
        assert (pool.kv.reserved, pool.prefill.reserved, pool.slots.reserved) == (0, 0, 0)
        assert view.queue.requests == view.queue.tokens == view.queue.bytes == 0
        assert view.clients == ()
        assert (self.gate.holding, self.gate._waiters) == (0, {})
        assert set(self.ends().values()) <= {1}, "each request ends once"


async def turn() -> None:
    """Let every task that can run, run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_request_that_fits_is_granted_without_waiting() -> None:
    house = House()
    async with house.lease("a") as lease:
        assert lease.grant.queued_s == 0
        assert house.reserved == 100
        assert house.gate.holding == 1
        lease.sent()
        lease.end(Outcome.COMPLETED)
        assert house.reserved == 0, "released at the end, not when the block is left"
    assert house.why("a") == [Release.ENDED]
    house.assert_at_rest()


async def test_those_that_wait_start_in_order_when_room_comes() -> None:
    house = House()
    tasks = [house.start(house.use(name, seconds=3)) for name in "abc"]
    assert await asyncio.gather(*tasks) == [0, 3, 6]
    house.assert_at_rest()


async def test_only_who_has_to_wait_is_told_to_rest_and_once() -> None:
    house = House()
    rested: list[str] = []

    async def ask(name: str, tokens: int = 100) -> None:
        lease = house.lease(name, tokens)
        lease.rest = lambda: rested.append(name)
        async with lease:
            lease.sent()
            await asyncio.sleep(1)
            if name == "b" and house.gate.now() < 3:
                await lease.requeue(PAUSE_S)
            lease.end(Outcome.COMPLETED)

    tasks = [house.start(ask("a")), house.start(ask("b"))]
    await turn()
    assert rested == ["b"], "as soon as it waits"
    with pytest.raises(Shed):
        await ask("never", tokens=500)
    await asyncio.gather(*tasks)
    assert rested == ["b"]
    house.assert_at_rest()


async def test_the_wait_ends_at_its_limit_to_the_second() -> None:
    house = House()
    first = house.start(house.use("a", seconds=500))
    await turn()
    with pytest.raises(Shed) as shed:
        await house.use("b")
    assert house.gate.now() == MAX_WAIT_S
    assert shed.value.refusal.code is Code.QUEUE_TIMEOUT
    assert shed.value.queued_s == MAX_WAIT_S
    await first
    house.assert_at_rest()


async def test_what_can_never_fit_is_refused_at_the_door() -> None:
    house = House()
    with pytest.raises(Shed) as shed:  # noqa: PT012 - the block is the request
        async with house.lease("a", tokens=100) as lease:
            lease.end(Outcome.COMPLETED)
            async with house.gate.admit(
                Ticket(RequestId("b"), ClientRule("a"), Ask((101,)), (POOL,)), grace_s=1
            ):
                pass
    assert shed.value.queued_s is None
    assert (shed.value.refusal.needed or 0) > (shed.value.refusal.available or 0)
    house.assert_at_rest()


async def test_cancelled_while_it_waits() -> None:
    house = House()
    first, second, third = (house.start(house.use(name, seconds=2)) for name in "abc")
    await turn()
    second.cancel()
    assert await first == 0
    assert await third == 2
    assert second.cancelled()
    assert house.ends()["b"] == 1
    assert house.why("b") == []
    house.assert_at_rest()


@pytest.mark.parametrize("cancel_first", [False, True])
async def test_cancelled_in_the_turn_of_the_grant(cancel_first: bool) -> None:
    """Class G: the grant is in the ledger before its waiter wakes, and the waiter never wakes."""
    house = House()
    async with house.lease("a") as lease:
        waiter, third = house.start(house.use("b")), house.start(house.use("c"))
        await turn()
        if cancel_first:
            waiter.cancel()
        lease.end(Outcome.COMPLETED)
        if not cancel_first:
            waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        await turn()
        assert house.reserved == 100, "the next one has it"
        await third
    assert house.ends() == {"a": 1, "b": 1, "c": 1}
    house.assert_at_rest()


async def test_cancelled_in_the_turn_of_the_refusal() -> None:
    house = House()
    async with house.lease("a") as lease:
        waiter = house.start(house.use("b"))
        await turn()
        house.gate.drain()
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        lease.end(Outcome.COMPLETED)
    assert house.ends()["b"] == 1
    house.assert_at_rest()


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (asyncio.CancelledError, Outcome.CANCELLED),
        (ConnectionResetError, Outcome.CANCELLED),
        (RuntimeError, Outcome.FAILED),
    ],
)
@pytest.mark.parametrize("sent", [False, True])
async def test_left_without_an_end(
    error: type[BaseException], outcome: Outcome, sent: bool
) -> None:
    """Nothing sent: free at once. Sent: the engine may be at it, so it lingers."""
    house = House()
    with pytest.raises(error):  # noqa: PT012 - the block is the request
        async with house.lease("a") as lease:
            if sent:
                lease.sent()
            raise error
    assert [t.outcome for t in house.told if isinstance(t, Ended)] == [outcome]
    assert house.gate.holding == 0
    if not sent:
        assert house.why("a") == [Release.UNSENT]
        assert house.abandoned == []
    else:
        assert [one.ticket.id for one in house.abandoned] == ["a"]
        assert house.reserved == 100
        house.gate.confirmed(RequestId("a"))
        house.gate.confirmed(RequestId("a"))  # late and double: nothing happens
        assert house.why("a") == [Release.CONFIRMED]
    house.assert_at_rest()


async def test_an_unconfirmed_reservation_goes_at_the_end_of_its_grace() -> None:
    house = House()
    async with house.lease("a") as lease:
        lease.sent()
        lease.abandon(Outcome.CANCELLED)
        lease.end(Outcome.COMPLETED)  # too late: it has ended
    assert await house.use("b") == GRACE_S
    assert house.why("a") == [Release.GRACE]
    house.assert_at_rest()


async def test_a_prolonged_grace_ends_later() -> None:
    house = House()
    async with house.lease("a") as lease:
        lease.sent()
    await asyncio.sleep(10)
    house.gate.prolong(RequestId("a"), GRACE_S)
    assert await house.use("b") == 10 + GRACE_S
    house.assert_at_rest()


async def test_ended_twice_counts_once() -> None:
    house = House()
    async with house.lease("a") as lease:
        lease.end(Outcome.COMPLETED)
        lease.end(Outcome.FAILED)
    assert [t.outcome for t in house.told if isinstance(t, Ended)] == [Outcome.COMPLETED]
    house.assert_at_rest()


async def test_put_back_it_keeps_its_place_and_waits_for_the_pause() -> None:
    house = House()
    async with house.lease("a") as lease:
        later = house.start(house.use("b"))
        await turn()
        lease.sent()
        await lease.requeue(PAUSE_S)
        assert house.gate.now() == PAUSE_S
        assert lease.grant.demand.kv == 100
        lease.sent()
        await asyncio.sleep(4)
        lease.end(Outcome.COMPLETED)
    assert await later == PAUSE_S + 4
    assert house.why("a") == [Release.REQUEUED, Release.ENDED]
    house.assert_at_rest()


async def test_put_back_again_and_again_it_is_shed_at_its_own_limit() -> None:
    house = House(max_wait_s=10)
    with pytest.raises(Shed) as shed:  # noqa: PT012 - the block is the request
        async with house.lease("a") as lease:
            while True:
                lease.sent()
                await lease.requeue(PAUSE_S)
    assert house.gate.now() == 10
    assert shed.value.refusal.code is Code.QUEUE_TIMEOUT
    assert house.abandoned == []
    house.assert_at_rest()


async def test_cancelled_while_put_back() -> None:
    house = House()

    async def life() -> None:
        async with house.lease("a") as lease:
            lease.sent()
            await lease.requeue(PAUSE_S)

    task = house.start(life())
    await asyncio.sleep(PAUSE_S / 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert house.abandoned == [], "the engine said that it never began"
    house.assert_at_rest()


async def test_put_back_while_draining_is_shed() -> None:
    house = House()
    with pytest.raises(Shed) as shed:  # noqa: PT012 - the block is the request
        async with house.lease("a") as lease:
            house.gate.drain()
            lease.sent()
            await lease.requeue(PAUSE_S)
    assert shed.value.refusal.code is Code.DRAINING
    house.assert_at_rest()


async def test_draining_sheds_the_queue_and_lets_holders_finish() -> None:
    house = House()
    first, second = house.start(house.use("a", seconds=5)), house.start(house.use("b"))
    await turn()
    house.gate.drain()
    for work in (second, house.start(house.use("c"))):
        with pytest.raises(Shed) as shed:
            await work
        assert shed.value.refusal.code is Code.DRAINING
    assert house.gate.now() == 0
    await house.gate.idle()
    assert house.gate.now() == 5
    await first
    house.assert_at_rest()


async def test_idle_does_not_wait_for_the_abandoned() -> None:
    house = House()
    async with house.lease("a") as lease:
        lease.sent()
        idle = house.start(house.gate.idle())
        await turn()
        assert not idle.done()
    await idle
    assert (house.gate.now(), house.reserved) == (0, 100)
    house.gate.confirmed(RequestId("a"))
    house.assert_at_rest()


async def test_idle_waits_for_one_that_is_put_back_and_granted_again() -> None:
    house = House()
    async with house.lease("a") as lease:
        lease.sent()
        await lease.requeue(PAUSE_S)
        assert house.gate.holding == 1
        lease.end(Outcome.COMPLETED)
    await house.gate.idle()
    house.assert_at_rest()


def stand_still(seconds: float) -> None:
    """Time goes on, and nothing is called."""
    loop: Any = asyncio.get_running_loop()
    loop.setup_looptime(start=loop.time() + seconds)


async def _waiting(house: House) -> asyncio.Task[float]:
    """One that has waited for ten seconds."""
    waits = house.start(house.use("b"))
    await asyncio.sleep(10)
    return waits


@pytest.mark.parametrize("away_s", [30.0, 500.0, 90_000.0])
async def test_a_standstill_is_no_time_that_anybody_has_waited(away_s: float) -> None:
    house = House()
    first = house.start(house.use("a", seconds=1e6))
    await turn()
    waits = await _waiting(house)
    stand_still(away_s)
    with pytest.raises(Shed) as shed:
        await waits
    waited = MAX_WAIT_S + away_s
    # A beat and the limit of what is late, at most, are not seen; half a second is for what came meanwhile.
    assert waited - BEAT_S <= house.gate.now() <= waited + ROOM_S
    assert shed.value.refusal.code is Code.QUEUE_TIMEOUT
    first.cancel()
    await asyncio.wait([first])


async def test_what_comes_first_after_a_standstill_does_not_end_the_wait() -> None:
    """A request that ends, or comes, may be heard of before the timer."""
    house = House()
    async with house.lease("a") as lease:
        waits = await _waiting(house)
        stand_still(500)
        other = house.lease("c")
        coming = house.start(other.__aenter__())
        coming.get_loop().call_soon(lease.end, Outcome.COMPLETED)
        await turn()
    assert await waits == 510.0
    await coming
    other.end(Outcome.COMPLETED)
    house.assert_at_rest()


async def test_what_others_say_first_after_a_standstill_does_not_end_the_wait() -> None:
    house = House()
    async with house.lease("a") as lease:
        waits = await _waiting(house)
        stand_still(500)
        house.gate.heard()
        await turn()
        assert not waits.done()
        lease.end(Outcome.COMPLETED)
    assert await waits == 510.0
    house.assert_at_rest()


async def test_a_grace_does_not_run_out_in_a_standstill() -> None:
    house = House()
    async with house.lease("a") as lease:
        lease.sent()
    await asyncio.sleep(5)
    stand_still(500)
    await asyncio.sleep(0)
    at = await house.use("b")
    assert 500 + GRACE_S - BEAT_S <= at <= 500 + GRACE_S + ROOM_S
    house.assert_at_rest()


async def test_where_nothing_was_due_nobody_stood_still() -> None:
    house = House()
    first = house.start(house.use("a", seconds=10))
    await turn()
    async with house.lease("b") as lease:
        await first
        await asyncio.sleep(1000)
        assert not house.gate._alarm.is_set
        with pytest.raises(Shed) as shed:  # its time in the queue is over
            await lease.requeue(0.0)
        assert shed.value.queued_s == 1010
    house.assert_at_rest()


async def test_one_timer_serves_all_and_sleeps_when_nothing_is_due() -> None:
    house = House()
    first = house.start(house.use("a", seconds=200))
    await turn()
    waits = [house.start(house.use(name)) for name in "bcd"]
    await turn()
    loop: Any = asyncio.get_running_loop()
    assert len([timer for timer in loop._scheduled if not timer.cancelled()]) == 2  # sleep and ours
    got = await asyncio.gather(*waits, return_exceptions=True)
    assert all(isinstance(one, Shed) for one in got)
    await first
    assert not house.gate._alarm.is_set
    house.assert_at_rest()


async def test_the_holder_of_a_dead_server_ends_once_and_holds_nothing() -> None:
    house = House()
    async with house.lease("a") as lease:
        lease.sent()
        house.gate.void(POOL)
        assert house.reserved == 0
        assert house.gate.holding == 1
        lease.first_token()
        lease.true_up(5)
    assert house.ends() == {"a": 1}
    house.assert_at_rest()


async def test_a_shrunken_pool_sheds_those_that_no_longer_fit() -> None:
    house = House()
    first = house.start(house.use("a", seconds=5))
    waiter = house.start(house.use("b", tokens=100))
    await turn()
    house.gate.resize(POOL, PoolLimits(kv_tokens=0))
    with pytest.raises(Shed) as shed:
        await waiter
    assert shed.value.refusal.code is Code.CONTEXT_LENGTH_EXCEEDED
    assert shed.value.queued_s == 0
    await first
    house.assert_at_rest()


# ---- cancelled at every await -----------------------------------------------------------------


async def _whole_life(house: House) -> None:
    async with house.lease("x") as lease:
        await asyncio.sleep(0.1)
        lease.sent()
        await asyncio.sleep(0.1)
        lease.first_token()
        await lease.requeue(PAUSE_S)
        lease.sent()
        await asyncio.sleep(0.1)
        lease.true_up(3)
        lease.end(Outcome.COMPLETED)
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("busy", [False, True])
async def test_cancelled_at_every_await_nothing_is_left(late: bool, busy: bool) -> None:
    """Class G. `late`: in the turn in which what it waited for has come."""
    reached = 0
    for at in range(1, 30):
        house = House()
        blocker = house.start(house.use("a", seconds=1)) if busy else None
        await turn()
        follower: Callable[[], asyncio.Task[Any]] = lambda: house.start(house.use("z"))  # noqa: B023
        life = house.start(cancelled_at(_whole_life(house), at, late=late))
        await turn()
        behind = follower()
        outcome = await life
        for lease in house.abandoned:
            house.gate.confirmed(lease.ticket.id)
        await behind
        if blocker is not None:
            await blocker
        house.assert_at_rest()
        assert house.ends()["x"] == 1
        if outcome is not Cancelled:
            break
        reached += 1
    assert reached == (6 if busy else 5), "every await of the life has been cut"
