"""The page's files: what is served, what keeps others out, and that no word of it is missing."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from gateway.core.model import Code
from gateway.page.files import HEADERS, TYPES, Files, language
from gateway.page.now import Level
from gateway.upstream.life import Life

STATIC = resources.files("gateway.page").joinpath("static")
ROOT = Path(__file__).parents[2]


def texts() -> dict[str, str]:
    return {one.name: one.read_text(encoding="utf-8") for one in STATIC.iterdir()}


def words() -> dict[str, dict[str, str]]:
    """By language: each key and what stands after it."""
    _, english, chinese = re.split(r"^  (?:en|zh): \{$", texts()["words.js"], flags=re.MULTILINE)
    found = [re.findall(r"^    (\w+): (.*)", part, re.MULTILINE) for part in (english, chinese)]
    assert all(len(one) == len(dict(one)) for one in found), "a word is there twice"
    return {"en": dict(found[0]), "zh": dict(found[1])}


async def test_each_file_is_served_under_a_policy_that_lets_nothing_else_in(rig) -> None:
    paths = {"/": "index.html"} | {f"/page/{name}": name for name in Files().names}
    assert len(paths) == len(texts())
    for path, name in paths.items():
        got = await rig.control(path)
        assert got.status == 200
        assert got.headers["content-type"] == TYPES[name[name.rindex(".") :]]
        assert got.headers["x-content-type-options"] == "nosniff"
        policy = got.headers["content-security-policy"]
        assert policy == HEADERS["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert not re.search(r"https?:|\*|data:", policy)
        same = {"if-none-match": got.headers["etag"]}
        async with rig.http.get(rig.app.control_url + path, headers=same) as again:
            assert (again.status, await again.read()) == (304, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/page/",
        "/page/index.html",
        "/page/nothing.js",
        "/page/..%2Ffiles.py",
        "/page/%2e%2e/files.py",
    ],
)
async def test_nothing_else_is_served(rig, path: str) -> None:
    from yarl import URL

    url = URL(rig.app.control_url + path, encoded=True)
    async with rig.http.get(url) as answer:
        assert answer.status == 404


def test_the_page_needs_nobody_and_puts_no_text_where_markup_is_read() -> None:
    forbidden = re.compile(
        r"https?://(?!www\.w3\.org/2000/svg)|innerHTML|outerHTML|insertAdjacent|document\.write"
        r"|\beval\b|new Function|createContextualFragment|DOMParser|javascript:"
    )
    for name, text in texts().items():
        assert not forbidden.search(text), name
        assert len(text.splitlines()) <= 400, name
    page = texts()["index.html"]
    assert not re.search(r"\sstyle=|\son\w+=", page)
    assert not re.search(r"<script(?! type=\"module\" src=\"page/\w+\.js\")", page)


def test_both_languages_have_every_word() -> None:
    known = words()
    assert known["en"].keys() == known["zh"].keys()
    for key, english in known["en"].items():
        values = re.compile(r"\{\w+\}")
        assert sorted(values.findall(english)) == sorted(values.findall(known["zh"][key])), key
    wanted = set(re.findall(r'data-ta?="(\w+)"', texts()["index.html"]))
    script = "".join(text for name, text in texts().items() if name.endswith(".js"))
    wanted |= set(re.findall(r'(?:word|sentence)\("(\w+)"', script))
    wanted |= {f"code_{code.value}" for code in Code}
    wanted |= {f"{kind}_{level.value}" for level in Level for kind in ("level", "why")}
    wanted |= {f"state_{life.value}" for life in Life}
    wanted |= {f"do_{life.value}" for life in Life if life is not Life.READY}
    assert wanted <= known["en"].keys()


def test_no_word_is_left_over() -> None:
    script = "".join(text for name, text in texts().items() if name != "words.js")
    made = ("level_", "why_", "state_", "do_", "code_", "col_", "panel_")
    left = {
        key
        for key in words()["en"]
        if not key.startswith(made) and not re.search(rf"\b{key}\b", script)
    }
    assert left == set()


def test_the_wheel_holds_the_page() -> None:
    files = {one.distribution_path for one in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert {f"gateway/page/static/{name}" for name in texts()} <= files


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [
        ("", "en"),
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("en-GB,en;q=0.9,zh;q=0.8", "en"),
        ("de,zh-Hant;q=0.7,en;q=0.3", "zh"),
        ("de", "en"),
        ("zh;q=0", "en"),
        ("zh;q=x, en;q=0.1", "en"),
        ("zh;level=1", "zh"),
        (";;;,,, zh ;q=0.5", "zh"),
        ("x" * 5_000 + ",zh", "en"),
    ],
)
def test_the_language_the_browser_likes_best(accepted: str, chosen: str) -> None:
    assert language(accepted) == chosen


async def test_the_page_comes_in_the_language_asked_for(rig) -> None:
    for path, header, expected in (
        ("/", "zh-CN", "zh-Hans"),
        ("/?lang=en", "zh-CN", "en"),
        ("/?lang=xx", "zh-CN", "zh-Hans"),
        ("/", "fr", "en"),
    ):
        url, headers = rig.app.control_url + path, {"accept-language": header}
        async with rig.http.get(url, headers=headers) as answer:
            assert answer.headers["content-language"] == expected
            assert answer.headers["vary"] == "accept-language"
            assert f'<html lang="{expected}">' in await answer.text()


async def test_another_site_cannot_make_an_operators_browser_drain_the_gate(rig) -> None:
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200)):
        async with rig.http.post(
            rig.app.control_url + "/drain", headers={"sec-fetch-site": site}
        ) as answer:
            assert answer.status == status
            assert rig.app.draining.begun == (status == 200)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://other.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "https://gate.example", "sec-fetch-site": "same-origin"}, 200),
        ({"origin": "OWN"}, 200),
        ({}, 200),
    ],
    ids=[
        "another page",
        "a page of no site",
        "the own page behind a proxy",
        "the own page",
        "a script",
    ],
)
async def test_a_browser_that_sends_no_fetch_metadata_is_known_by_the_origin(
    rig, headers: dict[str, str], status: int
) -> None:
    """None sends it to a plain http address on the network, and one page there could stop the gate."""
    own = rig.app.control_url
    sent = {name: own if value == "OWN" else value for name, value in headers.items()}
    async with rig.http.post(own + "/reload", headers=sent) as got:
        assert got.status == status
