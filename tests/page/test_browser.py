"""The page in a browser: each number is that of /status, nothing is fetched from elsewhere, text stays
text, both languages, a phone, the keyboard, and axe finds nothing.

Skipped where there is no Chromium (`KVGATE_CHROMIUM` names one).
"""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.edge.rig import TEXT
from tests.fakes.behaviour import Behaviour
from tests.page import axe
from tests.page.browser import Tab, chromium, found

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.edge.rig import Rig

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        found() is None, reason="there is no Chromium here to look at the page with"
    ),
]

PATIENCE_S = 15.0
"""For what takes milliseconds on a machine that has something else to do."""

LIVE = "document.getElementById('live').dataset.state === 'live' && !document.getElementById('main').hidden"
NUMBERS = """
[...document.querySelectorAll('main data')].map(one => ({
  path: one.dataset.path, from: one.dataset.from ?? 'status', kind: one.dataset.f,
  value: one.getAttribute('value'), text: one.textContent, shown: one.checkVisibility(),
}))
"""
STRAY = """
(() => {
  const walk = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
  const found = [];
  while (walk.nextNode()) {
    const parent = walk.currentNode.parentElement;
    if (!/[0-9]/.test(walk.currentNode.data)) continue;
    if (parent.closest('data, time, [data-t], [data-own], [aria-hidden=true], summary, .trouble li')) continue;
    found.push(parent.outerHTML.slice(0, 200));
  }
  return found;
})()
"""
AXE = "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map(v => [v.id, v.help, v.nodes.map(n => n.html + ' :: ' + n.failureSummary).slice(0, 4)]))"
UNITS = {"": 1.0, "ms": 1.0, "s": 1000.0, "min": 60_000.0, "h": 3_600_000.0}


@asynccontextmanager
async def looking(
    rig: Rig, tmp_path: Any, language: str = "en", **looks: Any
) -> AsyncIterator[Tab]:
    async with chromium(tmp_path / f"chromium-{language}", language=language) as tab:
        await tab.looks(**({"width": 1280, "height": 900} | looks))
        await tab.go(rig.app.control_url + "/")
        await tab.until(LIVE)
        yield tab
        assert tab.said == []
        own = rig.app.control_url
        assert all(url.startswith(own) for url in tab.asked if url != "about:blank"), tab.asked


@asynccontextmanager
async def busy(rig: Rig) -> AsyncIterator[None]:
    """A gate that stands still in the middle of its work: one writes, one waits, two were refused."""
    hold = asyncio.Event()
    rig.engine.queue.append(Behaviour(tokens=9, hold=hold, hold_at=3))
    running = asyncio.ensure_future(rig.chat(max_tokens=900, stream=True))
    await rig.until(lambda: bool(rig.engine.seen) and rig.engine.seen[0].events == 3, PATIENCE_S)
    waiting = asyncio.ensure_future(rig.post(TEXT, {"prompt": [1] * 20, "max_tokens": 5000}))
    await rig.until(lambda: rig.app.gate.view().queue.requests == 1, PATIENCE_S)
    assert (await rig.chat(words=9000)).status == 400
    assert (await rig.post(TEXT, b"{")).status == 400
    rig.app.control._trend._rows.clear()  # two rows of one second could not be told apart
    rig.app.control._trend.look()
    try:
        yield
    finally:
        hold.set()
        await asyncio.gather(running, waiting)


def look(document: Any, path: str) -> Any:
    for key in path.split("."):
        if document is None:
            return None
        document = document[int(key)] if isinstance(document, list) else document[key]
    return document


def written(text: str, kind: str) -> float | None:
    """The number in a text, in the unit of /status."""
    if text == "–":
        return None
    if text in {"no limit", "不限"}:
        return float(1 << 30)
    got = re.fullmatch(r"(-?[\d,]+(?:\.\d+)?) ?(ms|s|min|h|%|GiB)?", text)
    assert got, text
    value, unit = float(got[1].replace(",", "")), got[2] or ""
    if kind == "percent":
        return value / 100
    if kind == "ms":
        return value * UNITS[unit]
    return value * UNITS[unit] / 1000 if kind == "seconds" else value


def dated(one: Any) -> bool:
    """Whether a number stands for a moment of the trend: before its first row has come it does not."""
    return one["from"] == "trend" and not one["path"].startswith(".")


CLOSE = {"int": 0.0, "limit": 0.0, "number": 0.051, "rate": 0.51, "percent": 0.0051}


def check(numbers: list[Any], sources: dict[str, Any], moving: set[str]) -> int:
    """Compare each number with its source; how many were compared."""
    compared = 0
    for one in numbers:
        if not one["shown"] or one["path"] in moving:
            continue
        if one["from"] == "trend":
            at, column = one["path"].split(".")
            trend = sources["trend"]
            (row,) = [row for row in trend["rows"] if row[0] == int(at)]
            expected = row[trend["columns"].index(column)]
        else:
            expected = look(sources[one["from"]], one["path"])
        assert one["value"] == (
            "" if expected is None else json.dumps(expected).removesuffix(".0")
        ), one
        shown = written(one["text"], one["kind"])
        if expected is None:
            assert shown is None, one
        else:
            near = CLOSE.get(one["kind"], max(0.51, 0.06 * abs(expected)))
            assert shown == pytest.approx(expected, abs=near), one
        compared += 1
    return compared


async def test_every_number_is_that_of_status(rig, tmp_path) -> None:
    async with busy(rig), looking(rig, tmp_path) as tab:
        moving = {"queue.oldest_s"}  # a clock
        for attempt in range(20):
            status = await rig.status()
            trend = (await rig.control("/trend")).json()
            numbers = await tab.run(NUMBERS)
            again = await rig.status()
            still = all(
                status[key] == again[key] for key in status if key not in {"queue", "backends"}
            )
            newest = max(
                (int(one["path"].split(".")[0]) for one in numbers if dated(one)),
                default=0,
            )
            if still and newest == trend["rows"][-1][0] and shown(numbers, status):
                # What is known of the engine may have come between the page and our own question.
                try:
                    compared = check(numbers, {"status": status, "trend": trend}, moving)
                    break
                except AssertionError:
                    if attempt == 19:
                        raise
            assert attempt < 19, "it never stood still"
            await asyncio.sleep(0.3)
        assert compared >= 45
        assert await tab.run(STRAY) == []
        level = await tab.run("document.getElementById('level').textContent")
        assert (status["now"]["level"], level) == ("queueing", "Requests wait")
        assert (status["recently"]["refused"], status["recently"]["refused_for_load"]) == (2, 0)
        texts = {one["path"]: one["text"] for one in numbers}
        assert texts["backends.0.ledgers.kv.limit"] == "2,026"
        assert texts["now.writing"] == "1"
        assert texts["refusals.1.needed"].replace(",", "").isdigit()


def shown(numbers: list[Any], status: Any) -> bool:
    """Whether the page has come as far as this document."""
    values = {one["path"]: one["value"] for one in numbers if one["from"] == "status"}
    return all(
        values.get(path) == str(look(status, path))
        for path in ("now.working", "recently.ended", "queue.requests", "totals.admitted")
    ) and values.get("recently.written_per_s") == (
        json.dumps(status["recently"]["written_per_s"]).removesuffix(".0")
        if status["recently"]["written_per_s"] is not None
        else ""
    )


async def test_names_from_servers_are_text(start, tmp_path) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    async with start(model=hostile) as rig, looking(rig, tmp_path) as tab:
        meta = await tab.run("document.querySelector('[data-meta]').textContent")
        assert hostile in meta
        assert await tab.run("document.querySelectorAll('main img').length") == 0


async def test_a_dead_server_is_told_with_what_to_do(rig, tmp_path) -> None:
    async with looking(rig, tmp_path) as tab:
        assert await tab.run("document.querySelector('.trouble').hidden")
        await rig.engine.die()
        await tab.until("!document.querySelector('.trouble').hidden")
        await tab.until("document.querySelector('[data-state=down]') !== null")
        assert await tab.run("document.querySelectorAll('.trouble li').length") == 3
        assert await tab.run("document.querySelector('#attention a').textContent") == "gpu0 (down)"
        assert await tab.run("document.body.dataset.level") == "no_server"
        await rig.engine.revive()
        await tab.until("document.querySelector('.trouble').hidden")


async def test_both_languages(rig, tmp_path) -> None:
    async with looking(rig, tmp_path, "zh-CN") as tab:
        assert await tab.run("document.documentElement.lang") == "zh-Hans"
        assert await tab.run("document.getElementById('level').textContent") == "平稳"
        left = "[...document.querySelectorAll('[data-t]')].filter(e => !e.textContent).length"
        assert await tab.run(left) == 0
        await tab.run("document.querySelector('[data-lang=en]').click()")
        assert await tab.run("document.getElementById('level').textContent") == "Calm"
        assert await tab.run("document.documentElement.lang") == "en"
        await tab.go(rig.app.control_url + "/")
        await tab.until(LIVE)
        assert await tab.run("document.getElementById('level').textContent") == "Calm", "remembered"


async def test_the_keyboard_reaches_everything_and_reads_the_lines(rig, tmp_path) -> None:
    trend = rig.app.control._trend
    for _ in range(3):
        trend.look()
    for back, row in enumerate(reversed(trend._rows)):
        row[0] -= 5 * back
        row[1] = 10 + back
    async with looking(rig, tmp_path) as tab:
        await tab.until("document.getElementById('scrub').max >= 2")
        reached = []
        for _ in range(14):
            for kind in ("keyDown", "keyUp"):
                await tab.call(
                    "Input.dispatchKeyEvent",
                    type=kind,
                    key="Tab",
                    code="Tab",
                    windowsVirtualKeyCode=9,
                )
            reached.append(
                await tab.run(
                    "document.activeElement.id || document.activeElement.textContent.trim()"
                )
            )
            if reached[-1] == "scrub":
                break
        assert "English" in reached
        assert "中文" in reached
        assert reached[-1] == "scrub"
        working = "document.querySelector('.panel.requests data').textContent"
        first = int(await tab.run(working))
        for kind in ("keyDown", "keyUp"):
            await tab.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key="ArrowLeft",
                code="ArrowLeft",
                windowsVirtualKeyCode=37,
            )
        assert int(await tab.run(working)) != first
        assert await tab.run("document.querySelector('.cross').classList.contains('gone')") is False


async def test_a_tab_that_is_not_heard_says_so(rig, tmp_path) -> None:
    async with chromium(tmp_path / "c") as tab:
        await tab.go(rig.app.control_url + "/")
        await tab.until(LIVE)
        await rig.app.control._events.close()
        rig.app.control._events._document = lambda: b": nothing\n\n"
        await tab.until("document.getElementById('live').dataset.state === 'stale'", 20)
        assert "not live" in await tab.run("document.getElementById('live').textContent")


LOOKS = [
    pytest.param({"width": 1280, "height": 900}, id="desktop-light"),
    pytest.param({"width": 1280, "height": 900, "dark": True}, id="desktop-dark"),
    pytest.param({"width": 360, "height": 740, "phone": True}, id="phone-light"),
    pytest.param({"width": 360, "height": 740, "phone": True, "dark": True}, id="phone-dark"),
]


@pytest.mark.parametrize("looks", LOOKS)
@pytest.mark.parametrize("language", ["en", "zh-CN"])
async def test_axe_finds_nothing_and_no_screen_scrolls_sideways(
    start, tmp_path, looks, language
) -> None:
    source = axe.source()
    if source is None:
        pytest.skip("axe-core could not be fetched with npm")
    dead = {"name": "gpu1", "url": "http://127.0.0.1:9"}
    async with (
        start({"more": [dead]}) as rig,
        busy(rig),
        looking(rig, tmp_path, language, **looks) as tab,
    ):
        await tab.until("document.querySelector('.trouble:not([hidden])') !== null")
        cards = {"minutes": [{"gpus": [CARD]}]}
        await tab.run(f"import('/page/lists.js').then(m => m.cards({json.dumps(cards)}))")
        await tab.run(
            "document.querySelectorAll('details:not([hidden])').forEach(d => d.open = true)"
        )
        await tab.run(source + "; undefined")
        assert await tab.run(AXE) == []
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert await tab.run(wide) <= 0


CARD = {
    "index": 0,
    "name": "NVIDIA L20",
    "utilisation": 97.5,
    "memory_used": 43_980_465_111,
    "memory_total": 48_305_799_168,
}
