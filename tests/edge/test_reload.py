"""Another policy while requests run: all of it or nothing, and nobody loses a request over it."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from gateway import reload
from gateway.app import App
from gateway.edge import backends
from gateway.policy import source
from gateway.policy.source import Source
from tests.edge.rig import CHAT, TEXT, Rig, chat, written
from tests.fakes.behaviour import Behaviour
from tests.fakes.sglang import FakeSGLang

if TYPE_CHECKING:
    from pathlib import Path

BAD = """
backends:
  - {url: "http://127.0.0.1:1", slots: none}
queue: {max_request: 3}
listen: nowhere
"""


@pytest.fixture
def write(tmp_path: Path):
    """Write the policy of a rig anew."""

    def write(rig: Rig, **policy: Any) -> None:
        written(tmp_path, rig.engine.url, policy)

    return write


async def reloaded(rig: Rig) -> Any:
    got = await rig.control("/reload", "POST")
    assert got.status == 200, got.body
    return got.json()


def limit(rig: Rig) -> int:
    (pool,) = rig.app.gate.view().pools
    return pool.kv.limit


async def test_limits_hold_from_the_next_request_on(rig: Rig, write) -> None:
    assert (await rig.chat(max_tokens=50)).headers["x-kvgate-max-tokens"] == "50"
    write(rig, backend={"max_output_tokens": 7}, limits={"max_n": 1}, drain_s=0.3)
    assert await reloaded(rig) == {
        "reloaded": True,
        "files": [str(rig.app.reload.file)],
        "changed": ["backends[gpu0].max_output_tokens", "limits.max_n", "drain_s"],
        "needs_restart": [],
    }
    got = await rig.chat(max_tokens=50)
    assert got.headers["x-kvgate-max-tokens"] == "7"
    assert got.headers["x-kvgate-clamped-from"] == "50"
    assert (await rig.chat(n=2)).code == "invalid_request"
    assert (await rig.status())["policy"]["reloads"] == 1


async def test_a_smaller_budget_lets_holders_finish_and_who_waits_wait_on(rig: Rig, write) -> None:
    hold = asyncio.Event()
    rig.engine.queue.append(Behaviour(tokens=4, hold=hold, hold_at=2))
    large = {"prompt": [1] * 1500, "max_tokens": 20}
    first = asyncio.ensure_future(rig.post(TEXT, large))
    await rig.engine.arrived()
    held = rig.reserved
    waits = asyncio.ensure_future(rig.post(TEXT, {"prompt": [1] * 900, "max_tokens": 4}))
    await rig.queued()

    write(rig, backend={"kv_slack": 0.5})
    await reloaded(rig)
    assert limit(rig) < held == rig.reserved, "the lease is kept"
    assert rig.app.gate.view().queue.requests == 1
    got = await rig.post(TEXT, large)
    assert (got.status, got.code) == (400, "context_length_exceeded"), "never fits the new budget"
    hold.set()
    assert [(await one).status for one in (first, waits)] == [200, 200]


async def test_a_bad_file_changes_nothing_and_says_all_that_is_wrong(
    rig: Rig, write, tmp_path: Path
) -> None:
    before = rig.app.policy, limit(rig)
    (tmp_path / "policy.yaml").write_text(BAD)
    got = await rig.control("/reload", "POST")
    told = got.json()
    assert (got.status, told["reloaded"]) == (422, False)
    assert [problem["path"] for problem in told["problems"]] == [
        "backends[0].slots",
        "queue.max_request",
        "listen",
    ]
    assert all(problem["remedy"] for problem in told["problems"])
    assert told["problems"][0]["where"].endswith("policy.yaml:3")
    assert (rig.app.policy, limit(rig)) == before
    assert (await rig.chat()).status == 200
    status = (await rig.status())["policy"]
    assert (status["reloads"], status["problems"]) == (0, told["problems"])
    write(rig)
    await reloaded(rig)
    assert (await rig.status())["policy"]["problems"] == []


async def test_what_needs_a_restart_is_named_each_time(rig: Rig, write) -> None:
    write(rig, listen="127.0.0.1:1", limits={"connect_s": 1.0, "max_n": 7})
    for changed in (["limits.max_n"], []):
        told = await reloaded(rig)
        assert told["changed"] == changed
        assert told["needs_restart"] == ["limits.connect_s", "listen"]
    assert (await rig.status())["policy"]["needs_restart"] == ["limits.connect_s", "listen"]


async def test_keys_are_read_again(start, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("old")
    async with start({"clients": [{"name": "a", "key_file": str(keys)}]}) as rig:

        async def status(key: str) -> int:
            return (await rig.post(CHAT, chat(), headers={"x-api-key": key})).status

        assert [await status("old"), await status("new")] == [200, 401]
        keys.write_text("new")
        told = await reloaded(rig)
        assert (told["files"], told["changed"]) == ([str(keys)], [])
        assert [await status("old"), await status("new")] == [401, 200]


async def test_a_server_s_new_key_is_told_to_need_a_restart(start, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("old")
    async with start({"backend": {"api_key_file": str(key)}}) as rig:
        key.write_text("new")
        assert (await reloaded(rig))["needs_restart"] == ["backends[gpu0] (its key)"]
        await rig.chat()
        assert rig.engine.seen[0].headers["authorization"] == "Bearer old"


async def test_clients_change_under_their_running_requests(rig: Rig, write) -> None:
    hold = asyncio.Event()
    rig.engine.queue.append(Behaviour(tokens=2, hold=hold))
    running = asyncio.ensure_future(rig.chat())
    await rig.engine.arrived()
    write(rig, clients=[{"name": "anyone", "max_inflight": 1}])
    await reloaded(rig)
    waits = asyncio.ensure_future(rig.chat())
    await rig.queued()
    write(rig, clients=[{"name": "team", "header": {"name": "x-team", "value": "a"}}])
    await reloaded(rig)
    assert (await rig.chat()).status == 401
    hold.set()
    assert [(await one).status for one in (running, waits)] == [200, 200]


# ---- servers that come and go ----------------------------------------------------------------


async def test_a_server_comes_and_another_leaves_when_its_work_is_done(
    rig: Rig, write, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(backends, "LEAVES_S", 0.02)
    hold = asyncio.Event()
    rig.engine.queue.append(Behaviour(tokens=4, hold=hold, hold_at=2))
    stays = asyncio.ensure_future(rig.chat(stream=True))
    await rig.engine.arrived()
    async with FakeSGLang() as other:
        first = {"url": rig.engine.url, "name": "gpu0"}
        second = {"url": other.url, "name": "gpu1"}
        write(rig, more=[second])
        assert (await reloaded(rig))["changed"] == ["backends[gpu1] (added)"]
        await rig.until(lambda: rig.app.fleet.backends["gpu1"].ready)

        path = tmp_path / "policy.yaml"
        document = json.loads(path.read_text())
        path.write_text(json.dumps(document | {"backends": [second]}))
        assert (await reloaded(rig))["changed"] == ["backends[gpu0] (removed)"]
        got = [await rig.chat() for _ in range(4)]
        assert {one.headers["x-kvgate-backend"] for one in got} == {"gpu1"}
        leaving, _ = sorted((await rig.status())["backends"], key=lambda one: one["name"])
        assert (leaving["name"], leaving["leaving"]) == ("gpu0", True)
        path.write_text(json.dumps(document | {"backends": [second, first]}))
        got = await rig.control("/reload", "POST")
        assert "still run on gpu0" in got.json()["problems"][0]["wrong"]

        hold.set()
        answer = await stays
        assert (answer.status, answer.headers["x-kvgate-backend"]) == (200, "gpu0")
        await rig.until(lambda: set(rig.app.fleet.backends) == {"gpu1"})
        assert [str(pool.pool) for pool in rig.app.gate.view().pools] == ["gpu1"]
        await reloaded(rig)
        await rig.until(lambda: rig.app.fleet.backends["gpu0"].ready)
        assert list(rig.app.fleet.backends) == ["gpu1", "gpu0"], "in the file's order"


async def test_who_waits_for_a_server_that_leaves_is_still_served_there(
    rig: Rig, write, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(backends, "LEAVES_S", 0.02)
    hold = asyncio.Event()
    rig.engine.queue.append(Behaviour(tokens=4, hold=hold, hold_at=2))
    body = {"prompt": [1] * 1500, "max_tokens": 20}
    runs = asyncio.ensure_future(rig.post(TEXT, body))
    await rig.engine.arrived()
    waits = asyncio.ensure_future(rig.post(TEXT, body))
    await rig.queued()
    async with FakeSGLang() as other:
        path = tmp_path / "policy.yaml"
        document = json.loads(path.read_text())
        document["backends"] = [{"url": other.url, "name": "gpu1"}]
        path.write_text(json.dumps(document))
        await reloaded(rig)
        hold.set()
        for one in (runs, waits):
            answer = await one
            assert (answer.status, answer.headers["x-kvgate-backend"]) == (200, "gpu0")
        await rig.until(lambda: set(rig.app.fleet.backends) == {"gpu1"})


# ---- under load ------------------------------------------------------------------------------


def _any_policy(rng: random.Random) -> dict[str, Any]:
    """One that serves every request of the load below, sooner or later."""
    anyone = {"name": "anyone", "weight": rng.choice([0.5, 1.0, 7.0])}
    if rng.random() < 0.5:
        anyone["max_inflight"] = rng.randint(1, 6)
    return {
        "backend": {
            "kv_slack": rng.choice([0.0, 0.1, 0.3, 0.5]),
            "slots": rng.choice([1, 3, "auto"]),
            "prefill_tokens": rng.choice([64, 512, "auto"]),
            "max_output_tokens": rng.choice([20, "auto"]),
        },
        "queue": {"max_requests": rng.randint(150, 300), "max_wait_s": 60.0},
        "reservation": rng.choice(["forecast", "declared"]),
        "clients": rng.choice([[], [anyone]]),
        "caps": {"useful_floor": rng.choice([1, 8])},
    }


@pytest.mark.parametrize("seed", range(3))
async def test_reloads_under_load_lose_no_request_and_overcommit_nothing(
    rig: Rig, write, tmp_path: Path, seed: int
) -> None:
    """Good and bad files by turns while 80 requests come: `at_rest` looks at the pool's peak."""
    rng = random.Random(seed)
    rig.engine.default = Behaviour(gap_s=0.001)
    done = asyncio.Event()

    async def ask() -> int:
        await asyncio.sleep(rng.random())
        body = {"prompt": [1] * rng.randint(1, 600), "max_tokens": rng.randint(1, 40)}
        body["stream"] = rng.random() < 0.5
        got = await rig.post(TEXT, body, timeout=aiohttp.ClientTimeout(50))
        return got.status

    async def turn() -> dict[int, int]:
        answers = {200: 0, 422: 0}
        while not done.is_set():
            before = rig.app.policy
            if rng.random() < 0.3:
                (tmp_path / "policy.yaml").write_text(BAD)
            else:
                write(rig, **_any_policy(rng))
            got = await rig.control("/reload", "POST")
            answers[got.status] += 1
            await asyncio.sleep(0.01)  # the requests have a turn on a machine with one core, too
            if got.status == 422:
                assert rig.app.policy is before
            for pool in rig.app.gate.view().pools:
                assert pool.kv.used <= rig.engine.profile.pool
        return answers

    turning = asyncio.ensure_future(turn())
    statuses = await asyncio.gather(*(ask() for _ in range(80)))
    done.set()
    answers = await turning
    assert set(statuses) == {200}
    assert answers[200] > 3
    assert answers[422] > 1


# ---- what sets it off ------------------------------------------------------------------------


async def test_a_changed_file_is_read_when_it_has_come_to_rest(
    start, write, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(reload, "POLL_S", 0.02)
    async with start() as rig:
        write(rig, backend={"slots": 3})
        await rig.until(lambda: rig.app.policy.backends[0].slots == 3)
        (tmp_path / "policy.yaml").write_text(BAD)
        await rig.until(lambda: rig.app.reload.status()["problems"])
        (tmp_path / "policy.yaml").unlink()
        await rig.until(
            lambda: "no such file" in str(rig.app.reload.status()["problems"][0]["wrong"])
        )
        assert rig.app.policy.backends[0].slots == 3
        write(rig, backend={"slots": 4})
        await rig.until(lambda: rig.app.policy.backends[0].slots == 4)
        assert rig.app.reload.status()["problems"] == []
        done = rig.app.reload.status()["reloads"]
        await asyncio.sleep(0.2)
        assert rig.app.reload.status()["reloads"] == done, "nothing changed, nothing read"


async def test_a_file_that_nobody_thought_of_is_told_and_the_next_one_is_read(
    start, write, tmp_path: Path, monkeypatch
) -> None:
    """A fault of ours while reading would end the look at the files, without a word in /status."""
    monkeypatch.setattr(reload, "POLL_S", 0.02)
    real = source.load_policy

    def load(path: Path, **options: Any) -> Any:
        if "sk-planted" in path.read_text():
            raise KeyError("sk-planted")
        return real(path, **options)

    monkeypatch.setattr(source, "load_policy", load)
    async with start() as rig:
        (tmp_path / "policy.yaml").write_text("# sk-planted")
        await rig.until(lambda: rig.app.reload.status()["problems"])
        (problem,) = rig.app.reload.status()["problems"]
        assert problem["wrong"] == "cannot be read (KeyError)"
        assert problem["where"].endswith("policy.yaml")
        got = await rig.control("/reload", "POST")
        assert (got.status, got.json()["reloaded"]) == (422, False)
        assert b"sk-planted" not in got.body
        write(rig, backend={"slots": 4})
        await rig.until(lambda: rig.app.policy.backends[0].slots == 4)
        assert rig.app.reload.status()["problems"] == []


async def test_a_mounted_configuration_is_swapped_by_a_link(tmp_path: Path, monkeypatch) -> None:
    """A ConfigMap: the file is a link to a folder that is a link; the file behind it never changes."""
    monkeypatch.setattr(reload, "POLL_S", 0.02)
    for name in ("..1", "..2"):
        (tmp_path / name).mkdir()
    async with FakeSGLang() as engine:
        written(tmp_path / "..1", engine.url, {})
        (tmp_path / "..data").symlink_to("..1")
        path = tmp_path / "policy.yaml"
        path.symlink_to("..data/policy.yaml")
        source = Source(path, env={})
        app = App(source.load(), source)
        await app.start()
        try:
            written(tmp_path / "..2", engine.url, {"backend": {"slots": 3}})
            (tmp_path / "..new").symlink_to("..2")
            (tmp_path / "..new").replace(tmp_path / "..data")
            async with asyncio.timeout(5):
                while app.policy.backends[0].slots != 3:
                    await asyncio.sleep(0.02)
        finally:
            await app.stop()


@pytest.mark.parametrize("newer", [True, False])
async def test_a_file_that_was_saved_before_the_first_look_is_read(
    tmp_path: Path, monkeypatch, newer: bool
) -> None:
    """What is in force was read a second ago, or handed over by a process that had not read it yet."""
    monkeypatch.setattr(reload, "POLL_S", 0.02)
    async with FakeSGLang() as engine:
        source = written(tmp_path, engine.url, {})
        policy = source.load()
        if newer:
            written(tmp_path, engine.url, {"backend": {"slots": 3}})
        app = App(policy, source)
        await app.start()
        try:
            await asyncio.sleep(0.3)
            assert app.policy.backends[0].slots == (3 if newer else policy.backends[0].slots)
            assert app.reload.status()["reloads"] == newer
        finally:
            await app.stop()


async def test_a_server_that_comes_back_too_soon_is_taken_when_it_is_gone(
    start, write, monkeypatch
) -> None:
    """Taken out and put back within five seconds: refused with the reason, and tried until it takes."""
    monkeypatch.setattr(reload, "POLL_S", 0.02)
    monkeypatch.setattr(backends, "LEAVES_S", 0.05)
    told = []
    async with FakeSGLang() as second, start() as rig:
        monkeypatch.setattr(rig.app.reload._log, "error", lambda *_, **said: told.append(said))
        more = [{"url": second.url, "name": "gpu1"}]
        write(rig, more=more)
        await rig.until(lambda: len(rig.app.fleet.backends) == 2)
        hold = asyncio.Event()
        second.default = Behaviour(tokens=2, hold=hold, hold_at=1)
        rig.engine.default = Behaviour(tokens=2, hold=hold, hold_at=1)
        await rig.until(lambda: all(backend.ready for backend in rig.app.fleet))
        asked = [asyncio.ensure_future(rig.chat(max_tokens=2, stream=True)) for _ in range(2)]
        await rig.engine.arrived()
        await second.arrived()
        write(rig)
        await rig.until(lambda: "gpu1" in rig.app.fleet.leaving)
        write(rig, more=more)
        await rig.until(lambda: rig.app.reload.status()["tried_again"])
        (problem,) = rig.app.reload.status()["problems"]
        assert "comes back before it is gone" in problem["wrong"]
        got = (await rig.control("/reload", "POST")).json()
        assert (got["reloaded"], got["tried_again"]) == (False, True)
        assert "until it takes" in got["message"]
        await asyncio.sleep(0.2)
        assert len(told) == 2, "once for the file and once for whoever asked, not at each try"
        hold.set()
        await asyncio.gather(*asked)
        await rig.until(lambda: "gpu1" in rig.app.fleet.backends and not rig.app.fleet.leaving, 5)
        await rig.until(lambda: rig.app.fleet.backends["gpu1"].ready, 5)
        status = rig.app.reload.status()
        assert (status["tried_again"], status["problems"]) == (False, [])


async def test_what_is_wrong_for_good_is_not_tried_again(start, write, monkeypatch) -> None:
    """A name that is taken, and a server that comes back too soon: the first one stays wrong."""
    monkeypatch.setattr(reload, "POLL_S", 0.02)
    async with start() as rig:
        write(rig, more=[{"url": rig.engine.url, "name": "other"}])
        await rig.until(lambda: rig.app.reload.status()["problems"])
        assert not rig.app.reload.status()["tried_again"]


async def test_a_file_that_still_grows_is_left_alone(
    start, write, tmp_path: Path, monkeypatch
) -> None:
    """Half a file may be good YAML: here it would open the gate to everybody."""
    monkeypatch.setattr(reload, "POLL_S", 0.02)
    async with start() as rig:
        path = tmp_path / "policy.yaml"
        seen = []
        monkeypatch.setattr(rig.app.reload, "now", seen.append)
        looks = 0
        stamps = rig.app.reload._source.stamps.__func__

        def growing(source: Any, policy: Any) -> Any:
            nonlocal looks
            looks += 1
            with path.open("a") as file:
                file.write("\n")
            return stamps(source, policy)

        monkeypatch.setattr(type(rig.app.reload._source), "stamps", growing)
        await rig.until(lambda: looks > 5)
        assert seen == []


async def test_a_gate_without_a_source_says_so(rig: Rig) -> None:
    rig.app.reload._source = None
    got = await rig.control("/reload", "POST")
    assert (got.status, got.json()["reloaded"]) == (422, False)
