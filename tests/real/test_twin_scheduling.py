"""The twin's scheduler beside the genuine one, decision by decision: see `side_by_side`.

What must be the same: who is let in and in which passes (so also how many run at once), who is
refused, and how many tokens each gets. Retractions may differ by RETRACTIONS: what the genuine
scheduler counts as free on the step that runs dry, the twin knows to the token, but not the order of
two events that fall into the same step.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.real import side_by_side
from tests.real.conftest import POOL
from tests.real.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.real.conftest import Note

RETRACTIONS = 1  # of some ten requests


def mixed(seed: int, count: int) -> list[tuple[int, int]]:
    """Requests of many sizes: (prompt, cap), tokens."""
    rng = random.Random(seed)
    return [(rng.randint(20, 500), rng.randint(20, 300)) for _ in range(count)]


LOADS = {
    "12 chats of 560 + 300": [(560, 300)] * 12,
    "10 that promise 450 and over-commit": [(50, 400)] * 10,
    "16 of many sizes": mixed(1, 16),
    "a prompt over the pool among others": [(300, 100), (3000, 50), (200, 100), (100, 60)],
}

# Launch arguments of a server of its own, the twin's for the same, and loads for both.
SERVERS: dict[str, tuple[tuple[str, ...], dict[str, Any], list[list[tuple[int, int]]]]] = {
    "trusting, five at most": (
        ("--schedule-conservativeness", "0.05", "--max-running-requests", "5"),
        {"conservativeness": 0.05, "max_running": 5},
        [LOADS["10 that promise 450 and over-commit"], mixed(2, 10)],
    ),
    "careful, four may wait": (
        ("--schedule-conservativeness", "0.3", "--max-queued-requests", "4"),
        {"conservativeness": 0.3, "max_queued": 4},
        [mixed(2, 14)],
    ),
}


def compare(real: side_by_side.Account, twin: side_by_side.Account) -> None:
    """Where a retraction came a step earlier or later, what follows it may differ too."""
    assert twin.statuses == real.statuses
    assert twin.tokens == real.tokens
    assert twin.started == real.started
    assert abs(sum(twin.retractions) - sum(real.retractions)) <= RETRACTIONS
    assert twin.most_running == real.most_running
    if twin.retractions == real.retractions:
        assert twin.passes == real.passes
        assert twin.ended == real.ended


def tell(report: Note, real: side_by_side.Account, twin: side_by_side.Account) -> None:
    report(
        f"real / twin: {len(real.passes)} / {len(twin.passes)} prefill passes, "
        f"{real.most_running} / {twin.most_running} at once, "
        f"{sum(real.retractions)} / {sum(twin.retractions)} retractions, "
        f"{real.statuses.count(503)} / {twin.statuses.count(503)} refused"
    )


@pytest.mark.parametrize("name", LOADS)
async def test_with_the_usual_arguments(engine: Engine, name: str, report: Note) -> None:
    real = await side_by_side.real(engine, LOADS[name], seed=1)
    twin = side_by_side.twin(LOADS[name], pool=POOL)
    tell(report, real, twin)
    compare(real, twin)


@pytest.fixture(scope="module", params=SERVERS)
def other(request: pytest.FixtureRequest, installed: None) -> Iterator[tuple[Engine, Any, Any]]:
    """A server with other arguments. One start each: all its loads follow one another."""
    arguments, fields, loads = SERVERS[request.param]
    with Engine.start(arguments, pool=POOL) as running:
        yield running, fields, loads


async def test_with_other_arguments(other: tuple[Engine, Any, Any], report: Note) -> None:
    engine, fields, loads = other
    for seed, load in enumerate(loads):
        real = await side_by_side.real(engine, load, seed=seed)
        twin = side_by_side.twin(load, pool=POOL, **fields)
        tell(report, real, twin)
        compare(real, twin)
