"""`cors` as a browser takes it: a page that is listed reads answers, and another reads nothing.

Skipped where there is no Chromium (`KVGATE_CHROMIUM` names one).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from tests.edge.rig import CHAT, chat
from tests.edge.test_callers import key, keyed
from tests.page.browser import chromium, found

if TYPE_CHECKING:
    from pathlib import Path

    from tests.page.browser import Tab

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(found() is None, reason="there is no Chromium here to call from"),
]

ASK = """
fetch(%s, %s).then(
  async answer => [answer.status, answer.headers.get('x-kvgate-prompt-tokens'), await answer.text()],
  error => [0, null, error.name])
"""


async def ask(tab: Tab, url: str, body: Any = None, **headers: str) -> Any:
    """Status, one of our headers and the body, as far as the page may read them; 0 where it may not."""
    how: dict[str, Any] = {"headers": headers}
    if body is not None:
        headers |= {"content-type": "application/json", "x-stainless-os": "Linux"}
        how |= {"method": "POST", "body": json.dumps(body)}
    return await tab.run(ASK % (json.dumps(url), json.dumps(how)))


async def test_a_listed_page_reads_answers_and_another_none(start, tmp_path: Path) -> None:
    async def page(_: web.BaseRequest) -> web.Response:
        return web.Response(text="<!doctype html><title>a page</title>", content_type="text/html")

    runner = web.ServerRunner(web.Server(page))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    policy = {"clients": [keyed("a")], "cors": [f"http://127.0.0.1:{port}"]}
    try:
        async with start(policy) as rig, chromium(tmp_path / "chromium") as tab:
            url, own = rig.app.listen_url, key("a")
            for host, listed in (("127.0.0.1", True), ("localhost", False)):
                await tab.go(f"http://{host}:{port}/")
                await tab.until("document.title === 'a page'")
                for stream in (False, True):
                    got = await ask(tab, url + CHAT, chat(max_tokens=3, stream=stream), **own)
                    assert got[:2] == ([200, "20"] if listed else [0, None])
                    assert ("completion" in got[2]) is listed
                refused = await ask(tab, url + CHAT, chat(max_tokens=3))
                assert refused[0] == (401 if listed else 0)
                assert ("unauthorized" in refused[2]) is listed
                models = await ask(tab, f"{url}/v1/models", **own)
                assert (models[0], "tiny" in models[2]) == ((200, True) if listed else (0, False))
            assert len(rig.engine.seen) == 2, "another page's was not even sent"
    finally:
        await runner.cleanup()
