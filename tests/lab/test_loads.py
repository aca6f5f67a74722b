"""Load against a twin: what clients see is counted, and a recorded load comes again."""

import asyncio
import json
import random
from contextlib import asynccontextmanager

import aiohttp
import pytest

from gateway.app import App
from gateway.cli import demo as demo_command
from gateway.cli import evaluate as evaluate_command
from gateway.cli import replay as replay_command
from gateway.cli import stress as stress_command
from gateway.cli import twin as twin_command
from gateway.lab import synthetic
from gateway.lab.loads import comparison, table
from gateway.lab.replay import Recorded, read, replay, texts
from gateway.lab.stress import DEMANDS, Point, stress
from gateway.policy.schema import Backend, Policy
from gateway.twin import tokenizer
from gateway.twin.profiles import A10_8B, TINY_CPU
from gateway.twin.server import TwinServer


def test_a_message_is_about_as_long_as_wanted():
    for size in (50, 5000):
        chosen = synthetic.words(size - synthetic.FRAME, random.Random(1))
        content = synthetic.sentence(chosen)
        prompt = tokenizer.render([{"role": "user", "content": content}])
        assert abs(tokenizer.count(prompt) - size) <= 5


async def test_a_grid_is_served_and_counted():
    async with TwinServer(A10_8B, speed=50.0) as twin:
        heard = []
        result = await stress(
            twin.url,
            [Point(1, 100, 5), Point(3, 200, 7)],
            each=2,
            progress=lambda point, done, total: heard.append((point.name, done, total)),
        )
    first, second, everything = result["rows"]
    assert (first["served"], first["output_tokens"]) == (2, 10)
    assert (second["served"], second["output_tokens"]) == (6, 42)
    assert abs(second["prompt_tokens"] - 1200) <= 30
    assert (everything["group"], everything["requests"], everything["errors"]) == ("all", 8, {})
    assert 0 < second["ttft_p50"] <= second["e2e_p50"] <= second["e2e_p99"]
    assert heard[-1] == ("3 × 200 in, 7 out", 6, 6)
    assert "3 × 200 in, 7 out" in table(result)


async def test_refusals_and_dead_servers_are_errors_by_code():
    async with TwinServer(TINY_CPU, speed=50.0) as twin:
        url = twin.url
        refused = (await stress(url, [Point(2, 20_000, 5)], each=1))["rows"][0]
    gone = (await stress(url, [Point(1, 10, 5)], each=1))["rows"][0]
    assert (refused["served"], refused["errors_total"]) == (0, 2)
    assert gone["errors"] == {"unreachable": 1}
    assert gone["ttft_p50"] is None


def test_the_demands_are_those_of_incident_a():
    agents, proof = DEMANDS["agents"], DEMANDS["proof"]
    assert agents.fields == {}
    assert agents.concurrency * (agents.prompt + 32_000) == 153_000
    assert proof.fields == {"max_tokens": 15_181, "ignore_eos": True}


def test_turns_of_a_conversation_share_what_they_shared():
    turns = [
        Recorded(0, "a", 200, 10, None),
        Recorded(1, "b", 500, 10, None),
        Recorded(2, "a", 300, 10, None, cached=150),
        Recorded(3, "a", 400, 10, None, cached=280),
        Recorded(4, "a", 400, 10, None),
    ]
    first, other, second, third, fresh = (text.split() for text in texts(turns))
    assert second[:150] == first[:150]
    assert second[150:192] != first[150:192]
    assert third[:280] == second[:280]
    assert other[:20] != first[:20] != fresh[:20]


def lines(tmp_path, *records):
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def record(second, client="a", **more):
    at = f"2026-01-01T00:00:{second:06.3f}+00:00"
    return {"at": at, "client": client, "prompt_tokens": 300, "output_tokens": 6, **more}


def test_records_are_read_in_order_of_arrival(tmp_path):
    path = lines(
        tmp_path,
        record(2.5, "b", cap_asked=9, cached_tokens=100),
        record(1.0),
        record(1.5, prompt_tokens=None),
    )
    assert read(path) == [
        Recorded(0.0, "a", 300, 6, None),
        Recorded(1.5, "b", 300, 6, 9, 100),
    ]


async def test_the_same_load_comes_again(tmp_path):
    path = lines(tmp_path, record(0.0), record(0.2, "b"), record(0.4, cached_tokens=256))
    async with TwinServer(A10_8B, speed=20.0) as twin:
        exact = await replay(twin.url, read(path), faster=2.0)
        asked = await replay(twin.url, read(path), faster=2.0, as_asked=True, seed=1)
        cached = twin.engine.counters.cached_tokens
    assert [row["group"] for row in exact["rows"]] == ["a", "b", "all"]
    for result in (exact, asked):
        everything = result["rows"][-1]
        assert (everything["served"], everything["output_tokens"]) == (3, 18)
        assert everything["seconds"] > 0.15, "pauses are kept, halved: 0.2 s less a timer's grain"
    assert cached >= 2 * 192, "the third shares its beginning with the first, both times"
    assert "+0" not in comparison(exact, exact)


def test_two_results_side_by_side(tmp_path, capsys):
    row = {"group": "g", "served": 4, "errors_total": 0, "tokens_per_s": 10.0}
    times = dict.fromkeys(("ttft_p50", "ttft_p99", "tpot_p50", "e2e_p50", "e2e_p99"), 2.0)
    before, after = tmp_path / "b.json", tmp_path / "a.json"
    before.write_text(json.dumps({"rows": [row | times]}))
    after.write_text(json.dumps({"rows": [row | times | {"ttft_p99": 1.0}]}))
    assert stress_command.run(["--compare", str(before), str(after)]) == 0
    assert "-50 %" in capsys.readouterr().out
    after.write_text("{}")
    assert stress_command.run(["--compare", str(before), str(after)]) == 2


@pytest.mark.parametrize("content", ["", "words\n", '{"at": "now"}\n'])
def test_no_records_is_one_sentence(tmp_path, capsys, content):
    path = tmp_path / "x.jsonl"
    path.write_text(content)
    assert replay_command.run([str(path), "http://127.0.0.1:9"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nonsense", "without a scheme"),
        ("127.0.0.1:8080", "http://HOST:PORT"),
        ("ftp://127.0.0.1", "http"),
        ("http://:x", "not a URL"),
        ("http://127.0.0.1:9/v1", "without /v1"),
        ("http://key@127.0.0.1:9", "KVGATE_KEY"),
    ],
)
def test_an_url_that_is_none_is_one_sentence(tmp_path, capsys, url, words):
    """It was taken for a server that does not answer."""
    records = str(lines(tmp_path, record(0.0)))
    for command, argv in ((stress_command, [url]), (replay_command, [records, url])):
        assert command.run(argv) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert words in err
        assert "key@" not in err


def test_a_result_that_cannot_be_written_is_said_before_the_load(tmp_path, capsys):
    """It ended a run of an hour, and its numbers with it."""
    records = str(lines(tmp_path, record(0.0)))
    url = "http://127.0.0.1:9"
    for run, argv in (
        (stress_command.run, [url]),
        (replay_command.run, [records, url]),
        (demo_command.run, []),
        (evaluate_command.run, ["--quick"]),
    ):
        assert run([*argv, "--json", str(tmp_path)]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert f"--json {tmp_path} cannot be written: Is a directory." in err


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "0", "-1"])
def test_a_pace_that_is_none_is_one_sentence(tmp_path, capsys, number):
    records = str(lines(tmp_path, record(0.0)))
    argv = [records, "http://127.0.0.1:9", f"--faster={number}"]
    for run, given in ((replay_command.run, argv), (twin_command.run, [f"--speed={number}"])):
        assert run(given) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert "number above 0" in err


@pytest.mark.parametrize("command", [stress_command, replay_command])
def test_the_help_of_a_load_says_where_a_key_goes(capsys, command):
    with pytest.raises(SystemExit):
        command.run(["--help"])
    assert "KVGATE_KEY" in capsys.readouterr().out


def test_the_help_of_the_twin_says_what_it_has_not(capsys):
    with pytest.raises(SystemExit):
        twin_command.run(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "no responses, embeddings, rerank, score or classify" in said


async def test_the_twin_has_not_what_its_help_says_it_has_not():
    async with TwinServer(A10_8B) as twin, aiohttp.ClientSession() as http:
        for path in ("responses", "embeddings", "rerank", "score", "classify"):
            async with http.post(f"{twin.url}/v1/{path}", json={"model": "default"}) as answer:
                assert answer.status == 404, path


def test_the_key_of_the_environment_is_sent(monkeypatch):
    monkeypatch.delenv("KVGATE_KEY", raising=False)
    assert stress_command.key_headers() == {}
    monkeypatch.setenv("KVGATE_KEY", "k")
    assert stress_command.key_headers() == {"authorization": "Bearer k"}


def test_a_load_without_a_url_is_usage(capsys):
    assert stress_command.run([]) == 2
    assert "URL" in capsys.readouterr().err


@asynccontextmanager
async def gate_before(twin, records):
    """The whole gate in front of `twin`, ready to take work; its URL."""
    backend = Backend(name="twin", url=twin.url)
    policy = Policy(
        backends=[backend],
        listen="127.0.0.1:0",
        control="127.0.0.1:0",
        observe={"records": records},
    )
    app = App(policy)
    await app.start()
    try:
        async with asyncio.timeout(10):
            while not app.fleet.any_ready:
                await asyncio.sleep(0.01)
        yield app.listen_url
    finally:
        await app.close()


async def test_stress_through_the_gate_and_its_records_again(tmp_path):
    """What a load leaves in the gate's records is the same load when it is replayed."""
    records = tmp_path / "records.jsonl"
    async with TwinServer(A10_8B, speed=50.0) as twin:
        async with gate_before(twin, records) as url:
            loaded = await stress(url, [Point(3, 200, 7), Point(2, 500, 0)], each=2)
        taken = read(records)
        assert sorted(one.output for one in taken if one.cap == 7) == [7] * 6
        assert len(taken) == 10
        async with gate_before(twin, tmp_path / "again.jsonl") as url:
            again = await replay(url, taken, faster=5.0)
        assert twin.retractions == 0
    for result in (loaded, again):
        everything = result["rows"][-1]
        assert (everything["served"], everything["errors_total"]) == (10, 0)
    before, after = (result["rows"][-1] for result in (loaded, again))
    assert before["output_tokens"] == after["output_tokens"]
    assert abs(before["prompt_tokens"] - after["prompt_tokens"]) <= 10 * 8
    assert "served" in comparison({"rows": [before]}, {"rows": [before]})


async def test_the_commands_load_a_gate(tmp_path, capsys):
    """`kvgate stress` and `kvgate replay`, as a person runs them."""
    records, result = tmp_path / "records.jsonl", tmp_path / "result.json"
    async with TwinServer(A10_8B, speed=50.0) as twin, gate_before(twin, records) as url:
        grid = ["--concurrency", "2", "--prompt", "100", "--output", "5", "--each", "1"]
        assert await asyncio.to_thread(stress_command.run, [url, *grid, "--json", str(result)]) == 0
        async with asyncio.timeout(5):
            while not records.exists() or records.read_bytes().count(b"\n") < 2:
                await asyncio.sleep(0.01)
        argv = [str(records), twin.url, "--faster", "10"]
        assert await asyncio.to_thread(replay_command.run, argv) == 0
    said = capsys.readouterr().out
    assert "2 × 100 in, 5 out" in said
    assert json.loads(result.read_text())["rows"][0]["served"] == 2
