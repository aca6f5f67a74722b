"""When questions that fail mean that a server is gone, and when they mean nothing."""

from __future__ import annotations

import pytest

from gateway.upstream.ask import AskError, Wrong
from gateway.upstream.door import EVIDENCE
from gateway.upstream.failing import Failing

SILENT_FOR_S = 4.0
NEVER = float("-inf")
SHUT = AskError(Wrong.SHUT, "nobody listens")
SILENT = AskError(Wrong.SILENT, "no answer")
EVERY = [wrong for wrong in Wrong if wrong is not Wrong.SILENT]


def asked(
    failing: Failing, error: AskError, times: list[float], *, heard_at: float = NEVER
) -> list[str | None]:
    """What each of the questions says, asked at those times and answered for half a second."""
    return [failing.failed(error, asked_at=at, heard_at=heard_at, now=at + 0.5) for at in times]


@pytest.mark.parametrize("wrong", EVERY)
def test_a_shut_or_strange_door_is_believed_at_the_second_question(wrong: Wrong) -> None:
    said = asked(Failing(SILENT_FOR_S), AskError(wrong, "so and so"), [1.0, 2.0])
    assert said == [None, f"{EVIDENCE} questions in a row failed, the last with: so and so"]


def test_a_silent_door_is_believed_once_it_has_been_silent_for_long() -> None:
    said = asked(Failing(SILENT_FOR_S), SILENT, [1.0, 2.0, 4.4, 4.5])
    assert said == [None, None, None, "it accepts connections but has been silent for 4 s"]


def test_one_question_says_nothing_however_long_it_took() -> None:
    failing = Failing(SILENT_FOR_S)
    assert failing.failed(SILENT, asked_at=0.0, heard_at=NEVER, now=1_000.0) is None


def test_silence_that_ends_with_a_shut_door_needs_no_time() -> None:
    failing = Failing(SILENT_FOR_S)
    assert asked(failing, SILENT, [1.0]) == [None]
    assert asked(failing, SHUT, [1.6])[0] is not None


def test_an_answer_begins_anew() -> None:
    failing = Failing(SILENT_FOR_S)
    asked(failing, SHUT, [1.0])
    failing.answered()
    assert failing.in_a_row == 0
    said = asked(failing, SHUT, [2.0, 3.0])
    assert said[0] is None
    assert said[1] is not None


@pytest.mark.parametrize("error", [SHUT, SILENT])
def test_failing_while_bytes_flow_means_nothing(error: AskError) -> None:
    failing = Failing(SILENT_FOR_S)
    for at in range(60):
        said = failing.failed(error, asked_at=at, heard_at=at + 0.2, now=at + 0.5)
        assert said is None
        assert failing.in_a_row == 1


def test_a_byte_between_two_questions_is_a_sign_of_life() -> None:
    """It came after the first was asked: only what fails from then on counts, and from then on in time."""
    failing = Failing(SILENT_FOR_S)
    asked(failing, SILENT, [0.0])
    assert asked(failing, SILENT, [3.0, 5.0], heard_at=2.0) == [None, None]
    assert asked(failing, SILENT, [6.5], heard_at=2.0)[0] is not None


def test_a_byte_from_before_the_first_question_excuses_nothing() -> None:
    said = asked(Failing(SILENT_FOR_S), SHUT, [1.0, 2.0], heard_at=0.9)
    assert said[1] is not None
