"""The counter without a tokenizer: shapes, bound, remote, learning. What it must never do is fail."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tokens import (
    Counter,
    CountRefused,
    Kind,
    Method,
    Unavailable,
    Unreadable,
    build_counter,
    profile,
)
from gateway.tokens.faults import FAULTS

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


async def count(counter, kind, body):
    return await counter.count(kind, body, len(json.dumps(body)))


def count_at_once(kind, body):
    """The same for a counter that has nothing to wait for: no event loop is needed, or allowed."""
    try:
        Counter().count(kind, body, 100).send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waited for something")


CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def chat(*texts):
    return {"messages": [{"role": "user", "content": text} for text in texts]}


@pytest.mark.parametrize(
    ("kind", "body", "prompts"),
    [
        (Kind.COMPLETION, {"prompt": [1, 2, 3]}, (3,)),
        (Kind.COMPLETION, {"prompt": [[1, 2], [3]]}, (2, 1)),
        (Kind.GENERATE, {"input_ids": [5, 6]}, (2,)),
        (Kind.GENERATE, {"text": "ignored", "input_ids": [[5], [6, 7, 8]]}, (1, 3)),
        (Kind.GENERATE, {"input_embeds": [[0.5] * 8] * 3}, (3,)),
        (Kind.CHAT, {"messages": [], "input_ids": [1] * 9}, (9,)),
    ],
)
async def test_token_ids_count_as_their_length(kind, body, prompts):
    counted = await count(Counter(), kind, body)
    assert counted.prompts == prompts
    assert counted.method is Method.EXACT


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Kind.COMPLETION, {"prompt": [1, -1]}),
        (Kind.COMPLETION, {"prompt": [[1], [2, 100]]}),
        (Kind.GENERATE, {"input_ids": [100]}),
        (Kind.GENERATE, {"text": "x", "input_ids": [[1], [-5]]}),
        (Kind.CHAT, {"messages": [], "input_ids": [999_999_999]}),
        (Kind.COMPLETION, {"prompt": [10**30]}),
    ],
)
async def test_token_ids_the_model_does_not_have_never_reach_the_engine(kind, body):
    """They end its scheduler, and everybody's answers with it."""
    with pytest.raises(CountRefused, match=r"[Tt]oken id"):
        await count(Counter(ids=100), kind, body)


async def test_where_the_vocabulary_is_unknown_no_model_has_a_million_tokens():
    assert (await count(Counter(), Kind.COMPLETION, {"prompt": [262_143]})).prompts == (1,)
    with pytest.raises(CountRefused):
        await count(Counter(), Kind.COMPLETION, {"prompt": [999_999_999]})


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Kind.CHAT, {}),
        (Kind.CHAT, {"messages": "hi"}),
        (Kind.CHAT, {"messages": []}),
        (Kind.CHAT, {"messages": ["hi"]}),
        (Kind.CHAT, {"messages": [{"role": "user", "content": 7}]}),
        (Kind.CHAT, {**CHAT, "chat_template_kwargs": {"chat_template": "{{ 1 }}"}}),
        (Kind.COMPLETION, {"prompt": None}),
        (Kind.COMPLETION, {"prompt": {}}),
        (Kind.COMPLETION, {"prompt": []}),
        (Kind.COMPLETION, {"prompt": ["a", 1]}),
        (Kind.GENERATE, {}),
        (Kind.MESSAGES, {"system": "x"}),
        (Kind.TEXT, {"text": 1}),
    ],
)
async def test_a_body_without_a_prompt_is_refused_in_words(kind, body):
    with pytest.raises(CountRefused, match=r"must be|`messages`|own is used"):
        await count(Counter(), kind, body)


@given(
    st.sampled_from(Kind),
    st.dictionaries(
        st.sampled_from(
            [
                "messages",
                "prompt",
                "text",
                "input_ids",
                "system",
                "tools",
                "tool_choice",
                "image_data",
                "chat_template_kwargs",
                "thinking",
                "output_config",
                "input_embeds",
                "mm_processor_kwargs",
            ]
        ),
        json_values,
    ),
)
def test_no_body_makes_it_fail(kind, body):
    try:
        counted = count_at_once(kind, body)
    except CountRefused:
        return
    assert all(tokens >= 0 for tokens in counted.prompts)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "assistant", "system"]), "content": json_values}
        ),
        min_size=1,
        max_size=3,
    )
)
def test_no_message_makes_it_fail(messages):
    for kind in (Kind.CHAT, Kind.MESSAGES):
        try:
            count_at_once(kind, {"messages": messages})
        except CountRefused:
            continue


@given(st.text())
def test_the_bound_is_at_least_the_bytes(text):
    counted = count_at_once(Kind.COMPLETION, {"prompt": text})
    assert counted.prompts[0] >= len(text.encode("utf-8", "surrogatepass"))
    assert counted.method is Method.BOUND


async def test_a_base64_image_is_not_counted_as_text():
    url = "data:image/png;base64," + "A" * 4_000_000
    body = {
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
        ]
    }
    counted = await count(Counter(), Kind.CHAT, body)
    assert counted.images == 1
    assert 16_384 <= counted.total < 20_000


async def test_remote_answers_are_the_engine_s_own():
    asked = []

    async def remote(body):
        asked.append(body)
        return 41

    counter = await build_counter(tokenizer_dir=None, engine_version="0.5.17", remote=remote)
    body = {**chat("hello"), "tools": [{"type": "function"}], "max_tokens": 7, "temperature": 1}
    counted = await counter.count(Kind.CHAT, body, 100)
    assert (counted.prompts, counted.method) == ((41,), Method.EXACT)
    assert asked == [{"messages": body["messages"], "tools": body["tools"]}]
    texts = await counter.count(Kind.COMPLETION, {"prompt": ["a", "b"]}, 100)
    assert (texts.prompts, asked[1:]) == ((41, 41), [{"prompt": "a"}, {"prompt": "b"}])


async def test_a_server_that_takes_no_chats_is_asked_about_their_texts():
    asked = []

    async def remote(body):
        asked.append(body)
        return len(body["prompt"].split())

    counter = await build_counter(tokenizer_dir=None, engine_version="0.5.6", remote=remote)
    assert "estimated from their texts" in counter.notes[0]
    body = chat("word " * 559)
    counted = await counter.count(Kind.CHAT, body, 3_000)
    assert [list(one) for one in asked] == [["prompt"]]
    assert counted.method is Method.ESTIMATE
    assert 559 < counted.total < 559 + 250
    tools = [{"type": "function", "function": {"name": "weather", "description": "says it"}}]
    with_tools = await counter.count(Kind.CHAT, {**body, "tools": tools}, 3_000)
    assert with_tools.total > counted.total
    assert all(word in asked[1]["prompt"] for word in ("weather", "description", "says it"))
    # What usage says moves the next estimate, and never a plain text's number.
    counter.observe(counted, counted.total + 300)
    assert (await counter.count(Kind.CHAT, body, 3_000)).total >= counted.total + 300
    assert counter.accuracy.unders == 1
    text = await counter.count(Kind.COMPLETION, {"prompt": "a b c"}, 10)
    assert (text.prompts, text.method) == ((3,), Method.EXACT)


async def test_texts_that_cannot_be_asked_about_leave_the_bound():
    async def remote(body):
        raise OSError("refused")

    counter = Counter(remote=remote, remote_takes_chats=False)
    counted = await counter.count(Kind.CHAT, CHAT, 100)
    assert counted.method is Method.BOUND
    assert counter.fallbacks == {"remote_error": 1}


async def test_a_failing_remote_leaves_the_bound():
    async def remote(body):
        raise OSError("refused")

    counter = Counter(remote=remote)
    counted = await counter.count(Kind.COMPLETION, {"prompt": "hello"}, 10)
    assert (counted.method, counted.prompts) == (Method.BOUND, (7,))
    assert counter.fallbacks == {"remote_error": 1}


class Unable:
    """A local tokenizer that cannot say, for a reason."""

    renders = True

    def __init__(self, reason):
        self.reason = reason

    async def count(self, request, body_bytes, client):
        raise Unavailable(self.reason)

    estimate = count

    def segments(self, request):
        raise Unavailable(self.reason)


@pytest.mark.parametrize(
    ("reason", "fault"), [*FAULTS.items(), ("timeout", ""), ("queue_full", "")]
)
async def test_what_is_wrong_with_a_body_is_known_where_only_its_bytes_are_counted(reason, fault):
    counted = await Counter(local=Unable(reason)).count(Kind.CHAT, CHAT, 100)
    assert (counted.method, counted.fault) == (Method.BOUND, fault)

    async def remote(body):
        return 7

    counted = await Counter(local=Unable(reason), remote=remote).count(Kind.CHAT, CHAT, 100)
    assert (counted.prompts, counted.fault) == ((7,), ""), "the server reads it"


async def test_what_the_server_says_of_a_body_it_does_not_read_is_kept_in_part():
    async def remote(body):
        raise Unreadable("no" * 500)

    counter = Counter(remote=remote)
    counted = await counter.count(Kind.CHAT, CHAT, 100)
    assert counted.method is Method.BOUND
    assert counted.fault == f"the server does not read this body: {'no' * 150}…"
    assert counter.fallbacks == {"remote_refused": 1}
    assert "nono" not in repr(counted)
    both = await Counter(local=Unable("role"), remote=remote).count(Kind.CHAT, CHAT, 100)
    assert both.fault == FAULTS["role"], "our own words first: they are short"


def test_every_reason_that_is_a_fault_of_the_body_has_words():
    said = set(re.findall(r'NotPrepared\("(\w+)"\)', Path(profile.__file__).read_text()))
    assert said | {"template_error"} == FAULTS.keys()


async def test_a_busy_remote_is_waited_for_a_moment_only(monkeypatch):
    monkeypatch.setattr("gateway.tokens.counter.REMOTE_SECONDS", 0.05)
    asked, answer = [], asyncio.Event()

    async def remote(body):
        asked.append(body)
        await answer.wait()
        return 3

    counter = Counter(remote=remote)
    waiting = [
        asyncio.ensure_future(counter.count(Kind.COMPLETION, {"prompt": "hello"}, 10))
        for _ in range(2)
    ]
    while len(asked) < 2:
        await asyncio.sleep(0)
    third = await counter.count(Kind.COMPLETION, {"prompt": "hello"}, 10)
    large = await counter.count(Kind.COMPLETION, {"prompt": "hello"}, 1 << 21)
    assert third.method is large.method is Method.BOUND
    assert (third.late, third.fault) == (True, "")
    assert not large.late, "it would be no other the next time"
    assert [(await one).method for one in waiting] == [Method.BOUND] * 2
    assert counter.fallbacks == {"remote_timeout": 3, "remote_too_large": 1}
    answer.set()
    burst = [counter.count(Kind.COMPLETION, {"prompt": "hello"}, 10) for _ in range(5)]
    assert [counted.prompts for counted in await asyncio.gather(*burst)] == [(3,)] * 5


async def test_the_bound_is_lowered_only_by_evidence_and_raised_at_once():
    counter = Counter()
    body = {"prompt": "x" * 9_998}  # a bound of 10,000
    for _ in range(8):
        counted = await counter.count(Kind.COMPLETION, body, 10_000)
        assert counted.prompts == (10_000,)
        counter.observe(counted, 2_500)
    lowered = await counter.count(Kind.COMPLETION, body, 10_000)
    assert (lowered.prompts, lowered.method) == ((2_550,), Method.ESTIMATE)
    assert counter.observe(lowered, 6_000) == -3_450
    raised = await counter.count(Kind.COMPLETION, body, 10_000)
    assert raised.prompts == (6_120,)
    accuracy = counter.accuracy
    assert (accuracy.requests, accuracy.unders, accuracy.worst_under) == (9, 1, 3_450)
    assert accuracy.worst_over == 7_500
    assert accuracy.correction == pytest.approx(0.612)


class Local:
    """A tokenizer that is off by what the test says."""

    renders = True

    def __init__(self, tokens):
        self.tokens = tokens

    async def count(self, request, body_bytes, client):
        return (self.tokens,)


async def test_an_exact_counter_that_errs_estimates_until_it_is_right_again():
    counter = Counter(local=Local(100))
    counted = await counter.count(Kind.CHAT, chat("x"), 10)
    assert counted.method is Method.EXACT
    assert counter.observe(counted, 110) == -10
    counted = await counter.count(Kind.CHAT, chat("x"), 10)
    assert (counted.method, counted.prompts) == (Method.ESTIMATE, (110,))
    for _ in range(64):
        counter.observe(await counter.count(Kind.CHAT, chat("x"), 10), 100)
    counted = await counter.count(Kind.CHAT, chat("x"), 10)
    assert (counted.method, counted.prompts) == (Method.EXACT, (100,))


async def test_a_broken_local_way_is_counted_and_passed_over():
    class Broken:
        renders = True

        async def count(self, request, body_bytes, client):
            raise RuntimeError("bug")

    counter = Counter(local=Broken())
    counted = await counter.count(Kind.COMPLETION, {"prompt": "hi"}, 10)
    assert counted.method is Method.BOUND
    assert counter.fallbacks == {"local_error": 1}


def picture(url: str) -> dict[str, object]:
    part = {"type": "image_url", "image_url": {"url": url}}
    return {"messages": [{"role": "user", "content": [part]}]}


@pytest.mark.parametrize(
    "url",
    ["data:image/png;base64,iVBORw0KGgo=", "/9j/4AAQSkZJRgABAQAAAQ==", "https://example.org/a.png"],
)
async def test_other_pictures_pass(url):
    assert (await count(Counter(), Kind.CHAT, picture(url))).images == 1
