"""Clients of others, unmodified and in processes of their own, through the gate to the twin."""

from __future__ import annotations

import asyncio
import json
import shutil
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gateway.app import App
from gateway.policy.load import load_policy
from gateway.twin.profiles import TINY_CPU
from gateway.twin.server import TwinServer
from tests.clients import install
from tests.edge.rig import running
from tests.fakes.behaviour import Behaviour

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAMS = Path(__file__).with_name("programs")


@pytest.fixture(scope="session")
def clients() -> None:
    """The clients, installed."""
    install.sdks()


@asynccontextmanager
async def gate(tmp_path: Path, **policy: Any) -> AsyncIterator[tuple[App, TwinServer]]:
    """A gate before a twin with a pool of 2,048 tokens."""
    async with TwinServer(TINY_CPU, speed=4.0) as twin:
        path = tmp_path / "policy.yaml"
        backends = [{"name": "gpu0", "url": twin.url}]
        ports = {"listen": "127.0.0.1:0", "control": "127.0.0.1:0", "drain_s": 1}
        path.write_text(json.dumps({**ports, **policy, "backends": backends}))
        app = App(load_policy(path, env={}))
        try:
            await app.start()
            while not app.fleet.any_ready:
                await asyncio.sleep(0.02)
            yield app, twin
        finally:
            await app.stop()
    # Every ledger is zero again, and the engine never held more than its pool.
    assert [pool.kv.reserved for pool in app.gate.view().pools] == [0]
    assert (twin.retractions, twin.crashes) == (0, 0)


async def run(*command: str) -> Any:
    """The JSON that a program printed."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(300):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, err.decode()[-3000:]
    return json.loads(out.splitlines()[-1])


def program(name: str, app: App) -> tuple[str, str, str]:
    return *program_at(name), app.listen_url


def program_at(name: str) -> tuple[str, str]:
    return str(install.python()), str(PROGRAMS / name)


@pytest.mark.usefixtures("clients")
async def test_anthropic(tmp_path: Path) -> None:
    queue = {"max_requests": 3}
    async with gate(tmp_path, queue=queue, reservation="declared") as (app, _):
        saw = await run(*program("use_anthropic.py", app))
        plain = saw["plain"]
        assert (plain["stop"], plain["output"], plain["stream_output"]) == ("max_tokens", 8, 8)
        assert plain["counted"] == plain["input"], "the count is what the engine then reports"
        assert plain["same"]
        assert len(plain["text"]) > 8
        assert saw["errors"] == {"long": "context_length_exceeded", "zero": "invalid_request_error"}
        assert saw["many"]["answered"] == 10
        records = app.records.recent()
        refused = [one for one in records if one["code"] == "queue_full"]
        again = [one for one in records if one["client_retry"]]
        assert refused, "some did not fit into the queue"
        assert again, "and came back"
        assert {one["dialect"] for one in records} == {"messages"}


@pytest.mark.usefixtures("clients")
async def test_openai(tmp_path: Path) -> None:
    async with gate(tmp_path) as (app, _):
        saw = await run(*program("use_openai.py", app))
        assert (saw["output"], saw["stream"], saw["text"]) == (8, 8, 8)
        assert (saw["models"], saw["long"]) == (["tiny"], "context_length_exceeded")


@pytest.mark.usefixtures("clients")
async def test_litellm(tmp_path: Path) -> None:
    async with gate(tmp_path) as (app, _):
        saw = await run(*program("use_litellm.py", app))
        for name in ("openai", "anthropic"):
            assert saw[name]["output"] == 8
            assert "the longest input" in saw[name]["long"].lower(), saw[name]
            assert len(saw[name]["text"]) > 8


@pytest.mark.usefixtures("clients")
async def test_langchain(tmp_path: Path) -> None:
    async with gate(tmp_path) as (app, _):
        saw = await run(*program("use_langchain.py", app))
        assert (saw["output"], saw["stream"], saw["tools"], saw["many"]) == (8, 8, 8, 12)
        assert saw["too_long"] == [True, True], "its agents shorten a history that is told so"


@pytest.mark.usefixtures("clients")
async def test_ollama(tmp_path: Path) -> None:
    async with gate(tmp_path) as (app, _):
        saw = await run(*program("use_ollama.py", app))
        assert (saw["whole"], saw["stream"], saw["reason"]) == (8, [8], "length")
        assert (saw["pieces"], saw["raw"]) == (9, [9, 8, True])
        assert saw["text"]
        assert saw["times"]
        assert saw["generate"] == [8, True], "the template is around a prompt that is not raw"
        assert (saw["clamped"], saw["schema"], saw["load"]) == ("length", 8, "load")
        assert saw["tools"], "they are part of the prompt"
        assert (saw["models"], saw["loaded"], saw["shown"]) == (
            ["tiny:latest"],
            [8192],
            ["completion"],
        )
        for name, words in (
            ("long", "the longest input"),
            ("image", "the longest input"),  # an image may take 16,384 tokens
            ("bad", "options.num_predict must be"),
        ):
            status, said = saw[name]
            assert (status, words in said) == (400, True), saw[name]
        records = app.records.recent()
        done = [one for one in records if one["outcome"] == "completed" and one["backend"]]
        assert {one["dialect"] for one in done} == {"ollamachat", "ollamagenerate"}
        exact = [one for one in done if one["count_method"] == "exact"]
        assert exact
        assert all(one["prompt_tokens"] == one["usage_prompt_tokens"] for one in exact)


def events(*documents: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in documents)


def piece(delta: Any, reason: str | None = None) -> Any:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def called(name: str | None, arguments: str) -> Any:
    function = {"name": name, "arguments": arguments}
    return {"index": 0, "id": None, "type": "function", "function": function}


@pytest.mark.usefixtures("clients")
async def test_ollama_with_tools(tmp_path: Path) -> None:
    """A server that thinks and calls, as SGLang words it (0.5.17)."""
    usage = {"prompt_tokens": 9, "completion_tokens": 5}
    stream = events(
        piece({"role": "assistant", "content": ""}),
        piece({"reasoning_content": "hm"}),
        piece({"tool_calls": [called("read_file", "")]}),
        piece({"tool_calls": [called(None, '{"path": ')]}),
        piece({"tool_calls": [called(None, '"sea.txt"}')]}),
        piece({}, "tool_calls"),
        {"choices": [], "usage": usage},
    )
    message = {"role": "assistant", "content": None}
    message["tool_calls"] = [called("read_file", '{"path": "b"}')]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    whole = json.dumps({"choices": [choice], "usage": usage}).encode()
    head = "HTTP/1.1 200 OK\r\ncontent-type: {}\r\nconnection: close\r\n\r\n"
    async with running(tmp_path) as rig:
        for kind, body in (
            ("text/event-stream", stream + b"data: [DONE]\n\n"),
            ("application/json", whole),
        ):
            rig.engine.queue.append(Behaviour(raw=head.format(kind).encode() + body))
        saw = await run(*program("use_ollama.py", rig.app), "tools")
        path = {"path": "sea.txt"}
        assert saw["stream"] == [[], [["read_file", path]], []]
        assert (saw["thinking"], saw["whole"]) == ("hm", [["read_file", {"path": "b"}]])
        sent = rig.engine.seen[0].body
        call, result = sent["messages"][1]["tool_calls"][0], sent["messages"][2]
        assert json.loads(call["function"]["arguments"]) == path
        assert (result["tool_call_id"], result["name"]) == (call["id"], "read_file")
        assert sent["tools"][0]["function"]["parameters"]["required"] == ["path"]
        assert sent["chat_template_kwargs"] == {"enable_thinking": True, "thinking": True}


VECTOR = [0.5, 0.25]  # the fake engine's; the twin makes none


@pytest.mark.usefixtures("clients")
async def test_ollama_s_embeddings(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        saw = await run(*program("use_ollama.py", rig.app), "embed")
        assert (saw["many"], saw["one"], saw["old"]) == ([VECTOR] * 2, [VECTOR], VECTOR)
        assert (saw["tokens"], saw["times"], saw["none"], saw["long"]) == (4, True, [], 400)
        assert rig.engine.seen[0].body["dimensions"] == 2
        if shutil.which("node") is not None:
            saw = await run("node", node_program(), rig.app.listen_url, "embed")
            assert saw == {"many": [VECTOR] * 2, "tokens": 4, "old": VECTOR}


@pytest.mark.usefixtures("clients")
async def test_a_stream_that_breaks_off_raises_with_our_code_and_words(tmp_path: Path) -> None:
    programs = [[*program_at("use_broken.py")]]
    if shutil.which("node") is not None:
        programs.append(["node", node_program()])
    async with running(tmp_path) as rig:
        rig.engine.default = Behaviour(tokens=5, reset_at=2)
        for command in programs:
            saw = await run(*command, rig.app.listen_url, "broken")
            assert len(saw) == 6
            for name, (code, words) in saw.items():
                assert code == "upstream_error", name
                assert words.endswith(
                    "The answer broke off: The connection broke in the middle of the answer. "
                    "This is a server error: try again."
                ), name
            assert len(rig.records) % len(saw) == 0, "none of them asked twice"


def node_program() -> str:
    """The program for Node, where its packages are."""
    return str(shutil.copy(PROGRAMS / "use_node.mjs", install.home() / "node" / "use_node.mjs"))


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.usefixtures("clients")
async def test_node(tmp_path: Path) -> None:
    async with gate(tmp_path) as (app, _):
        saw = await run("node", node_program(), app.listen_url)
        assert saw["openai"] == {"output": 8, "pieces": 8, "long": "context_length_exceeded"}
        assert saw["anthropic"] == {"output": 8, "stream": 8, "long": "context_length_exceeded"}
        told = {"output": 8, "stream": 8, "refused": 400, "names": ["tiny:latest"]}
        assert saw["ollama"] == told
