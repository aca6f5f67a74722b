"""Sentences are learned from what the engine wrote, to the letter or not at all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import gateway
from gateway.tokens.calibrate import Teacher, calibrate
from gateway.tokens.encoder import load_text_counter
from gateway.tokens.encoders import encode, learn
from gateway.tokens.encoders.learn import PROBES, Answer, Hole, fill
from gateway.tokens.encoders.words import NO_WORDS, Token, Words
from gateway.tokens.profile import PROFILES, NotPrepared, profile_for
from gateway.tokens.spelling import Spelling, Unspelled
from tests.tokens.captures import ASKED, CASES, answers_of, captured, deepseek, spelling, words_of

TAUGHT = {
    ("0.5.12", "dsv32"): {"tools_before", "tools_after", "developer"},
    ("0.5.12", "dsv4"): {"tools_before", "tools_after", "effort_max"},
    ("0.5.23", "dsv4"): {
        "tools_before", "tools_after", "schema", "json_object", "effort_high", "effort_max",
    },
    ("0.5.23", "dsv41"): {"tools_before", "tools_after", "schema", "number_before", "number_after"},
}  # fmt: skip
TAUGHT |= {("0.5.17", spec): TAUGHT["0.5.12", spec] for spec in ("dsv32", "dsv4")}
TAUGHT["0.5.23", "dsv32"] = TAUGHT["0.5.12", "dsv32"]


@pytest.mark.parametrize(("version", "spec"), CASES)
def test_everything_that_an_encoder_says_is_learned(version, spec):
    words = words_of(version, spec)
    assert words.known.keys() == TAUGHT[version, spec]
    assert all("".join(parts) for parts in words.known.values())
    assert learn.lacking(spec, profile_for(version), words) == []
    assert learn.lacking(spec, profile_for(version), NO_WORDS)
    # Each is in a prompt of the engine, so it is nothing of ours around it.
    prompts = ["".join(parts) for parts in captured(version, spec, "probes") if parts]
    for parts in words.known.values():
        assert any("".join(parts) in prompt for prompt in prompts)


@pytest.mark.parametrize(("version", "spec"), CASES)
def test_special_tokens_are_parts_where_they_are_marked(version, spec):
    before = words_of(version, spec).known["tools_before"]
    tokens = [part for part in before if isinstance(part, Token)]
    assert bool(tokens) == (spec != "dsv32" and version == "0.5.23")
    assert "｜DSML｜" in "".join(before)


def test_only_chats_that_need_a_sentence_are_asked_about():
    counts = {spec: len(learn.asked(spec, PROFILES)) for spec in ("dsv32", "dsv4", "dsv41")}
    assert counts == {"dsv32": 6, "dsv4": 10, "dsv41": 12}


def changed(answers: list[Answer], chat: Any, ids: list[int]) -> list[Answer]:
    return [Answer(each.chat, ids) if each.chat == chat else each for each in answers]


def taught(version: str, spec: Any, answers: list[Answer], prefix: int = 1) -> set[str]:
    words = learn.learn(spec, profile_for(version), answers, spelling(), prefix)
    return set(words.known)


def probe(kind: str) -> tuple[Any, Any]:
    return next(probe.chats for probe in PROBES if probe.kind == kind)


TOOLS = {"tools_before", "tools_after"}


@pytest.mark.parametrize("which", [0, 1])
def test_another_answer_to_either_chat_of_a_kind_forgets_that_kind_alone(which):
    answers = answers_of("0.5.23", "dsv4")
    chat = probe("with tools")[which]
    ids = next(list(each.ids) for each in answers if each.chat == chat)
    everything = TAUGHT["0.5.23", "dsv4"]
    comma = deepseek().token_to_id(",")
    for at in (1, len(ids) // 2, len(ids) - 2):
        other = [*ids[:at], comma, *ids[at:]]
        assert taught("0.5.23", "dsv4", changed(answers, chat, other)) == everything - TOOLS
    left = [each for each in answers if each.chat != chat]
    assert taught("0.5.23", "dsv4", left) == everything - TOOLS


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("ab{one}cd", {"one": ("cdab",)}),
        ("{one}d", {"one": ("abcdabc",)}),
        ("{one}abcdabcd", {"one": ()}),
        ("ab{one}abcd", {"one": ("cd",)}),
        ("a{one}da{two}d", {"one": ("bc",), "two": ("bc",)}),
        ("a{one}b{two}d", None),  # b is there twice
        ("a{one}{two}d", None),
        ("a{one}x{two}d", None),
        ("b{one}d", None),
        ("a{one}c", None),
        ("abcdab{one}dabcd", None),  # one letter is none before and behind
        ("abcdabcd", None),
    ],
)
def test_what_fills_a_hole_is_what_the_rest_leaves(written, found):
    pattern: list[str] = []
    for piece in re.split(r"\{(\w+)\}", written):
        pattern += [Hole(piece)] if piece in {"one", "two"} else piece
    assert fill(pattern, list("abcdabcd")) == found


def test_a_chat_that_disagrees_forgets_what_another_taught():
    """An effort by number is learned from the lowest, and is in all."""
    answers = answers_of("0.5.23", "dsv41")
    chat = probe("that think with max effort")[0]
    ids = next(list(each.ids) for each in answers if each.chat == chat)
    numbers = {"number_before", "number_after"}
    found = taught("0.5.23", "dsv41", changed(answers, chat, [*ids, ids[-1]]))
    assert found == TAUGHT["0.5.23", "dsv41"] - numbers


def test_known_text_that_is_there_twice_or_never_says_nothing():
    answers = answers_of("0.5.17", "dsv32")
    chat = probe("with tools")[0]
    (parts,) = captured("0.5.17", "dsv32", "probes")[ASKED.index(chat)]
    schema = next(line for line in parts.splitlines() if line.startswith('{"'))
    assert parts.count(schema) == 1
    for text in (parts.replace(schema, schema + schema), parts.replace(schema, "")):
        ids = deepseek().encode(text).ids
        assert TOOLS.isdisjoint(taught("0.5.17", "dsv32", changed(answers, chat, ids)))


def test_a_server_that_writes_in_another_way_teaches_nothing():
    assert taught("0.5.23", "dsv4", answers_of("0.5.17", "dsv4")) == set()
    assert taught("0.5.17", "dsv4", answers_of("0.5.23", "dsv4")) == set()
    assert taught("0.5.23", "dsv41", answers_of("0.5.23", "dsv4")) == set()
    # A start token that is in front of every text, and was not found to be.
    assert taught("0.5.17", "dsv4", answers_of("0.5.17", "dsv4"), prefix=0) == set()


def test_sentences_are_bounded(monkeypatch):
    answers = answers_of("0.5.17", "dsv32")
    words = words_of("0.5.17", "dsv32")
    size = sum(len("".join(parts).encode()) for parts in words.known.values())
    assert size < learn.MOST_BYTES / 10
    monkeypatch.setattr(learn, "MOST_BYTES", size - 1)
    assert taught("0.5.17", "dsv32", answers) == set()
    monkeypatch.setattr(learn, "MOST_BYTES", size)
    assert taught("0.5.17", "dsv32", answers)


def test_a_first_system_message_of_the_server_s_own_is_learned():
    """None of the captured versions has one that takes chats at /v1/tokenize."""
    old = profile_for("0.5.6")
    own = Words({"system": ("Be of help.",), "tools_before": ("<",), "tools_after": (">",)})
    answers = []
    for chat in ASKED[:4]:
        text = encode("dsv32", chat, old, own).text
        answers.append(Answer(chat, deepseek().encode(text).ids))
    assert learn.learn("dsv32", old, answers, spelling(), 1).known == own.known


def test_words_that_are_not_known_are_a_reason_of_their_own():
    with pytest.raises(NotPrepared, match="not_learned"):
        encode("dsv32", probe("with tools")[0], profile_for("0.5.17"))


def test_ids_are_spelled_as_they_were_cut():
    text = "naïve 👩🏽\u200d🚀<think>词表</think> <think>"
    ids = deepseek().encode(text, add_special_tokens=False).ids
    found = list(spelling().parts(ids))
    assert found == [
        (text[:10], False), ("<think>", True), ("词表", False), ("</think>", True), (" ", False),
        ("<think>", True),
    ]  # fmt: skip
    half = deepseek().token_to_id("ð")  # the first byte of four
    with pytest.raises(Unspelled):
        list(spelling().parts([half]))
    with pytest.raises(Unspelled):
        list(spelling().parts([10**9]))
    for content in (b"{}", b'{"model": {"type": "Unigram", "vocab": [["a", 0.1]]}}'):
        with pytest.raises(Unspelled):
            list(Spelling(content).parts([0]))


@pytest.mark.parametrize(
    "told", [None, "ids", [1.5], {"a": 1}, [[1], [2]], [1] * (learn.MOST_IDS + 1)]
)
async def test_what_is_no_list_of_ids_teaches_nothing(told):
    text, _ = load_text_counter(deepseek().to_str().encode(), {})
    profile = profile_for("0.5.17")

    async def ids(body: dict[str, Any]) -> object:
        return told

    async def remote(body: dict[str, Any]) -> int:
        if "prompt" in body:
            return len(deepseek().encode(body["prompt"]).ids)
        prompt = encode("dsv32", body, profile, words_of("0.5.17", "dsv32"))
        continued = deepseek().encode(prompt.continued or "", add_special_tokens=False)
        return len(deepseek().encode(prompt.text).ids) + len(continued.ids)

    found = await calibrate(
        text, None, profile, remote, spec="dsv32", teacher=Teacher(ids, spelling())
    )
    assert found.exact
    assert found.notes == (
        "Chats with tools, with developers are asked of the server or estimated: their sentences are not known.",
    )


def test_no_sentence_of_a_model_is_in_the_product():
    product = "\n".join(path.read_text() for path in Path(gateway.__file__).parent.rglob("*.py"))
    told = {
        line.strip()
        for version, spec in CASES
        for parts in words_of(version, spec).known.values()
        for part in parts
        for line in re.split(r"[\n.:,]", part)
    }
    sentences = [line for line in told if line.count(" ") >= 3]
    assert len(sentences) > 20
    assert [line for line in sentences if line in product] == []
