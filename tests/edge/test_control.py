"""The control plane: shapes that scripts rely on, and answers that never wait."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families
from yarl import URL

from gateway import process
from gateway.edge import face
from gateway.version import VERSION
from tests.edge.rig import CHAT, TEXT
from tests.fakes.behaviour import Behaviour

LEDGER = {"limit", "reserved", "used"}


async def test_the_shape_of_status(rig) -> None:
    """A stable contract: names may be added, none of these may go."""
    hold = asyncio.Event()
    rig.engine.queue.append(Behaviour(tokens=9, hold=hold, hold_at=3))
    running = asyncio.ensure_future(rig.chat(max_tokens=9, stream=True))
    await rig.until(lambda: bool(rig.engine.seen) and rig.engine.seen[0].events == 3)
    rig.engine.queue.append(Behaviour(tokens=2))
    waiting = asyncio.ensure_future(rig.post(TEXT, {"prompt": [1] * 20, "max_tokens": 5000}))
    await rig.queued()
    status = await rig.status()
    assert status["version"] == VERSION
    assert status["state"] == "ready"
    (backend,) = status["backends"]
    assert backend["name"] == "gpu0"
    assert backend["url"] == rig.engine.url
    assert backend["state"] == "ready"
    assert backend["engine_version"] == "0.5.17"
    assert backend["context_tokens"] == 8192
    ledgers = backend["ledgers"]
    assert LEDGER == ledgers["kv"].keys() == ledgers["prefill"].keys() == ledgers["slots"].keys()
    assert ledgers["kv"]["limit"] == 2026
    assert ledgers["kv"]["reserved"] == 20 + 9 + 1
    assert 20 < ledgers["kv"]["used"] <= 30
    assert (ledgers["slots"]["reserved"], ledgers["prefill"]["reserved"]) == (1, 0)
    assert status["queue"].keys() >= {"requests", "tokens", "oldest_s"}
    assert (status["queue"]["requests"], status["queue"]["tokens"]) == (1, 2026)
    assert status["queue"]["oldest_s"] >= 0
    (client,) = status["clients"]
    assert client == {"name": "anyone", "held_tokens": 30, "inflight": 1, "waiting": 1}
    hold.set()
    await asyncio.gather(running, waiting)
    await rig.post(CHAT, b"{")
    totals = (await rig.status())["totals"]
    assert totals == {
        "admitted": 2,
        "completed": 2,
        "answered_here": 0,
        "rejected": {"invalid_request": 1},
        "cancelled": 0,
        "failed": 0,
    }


async def test_ready_while_a_server_takes_work_and_not_when_draining(rig) -> None:
    assert (await rig.control("/readyz")).status == 200
    await rig.engine.die()
    await rig.until(lambda: not rig.app.fleet.any_ready, 5)
    got = await rig.control("/readyz")
    assert (got.status, got.body) == (503, b"waiting for a server\n")
    assert (await rig.control("/healthz")).status == 200, "alive all the same"
    await rig.engine.revive()
    await rig.until(lambda: rig.app.fleet.any_ready, 5)
    assert (await rig.control("/readyz")).status == 200
    await rig.control("/drain", "POST")
    got = await rig.control("/readyz")
    assert (got.status, got.body) == (503, b"draining\n")
    assert (await rig.status())["state"] == "draining"


async def test_control_answers_at_once_while_the_queue_is_long(rig) -> None:
    """Class N: never behind the queue."""
    hold = asyncio.Event()
    full = {"prompt": [1] * 20, "max_tokens": 5000}
    rig.engine.default = Behaviour(tokens=1, hold=hold, hold_at=0)
    asked = [asyncio.ensure_future(rig.post(TEXT, full)) for _ in range(60)]
    await rig.queued(59)
    loop = asyncio.get_running_loop()
    for path in ("/healthz", "/readyz", "/status", "/metrics"):
        began = loop.time()
        assert (await rig.control(path)).status == 200
        assert loop.time() - began < 0.25, path
    hold.set()
    assert {got.status for got in await asyncio.gather(*asked)} == {200}


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS hello\r\n\r\n",
        b"GET /status HTTP/9.9\r\nhost: g\r\n\r\n",
        b"GET /status HTTP/1.1\r\nhost: g\r\nbad header\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: g\r\n\r\nGET / HTTP/9.9\r\n\r\n",
        b"GET /status HTTP/1.1\r\nhost: g\r\nx-long: " + b"a" * 40_000 + b"\r\n\r\n",
        b"POST /reload HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["TLS", "version", "header", "after a good one", "long header", "chunk"],
)
async def test_bytes_that_are_no_http_fill_no_log_of_the_control_plane(
    rig, data: bytes, caplog
) -> None:
    caplog.set_level("INFO")
    reader, writer = await asyncio.open_connection("127.0.0.1", URL(rig.app.control_url).port)
    writer.write(data)
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()
    assert b"HTTP/1.1 400 " in answer or b"HTTP/1.0 400 " in answer
    assert [line for line in caplog.records if line.name.startswith("aiohttp")] == []


@pytest.mark.parametrize("plane", ["listen_url", "control_url"])
async def test_a_broken_body_that_nobody_reads_fills_no_log(rig, plane: str, caplog) -> None:
    """It is dropped, and may not keep what it says it keeps."""
    caplog.set_level("INFO")
    url = URL(getattr(rig.app, plane))
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(
        b"POST /nothing HTTP/1.1\r\nhost: localhost\r\ncontent-encoding: gzip\r\n"
        b"content-length: 8\r\n\r\nno gzip!"
    )
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert [line for line in caplog.records if line.name.startswith("aiohttp")] == []


async def test_an_error_of_ours_on_the_control_plane_is_logged(rig, monkeypatch) -> None:
    """What is made quiet is bytes of clients, nothing else."""
    said: list[dict[str, BaseException]] = []
    monkeypatch.setattr(face.server_logger, "log", lambda *args, **how: said.append(how))
    monkeypatch.setattr(rig.app.control, "status", lambda: 1 / 0)
    assert (await rig.control("/status")).status == 500
    (how,) = said
    assert isinstance(how["exc_info"], ZeroDivisionError)


async def test_metrics_can_be_parsed_and_tell_what_happened(rig) -> None:
    await rig.chat(max_tokens=3)
    await rig.chat(max_tokens=99_999, stream=True)
    await rig.chat()
    await rig.post(CHAT, b"{")
    body = (await rig.control("/metrics")).body.decode()
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
    }
    assert samples["kvgate_admitted_total", "gpu0"] == 3
    assert samples["kvgate_caps_clamped_total", "gpu0"] == 1
    assert samples["kvgate_caps_injected_total", "gpu0"] == 1
    assert samples["kvgate_ended_total", "anyone", "completed", "done"] == 3
    assert samples["kvgate_refused_total", "gateway", "invalid_request"] == 1
    assert samples["kvgate_tokens_total", "anyone", "prompt"] == 60


@pytest.mark.parametrize("path", [CHAT, TEXT, "/generate", "/v1/models", "/flush_cache"])
async def test_the_control_plane_carries_no_requests(rig, path: str) -> None:
    assert (await rig.control(path)).status == 404
    assert (await rig.control(path, "POST")).status == 404
    assert rig.engine.seen == []


async def test_what_a_client_says_stays_out_of_every_record(
    start, tmp_path, capsys, logged
) -> None:
    """Class P: prompt, reply, key and odd field values, in each way a request can end."""
    (tmp_path / "key").write_text("sk-PLANTED-key-0123\n")
    policy = {
        "clients": [{"name": "a", "key_file": str(tmp_path / "key")}],
        "observe": {"records": str(tmp_path / "records.jsonl"), "log_level": "debug"},
    }
    key = {"authorization": "Bearer sk-PLANTED-key-0123", "cookie": "PLANTED=1"}
    bad = {"authorization": "Bearer sk-PLANTED-other", "x-request-id": "PLANTED id"}
    secret = {"messages": [{"role": "user", "content": "PLANTED prompt"}], "user": "PLANTED"}
    async with start(policy) as rig:
        rig.engine.default = Behaviour(tokens=3)
        bodies = [
            (secret | {"max_tokens": 3}, key),
            (secret | {"max_tokens": 3, "stream": True}, key),
            (secret, bad),
            (secret | {"max_tokens": "PLANTED"}, key),
            (secret | {"model": "PLANTED:adapter"}, key),
            (secret | {"model": "PLANTED"}, key),
            (secret | {"n": "PLANTED", "stream": "PLANTED"}, key),
            (json.dumps(secret).encode()[:-4], key),
        ]
        for body, headers in bodies:
            got = await rig.post(CHAT + "?PLANTED=1", body, headers=headers)
            assert got.status < 500
        rig.engine.default = Behaviour(raw=b"PLANTED nonsense\r\n\r\n")
        assert (await rig.post(CHAT, secret, headers=key)).status == 502
        await rig.ready()
        rig.engine.default = Behaviour(tokens=9, pad=10, close_at=2, gap_s=0.01)
        await rig.post(CHAT, secret | {"stream": True, "max_tokens": 9}, headers=key)
        shown = [(await rig.control(path)).body.decode() for path in ("/status", "/metrics")]
        shown.append(json.dumps(rig.records))
        shown.append(repr(rig.app.policy) + repr(rig.app.data._callers._identify))
    shown.append((tmp_path / "records.jsonl").read_text())
    output = capsys.readouterr()
    assert logged.getvalue().count('"request"') == 10
    for text in (*shown, logged.getvalue(), output.err, output.out):
        assert "PLANTED" not in text


@pytest.mark.parametrize(
    ("limits", "then", "warned"),
    [
        ((256, 256), None, True),
        ((256, 4096), (896, 4096), False),
        ((256, 512), (512, 512), True),
        ((65_536, 65_536), None, False),
    ],
)
def test_few_open_files_are_raised_or_said(monkeypatch, limits, then, warned) -> None:
    """Class E: past its capacity a relay does not fall over its own file descriptors unsaid."""
    set_to, said = [], []
    monkeypatch.setattr(process.resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(process.resource, "setrlimit", lambda _, to: set_to.append(to))
    most = process.enough_files(
        256, SimpleNamespace(warning=lambda event, **facts: said.append(event))
    )
    assert set_to == ([then] if then else [])
    files = (then or limits)[0]
    assert files / 4 <= most <= max(files / 2, files - 4_224), "who runs has a connection left"
    assert said == (["few_open_files"] if warned else [])


MIB = 1 << 20


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/", {"memory.max": "536870912\n"}, 512 * MIB),
        ("0::/", {"memory.max": "max\n"}, None),
        (
            "0::/system.slice/kvgate.service",
            {
                "system.slice/memory.max": "max",
                "system.slice/kvgate.service/memory.max": f"{700 * MIB}",
                "memory.max": f"{900 * MIB}",
            },
            700 * MIB,
        ),
        ("0::/a/b", {"a/memory.max": f"{600 * MIB}", "a/b/memory.max": "max"}, 600 * MIB),
        (
            "5:cpu,memory:/docker/0a1b\n1:name=systemd:/",
            {"memory/memory.limit_in_bytes": f"{300 * MIB}"},
            300 * MIB,
        ),
        ("4:memory:/", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("0::/", {}, None),
        (None, {"memory.max": "1"}, None),
    ],
)
def test_the_memory_that_a_container_may_take_is_found(tmp_path, groups, files, limit) -> None:
    if groups is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, said in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(said)
    assert process.memory_limit(tmp_path) == limit


@pytest.mark.parametrize(
    ("limit", "workers", "warned"),
    [
        (None, 1, False),
        (512 * MIB, 1, True),
        (768 * MIB, 1, False),
        (768 * MIB, 2, True),
        (1024 * MIB, 2, False),
    ],
)
def test_a_queue_that_would_be_the_end_of_its_container_is_told(
    monkeypatch, limit, workers, warned
) -> None:
    said = []
    monkeypatch.setattr(process, "memory_limit", lambda: limit)
    log = SimpleNamespace(warning=lambda event, **facts: said.append((event, facts["limit"])))
    process.enough_memory(512 * MIB, workers, log)
    assert said == ([("little_memory", limit)] if warned else [])


async def test_a_control_plane_that_others_reach_says_so_once(start) -> None:
    """127.1 is loopback for the system, and for the gate a name that may be anything."""
    with structlog.testing.capture_logs() as logs:
        async with start({"control": "127.1:0"}) as rig:
            assert (await rig.control("/reload", "POST")).status == 200
            (one,) = [one for one in logs if one["event"] == "control_open"]
            assert (one["log_level"], one["control"]) == ("info", rig.app.control_url)
            assert "has no keys" in one["reason"]
            assert "`control: 127.0.0.1:8081`" in one["reason"]
        logs.clear()
        async with start():
            pass
    assert "control_open" not in [one["event"] for one in logs]
