"""The tap: same facts and same bytes however the network cuts a stream."""

from __future__ import annotations

import itertools
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream import sse
from gateway.upstream.answer import Facts, reply_facts
from gateway.upstream.events import EVENT_CAP
from gateway.upstream.first_event import Verdict, peek
from gateway.upstream.sse import HOLD_CAP, SseTap

HEAD = b'{"id":"a1","object":"chat.completion.chunk","created":1,"model":"tiny","choices":'


def event(payload: bytes) -> bytes:
    return b"data: " + payload + b"\n\n"


def chat(delta: bytes, reason: bytes = b"null", index: int = 0, more: bytes = b"") -> bytes:
    choice = b'[{"index":%d,"delta":%b,"logprobs":null,"finish_reason":%b}]' % (
        index,
        delta,
        reason,
    )
    return event(HEAD + choice + more + b"}")


def generated(text: bytes, count: int, reason: bytes = b"null", tail: bytes = b"") -> bytes:
    return event(
        b'{"text":"%b","output_ids":[1],"meta_info":{"id":"b2","finish_reason":%b,'
        b'"prompt_tokens":4,"completion_tokens":%d,"cached_tokens":3}%b}'
        % (text, reason, count, tail)
    )


USAGE = event(
    HEAD + b'[],"usage":{"prompt_tokens":10,"total_tokens":13,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":8},"reasoning_tokens":0}}'
)
DONE = b"data: [DONE]\n\n"
FIRST = chat(b'{"role":"assistant","content":""}')
WORD = chat(b'{"reasoning_content":null,"content":" w\xd1\x81"}')
THOUGHT = chat(b'{"reasoning_content":"hm","content":null}')
CALL = chat(b'{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}')
END = chat(b'{"reasoning_content":null}', b'"stop"')
STREAM = FIRST + WORD + THOUGHT + CALL + END + USAGE + DONE
QUEUE_FULL = event(
    b'{"error": {"object": "error", "message": "The request queue is full.", '
    b'"type": "SERVICE_UNAVAILABLE", "param": null, "code": 503}}'
)


def facts(tap: SseTap) -> tuple[object, ...]:
    return (
        tap.events,
        tap.tokens,
        tap.prompt_tokens,
        tap.completion_tokens,
        tap.cached_tokens,
        tap.finish_reasons,
        tap.done,
        tap.error,
    )


def run(parts: list[bytes], dialect: str = "chat", *, strip: bool = True) -> tuple[SseTap, bytes]:
    tap = SseTap(dialect, strip_usage=strip)  # type: ignore[arg-type]
    out = b"".join([tap.feed(part) for part in parts])
    return tap, out + tap.finish()


def test_a_chat_stream_is_counted_and_only_its_usage_event_goes() -> None:
    tap, out = run([STREAM])
    assert out == STREAM.replace(USAGE, b"")
    assert facts(tap) == (6, 3, 10, 3, 8, {0: "stop"}, True, None)


def test_without_stripping_the_very_bytes_come_back() -> None:
    tap = SseTap("chat", strip_usage=False)
    assert tap.feed(STREAM) is STREAM
    assert tap.finish() == b""
    assert (tap.prompt_tokens, tap.completion_tokens) == (10, 3)


VARIANTS = {
    "lf": STREAM,
    "crlf": STREAM.replace(b"\n", b"\r\n"),
    "no space": STREAM.replace(b"data: ", b"data:"),
    "comments": b": ping\n\n" + FIRST + b": ping\n\n" + WORD + b"\n" + USAGE + b":\n\n" + DONE,
    "fields": b"event: chunk\nid: 7\n" + WORD + b"retry: 5\n" + USAGE + DONE,
    "many lines": WORD.replace(b',"choices"', b',\ndata: "choices"') + USAGE + DONE,
    "spaces": WORD + USAGE.replace(b'":', b'": ') + DONE,
    "error": FIRST + QUEUE_FULL + DONE,
    "unended": WORD + USAGE[:-2],
}


@pytest.mark.parametrize("strip", [True, False])
@pytest.mark.parametrize("name", VARIANTS)
def test_every_cut_gives_the_same_bytes_and_facts(name: str, strip: bool) -> None:
    stream = VARIANTS[name]
    whole, out = run([stream], strip=strip)
    assert whole.completion_tokens == (None if name == "error" else 3)
    assert (b'"usage"' in out) is (not strip and name != "error")
    for at in range(1, len(stream)):
        tap, cut = run([stream[:at], stream[at:]], strip=strip)
        assert cut == out, at
        assert facts(tap) == facts(whole), at


@given(st.lists(st.integers(0, len(STREAM)), max_size=12), st.booleans())
def test_many_cuts_give_the_same_bytes_and_facts(cuts: list[int], strip: bool) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    tap, out = run([STREAM[a:b] for a, b in itertools.pairwise(edges)], strip=strip)
    whole, expected = run([STREAM], strip=strip)
    assert out == expected
    assert facts(tap) == facts(whole)


@given(st.lists(st.one_of(st.sampled_from([WORD, USAGE, b"\n", b"data:", b'"']), st.binary())))
def test_any_bytes_pass(parts: list[bytes]) -> None:
    for dialect in ("chat", "completion", "generate"):
        _, out = run(parts, dialect, strip=False)
        assert b"".join(parts).startswith(out)
        tap = SseTap(dialect, strip_usage=False)  # type: ignore[arg-type]
        assert b"".join([tap.feed(part) for part in parts]) == b"".join(parts)
        _, one = run([b"".join(parts)], dialect)
        assert run(parts, dialect)[1] == one


def test_a_part_that_cannot_be_usage_is_not_held() -> None:
    tap = SseTap("chat", strip_usage=True)
    at = WORD.index(b'"delta"')
    assert tap.feed(WORD[:at]) == WORD[:at]
    assert tap.feed(WORD[at:]) == WORD[at:]


def test_the_next_event_s_part_is_judged_by_itself() -> None:
    tap = SseTap("chat", strip_usage=True)
    tap.feed(WORD[:-1])
    part = WORD[: WORD.index(b'"delta"')]
    assert tap.feed(WORD[-1:] + part) == WORD[-1:] + part


def test_choices_anywhere_in_an_event_keep_it_however_it_is_cut() -> None:
    stream = USAGE.replace(b'"choices":[]', b'"x":{"choices":[1]},"choices":[]')
    for at in range(1, len(stream)):
        assert run([stream[:at], stream[at:]])[1] == stream, at
    assert run([stream])[1] == stream


def test_a_part_that_may_be_usage_is_held_up_to_a_cap() -> None:
    tap = SseTap("chat", strip_usage=True)
    assert tap.feed(USAGE[:90]) == b""
    assert tap.finish() == USAGE[:90]
    tap = SseTap("chat", strip_usage=True)
    long = b"data: " + b"x" * HOLD_CAP
    assert tap.feed(long) == long


def test_a_long_usage_event_is_kept_however_it_is_cut() -> None:
    stream = USAGE.replace(b'"tiny"', b'"' + b"t" * HOLD_CAP + b'"')
    for parts in ([stream], [stream[:100], stream[100:]], [stream[:-1], stream[-1:]]):
        assert run(parts)[1] == stream


def test_an_event_over_the_cap_passes_and_the_next_is_seen() -> None:
    big = chat(b'{"content":"' + b"x" * EVENT_CAP + b'"}')
    stream = WORD + big + USAGE + DONE
    whole, out = run([stream])
    assert out == WORD + big + DONE
    assert facts(whole) == (3, 3, 10, 3, 8, {}, True, None)
    for size in (1000, 4096, 65536, 65537, len(WORD + big) - 1):
        tap, cut = run([stream[i : i + size] for i in range(0, len(stream), size)])
        assert (cut, facts(tap)) == (out, facts(whole)), size


def test_bytes_without_a_line_end_do_not_grow_memory() -> None:
    part = b"x" * (256 * 1024)
    for strip in (True, False):
        tap = SseTap("chat", strip_usage=strip)
        tracemalloc.start()
        passed = sum(len(tap.feed(part)) for _ in range(1024))  # 256 MB
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert passed + len(tap.finish()) == 1024 * len(part)
        assert peak < 2 << 20


def test_the_last_usage_that_is_not_null_or_zero_wins() -> None:
    def with_usage(usage: bytes) -> bytes:
        return chat(b'{"content":"a"}', more=b',"usage":' + usage)

    zero = with_usage(b'{"prompt_tokens":0,"completion_tokens":0}')
    real = with_usage(b'{"prompt_tokens":120,"completion_tokens":30}')
    tap, out = run([with_usage(b"null"), zero, real, zero, with_usage(b"null")])
    assert (tap.prompt_tokens, tap.completion_tokens) == (120, 30)
    assert out.count(b"\n\n") == 5


def test_continuous_usage_moves_the_count_as_it_comes() -> None:
    tap = SseTap("chat", strip_usage=True)
    usage = b',"usage":{"prompt_tokens":10,"completion_tokens":4}'
    tap.feed(chat(b'{"content":"four tokens at once"}', more=usage))
    assert tap.tokens == 4


def test_choices_are_counted_together_and_end_apart() -> None:
    tap, _ = run(
        [
            chat(b'{"content":"a"}', index=0) + chat(b'{"content":"b"}', index=1),
            chat(b"{}", b'"length"', index=1) + chat(b"{}", b'"stop"', index=0),
        ]
    )
    assert tap.tokens == 2
    assert tap.finish_reasons == {0: "stop", 1: "length"}


def test_completions() -> None:
    def text(value: bytes, reason: bytes = b"null") -> bytes:
        choice = b'[{"index":0,"text":"%b","finish_reason":%b}],"usage":null}' % (value, reason)
        return event(HEAD + choice)

    tap, out = run([text(b"a"), text(b""), text(b"b", b'"length"'), USAGE, DONE], "completion")
    assert facts(tap) == (4, 3, 10, 3, 8, {0: "length"}, True, None)
    assert b'"usage":{' not in out


def test_text_that_speaks_of_keys_fools_nobody() -> None:
    said = rb"\"usage\":{\"completion_tokens\":9},\"error\":{},\"index\":5,\"choices\":[]"
    tap, out = run([chat(b'{"content":"' + said + b'"}'), DONE])
    assert facts(tap) == (1, 1, None, None, None, {}, True, None)
    assert said in out
    tap, _ = run([generated(b"a", 1), generated(said, 2)], "generate")
    assert (tap.tokens, tap.error) == (2, None)


def test_generate_is_exact() -> None:
    tap = SseTap("generate", strip_usage=True)
    stream = [generated(b"a" * n, n) for n in range(1, 5)]
    for n, part in enumerate(stream, 1):
        assert tap.feed(part) == part
        assert tap.tokens == n
    tap.feed(generated(b"aaaaa", 7, b'{"type":"length","length":7}'))
    assert (tap.tokens, tap.prompt_tokens, tap.cached_tokens) == (7, 4, 3)
    assert tap.finish_reasons == {0: "length"}


def test_a_batch_on_generate_is_summed() -> None:
    tap, _ = run(
        [
            generated(b"a", 1, tail=b',"index":0'),
            generated(b"b", 1, tail=b',"index":1'),
            generated(b"ab", 5, tail=b',"index":1'),
        ],
        "generate",
    )
    assert (tap.tokens, tap.prompt_tokens) == (6, 8)


def test_generate_stays_exact_over_the_cap() -> None:
    big = generated(b"x" * EVENT_CAP, 20_000)
    assert run([generated(b"x", 1), big], "generate")[0].tokens == 20_000
    assert run([generated(b"x", 1), big[:70], big[70:]], "generate")[0].tokens == 20_000


ABORT = generated(
    b"", 0, b'{"type":"abort","status_code":503,"message":"The request queue is full."}'
)
LATE = b'{"error":{"message":"Request %b timeout reached.","code":503}}'
FIRSTS = [
    (QUEUE_FULL + DONE, Verdict.BACKPRESSURE, 503),
    (ABORT, Verdict.BACKPRESSURE, 503),
    (event(LATE % b"waiting"), Verdict.BACKPRESSURE, 503),
    (event(LATE % b"running"), Verdict.ERROR, 503),
    (ABORT.replace(b"503", b"400").replace(b"queue is full", b"input"), Verdict.ERROR, 400),
    (event(b'{"error":{"message":"too long","code":400}}'), Verdict.ERROR, 400),
    (event(b'{"error":{"message":"too long"}}'), Verdict.ERROR, 400),
    (event(b'{"error":{"message":"no","type":"InternalServerError"}}'), Verdict.ERROR, 500),
    (FIRST, Verdict.DATA, None),
    (generated(b"a", 1), Verdict.DATA, None),
    (chat(b'{"content":"\\"error\\": {\\"code\\":503}"}'), Verdict.DATA, None),
    (DONE, Verdict.DATA, None),
    (event(b"not json with an error"), Verdict.DATA, None),
    (event(b'"error"'), Verdict.DATA, None),
]


@pytest.mark.parametrize(("stream", "verdict", "status"), FIRSTS)
def test_the_first_event_is_judged(stream: bytes, verdict: Verdict, status: int | None) -> None:
    for prefix in (b"", b": ping\n\n", b"event: x\n"):
        for body in (prefix + stream, (prefix + stream).replace(b"\n", b"\r\n")):
            first = peek(body)
            assert (first.verdict, first.status) == (verdict, status)


def test_a_first_event_that_is_not_whole() -> None:
    assert peek(b"").verdict is Verdict.INCOMPLETE
    for at in range(1, len(QUEUE_FULL) - 1):
        assert peek(QUEUE_FULL[:at]).verdict is Verdict.INCOMPLETE
    assert peek(WORD[: WORD.index(b'"delta"')]).verdict is Verdict.DATA
    assert peek(b"data: " + b"x" * EVENT_CAP).verdict is Verdict.DATA


def test_the_engine_s_words_are_in_no_repr() -> None:
    secret = event(b'{"error":{"message":"the prompt was SECRET","code":400}}')
    tap, _ = run([secret])
    assert tap.error == {"message": "the prompt was SECRET", "code": 400}
    assert "SECRET" not in repr(tap) + repr(peek(secret))


def test_a_whole_reply() -> None:
    usage = b'"usage":{"prompt_tokens":10,"completion_tokens":12,"prompt_tokens_details":null}'
    choice = b'{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"length"}],'
    facts = reply_facts("chat", choice + usage + b"}")
    assert (facts.prompt_tokens, facts.completion_tokens, facts.tokens) == (10, 12, 12)
    assert facts.finish_reasons == {0: "length"}
    one = generated(b"x", 3, b'{"type":"stop","matched":2}')[6:]
    facts = reply_facts("generate", b"[" + one + b"," + one + b"]")
    assert (facts.prompt_tokens, facts.tokens, facts.cached_tokens) == (8, 6, 6)
    assert facts.finish_reasons == {0: "stop", 1: "stop"}
    assert reply_facts("chat", b'{"error":"no","code":400}').error == {"message": "no"}


KEYS = [
    *("choices", "usage", "error", "meta_info", "finish_reason", "index", "delta"),
    *("prompt_tokens", "completion_tokens", "type", "status_code", "code"),
]


@given(
    st.sampled_from(["chat", "completion", "generate"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(KEYS),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ),
)
def test_any_json_leaves_facts_unknown_at_worst(dialect: str, document: object) -> None:
    body = json.dumps(document).encode()
    reply_facts(dialect, body)  # type: ignore[arg-type]
    run([event(body), event(body)], dialect)
    assert peek(event(body)).verdict is not Verdict.INCOMPLETE
    assert reply_facts(dialect, b"{").tokens == 0  # type: ignore[arg-type]


PIECE = st.one_of(
    st.sampled_from(
        [b" a", b"\\n", b"\\\"", b"\\u00e9", b"\\ud83d\\ude00", b"\\ud83d", "é词".encode(), b"\xff", b"\\x", b"", b"\\", b"\x01"]
    ),
    st.binary(max_size=4),
)  # fmt: skip
EVENTS = st.lists(
    st.one_of(
        PIECE.map(lambda text: b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n' % text),
        PIECE.map(lambda text: b'data: {"choices":[{"index":0,"delta":{"content":"","reasoning_content":"%b"}}]}\n\n' % text),
        PIECE.map(lambda text: b'data: {"choices":[{"index":1,"text":"%b","finish_reason":null}],"usage":null}\n\n' % text),
        PIECE.map(lambda text: b'data: {"choices":[{"delta":{"content":"%b"},"finish_reason":"stop"}]}\n\n' % text),
        st.sampled_from([USAGE, b"data: [DONE]\n\n", b": beat\n\n"]),
    ),
    max_size=12,
)  # fmt: skip


class Parsing(SseTap):
    """Parses every event."""

    def _remember(self, event: bytes, document: dict) -> None:
        """Remembers nothing."""


@given(EVENTS, st.sampled_from(["chat", "completion"]), st.lists(st.integers(0, 900), max_size=6))
def test_an_event_that_is_not_parsed_tells_what_parsing_it_would(
    events: list[bytes], dialect: str, cuts: list[int]
) -> None:
    stream = b"".join(events)
    short, long = SseTap(dialect, strip_usage=True), Parsing(dialect, strip_usage=True)
    told = [b"", b""]
    at = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    for begin, end in itertools.pairwise(at):
        told = [
            one + tap.feed(stream[begin:end]) for one, tap in zip(told, (short, long), strict=True)
        ]
    told = [one + tap.finish() for one, tap in zip(told, (short, long), strict=True)]
    assert told[0] == told[1]
    assert (short.tokens, short.events, short.done) == (long.tokens, long.events, long.done)
    assert short.finish_reasons == long.finish_reasons


@pytest.mark.parametrize(
    "smuggled",
    [
        b'a"},"finish_reason":"stop"},{"index":1,"delta":{"content":"b',
        b'a"},"finish_reason":"length"}],"x":[{"y":{"z":"b',
        b'a","tool_calls":[{"index":0}],"x":"b',
        b"a\x01b",
        b"a\\xb",
        b"\\ud83d",
        b"\xff",
    ],
    ids=[
        "another choice",
        "an end",
        "a call",
        "a control mark",
        "no escape",
        "half a pair",
        "no UTF-8",
    ],
)
def test_what_only_looks_like_another_word_is_parsed(
    monkeypatch: pytest.MonkeyPatch, smuggled: bytes
) -> None:
    one = b'data: {"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
    tap, parsed = SseTap("chat", strip_usage=True), []
    tap.feed(one)
    real = sse.parse
    monkeypatch.setattr(sse, "parse", lambda payload: parsed.append(payload) or real(payload))
    tap.feed(one.replace(b" word", smuggled))
    assert len(parsed) == 1
    tap.feed(one + one.replace(b" word", smuggled))  # also where it comes behind another
    assert len(parsed) >= 2


def test_plain_words_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    one = b'data: {"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
    tap = SseTap("chat", strip_usage=True)
    tap.feed(one)
    monkeypatch.setattr(sse, "parse", lambda payload: pytest.fail("parsed"))
    assert tap.feed(one.replace(b"word", b'w\\u00f6rd \\"{}\\"')) != b""
    assert tap.feed(one * 3) == one * 3
    assert tap.tokens == tap.events == 5


def test_prompts_of_generate_are_told_once_for_each_of_their_sequences() -> None:
    """Two prompts, three answers each: what six sequences say of their prompts, over three."""
    told = Facts(prompt_tokens=3 * (7 + 5), cached_tokens=3 * 4)
    assert told.prompts(2, 3) == (36, 12), "the other routes tell each prompt once"
    told.generated = {index: {} for index in range(5)}
    assert told.prompts(2, 3) == (None, None), "one of them has not told yet"
    told.generated[5] = {}
    assert told.prompts(2, 3) == (12, 4)
