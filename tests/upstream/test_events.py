"""Where an event ends, and what is in it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.events import BOUNDARY, SOME_CHOICE, is_one_line, parse, payload_of

lines = st.binary(max_size=20).filter(lambda line: b"\n" not in line and b"\r" not in line)
documents = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=9,
)


@given(datas=st.lists(lines, min_size=1, max_size=4), end=st.sampled_from([b"\n", b"\r\n"]))
def test_the_lines_of_an_event_are_joined(datas: list[bytes], end: bytes) -> None:
    """Whatever stands between them; of the blank after the colon one goes and no more."""
    event = b"event: message" + end + b": ping" + end
    event += b"".join(b"data: " + data + end for data in datas) + b"id: 1" + end + end
    assert payload_of(event) == b"\n".join(datas)


@given(data=lines.filter(lambda line: not line.startswith(b" ")))
def test_no_blank_after_the_colon_is_needed(data: bytes) -> None:
    assert payload_of(b"data:" + data + b"\n\n") == data


@pytest.mark.parametrize(
    "event", [b"", b"\n\n", b": ping\n\n", b"event: ping\n\n", b" data: 1\n\n"]
)
def test_a_comment_or_a_blank_has_no_data(event: bytes) -> None:
    assert payload_of(event) is None


def test_data_that_is_empty_is_data() -> None:
    assert payload_of(b"data:\n\n") == b""


@given(
    events=st.lists(st.lists(lines.filter(bool), min_size=1, max_size=3), min_size=1, max_size=5),
    end=st.sampled_from([b"\n", b"\r\n"]),
)
def test_an_event_ends_with_a_blank_line(events: list[list[bytes]], end: bytes) -> None:
    stream = b"".join(b"".join(line + end for line in event) + end for event in events)
    ends = [found.end() for found in BOUNDARY.finditer(stream)]
    lengths = [sum(len(line) + len(end) for line in event) + len(end) for event in events]
    assert ends == [sum(lengths[: at + 1]) for at in range(len(lengths))]


@given(document=documents)
def test_what_an_engine_writes_is_one_line_and_comes_back(document: object) -> None:
    event = b"data: " + json.dumps({"choices": document}).encode() + b"\n\n"
    assert is_one_line(event)
    payload = payload_of(event)
    assert payload is not None
    assert parse(payload) == {"choices": document}


@pytest.mark.parametrize(
    "event",
    [
        b"data: [DONE]\n\n",
        b"data:{}\n\n",
        b": ping\n\n",
        b"data: {}\n",
        b"data: {}\ndata: {}\n\n",
        b"data: {}\n\ndata: {}\n\n",
    ],
)
def test_what_is_not_one_line_of_json_is_told_from_it(event: bytes) -> None:
    assert not is_one_line(event)


@given(payload=st.binary(max_size=40))
def test_any_data_is_parsed_or_nothing(payload: bytes) -> None:
    try:
        expected: object = json.loads(payload.decode("utf-8"))
    except ValueError:  # the standard's parser takes more than JSON (NaN), never less
        expected = None
    said = parse(payload)
    assert said is None or said == expected


@pytest.mark.parametrize(
    ("event", "some"),
    [
        (b'{"id":"a","choices":[{"index":0}]}', True),
        (b'{"choices": [ {"index":0}]}', True),
        (b'{"choices": [\n\t{"index":0}]}', True),
        (b'{"choices":[],"usage":{"total_tokens":9}}', False),
        (b'{"choices": [ ],"usage":{"total_tokens":9}}', False),
        (b'{"choices":null,"usage":{"total_tokens":9}}', False),
        (b'{"choices":[', False),
        (b'{"choices":[  ', False),
    ],
)
def test_the_event_that_has_only_usage_in_it(event: bytes, some: bool) -> None:
    assert (SOME_CHOICE.search(event) is not None) is some
