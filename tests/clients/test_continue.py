"""Continue's CLI, unmodified, before a server that dies: it asks again by itself and does its work."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.clients import install
from tests.clients.test_agents import run, stream
from tests.edge.rig import running
from tests.fakes.behaviour import Behaviour

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.generation import Seen

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def writes(target: Path) -> Any:
    """The engine's part: a call of its tool that writes a file, then the end."""

    def script(seen: Seen) -> Behaviour:
        if seen.body["messages"][-1]["role"] == "tool":
            return stream(seen, ({"role": "assistant", "content": "Done."}, None), ({}, "stop"))
        arguments = json.dumps({"filepath": str(target), "content": "through the gate\n"})
        function = {"name": "Write", "arguments": arguments}
        call = {"index": 0, "id": "call_0", "type": "function", "function": function}
        return stream(seen, ({"role": "assistant", "tool_calls": [call]}, None), ({}, "tool_calls"))

    return script


async def cn(folder: Path, home: Path, url: str, words: str) -> tuple[int, str]:
    """Its exit code and what it printed, after a run without anybody at the keyboard."""
    for one in (folder, home):
        one.mkdir()
    model = {"name": "tiny", "provider": "openai", "model": "tiny", "capabilities": ["tool_use"]}
    model |= {"apiBase": url + "/v1", "apiKey": "none"}
    config = home / "config.yaml"  # JSON is YAML
    config.write_text(
        json.dumps({"name": "gate", "version": "1.0.0", "schema": "v1", "models": [model]})
    )
    command = ("node", str(install.cn()), "--config", str(config), "--auto", "-p", words)
    return await run(folder, home, {"CONTINUE_TELEMETRY_ENABLED": "0"}, *command)


@pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")
@pytest.mark.parametrize("how", ["reset_at", "close_at"])
async def test_continue_asks_again_where_an_answer_broke_off(tmp_path: Path, how: str) -> None:
    folder, home = tmp_path / "project", tmp_path / "home"
    broken = [Behaviour(tokens=9, **{how: 3})]
    async with running(tmp_path, pool=65_536, context=65_536) as rig:
        script = writes(folder / "hello.txt")
        rig.engine.script = lambda seen: broken.pop() if broken else script(seen)
        code, out = await cn(folder, home, rig.app.listen_url, "Write hello.txt, please.")
        assert code == 0, out[-3000:]
        assert (folder / "hello.txt").read_text() == "through the gate\n"
        outcomes = [one["outcome"] for one in reversed(rig.records)]
        assert outcomes == ["failed", "completed", "completed"], "the question, again, the result"
