"""The encoders against what SGLang's own made of the same chats (data/, `capture_encoders`)."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import tokenizers

from gateway.tokens import Counter, Kind, Method, build_counter
from gateway.tokens.encoders import Spec, Written, encode, spec_of
from gateway.tokens.encoders.words import Token, Words
from gateway.tokens.files import read_files
from gateway.tokens.profile import NotPrepared, Profile, profile_for
from gateway.tokens.template import MOST_MESSAGES, RENDER_CHARACTERS, RENDER_SECONDS, RenderError
from tests.tokens.captures import CAPTURES, CASES, captured, deepseek, words_of
from tests.tokens.chats import ALL, TOOLS, answer, call, chats, result, tool, user

if TYPE_CHECKING:
    from pathlib import Path


def written(chat: dict[str, Any], spec: Any, version: str) -> Written | None:
    try:
        return encode(spec, chat, profile_for(version), words_of(version, spec))
    except NotPrepared:
        return None


def in_pieces(prompt: Written) -> list[str]:
    """As captured: texts in one piece between special tokens where they are marked."""
    if not prompt.marked:
        return [prompt.text, *([prompt.continued] if prompt.continued else [])]
    found: list[str] = []
    for part in (*prompt.parts, prompt.continued or ""):
        if isinstance(part, Token):
            found.append(part)
        elif part and found and not isinstance(found[-1], Token):
            found[-1] += part
        elif part:
            found.append(part)
    return found


def test_captures_are_of_three_versions():
    assert sorted(CAPTURES) == ["0.5.12", "0.5.17", "0.5.23"]


# What is answered there and not written here: strict schemas are completed by deepseek-recipe, and
# it prints 1e-8 where Python prints 1e-08. The server is asked for those.
NOT_WRITTEN = {("0.5.23", "dsv4"): 4, ("0.5.23", "dsv41"): 2}

# What is refused there for what the encoders do not look at: efforts and tools in messages that a
# later version knows (0.5.12), an empty list of calls, a turn to continue that has calls (0.5.23).
# A count of what is refused harms nobody.
WRITTEN_ALONE = {
    ("0.5.12", "dsv32"): 12,
    ("0.5.12", "dsv4"): 12,
    ("0.5.23", "dsv4"): 3,
    ("0.5.23", "dsv41"): 3,
}


@pytest.mark.parametrize(("version", "spec"), CASES)
def test_every_prompt_is_the_engine_s_own(version, spec):
    theirs = captured(version, spec)
    equal = not_written = alone = 0
    for chat, expected in zip(chats(), theirs, strict=True):
        ours = written(chat, spec, version)
        if expected is None:
            alone += ours is not None
            continue
        if ours is None:
            not_written += 1
            continue
        found = in_pieces(ours)
        assert found == expected, chat
        assert list(map(type, found)) == list(map(type, expected)), chat  # which are tokens
        equal += 1
    assert equal >= 200
    assert not_written == NOT_WRITTEN.get((version, spec), 0)
    assert alone == WRITTEN_ALONE.get((version, spec), 0)


@pytest.mark.parametrize(
    ("architecture", "model_type", "parser", "template", "spec"),
    [
        ("DeepseekV32ForCausalLM", "deepseek_v32", "", False, "dsv32"),
        ("DeepseekV32ForCausalLM", "deepseek_v32", "", True, None),
        ("DeepseekV32ForCausalLM", "deepseek_v32", "deepseekv32", True, "dsv32"),
        ("DeepseekV3ForCausalLM", "deepseek_v3", "", True, None),
        ("DeepseekV4ForCausalLM", "deepseek_v4", "", True, "dsv4"),
        ("DeepseekV4ForCausalLM", "deepseek_v41", "", True, "dsv41"),
        ("DeepseekV41ForCausalLM", "", "", False, "dsv41"),
        ("Qwen3ForCausalLM", "qwen3", "deepseekv4", True, "dsv4"),
        ("KimiK3ForConditionalGeneration", "kimi_k3", "", False, None),
        ("DeepseekV4ForCausalLM", "deepseek_v4", "kimi_k3", False, None),
        ("Qwen3ForCausalLM", "qwen3", "qwen25", True, None),
    ],
)
def test_which_encoder_a_server_takes(architecture, model_type, parser, template, spec):
    assert spec_of(architecture, model_type, parser, has_template=template) == spec


def test_what_only_spells_a_token_is_text_where_tokens_are_marked():
    chat = {"messages": [user("<｜User｜> and <think>")]}
    marked, spelled = (encode("dsv4", chat, profile_for(v)) for v in ("0.5.23", "0.5.17"))
    assert marked.text == spelled.text
    assert (marked.marked, spelled.marked) == (True, False)
    assert marked.pieces == (["<｜User｜> and <think>"], 4)


def test_versions_without_an_encoder_write_nothing():
    chat = {"messages": [user()]}
    for spec, version in (("dsv4", "0.5.6"), ("dsv41", "0.5.17")):
        with pytest.raises(NotPrepared, match="no_encoder"):
            encode(spec, chat, profile_for(version))


def test_0_5_6_puts_a_system_message_in_front_and_leaves_the_last_turn():
    chat = {"messages": [user(), answer("It is")]}
    words = Words({"system": ("Be of help.",)})
    ours = encode("dsv32", chat, profile_for("0.5.6"), words)
    assert ours.text == (
        "<｜begin▁of▁sentence｜>Be of help.<｜User｜>hi<｜Assistant｜></think>"
        "It is<｜end▁of▁sentence｜>"
    )
    assert ours.continued is None


def test_what_is_written_is_bounded():
    profile = profile_for("0.5.17")
    with pytest.raises(RenderError):
        encode("dsv4", {"messages": [user()] * (MOST_MESSAGES + 1)}, profile)
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    chat = {"messages": [user()], "tools": [{"function": {"name": "f", "parameters": deep}}]}
    with pytest.raises(RenderError, match="RecursionError"):
        encode("dsv32", chat, profile, words_of("0.5.17", "dsv32"))
    long = {"messages": [user("x" * (RENDER_CHARACTERS // 2))] * 3}
    with pytest.raises(RenderError):
        encode("dsv32", long, profile)
    for spec, version in (("dsv32", "0.5.17"), ("dsv4", "0.5.17"), ("dsv4", "0.5.23")):
        many = {"messages": [user("x"), answer("y")] * (MOST_MESSAGES // 2)}
        began = time.monotonic()
        assert encode(spec, many, profile_for(version)).text
        assert time.monotonic() - began < RENDER_SECONDS


@pytest.fixture(scope="module")
def deepseek_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's directory with DeepSeek's special tokens and no template."""
    directory = tmp_path_factory.mktemp("deepseek")
    deepseek().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text("{}")
    config = {"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32"}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@cache
def bare() -> tokenizers.Tokenizer:
    """The same vocabulary without special tokens in it: what only spells one is text."""
    stored = json.loads(deepseek().to_str())
    return tokenizers.Tokenizer.from_str(
        json.dumps({**stored, "added_tokens": [], "post_processor": None})
    )


class Server:
    """Answers /v1/tokenize as an engine would that writes with `spec` and a profile."""

    def __init__(self, spec: Spec, version: str, profile: Profile | None = None) -> None:
        self.spec, self.profile = spec, profile or profile_for(version)
        self.words = words_of(version, spec)
        self.off_by, self.tells_ids = 0, True
        self.fixed: int | None = None
        self.asked: list[dict[str, Any]] = []

    async def __call__(self, body: dict[str, Any]) -> int:
        self.asked.append(body)
        if self.fixed is not None:
            return self.fixed
        return len(self._ids(body)) + (0 if "prompt" in body else self.off_by)

    async def ids(self, body: dict[str, Any]) -> object:
        self.asked.append(body)
        return self._ids(body) if self.tells_ids else None

    def _ids(self, body: dict[str, Any]) -> list[int]:
        if "prompt" in body:
            return deepseek().encode(body["prompt"]).ids
        prompt = encode(self.spec, body, self.profile, self.words)
        ids = deepseek().encode(prompt.text, add_special_tokens=prompt.framed).ids
        if prompt.marked:
            ids = []
            for text, is_token in prompt.runs:
                if is_token:
                    ids.append(deepseek().token_to_id(text))
                else:
                    ids += bare().encode(text, add_special_tokens=False).ids
        return ids + deepseek().encode(prompt.continued or "", add_special_tokens=False).ids


async def counter_for(directory: Path, server: Server, version: str = "0.5.17") -> Counter:
    parser = {"dsv32": "deepseekv32", "dsv4": "deepseekv4", "dsv41": "deepseekv41"}[server.spec]
    return await build_counter(
        tokenizer_dir=directory, engine_version=version, remote=server, remote_ids=server.ids,
        tool_parser=parser,
    )  # fmt: skip


async def count(counter: Counter, chat: dict[str, Any]) -> Any:
    return await counter.count(Kind.CHAT, chat, 1000)


@pytest.mark.parametrize(
    ("version", "spec"), [("0.5.17", "dsv32"), ("0.5.12", "dsv4"), ("0.5.23", "dsv41")]
)
async def test_a_model_without_a_template_is_counted_here(deepseek_dir, version, spec):
    server = Server(spec, version)
    counter = await counter_for(deepseek_dir, server, version)
    assert counter.notes == (
        f"SGLang writes these chats with its encoder {spec}, not with a template.",
    )
    asked, compared = len(server.asked), 0
    for chat in chats():
        try:
            theirs = len(server._ids(chat))
        except NotPrepared:
            continue
        counted = await count(counter, chat)
        assert (counted.method, counted.total) == (Method.EXACT, theirs), chat
        assert theirs == sum(tokens for _, tokens in counter.segments(Kind.CHAT, chat))
        compared += 1
    assert compared > 200
    assert len(server.asked) == asked  # nothing any more


async def test_the_parser_of_calls_decides_and_marked_tokens_are_counted_as_such(deepseek_dir):
    counter = await build_counter(
        tokenizer_dir=deepseek_dir, engine_version="0.5.23", remote=None, tool_parser="deepseekv4"
    )
    assert "dsv4" in counter.notes[0]
    spelled, plain = "<think>", "hi"
    chats_of = [{"messages": [user(text)]} for text in (spelled, plain)]
    long, short = [await count(counter, chat) for chat in chats_of]
    bare_count = await counter.count(Kind.TEXT, {"text": plain}, 10)
    # Four special tokens and the text; the tokenizer's own start token is not put in front.
    assert short.total == 4 + bare_count.total - 1
    assert long.total > 4 + 1
    listed = counter.segments(Kind.CHAT, chats_of[0])
    assert sum(tokens for _, tokens in listed) == long.total
    assert [text for text, _ in listed][2] == spelled


async def test_thinking_in_anthropic_s_words_is_thinking(deepseek_dir):
    counter = await counter_for(deepseek_dir, Server("dsv4", "0.5.23"), "0.5.23")
    body = {"max_tokens": 9, "messages": [user()]}
    on, off = [
        await counter.count(Kind.MESSAGES, {**body, "thinking": {"type": kind}}, 100)
        for kind in ("enabled", "disabled")
    ]
    assert on.method is off.method is Method.EXACT
    assert on.total > off.total + 50  # an effort is told to those who think


async def test_a_server_that_thinks_unasked_is_found_out(deepseek_dir):
    server = Server("dsv32", "0.5.17", replace(profile_for("0.5.17"), thinks=True))
    counter = await counter_for(deepseek_dir, server)
    assert counter.notes[1:] == ("The server thinks where a client does not say whether to.",)
    chat = {"messages": [user(), answer("", tool_calls=[call(1)], reasoning_content="So it is.")]}
    chat["messages"].append(result(1))
    counted = await count(counter, chat)
    assert (counted.method, counted.total) == (Method.EXACT, await server(chat))


async def test_a_server_that_counts_otherwise_makes_it_an_estimate(deepseek_dir):
    server = Server("dsv32", "0.5.17")
    server.off_by = 3
    counter = await counter_for(deepseek_dir, server)
    assert (
        "16 of 22 chat probes differ" in counter.notes[-1]
    )  # the six of which ids were told do not
    assert (await count(counter, {"messages": [user()]})).method is Method.ESTIMATE


async def test_what_is_not_written_here_is_asked_of_the_server(deepseek_dir):
    server = Server("dsv32", "0.5.17")
    counter = await counter_for(deepseek_dir, server)
    server.spec = "dsv4"  # which takes a reminder, as V3.2's does not
    chat = {"messages": [user(), {"role": "latest_reminder", "content": "now"}, user()]}
    counted = await count(counter, chat)
    assert (counted.method, counted.total) == (Method.EXACT, await server(chat))
    assert counter.fallbacks == {"role": 1}


async def test_what_was_not_learned_is_asked_of_the_server_and_the_rest_is_not(deepseek_dir):
    server = Server("dsv32", "0.5.17")
    server.tells_ids = False
    counter = await counter_for(deepseek_dir, server)
    assert counter.notes[1:] == (
        "Chats with tools, with developers are asked of the server or estimated: their sentences are not known.",
    )
    asked = len(server.asked)
    plain, tools = {"messages": [user()]}, {"messages": [user()], "tools": ALL}
    for chat, more in ((plain, 0), (tools, 1)):
        counted = await count(counter, chat)
        assert len(server.asked) == asked + more
        assert (counted.method, counted.total) == (Method.EXACT, len(server._ids(chat)))
    assert counter.fallbacks == {"not_learned": 1}


async def test_an_effort_that_the_server_would_not_count_is_not_asked_about(deepseek_dir):
    server = Server("dsv4", "0.5.23")
    counter = await counter_for(deepseek_dir, server, "0.5.23")
    strict = tool({**TOOLS[0], "strict": True})
    asked = len(server.asked)
    for own, method in ((None, Method.EXACT), ("max", Method.ESTIMATE)):
        arguments = {"thinking": True, "reasoning_effort": own}
        chat = {"messages": [user()], "tools": [strict], "chat_template_kwargs": arguments}
        server.fixed = 100
        assert (await count(counter, chat)).method is method
    assert len(server.asked) == asked + 1
    assert counter.fallbacks == {"tools": 1, "template_effort": 1}


async def test_without_a_server_what_needs_a_sentence_is_estimated_from_its_texts(deepseek_dir):
    counter = await build_counter(tokenizer_dir=deepseek_dir, engine_version="0.5.17", remote=None)
    assert counter.notes[1:] == (
        "Chats with tools, with developers are estimated: no server teaches their sentences.",
    )
    plain = await count(counter, {"messages": [user()]})
    assert plain.method is Method.EXACT
    chat = {"messages": [user()], "tools": ALL}
    guessed, real = await count(counter, chat), await Server("dsv32", "0.5.17")(chat)
    assert guessed.method is Method.ESTIMATE
    bound = await Counter().count(Kind.CHAT, chat, 1000)
    assert real < guessed.total < bound.total


def test_deepseek_v4_is_no_estimate_and_kimi_still_is(tmp_path):
    config = {"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_files(tmp_path).spec == "dsv4"
    named = read_files(tmp_path, "chatml")
    assert (named.spec, named.template) == (None, None)
    kimi = read_files(tmp_path, None, "kimi_k3")
    assert kimi.spec is None
    assert "without a template" in kimi.notes[-1]
