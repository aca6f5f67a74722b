"""The soak, for one minute. The long one is run by hand: `python -m tests.soak`."""

from __future__ import annotations

import pytest

from tests.soak.report import slope
from tests.soak.run import soak


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_minute_of_overload_and_faults_breaks_no_promise() -> None:
    report = await soak(60, seed=11)
    print("\n".join(report.lines()))
    assert report.broken == []
    assert report.faults["kill"] + report.faults["freeze"] + report.faults["cut"] >= 3
    assert len(report.records) > 300


def test_the_slope_is_the_one_that_is_there() -> None:
    samples = [(float(at), 100_000_000 + 1000 * at + (at * 7919) % 50_000) for at in range(3600)]
    found = slope(samples)
    assert abs(found.mb_per_hour - 3.6) < 4 * found.error + 0.01
    assert slope([(float(at), 5_000_000) for at in range(100)]).mb_per_hour == pytest.approx(0)
