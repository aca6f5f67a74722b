"""Marks of requests: the same for all who share a salt and a secret, and nothing to anybody else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gateway.edge.marks import Marks

BODY = {"prompt": "PLANTED words", "max_tokens": 5, "n": 2}


def test_two_spellings_have_one_mark_and_two_requests_two() -> None:
    marks = Marks()
    assert marks.of("openai", BODY) == marks.of("openai", dict(reversed(BODY.items())))
    assert marks.of("openai", BODY) != marks.of("openai", BODY | {"n": 1})
    assert marks.of("openai", BODY) != marks.of("anthropic", BODY)
    assert len(marks.of("openai", {"seed": 2**80})) == 16


def test_processes_make_the_same_marks_by_one_salt_and_one_secret() -> None:
    one, two, stranger = Marks("password"), Marks("password"), Marks()
    assert one.of("openai", BODY) != two.of("openai", BODY), "each begins with a salt of its own"
    assert two.take(one.salt)
    assert not two.take(one.salt)
    assert one.of("openai", BODY) == two.of("openai", BODY)
    assert stranger.take(one.salt)
    assert stranger.of("openai", BODY) != one.of("openai", BODY), "who reads only the store"
    other = Marks("another")
    other.take(one.salt)
    assert other.of("openai", BODY) != one.of("openai", BODY)
    assert Marks("x" * 500).of("openai", BODY)


def test_the_mark_of_a_request_under_way_is_made_anew_with_another_salt() -> None:
    flight: Any = SimpleNamespace(record=SimpleNamespace(dialect="openai"), body=BODY, mark=None)
    marks = Marks()
    first = marks.of_flight(flight)
    assert first == marks.of_flight(flight) == marks.of("openai", BODY)
    marks.take(b"another")
    assert marks.of_flight(flight) == marks.of("openai", BODY) != first
