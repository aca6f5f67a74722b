"""Counting is work too: one client's flood of it is that client's to wait for."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from gateway.tokens import Counter, local
from gateway.tokens.local import LocalCounter
from gateway.tokens.profile import profile_for
from tests.cases.world import together
from tests.edge.rig import COUNT, TEXT
from tests.fakes.behaviour import Behaviour

MEGABYTE = 1 << 20
CLIENTS = [{"name": name, "header": {"name": "x-who", "value": name}} for name in ("a", "b")]


class Slow:
    """A vocabulary for which texts of one letter are hard, until `go`."""

    prefix = 0

    def __init__(self) -> None:
        self.go = threading.Event()
        self.at_work = 0

    def count(self, text: str, _until: float, _lead: Any) -> int:
        if "aaaa" in text:
            self.at_work += 1
            assert self.go.wait(30)
            self.at_work -= 1
        return max(1, len(text.split()))


def body(letter: str, size: int) -> dict[str, Any]:
    return {"prompt": letter * size, "max_tokens": 1}


async def test_k09_who_floods_the_counting_waits_and_others_are_counted(world, monkeypatch) -> None:
    monkeypatch.setattr(local, "QUEUED_BYTES", 20 * (MEGABYTE + 100))
    async with world({"clients": CLIENTS, "queue": {"max_requests": 100}}) as rig:
        rig.engine.default = Behaviour(tokens=1)
        slow = Slow()
        counts = LocalCounter(slow, None, profile_for(None))  # type: ignore[arg-type]
        rig.app.fleet.backends["gpu0"].counter = Counter(local=counts)
        who = {"headers": {"x-who": "a"}}
        flood = together(rig, TEXT, [body("a", MEGABYTE)] * 50, **who)
        await rig.until(lambda: sum(one.done() for one in flood) == 30, 10)
        refused = [one.result() for one in flood if one.done()]
        assert {(got.status, got.code) for got in refused} == {(429, "client_limit")}
        assert "large requests of client 'a' wait to be counted" in refused[0].error["message"]
        assert all(1 <= int(got.headers["retry-after"]) <= 60 for got in refused)
        assert (slow.at_work, counts._line.waiting) == (2, 18)
        assert (await rig.status())["backends"][0]["counting"]["under_way"] == 20
        metrics = (await rig.control("/metrics")).body.decode().splitlines()
        assert 'kvgate_counting_requests{backend="gpu0"} 20.0' in metrics
        assert rig.engine.seen == []

        async with asyncio.timeout(5):  # none of the flood's comes to an end meanwhile
            for size in (10, MEGABYTE // 4):
                got = await rig.post(TEXT, body("b", size), headers={"x-who": "b"})
                assert (got.status, got.headers["x-kvgate-prompt-tokens"]) == (200, "1")
            talk = {"messages": [{"role": "user", "content": "b"}], "max_tokens": 1}
            got = await rig.post(COUNT, talk, headers={"x-who": "b"})
            assert got.status == 200
        assert slow.at_work == 2
        assert sum(one.done() for one in flood) == 31, "one more made room for what was large of b"

        gone = [one for one in flood if not one.done()][:5]
        for one in gone:
            one.cancel()
        await rig.until(lambda: counts._line.waiting + slow.at_work <= 16, 10)
        slow.go.set()
        ended = await asyncio.gather(*flood, return_exceptions=True)
        served = [got for got in ended if not isinstance(got, BaseException) and got.status == 200]
        assert len(served) == 50 - 31 - 5
        await rig.until(lambda: not counts._line.bytes)
        counts.close()
