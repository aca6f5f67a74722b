"""The gate as a process: connections that idle or vanish, crowds, and what stays behind of them."""

from __future__ import annotations

import asyncio
import gc
import random
import resource
import socket
from itertools import count
from pathlib import Path

import pytest

from gateway import listeners
from gateway.app import App
from gateway.policy.load import load_policy
from tests.cases.world import ids
from tests.edge.rig import CHAT, TEXT, chat, request
from tests.fakes.behaviour import Behaviour, refuse


async def test_i09_an_idle_timer_never_cuts_a_connection_at_work(world, monkeypatch) -> None:
    """An answer far longer than the time an idle connection is kept, then the next on the same."""
    monkeypatch.setattr(listeners, "KEEPALIVE_S", 0.15)
    async with world() as rig, rig.socket() as peer:
        for gap in (0.0, 0.05, 0.1, 0.0):
            rig.engine.queue.append(Behaviour(tokens=2, gap_s=0.4))
            await asyncio.sleep(gap)
            await peer.send(request(TEXT, ids(5, 5)))
            async with asyncio.timeout(3):
                answer = await peer.reader.readuntil(b"0\r\n\r\n")
            assert b"[DONE]" in answer


async def test_i09_idle_connections_are_kept_longer_than_any_pool_keeps_them() -> None:
    assert listeners.KEEPALIVE_S >= 75


async def test_f10_a_client_that_vanished_is_noticed(world) -> None:
    """No FIN comes: only unanswered bytes or unanswered keep-alive probes tell."""
    async with world() as rig:
        leave = asyncio.Event()
        rig.engine.default = Behaviour(tokens=2, hold=leave, hold_at=1)
        async with rig.socket() as peer:
            await peer.send(request(TEXT, ids(5, 5)))
            await rig.engine.arrived()
            (connection,) = rig.app.listeners.runners[0].server.connections
            sock = connection.transport.get_extra_info("socket")
            unanswered = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            idle = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
            every = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
            often = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
            leave.set()
            await peer.reader.readuntil(b"0\r\n\r\n")
        assert 0 < unanswered <= 120_000, "as long as a reader that is alive may pause"
        assert idle + every * often <= 60


async def test_g10_a_second_gate_on_the_same_port_does_not_start(world, tmp_path: Path) -> None:
    """Two of them would each promise the whole pool: a limit is one process's, so one listens."""
    async with world() as rig:
        file = tmp_path / "second.yaml"
        file.write_text(
            f"backends: [{{url: '{rig.engine.url}'}}]\nlisten: 127.0.0.1:{rig.port}\n"
            "control: 127.0.0.1:0\n"
        )
        second = App(load_policy(file, env={}))
        with pytest.raises(OSError, match="in use"):
            await second.start()
        await second.close()


def rss() -> int:
    """Resident memory now, bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_n10_two_thousand_clients_at_once(world) -> None:
    """Far more than may run or wait: no crash, the rest is refused, and all is at rest after."""
    policy = {
        "queue": {"max_requests": 200, "max_wait_s": 120},
        "backend": {"slots": 300},
        "observe": {"recent": 10_000},
    }
    async with world(policy) as rig:
        rig.engine.default = Behaviour(tokens=5, gap_s=0.05)
        dice = random.Random(3)

        async def one() -> int:
            async with rig.socket() as peer:
                await peer.send(request(TEXT, ids(dice.randrange(1, 200), 20), "connection: close"))
                async with asyncio.timeout(120):
                    answer = await peer.rest()
                return int(answer.split(maxsplit=2)[1])

        statuses = await asyncio.gather(*(one() for _ in range(2000)))
        assert set(statuses) <= {200, 429}
        assert statuses.count(200) >= 500
        await rig.until(lambda: not rig.left_over(), 5)
        gc.collect()
        before = rss()
        await asyncio.gather(*(one() for _ in range(2000)))
        gc.collect()
        assert rss() - before < 50 << 20


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_p10_failing_requests_leave_no_memory_behind(world) -> None:
    """Three thousand bodies of a megabyte, each failing in one of five ways: none is kept."""
    pad = "x" * 1_000_000
    async with world({"observe": {"recent": 20_000}, "limits": {"body_bytes": 2 << 20}}) as rig:
        bodies = [
            chat(1, max_tokens="many", pad=pad),
            (b'{"pad":"' + pad.encode() + b'",'),
            chat(1, max_tokens=5, pad=pad),
            {"prompt": [1] * 20, "max_tokens": 5, "pad": pad},
            chat(1, max_tokens=5, pad=pad * 3),
        ]
        asked = count()
        # Every other one fails: a server of which all do is soon sent only a trial now and then.
        rig.engine.script = lambda seen: refuse(500, "boom") if next(asked) % 2 else None

        async def some(number: int) -> None:
            for index in range(number):
                got = await rig.post(CHAT if index % 5 != 3 else TEXT, bodies[index % 5])
                assert got.status in (200, 400, 413, 500)
                rig.engine.seen.clear()  # the fake's own memory
                rig.engine.tokenized.clear()

        await some(500)
        gc.collect()
        before = rss()
        await asyncio.gather(*(some(750) for _ in range(4)))
        gc.collect()
        assert rss() - before < 50 << 20


async def test_p09_sockets_of_a_hundred_clients_are_all_closed_again(world) -> None:
    """A fifth of them leave in the middle. The long version is the soak."""
    async with world() as rig:
        rig.engine.default = Behaviour(tokens=3, gap_s=0.002)
        dice = random.Random(1)
        files = len(list(Path("/proc/self/fd").iterdir()))

        async def one() -> None:
            async with rig.socket() as peer:
                await peer.send(request(TEXT, ids(10, 5), "connection: close"))
                if dice.random() < 0.2:
                    await rig.engine.arrived()
                    peer.reset()
                await peer.rest()

        for _ in range(10):
            await asyncio.gather(*(one() for _ in range(10)))
        await rig.until(lambda: not rig.app.listeners.runners[0].server.connections)
        await rig.until(lambda: not rig.left_over())
        idle = rig.app.fleet.backends["gpu0"].client.stats.open
        assert len(list(Path("/proc/self/fd").iterdir())) <= files + 2 * (idle + 1)
