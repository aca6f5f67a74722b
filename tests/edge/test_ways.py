"""How the time of a search grows with the text: told of the pattern alone."""

from __future__ import annotations

import math
import warnings

import pytest

from gateway.edge.dialects.patterns import may_not_end
from gateway.edge.dialects.ways import MOST, REPEATS, degree

HONEST = {
    "": 0,
    r"Observation:\s*": 1,
    r"\n(User|Assistant)\s*:": 1,
    r"</?\w+>": 1,
    r'"[^"]*"\s*:\s*"[^"]*"': 1,
    r"Action:\s*\w+\s*\nAction Input:\s*": 1,
    r"\d{4}-\d{2}-\d{2}": 1,
    r"[[a]": 1,
    r"a+b*": 1,
    r"(?:\r?\n){2,}": 1,
    r"\n\s*\n": 2,
    r"\n\s*(user|human):": 2,
    r"\s*Question:": 2,
    r"\d+\.\d*": 2,
    r"\d+\.?\d*": 2,
    r"Final Answer:\s*(.*)\n": 2,
    r"\w+@\w+\.\w+": 2,
    r"\w+\s+\w+\s+\w+:": 2,
    r"[\u4e00-\u9fff]+。\s*": 2,
    r"(?s)<answer>.*</answer>": 2,
    r"(?m)^Action:.*\nInput:.*\n": 2,
    r"(['\"]).*?\1": 2,
    r"(?<=\n)\s*Question": 2,
    ".*(" + "|".join(f"word{one}" for one in range(10, 90)) + "):": 2,
}


@pytest.mark.parametrize(("pattern", "exponent"), HONEST.items())
def test_what_people_write_is_let_through(pattern: str, exponent: int) -> None:
    with warnings.catch_warnings(action="ignore"):
        assert degree(pattern) == exponent


@pytest.mark.parametrize(
    "pattern",
    [
        r"\d+(\.\d*)?%",
        r".*\.?\n",
        r"(\n|^)\s*(Human|User)\s*(\d+\s*)?:",
        r"(a+)?(b+|c)",
        "a?b?c?d?e?f?g?h?i?j?k?l?m?n?o?p?q?r?s?t?=",
        "(```|###|</s>|Human:|User:|\n\n|\n\\s*Q:)",
    ],
)
def test_what_is_optional_counts_little(pattern: str) -> None:
    assert degree(pattern) < MOST


@pytest.mark.parametrize(
    "pattern",
    [
        r".*.*=",
        r".*.*.*=",
        r".*?.*?=",
        r".*+.*=",
        r".*.*$",
        r".*.*\b",
        r"\s*\n*\s*=",
        r"\s*\n\s*(user|human):",  # the break between them is one that both can take
        r"\w+\s*\w+\s*=",
        r"\d+\.?\d*%",
        r".*foo.*bar",
        r".*(foo|bar).*x",
        r"x*(|y)x*=",
        r"[a-z]*[0-9]*[a-z]*=",
        r"[^a]*[^b]*=",
        r"[^\s]*[\u0900-\u097f]*=",
        r"[\u0600-\u06ff]*\d*=",
        r"[\u4e00-\u9fff]*[\u4e80-\u9000]*=",
        r"(?i)[a-z]*[A-Z]*=",
        r"(?s).*\n[^x]*=",
        r"(?:a|b)*(?:a|b)*=",
        r"(?:ab)*a?b?(?:ab)*=",
        r"(?:.*)?(?:.*)?=",
        r"(?:.*|b).*=",
        r"(?:|.*)(?:|.*)=",
        r"(?>.*).*.*=",
        r"(.*)\1=",  # what is compared letter by letter
        r"(?=.*.*=)x",
        r".*(?=.*=)a",
        r".*(?!.*x)y",
        "(a)(?(1)b|c)",  # not read
        ".{0,400}.{0,400}=",
        ".{1,40}a*(?![a-c]{2})=",  # each place, forty lengths, each length
        "a*a*b" * 3,  # no pair reaches over the b, and each is tried with each
        "b?b?a" * 20 + "x",
        "a?" * 40 + "a" * 40,
        "(?:a)?" * 40 + "a" * 40,
        "(|a)" * 40 + "a" * 40,
        "(a|ab)(b|)" * 20 + "x",
        "(?:ab|ab)" * 20 + "x",
        "(?:|)" * 40 + "x",
        r"[\s\S]*=",  # finds no more than what it ends with
        r"(?s).*=",
        r"(?:x?[\s\S]*)=",
    ],
)
def test_repeats_that_share_what_they_take_are_not(pattern: str) -> None:
    """Those tried took from a tenth of a second to minutes for 800 characters; some of these only grow so."""
    assert degree(pattern) == math.inf
    assert not may_not_end(pattern) or "(?(" in pattern


def test_only_what_has_to_match_makes_it_try_again() -> None:
    assert degree(".*.*") == 0
    assert degree(".*x.*") == 2
    assert degree(".*.*|b") == 1
    assert degree(r"[\s\S]*") == 0
    assert degree(r"<a>[\s\S]*</a>") == 2


def test_more_repeats_than_anybody_writes_are_not_weighed() -> None:
    def apart(number: int) -> str:
        return "".join(f"{chr(0x4E00 + 2 * one)}*" for one in range(number))

    assert degree(apart(REPEATS)) == 0
    assert degree(apart(REPEATS + 1)) == math.inf
