"""How the time of a search grows with the text: told of the pattern alone."""

from __future__ import annotations

import math
import warnings

import pytest

from gateway.edge.dialects.patterns import may_not_end
from gateway.edge.dialects.ways import DEPTH, MOST, REPEATS, breadth, degree

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
        r".*\s{0,4}=",
        r"\n{1,3}\s*User:",
        r"(?i)question\s*\d{0,3}\s*:",
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
        "(?i)[À-Ö]*[á-õ]*=",  # ranges that have no end in common, but for the case of what is in them
        "(?i)[^á-õ]*[á-õ]*=",
        "(?i)[а-п]*[Б-Я]*=",
        "(?i)[ž-ƀ]*[r-t]*=",  # ſ is an s
        "(?i)[I-n]*[Ỿİ]*=",
        "(?i)[Ω-\u2128]*[ω-ϊ]*=",  # the sign of the ohm
        "(?i)[Ā-\U0010ffff]*[ā-\U0010ffff]*=",  # no character comes after the last
        "(?=一*一*=)x",  # what is only looked at names characters too
        "x(?!.*一*一+y)",
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
        "a+.{1,31}[ab]=",  # each place, each length, and thirty for each
        r"\w{1,30}[aé]*[^a]$",
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


def test_case_makes_alike_only_what_has_one() -> None:
    assert degree("(?i)[a-z]*[\u4e00-\u9fff]*=") == 2
    assert degree("(?i)[\u4e00-\u9fff]*[\u3040-\u30ff]*[а-я]*=") == 2


def test_groups_deeper_than_anybody_nests_them_are_not_looked_into() -> None:
    assert degree("(" * (DEPTH - 1) + "a" + ")" * (DEPTH - 1)) == 1
    assert degree("(" * DEPTH + "a" + ")" * DEPTH) == math.inf


def test_how_much_is_in_all_ranges_together() -> None:
    assert breadth("abc") == 3
    assert breadth("[a-z]{3}|(?=[0-9])") == 36
    assert breadth("[一-龥][^\x00-\x7f]") == 20_902 + 128
    assert breadth("[\U00010000-\U0010ffff]😀") == 0, "these are not looked at one by one"
