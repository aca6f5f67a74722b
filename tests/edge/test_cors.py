"""`cors`: pages that the policy lists are told so on every answer, and no other page is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import gateway
from gateway.edge import cors, routes
from tests.edge.rig import (
    API_CHAT,
    CHAT,
    COUNT,
    GENERATE,
    TEXT,
    chat,
    request,
    running,
    written,
)
from tests.edge.test_callers import key, keyed
from tests.edge.test_heartbeat import BEATS, first_beat
from tests.edge.test_refusals import Busy
from tests.fakes.behaviour import Behaviour, refuse
from tests.fakes.http1 import head

PAGE, OTHER = "https://chat.example", "http://localhost:3000"
HERE = {"cors": [PAGE, OTHER]}
FROM = {"origin": PAGE}
ASKS = ("origin: https://chat.example", "access-control-request-method: POST")
HEADERS = "authorization,content-type,x-stainless-os"


def told(headers: Any) -> dict[str, str]:
    """What a page is told, by lower-case names; two of one name are a mistake."""
    names = [name.lower() for name in headers if name.lower().startswith(cors.PREFIX)]
    assert len(set(names)) == len(names)
    return {name: headers[name] for name in names}


def allowed(headers: Any, origin: str = PAGE) -> bool:
    """Whether a page of `origin` gets to see the answer, with all that a client needs; the whole of
    what is told of it must be right."""
    found = told(headers)
    if not found:
        return False
    assert found == {
        "access-control-allow-origin": origin,
        "access-control-expose-headers": ", ".join(cors.EXPOSED),
    }
    vary = [value for name, value in headers.items() if name.lower() == "vary"]
    assert vary == ([] if origin == "*" else ["origin"])
    return True


async def preflight(rig, path: str = CHAT, *lines: str) -> tuple[int, dict[str, str], bytes]:
    asks = lines or (*ASKS, f"access-control-request-headers: {HEADERS}")
    answer = await rig.raw(request(path, b"", *asks, "connection: close", method="OPTIONS"))
    top, _, body = answer.partition(b"\r\n\r\n")
    first, *rest = top.decode().split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in rest)
    assert len(fields) == len(rest)
    return int(first.split()[1]), fields, body


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        *((path, "POST") for path in (CHAT, TEXT, GENERATE, COUNT, API_CHAT, "/v1/embeddings")),
        *((path, "GET") for path in ("/v1/models", "/v1/models/a/b", "/api/tags")),
        ("/", "GET, HEAD"),
    ],
)
async def test_a_browser_that_asks_for_a_listed_page_is_told_what_it_may(
    start, path: str, methods: str
) -> None:
    """Without a key, which browsers do not send when they ask."""
    async with start(HERE | {"clients": [keyed("a")]}) as rig:
        status, fields, body = await preflight(rig, path)
        assert (status, body) == (204, b"")
        assert "content-type" not in fields
        assert "content-length" not in fields, "a 204 has none"
        assert fields["vary"] == "origin"
        assert told(fields) == {
            "access-control-allow-origin": PAGE,
            "access-control-allow-methods": methods.lower(),
            "access-control-allow-headers": HEADERS,
            "access-control-expose-headers": ", ".join(cors.EXPOSED),
            "access-control-max-age": "7200",
        }
        assert rig.engine.seen == []


@pytest.mark.parametrize("asked", ["", "a b", "a,,b", "a\x85b", "x-a: b", "caf\xe9", "a;b"])
async def test_only_names_of_headers_are_said_again(start, asked: str) -> None:
    async with start(HERE) as rig:
        line = f"access-control-request-headers: {asked}"
        status, fields, _ = await preflight(rig, CHAT, *ASKS, line)
        assert status == 204
        assert "access-control-allow-headers" not in fields


async def test_every_route_of_the_table_can_be_asked_for(start) -> None:
    async with start(HERE) as rig:
        for path in routes.METHODS:
            assert (await preflight(rig, path))[0] == 204, path
        for path in ("/flush_cache", "/v1/models/", "/v1/chat/completions/", "*"):
            assert (await preflight(rig, path))[0] == 404, path


async def test_who_is_not_listed_is_refused_in_words_when_a_browser_asks(start, tmp_path) -> None:
    """As without the key, where it says what would allow it. Neither quotes the origin."""
    stranger = ("origin: https://evil.example", "access-control-request-method: POST")
    for policy, lines, now in (({}, ASKS, "is empty"), (HERE, stranger, "lists others")):
        async with running(tmp_path, policy) as rig:
            for path in (CHAT, API_CHAT):
                status, fields, body = await preflight(rig, path, *lines)
                assert status == 404
                assert told(fields) == {}
                assert b"This route takes POST; to let this web page call" in body
                assert f"`cors`, which {now}".encode() in body
                assert b"evil" not in body
            for plain in (lines[0], lines[1]):  # a probe of something else
                status, _, body = await preflight(rig, CHAT, plain)
                assert (status, b"cors" in body) == (404, False)
            assert b"cors" not in (await preflight(rig, "/flush_cache", *lines))[2]


async def test_only_options_are_a_question_of_a_browser_s(start) -> None:
    async with start(HERE) as rig:
        headers = FROM | {"access-control-request-method": "POST"}
        got = await rig.post(CHAT, chat(max_tokens=3), headers=headers)
        assert (got.status, allowed(got.headers)) == (200, True)


@pytest.mark.parametrize("line", ["x-a: b", *ASKS])
async def test_options_that_are_no_question_of_a_browser_s_stay_404(start, line: str) -> None:
    async with start(HERE) as rig:
        assert (await preflight(rig, CHAT, line))[0] == 404


async def test_an_answer_whole_or_streamed_is_for_the_page_that_asked(start) -> None:
    async with start(HERE) as rig:
        for body in (chat(max_tokens=3), chat(max_tokens=3, stream=True)):
            for page in (PAGE, OTHER):
                got = await rig.post(CHAT, body, headers={"origin": page})
                assert got.status == 200
                assert allowed(got.headers, page)
                assert got.headers["x-kvgate-prompt-tokens"] == "20"
        for path in ("/v1/models", "/v1/models/tiny", "/api/tags", "/api/version", "/"):
            async with rig.http.get(rig.app.listen_url + path, headers=FROM) as answer:
                assert (answer.status, allowed(answer.headers)) == (200, True), path
        counted = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
        assert allowed((await rig.post(COUNT, counted, headers=FROM)).headers)


async def test_a_page_reads_why_it_was_refused(start) -> None:
    """A 4xx without these headers is "Failed to fetch" to a page, and the reason is lost."""
    policy = HERE | {"clients": [keyed("a")], "limits": {"body_bytes": 4000, "body_s": 0.05}}
    async with start(policy) as rig:
        own = FROM | key("a")
        cases: list[tuple[int, str, Any, dict[str, str]]] = [
            (401, CHAT, chat(), FROM),
            (400, CHAT, b"{", own),
            (400, CHAT, chat(max_tokens="many"), own),
            (400, CHAT, chat(1900), own),
            (413, CHAT, b"x" * 4001, own),
            (415, CHAT, chat(), own | {"content-encoding": "wavelet"}),
            (400, CHAT, b"no gzip", own | {"content-encoding": "gzip"}),
            (400, API_CHAT, b"[]", own),
            (404, "/v1/nothing", {}, own),
            (401, "/api/show", {}, FROM),
            (400, COUNT, b"[]", own),
        ]
        for status, path, body, headers in cases:
            got = await rig.post(path, body, headers=headers)
            assert (got.status, path, allowed(got.headers)) == (status, path, True), got.body
        async with rig.socket() as peer:
            lines = (f"POST {CHAT} HTTP/1.1", "host: a", f"origin: {PAGE}", "content-length: 9")
            lines += tuple(f"{name}: {value}" for name, value in key("a").items())
            await peer.send("\r\n".join((*lines, "", "")).encode())
            status, fields = await peer.head()
            assert (status, allowed(fields)) == (408, True)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("how", "status"),
    [
        (refuse(400, "no"), 400),
        (refuse(500, "no"), 500),
        (Behaviour(reset_at=0), 502),
        (Behaviour(raw=b"HTTP/1.1 307 x\r\nlocation: /\r\ncontent-length: 0\r\n\r\n"), 502),
    ],
)
async def test_a_page_reads_what_the_engine_or_the_way_to_it_broke_with(
    start, how: Behaviour, status: int, stream: bool
) -> None:
    async with start(HERE) as rig:
        rig.engine.default = how
        got = await rig.post(CHAT, chat(max_tokens=3, stream=stream), headers=FROM)
        assert (got.status, allowed(got.headers)) == (status, True), got.body


async def test_a_page_waits_with_beats(start) -> None:
    """The head goes out with the first of them, before anything is known of the answer."""
    async with start(HERE | BEATS) as rig:
        url, body = rig.app.listen_url + CHAT, chat(max_tokens=3, stream=True)
        async with Busy(rig) as busy, rig.http.post(url, json=body, headers=FROM) as answer:
            assert allowed(answer.headers)
            await first_beat(answer)
            busy.hold.set()
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")


async def test_any_page_may_where_the_policy_says_so(start) -> None:
    async with start({"cors": "*"}) as rig:
        got = await rig.chat(max_tokens=3)
        assert not told(got.headers), "no browser asks"
        for origin in (PAGE, "null", "https://evil.example"):
            got = await rig.post(CHAT, chat(max_tokens=3), headers={"origin": origin})
            assert allowed(got.headers, "*")
        status, fields, _ = await preflight(rig)
        assert (status, fields["access-control-allow-origin"]) == (204, "*")
        assert "vary" not in fields


@pytest.mark.parametrize(
    "origin",
    [
        *("https://evil.example", "https://chat.example.evil.example", "null", "", "*"),
        *("https://chat.example/", "https://chat.example:443", "http://chat.example"),
    ],
)
async def test_another_page_is_served_and_told_nothing(start, origin: str) -> None:
    """The browser keeps the answer from it. Refusing it would be no protection: who is no browser says
    what it likes."""
    async with start(HERE) as rig:
        for stream in (False, True):
            got = await rig.post(
                CHAT, chat(max_tokens=3, stream=stream), headers={"origin": origin}
            )
            assert (got.status, allowed(got.headers)) == (200, False)
            assert got.headers["vary"] == "origin", "another page would be told something"


async def test_every_answer_says_that_it_is_for_one_page(start) -> None:
    """Also what nobody or a stranger asked for: a cache would give it to a page that is listed, without
    what lets that read it."""
    async with start(HERE | {"clients": [keyed("a")]}) as rig:
        for headers in ({}, {"origin": "https://evil.example"}):
            for status, own in ((200, key("a")), (401, {})):
                got = await rig.post(CHAT, chat(max_tokens=2), headers=headers | own)
                assert (got.status, got.headers.getall("vary")) == (status, ["origin"])
        for path in ("/", "/v1/models", "/v1/nothing"):
            async with rig.http.get(rig.app.listen_url + path, headers=key("a")) as answer:
                assert (answer.headers.getall("vary"), told(answer.headers)) == (["origin"], {})
        lines = ("origin: https://evil.example", ASKS[1])
        status, fields, _ = await preflight(rig, CHAT, *lines)
        assert (status, fields["vary"], told(fields)) == (404, "origin", {})
    for policy in ({}, {"cors": "*"}):  # where it is the same for all
        async with start(policy) as rig:
            for headers in ({}, FROM):
                got = await rig.post(CHAT, chat(max_tokens=2), headers=headers)
                assert "vary" not in got.headers


ENGINE = {
    "access-control-allow-origin": "*",
    "Access-Control-Allow-Credentials": "true",
    "access-control-expose-headers": "*",
    "vary": "accept-encoding",
}
"""SGLang's own, and more."""


@pytest.mark.parametrize("admission", ["on", "off"])
@pytest.mark.parametrize("policy", [{}, HERE])
async def test_what_the_engine_allows_is_not_passed_on(start, policy: Any, admission: str) -> None:
    body = b'{"choices": [{"finish_reason": "stop"}]}'
    whole = head(
        200, {"content-length": str(len(body)), "content-type": "application/json"} | ENGINE
    )
    events_ = b'data: {"choices": [{"finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    streamed = head(200, {"content-type": "text/event-stream", "connection": "close"} | ENGINE)
    async with start(policy | {"admission": admission}) as rig:
        for raw, stream in ((whole + body, False), (streamed + events_, True)):
            rig.engine.queue.append(Behaviour(raw=raw))
            got = await rig.post(CHAT, chat(max_tokens=3, stream=stream), headers=FROM)
            assert got.status == 200
            found = told(got.headers)
            assert found.get("access-control-allow-origin") == (PAGE if policy else None)
            assert "access-control-allow-credentials" not in found
            assert found.get("access-control-expose-headers") != "*"
            vary = got.headers.getall("vary")
            assert vary == ["accept-encoding", *(["origin"] if policy else [])]


async def test_the_list_is_read_anew(start, tmp_path: Path) -> None:
    async with start() as rig:
        assert (await preflight(rig))[0] == 404
        written(tmp_path, rig.engine.url, HERE)
        told_ = (await rig.control("/reload", "POST")).json()
        assert (told_["changed"], told_["needs_restart"]) == (["cors"], [])
        assert (await preflight(rig))[0] == 204
        assert allowed((await rig.post(CHAT, chat(max_tokens=2), headers=FROM)).headers)


def test_all_that_clients_are_told_can_be_read_by_pages() -> None:
    """A header that is added is added there as well."""
    edge = Path(gateway.__file__).parent / "edge"
    named = {
        name
        for file in edge.rglob("*.py")
        for name in re.findall(r'"(x-kvgate-[a-z-]+|x-should-retry|retry-after)"', file.read_text())
    }
    asked = {"x-kvgate-session"}  # by clients
    assert named - asked == {name for name in cors.EXPOSED if name != "x-request-id"}
