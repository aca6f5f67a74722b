"""What SGLang's own encoders wrote (data/), as prompts, as ids, and as the sentences learned of them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gateway.tokens.encoders.learn import PROBES, Answer, learn
from gateway.tokens.encoders.words import Token, Words
from gateway.tokens.profile import profile_for
from gateway.tokens.spelling import Spelling
from tests.tokens.capture_encoders import SPECIALS
from tests.tokens.conftest import train, with_start_token

if TYPE_CHECKING:
    import tokenizers

    from gateway.tokens.encoders import Spec

DATA = Path(__file__).with_name("data")
CAPTURES = {path.stem.removeprefix("encoders-"): path for path in DATA.glob("encoders-*.json")}
CASES: list[tuple[str, Spec]] = [
    (version, spec)
    for version in sorted(CAPTURES)
    for spec in ("dsv32", "dsv4", "dsv41")
    if spec != "dsv41" or version >= "0.5.23"
]
ASKED = [chat for probe in PROBES for chat in probe.chats]
"""The chats behind the captured probes, in their order."""


@cache
def captured(
    version: str, spec: str, which: Literal["prompts", "probes"] = "prompts"
) -> list[list[str] | None]:
    """The parts of each chat's prompt; special tokens, where the engine marks them, as Tokens."""
    data = json.loads(CAPTURES[version].read_bytes())
    assert data["sglang"] == version
    lines = data["lines"]

    def part(stored: Any) -> str:
        return Token(stored) if isinstance(stored, str) else "".join(lines[at] for at in stored)

    prompts = data[which][spec]
    return [None if found is None else [part(each) for each in found] for found in prompts]


@cache
def deepseek() -> tokenizers.Tokenizer:
    """A small vocabulary with DeepSeek's special tokens, and one more in front of plain text."""
    tokenizer = train()
    tokenizer.add_special_tokens(list(SPECIALS))
    return with_start_token(tokenizer)


@cache
def spelling() -> Spelling:
    """Of that vocabulary."""
    return Spelling(deepseek().to_str().encode())


def ids_of(parts: list[str], *, framed: bool) -> list[int]:
    """The ids of a prompt, as the engine makes them."""
    return deepseek().encode("".join(parts), add_special_tokens=framed).ids


def marks(version: str, spec: str) -> bool:
    """Whether deepseek-recipe writes, which marks its tokens and puts none of the tokenizer's in front."""
    return spec != "dsv32" and version >= "0.5.23"


def answers_of(version: str, spec: str) -> list[Answer]:
    """What that server answers to the probes."""
    prompts = zip(ASKED, captured(version, spec, "probes"), strict=True)
    framed = not marks(version, spec)
    return [Answer(chat, ids_of(parts, framed=framed)) for chat, parts in prompts if parts]


@cache
def words_of(version: str, spec: Spec) -> Words:
    """The sentences that a gate learns from that server."""
    return learn(spec, profile_for(version), answers_of(version, spec), spelling(), 1)
