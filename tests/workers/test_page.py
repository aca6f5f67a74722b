"""The page before two workers, in a browser."""

from __future__ import annotations

import pytest

from tests.page.browser import chromium, found
from tests.workers.gate import gate

LIVE = "document.getElementById('live').dataset.state === 'live' && !document.getElementById('main').hidden"
WORKER = "document.querySelector('[data-has=worker]').innerText"


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.skipif(found() is None, reason="there is no Chromium here to look at the page with")
async def test_the_page_is_that_of_the_worker_that_was_asked_for(tmp_path) -> None:
    async with gate(tmp_path) as running, chromium(tmp_path / "chromium") as tab:
        for asked, number in (("?worker=1", 1), ("", 0)):
            tab.asked.clear()
            await tab.go(f"{running.control}/{asked}")
            await tab.until(LIVE)
            words = await tab.run(WORKER)
            assert words.startswith(f"This page shows worker {number} of 2 workers;"), words
            data = [
                url for url in tab.asked if url.startswith(running.control) and "/page/" not in url
            ]
            assert any("/events" in url for url in data)
            assert all(url.endswith("worker=1") == bool(asked) for url in data), data
        assert tab.said == []
