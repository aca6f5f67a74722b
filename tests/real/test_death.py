"""The engine dies, freezes, retracts or is told to go; what its clients see, and the books after.

Each client here is an ordinary one, without retries: what it got is all it got.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from tests.real import load
from tests.real.conftest import POOL
from tests.real.load import chat_body, chats, streaming, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.real.conftest import Note
    from tests.real.engine import Engine
    from tests.real.gateproc import Gate
    from tests.real.load import Reply

pytestmark = [pytest.mark.changes_engine(0), pytest.mark.timeout(540)]

# A start takes 17-26 s with the machine to itself, minutes on a crowded one; who is put back waits
# for it in the queue, with a client that is as patient.
WAIT_S = 400

# Who runs and who waits is a sum over caps: a forecast would let one more in.
CHARGES_ALL: dict[str, Any] = {"reservation": "declared", "queue": {"max_wait_s": WAIT_S}}

# The stated time of the test's policy, and what may come on top: one poll, one probe of /health.
STALL_S = 4.0
SEEN_WITHIN_S = STALL_S + 6.0

# SGLang's own switch for tests: it throws requests out of the pool although there is room.
RETRACTS = {"SGLANG_TEST_RETRACT": "1"}


@pytest.fixture
def fresh(engine: Engine) -> Callable[..., Engine]:
    """The shared engine with the usual pool, restarted only where it is not so already."""

    def make(env: dict[str, str] | None = None) -> Engine:
        if not engine.alive or engine.pool != POOL or engine._environment != (env or {}):
            engine._environment = dict(env or {})
            engine.restart(POOL)
        return engine

    return make


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "CLIENT_TIMEOUT", aiohttp.ClientTimeout(total=WAIT_S))


@pytest.fixture(autouse=True)
def _left_alive(engine: Engine) -> Iterator[None]:
    """Whatever a test did, the next one finds an engine that answers."""
    yield
    if not engine.alive:
        engine.restart()


def running(engine: Engine) -> int:
    return int(engine.loads()["num_running_reqs"])


def one_error_and_no_end(reply: Reply) -> None:
    """A stream that was cut: status and part of the answer were out, so it is told in-band."""
    assert reply.status == 200
    assert b"[DONE]" not in reply.body
    errors = [one["error"] for one in reply.objects() if "error" in one]
    assert [error["code"] for error in errors] == ["upstream_error"]
    assert len(errors[0]["message"].split()) >= 4


async def at_rest(gate: Gate, within_s: float = 10) -> None:
    await until(lambda: not any(gate.ledgers().values()), within_s, "every ledger is at zero")
    status = gate.status()
    assert (status["queue"]["requests"], status["clients"]) == (0, [])


@pytest.mark.changes_engine(1)
async def test_the_scheduler_is_killed_and_comes_back_with_a_smaller_pool(
    fresh: Callable[..., Engine],
    make_gate: Callable[..., Gate],
    report: Note,
    tmp_path: Any,
) -> None:
    """Nothing is lost that had not started: it waits for the next start and is answered by it."""
    engine = fresh()
    before = engine.retractions()
    crashes = tmp_path / "crashes"
    gate = make_gate(engine, CHARGES_ALL | {"observe": {"crash_reports": str(crashes)}})
    bodies = {  # 560 + 700 and 100 + 300 of 2,048 tokens run; none of the others fits beside them
        "stream": streaming(chat_body(560, seed=1, max_tokens=700)),
        "whole": chat_body(100, seed=2, max_tokens=300),
        "queued stream": streaming(chat_body(300, seed=3, max_tokens=800)),
        "queued whole": chat_body(200, seed=4, max_tokens=200),
        "queued, too large for the next pool": chat_body(1200, seed=5, max_tokens=300),
    }
    async with asyncio.TaskGroup() as tasks:
        asked = {}
        for name, body in bodies.items():
            if name == "queued stream":
                await until(lambda: running(engine) == 2, 20, "the first two run")
            asked[name] = tasks.create_task(chats(gate.url, [body]))
        await until(lambda: gate.status()["queue"]["requests"] == 3, 10, "three wait")
        killed = time.monotonic()
        engine.kill_scheduler()
        (stream,) = await asked["stream"]
        noticed_s = time.monotonic() - killed
        await until(lambda: gate.reserved() == 0, 30, "what it held is written off")
        off_s = time.monotonic() - killed
        await until(lambda: gate.status()["queue"]["requests"] == 4, 5, "one is put back")
        await asyncio.to_thread(engine.restart, POOL // 2)
        back = time.monotonic()
    done_s = time.monotonic() - back
    replies = {name: task.result()[0] for name, task in asked.items()}
    one_error_and_no_end(stream)
    for name in ("whole", "queued stream", "queued whole"):
        assert replies[name].complete, (name, replies[name].body[-300:])
    refused = replies["queued, too large for the next pool"]
    assert refused.status == 400
    assert refused.error is not None
    assert refused.error["code"] == "context_length_exceeded"
    assert refused.error["available"] < POOL // 2
    cap = replies["queued stream"].header("max-tokens")
    assert cap < 800, "decided anew for the smaller pool"
    await at_rest(gate)
    (backend,) = gate.status()["backends"]
    assert (backend["starts"], backend["pool_tokens"]) == (2, POOL // 2)
    (path,) = crashes.glob("*.json")
    scene = json.loads(path.read_text())
    # The first two were sent at once: which came first is chance.
    assert sorted(one["streamed"] for one in scene["in_flight"]) == [False, True]
    assert scene["pools"][0]["kv"]["reserved"] >= 1660
    assert engine.retractions() == before
    report(
        f"scheduler killed: stream told after {noticed_s:.1f} s, ledger zero after {off_s:.1f} s; "
        f"1 put back and 2 queued answered {done_s:.1f} s after the next start, 1 refused"
    )


async def test_a_frozen_scheduler(
    fresh: Callable[..., Engine], make_gate: Callable[..., Gate], report: Note
) -> None:
    """/v1/models and /v1/loads answer 200 throughout. Nothing is cut, nothing new is sent."""
    engine = fresh()
    gate = make_gate(engine, {"limits": {"stall_s": STALL_S}})

    def state() -> str:
        return str(gate.status()["backends"][0]["state"])

    async with asyncio.TaskGroup() as tasks:
        body = streaming(chat_body(560, seed=11, max_tokens=900))
        stream = tasks.create_task(chats(gate.url, [body]))
        await until(lambda: running(engine) == 1, 20, "the stream runs")
        engine.freeze()
        try:
            seen_s = await until(lambda: state() == "stalled", SEEN_WITHIN_S, "it is seen")
            assert engine.get("/v1/models")["data"], "its HTTP side answers"
            assert engine.loads()["num_running_reqs"] == 1
            (refused,) = await chats(gate.url, [chat_body(50, seed=12, max_tokens=5)])
            assert refused.status == 503
            assert refused.error is not None
            assert refused.error["code"] == "no_backend"
            assert "stalled" in refused.error["message"]
            assert gate.reserved() > 0, "nothing is written off"
            assert not stream.done()
        finally:
            engine.thaw()
        moved_s = await until(lambda: state() == "ready", 10, "it moves again")
    (reply,) = stream.result()
    assert reply.complete, "not cut"
    (after,) = await chats(gate.url, [chat_body(50, seed=13, max_tokens=5)])
    assert after.complete
    await at_rest(gate)
    assert gate.status()["backends"][0]["starts"] == 1
    report(f"scheduler frozen: seen after {seen_s:.1f} s, going on {moved_s:.1f} s after it moved")


async def test_the_engine_is_told_to_go(
    fresh: Callable[..., Engine], make_gate: Callable[..., Gate], report: Note
) -> None:
    """SIGTERM: SGLang finishes what runs, or not; each client has one end, and a true one."""
    engine = fresh()
    gate = make_gate(engine, CHARGES_ALL)
    bodies = [
        streaming(chat_body(200, seed=21, max_tokens=600)),
        chat_body(200, seed=22, max_tokens=400),
        chat_body(300, seed=23, max_tokens=600),  # waits at the gate
    ]
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(chats(gate.url, [body])) for body in bodies[:2]]
        await until(lambda: running(engine) == 2, 20, "two run")
        asked.append(tasks.create_task(chats(gate.url, bodies[2:])))
        await until(lambda: gate.status()["queue"]["requests"] == 1, 10, "one waits")
        os.kill(engine.pid, signal.SIGTERM)
        told = time.monotonic()
        await until(lambda: not engine.alive, 60, "the engine is gone")
        went_s = time.monotonic() - told
        await asyncio.to_thread(engine.restart)
    stream, whole, queued = (task.result()[0] for task in asked)
    assert whole.complete
    assert queued.complete
    if not stream.complete:
        one_error_and_no_end(stream)
    await at_rest(gate)
    await until(lambda: bool(gate.status()["backends"][0]["ready"]), 30, "the next start is known")
    (again,) = await chats(gate.url, [chat_body(50, seed=24, max_tokens=5)])
    assert again.complete
    report(
        f"SIGTERM: gone after {went_s:.1f} s; the stream "
        f"{'came to its end' if stream.complete else 'was told it broke off'}, the others answered"
    )


@pytest.mark.changes_engine(2)
async def test_an_engine_that_retracts(
    fresh: Callable[..., Engine], make_gate: Callable[..., Gate], report: Note
) -> None:
    """A retracted request is silent and goes on: no failure of anybody's."""
    engine = fresh(RETRACTS)
    gate = make_gate(engine)
    before = engine.retractions()
    bodies = [streaming(chat_body(150, seed=30 + k, max_tokens=200)) for k in range(4)]
    bodies += [chat_body(100, seed=40 + k, max_tokens=100) for k in range(2)]
    replies = await chats(gate.url, bodies)
    retracted = engine.retractions() - before
    assert retracted > 0, "the engine did retract"
    assert all(reply.complete for reply in replies)
    caps = [body["max_tokens"] for body in bodies]
    assert [reply.usage["completion_tokens"] for reply in replies] == caps
    await at_rest(gate)
    (backend,) = gate.status()["backends"]
    assert (backend["starts"], backend["held"]) == (1, None)
    assert gate.status()["totals"]["failed"] == 0
    report(f"forced retraction: {retracted} thrown out, all {len(replies)} answered in full")


async def test_a_new_gate_before_a_busy_engine(
    fresh: Callable[..., Engine], make_gate: Callable[..., Gate], report: Note
) -> None:
    """What runs there already is charged, so that nothing the new gate admits waits or retracts."""
    engine = fresh()
    before = engine.retractions()
    known = asyncio.Event()

    async def somebody_else(seed: int, tokens: int) -> None:
        """Asks the engine directly, one request after the other, until the gate has seen it."""
        while not known.is_set():
            body = streaming(chat_body(200, seed=seed, max_tokens=tokens))
            (other,) = await chats(engine.url, [body])
            assert other.complete

    async with asyncio.TaskGroup() as tasks:
        # Three of different lengths: of two, both were between two requests at one look of a gate.
        for n in range(3):
            tasks.create_task(somebody_else(51 + n, 290 + 40 * n))
        await until(lambda: running(engine) == 3, 20, "somebody else's requests run")
        gate = await asyncio.to_thread(make_gate, engine)
        held = gate.reserved()
        elsewhere = gate.status()["backends"][0]["elsewhere"]
        assert elsewhere["requests"] >= 1
        assert held == elsewhere["tokens"] > 500
        with load.LoadSampler(engine) as seen:
            bodies = [streaming(chat_body(500, seed=55 + k, max_tokens=300)) for k in range(3)]
            mine = tasks.create_task(chats(gate.url, bodies))
            await until(lambda: gate.status()["queue"]["requests"] >= 1, 10, "ours wait")
            known.set()
            replies = await mine
    assert all(reply.complete for reply in replies)
    assert (seen.waiting, engine.retractions()) == (0, before)
    await at_rest(gate)
    assert gate.status()["backends"][0]["elsewhere"] == {"requests": 0, "tokens": 0}
    report(f"new gate, busy engine: {held} tokens charged to others at first; {seen}")


async def test_the_gate_is_told_to_go(
    fresh: Callable[..., Engine], make_gate: Callable[..., Gate], report: Note
) -> None:
    """SIGTERM: what runs may finish, what waits is told to come back, and the engine is left idle."""
    engine = fresh()
    gate = make_gate(engine, {"drain_s": 60})
    async with asyncio.TaskGroup() as tasks:
        runs = tasks.create_task(
            chats(gate.url, [streaming(chat_body(560, seed=61, max_tokens=900))])
        )
        await until(lambda: running(engine) == 1, 20, "one runs")
        waits = tasks.create_task(chats(gate.url, [chat_body(560, seed=62, max_tokens=900)]))
        await until(lambda: gate.status()["queue"]["requests"] == 1, 10, "one waits")
        gate._process.terminate()
        (refused,) = await waits
        assert refused.status == 503
        assert refused.error is not None
        assert refused.error["code"] == "draining"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert gate._process.poll() is None
    (reply,) = runs.result()
    assert reply.complete
    took = await until(lambda: gate._process.poll() is not None, 10, "the process ends")
    assert gate._process.returncode == 0
    assert running(engine) == 0
    report(f"gate told to go: its last answer complete, the process gone {took:.2f} s after it")
