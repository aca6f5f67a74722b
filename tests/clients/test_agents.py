"""Coding agents, unmodified, at work through the gate: they ask, call a tool, are told the result.

The engine is scripted: an agent's question is answered with a call of its own tool that writes a
file, the next with the end. What it does with that, in a folder and a home of its own, is its doing.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.clients import install
from tests.edge.rig import running
from tests.fakes.behaviour import Behaviour

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.generation import Seen

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

QUIET = (
    "AUTOUPDATE",
    "DEFAULT_PLUGINS",
    "LSP_DOWNLOAD",
    "MODELS_FETCH",
    "SHARE",
)
"""What OpenCode would look for on the net (OPENCODE_DISABLE_…)."""

CAP = 4096


def stream(seen: Seen, *deltas: tuple[dict[str, Any], str | None]) -> Behaviour:
    """A whole answer, byte by byte as an engine would send it: each delta and how it ends."""
    prompt = sum(seen.job.prompts)
    usage = {"prompt_tokens": prompt, "completion_tokens": 9, "total_tokens": prompt + 9}
    common = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
    chunks: list[dict[str, Any]] = [
        {**common, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
        for delta, finish in deltas
    ]
    chunks.append({**common, "choices": [], "usage": usage})
    events = [json.dumps(chunk) for chunk in chunks] + ["[DONE]"]
    head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    return Behaviour(raw=(head + "".join(f"data: {one}\n\n" for one in events)).encode())


def chores(seen: Seen) -> Behaviour:
    """The engine's part for mini-swe-agent: two commands, the second of which is its word for done."""
    done = seen.body["messages"][-1]["role"] == "tool"
    line = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT" if done else "echo gate > hello.txt"
    function = {"name": "bash", "arguments": json.dumps({"command": line})}
    call = {"id": "call_0", "type": "function", "function": function}
    message = {"role": "assistant", "content": "Yes.", "tool_calls": [call]}
    prompt = sum(seen.job.prompts)
    answer = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "tiny",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": 9, "total_tokens": prompt + 9},
    }
    body = json.dumps(answer)
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return Behaviour(raw=f"{head}connection: close\r\n\r\n{body}".encode())


def answers(target: Path) -> Any:
    """The engine's part: a call of `write`, then the end."""

    def script(seen: Seen) -> Behaviour:
        tools = {tool["function"]["name"] for tool in seen.body.get("tools", ())}
        if "write" not in tools or seen.body["messages"][-1]["role"] == "tool":
            return stream(seen, ({"role": "assistant", "content": "Done."}, None), ({}, "stop"))
        arguments = json.dumps({"filePath": str(target), "content": "through the gate\n"})
        call = {
            "index": 0,
            "id": "call_0",
            "type": "function",
            "function": {"name": "write", "arguments": arguments},
        }
        return stream(seen, ({"role": "assistant", "tool_calls": [call]}, None), ({}, "tool_calls"))

    return script


async def opencode(folder: Path, home: Path, url: str, words: str) -> tuple[int, str]:
    """Its exit code and what it printed, after a run without anybody at the keyboard."""
    model = {"name": "tiny", "tool_call": True, "limit": {"context": 65_536, "output": 32_000}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "gate",
        "options": {"baseURL": url + "/v1", "apiKey": "none"},
        "models": {"tiny": model},
    }
    config = {
        "autoupdate": False,
        "share": "disabled",
        "snapshot": False,
        "enabled_providers": ["gate"],
        "model": "gate/tiny",
        "small_model": "gate/tiny",
        "provider": {"gate": provider},
    }
    folder.mkdir()
    (folder / "opencode.json").write_text(json.dumps(config))
    quiet = {f"OPENCODE_DISABLE_{what}": "1" for what in QUIET}
    command = (str(install.opencode()), "run", "--pure", "--format", "json", words)
    return await run(folder, home, quiet, *command)


async def mini(folder: Path, home: Path, url: str, words: str) -> tuple[int, str]:
    """The same of mini-swe-agent, which speaks through LiteLLM and never sends a cap."""
    folder.mkdir()
    env = {
        "MSWEA_CONFIGURED": "true",
        "MSWEA_GLOBAL_CONFIG_DIR": str(home),
        "MSWEA_COST_TRACKING": "ignore_errors",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # prices, looked up on the net else
        "OPENAI_API_BASE": url + "/v1",
        "OPENAI_API_KEY": "none",
    }
    program = str(install.python().with_name("mini"))
    flags = ("-y", "--exit-immediately", "-m", "openai/tiny", "-o", str(home / "way.json"))
    return await run(folder, home, env, program, *flags, "-t", words)


async def codex(folder: Path, home: Path, url: str, words: str) -> list[dict[str, Any]]:
    """What Codex tells of a run without anybody at the keyboard; it comes back once to a stream that failed."""
    for one in (folder, home):
        one.mkdir()
    policy = {"base_url": url + "/v1", "wire_api": "responses", "name": "gate"}
    policy |= {"stream_max_retries": 1, "request_max_retries": 0}
    lines = [f"{name} = {json.dumps(value)}" for name, value in policy.items()]
    head = ['model = "tiny"', 'model_provider = "gate"', "[model_providers.gate]"]
    (home / "config.toml").write_text("\n".join([*head, *lines]))
    command = (str(install.codex()), "exec", "--skip-git-repo-check", "--json", words)
    _, out = await run(folder, home, {"CODEX_HOME": str(home)}, *command)
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def said(events: list[dict[str, Any]]) -> list[str]:
    """What Codex said of errors, and in the end."""
    errors = [one["message"] for one in events if one["type"] == "error"]
    failed = [one["error"]["message"] for one in events if one["type"] == "turn.failed"]
    return errors + failed


async def run(folder: Path, home: Path, more: dict[str, str], *command: str) -> tuple[int, str]:
    """An agent with nothing of this machine's own about it, and no way to the net."""
    home.mkdir(exist_ok=True)
    env = {
        "PATH": os.environ["PATH"],
        "TERM": "dumb",
        "HOME": str(home),
        **{f"XDG_{kind}_HOME": str(home / kind) for kind in ("DATA", "CONFIG", "CACHE", "STATE")},
        "HTTPS_PROXY": "http://127.0.0.1:9",  # nobody: what it still looks for is not found
        "NO_PROXY": "127.0.0.1",
        **more,
    }
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(300):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode or 0, out.decode()


@pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")
async def test_opencode_writes_a_file(tmp_path: Path) -> None:
    install.agents()
    folder, home = tmp_path / "project", tmp_path / "home"
    policy = {"backend": {"max_output_tokens": CAP}, "reservation": "forecast"}
    async with running(tmp_path, policy, pool=65_536, context=65_536) as rig:
        rig.engine.script = answers(folder / "hello.txt")
        code, out = await opencode(folder, home, rig.app.listen_url, "Write hello.txt, please.")
        assert code == 0, out[-3000:]
        assert (folder / "hello.txt").read_text() == "through the gate\n"

        seen, records = rig.engine.seen, rig.records
        assert len(seen) == len(records) >= 3, "a title, the question, the result of the tool"
        assert {one.body["max_tokens"] for one in seen} == {CAP}, "each has the cap of the gate"
        assert {one["cap_source"] for one in records} == {"clamped"}, out
        assert {one["cap_asked"] for one in records} == {32_000}
        assert {one["outcome"] for one in records} == {"completed"}
        assert all(one["prompt_tokens"] == one["usage_prompt_tokens"] for one in records)
        sessions = {one.headers["x-session-id"] for one in seen}
        assert len(sessions) == 1, "all of one session, which the server may know"
        last = [one.body for one in seen if one.body["messages"][-1]["role"] == "tool"]
        assert [one["messages"][-1]["tool_call_id"] for one in last] == ["call_0"]
    # `running` has seen every ledger at zero, every request ended once and nothing left over.


async def test_an_agent_that_never_sends_a_cap_gets_one_with_every_request(tmp_path: Path) -> None:
    install.sdks()
    folder, home = tmp_path / "project", tmp_path / "home"
    async with running(tmp_path, {"reservation": "forecast"}, pool=65_536, context=65_536) as rig:
        rig.engine.script = chores
        code, out = await mini(folder, home, rig.app.listen_url, "Write hello.txt, please.")
        assert code == 0, out[-3000:]
        assert (folder / "hello.txt").read_text() == "gate\n"
        seen, records = rig.engine.seen, rig.records
        assert len(seen) == len(records) == 2
        assert {one["cap_source"] for one in records} == {"injected"}
        assert {one.body["max_tokens"] for one in seen} == {one["cap_forwarded"] for one in records}
        assert all(8_192 <= one["cap_forwarded"] <= 16_384 for one in records)
        assert {one["outcome"] for one in records} == {"completed"}


BROKE = "The answer broke off: The connection broke in the middle of the answer."
FAILURES = {
    "the server breaks": (Behaviour(tokens=5, reset_at=2), BROKE, 2),
    "the engine breaks": (
        Behaviour(tokens=5, error=(500, "It broke."), error_at=2),
        "It broke.",
        2,
    ),
    "the engine refuses": (
        Behaviour(tokens=5, error=(400, "It is bad."), error_at=2),
        "It is bad.",
        1,
    ),
}
"""How a stream fails, what Codex is to say, and how often it is to ask."""


@pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")
@pytest.mark.parametrize("how", FAILURES)
async def test_codex_says_why_a_stream_failed(tmp_path: Path, how: str) -> None:
    behaviour, words, times = FAILURES[how]
    async with running(tmp_path, pool=65_536, context=65_536) as rig:
        rig.engine.default = behaviour
        url = rig.app.listen_url
        told = said(await codex(tmp_path / "project", tmp_path / "home", url, "Say hello."))
        assert told, "it failed"
        assert all(words in one for one in told), told
        assert len(rig.records) == times
        assert {one["outcome"] for one in rig.records} == {"failed"}
        assert {one["tools_left_out"] for one in rig.records} == {"namespace=1 web_search=1"}


@pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")
async def test_codex_waits_as_long_as_it_is_told_in_a_stream(tmp_path: Path) -> None:
    """Its first try waits in vain behind another request of its client's; its second one is let in."""
    queue = {"heartbeat_s": 0.02, "max_wait_s": 0.2}
    policy = {"queue": queue, "clients": [{"name": "anyone", "max_inflight": 1}]}
    async with running(tmp_path, policy, pool=65_536, context=65_536) as rig:
        leave = asyncio.Event()
        rig.engine.queue.append(Behaviour(tokens=2, hold=leave, hold_at=1))
        before = asyncio.ensure_future(rig.chat(max_tokens=5, stream=True))
        await rig.engine.arrived()
        loop = asyncio.get_running_loop()
        url = rig.app.listen_url
        asked = asyncio.ensure_future(
            codex(tmp_path / "project", tmp_path / "home", url, "Say hello.")
        )
        await rig.until(lambda: rig.records, 60)
        refused, at = rig.records[0], loop.time()
        leave.set()
        await before
        events = await asked
        took = loop.time() - at
        assert refused["code"] == "queue_timeout"
        assert any(
            f"try again in {refused['retry_after_s']:.0f} s" in one.lower() for one in said(events)
        )
        assert events[-1]["type"] == "turn.completed"
        assert took > refused["retry_after_s"] - 1, "not at once, as after a stream that broke off"
