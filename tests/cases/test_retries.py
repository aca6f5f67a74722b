"""A refused call that comes nine times: three tries of an SDK in each of three tries of an agent."""

from __future__ import annotations

import asyncio

from tests.cases.world import ids
from tests.edge.rig import TEXT
from tests.fakes.behaviour import Behaviour


async def test_o04_of_nine_tries_that_obey_no_time_the_last_are_damped_and_none_is_sent(
    world, monkeypatch
) -> None:
    async with world({"queue": {"max_requests": 1}}) as rig:
        leave, now, ahead = asyncio.Event(), rig.app.gate.now, 0.0
        monkeypatch.setattr(rig.app.gate, "now", lambda: now() + ahead)
        rig.engine.default = Behaviour(tokens=2, hold=leave, hold_at=1)
        size = ids(4000, 8000, n=8)
        runs = asyncio.ensure_future(rig.post(TEXT, size))
        await rig.engine.arrived()
        waits = asyncio.ensure_future(rig.post(TEXT, size))
        await rig.queued()

        told = []
        for i in range(9):  # within ten seconds: an SDK waits 0.5 and 1 s, an agent a moment
            headers = {"x-stainless-retry-count": str(i % 3)}
            got = await rig.post(TEXT, ids(5000, 8000, n=8), headers=headers)
            assert (got.status, got.code) == (429, "queue_full")
            told.append(int(got.headers["retry-after"]))
            ahead += (0.5, 1.0, 0.1)[i % 3]
        assert len(rig.engine.seen) == 1
        assert [record["retry"] for record in reversed(rig.records)] == [
            None,
            *["early"] * 5,
            *["damped"] * 3,
        ]
        assert max(told[:6]) < min(told[6:])
        assert max(told) <= 60
        text = (await rig.control("/metrics")).body.decode()
        assert 'kvgate_retries_total{client="anyone",how="damped"} 3.0' in text

        rig.engine.default = Behaviour(tokens=1)
        leave.set()
        await asyncio.gather(runs, waits)
        # There is room: the tenth is served like any.
        assert (await rig.post(TEXT, ids(5000, 8000, n=8))).status == 200
