"""What one decision costs: 256 in flight, 10,000 waiting, forecast on. Processor time, ms, medians.

A decision is what an event costs: one request ends, whatever fits starts, a new one comes and
queues. Run by hand: ``python -m tests.bench.decision``.
"""

from __future__ import annotations

import random
import statistics
import time

from gateway.core.admission import Admission
from gateway.core.model import (
    Ask,
    ClientRule,
    Granted,
    Outcome,
    PoolId,
    PoolLimits,
    QueueRule,
    RequestId,
    Ticket,
)

POOL = PoolId("gpu0")
FLYING, WAITING, EVENTS = 256, 10_000, 400


def measure(clients: int) -> tuple[float, float]:
    """(median, 99th percentile) of one event, ms."""
    draw = random.Random(1)
    core = Admission(QueueRule(max_requests=20_000, max_tokens=1 << 40, max_wait_s=1e9))
    limits = PoolLimits(kv_tokens=256 * 1_400, forecast=True, tpot_s=0.1, context=131_072)
    core.resize(POOL, limits, 0.0)
    core.set_open(POOL, 0.0, is_open=True)
    now, number, flying, tokens = 0.0, 0, [], {}

    def take(transitions) -> None:
        for one in transitions:
            if isinstance(one, Granted):
                flying.append(one.grant.id)
                tokens[one.grant.id] = 0
                take(core.first_token(one.grant.id, now))

    def come() -> None:
        nonlocal number
        number += 1
        rule = ClientRule(f"c{draw.randrange(clients)}")
        ask = Ask((draw.randrange(200, 2_000),), cap=4_096)
        take(core.submit(Ticket(RequestId(f"r{number:031}"), rule, ask, (POOL,)), now))

    while number < FLYING + WAITING:
        now += 0.001
        come()
    times = []
    for _ in range(EVENTS):
        now += 0.06
        for ident in flying:
            tokens[ident] += 2
            core.true_up(ident, tokens[ident])
        gone = flying.pop(draw.randrange(len(flying)))
        began = time.process_time()
        take(core.settle(gone, Outcome.COMPLETED, now))
        come()
        times.append(1_000 * (time.process_time() - began))
    times.sort()
    return statistics.median(times), times[int(0.99 * len(times))]


if __name__ == "__main__":
    for clients in (1, 10, 100):
        median, high = measure(clients)
        print(f"{clients:4} clients: {median:.2f} ms an event, 99 of 100 below {high:.2f} ms")
