"""P09: what a gate remembers does not grow with the number of requests it has seen."""

from __future__ import annotations

from gateway.core.admission import Admission
from gateway.core.model import (
    Ask,
    ClientRule,
    Outcome,
    PoolId,
    PoolLimits,
    QueueRule,
    RequestId,
    Ticket,
)

POOL = PoolId("gpu0")
MANY = 5000


def gate(**limits: int) -> Admission:
    core = Admission(QueueRule())
    core.resize(POOL, PoolLimits(**{"kv_tokens": 1000, "context": 5000, **limits}), 0.0)
    core.set_open(POOL, 0.0, is_open=True)
    return core


def ticket(number: int, prompt: int, cap: int) -> Ticket:
    ident = RequestId(f"r{number}")
    return Ticket(ident, ClientRule("a"), Ask((prompt,), cap=cap), pools=(POOL,))


def remembered(core: Admission) -> int:
    """Requests that the search for the smallest one keeps alive."""
    least = core.books.least
    return max(len(heap) for heaps in (least._kv, least._prefill) for heap in heaps.values())


def test_p09_requests_that_never_wait_are_forgotten() -> None:
    """A quiet server: each finds room at once, and nothing is in prefill when it comes."""
    core = gate()
    for number in range(MANY):
        core.submit(ticket(number, 10, 10), float(number))
        core.first_token(RequestId(f"r{number}"), number + 0.1)
        core.settle(RequestId(f"r{number}"), Outcome.COMPLETED, number + 0.2)
    assert remembered(core) < 500


def test_p09_requests_that_left_are_forgotten_while_a_smaller_one_waits() -> None:
    """A full server: one small request waits all the time, large ones come and give up."""
    core = gate()
    core.submit(ticket(0, 500, 499), 0.0)
    core.submit(ticket(1, 10, 10), 0.0)  # waits: the smallest
    for number in range(2, MANY):
        core.submit(ticket(number, 400, 400), 1.0)
        core.cancel(RequestId(f"r{number}"), 1.0)
    assert core.books.waiting
    assert remembered(core) < 500


def test_p09_timers_of_requests_that_are_gone_are_forgotten() -> None:
    """Each request that waited leaves a timer behind, until it would have been due."""
    core = gate()
    core.submit(ticket(0, 500, 499), 0.0)
    for number in range(1, MANY):
        core.submit(ticket(number, 400, 400), float(number))
        core.cancel(RequestId(f"r{number}"), float(number))
    assert len(core.books._timers) <= 130, "no more than the queue's time holds"
