"""Chats of models without a chat template, written out as SGLang's own encoders do.

Pure functions from a body to the parts of the prompt. Which one a server uses is `spec_of`; what
it does with a body changes from version to version, which the `Profile` tells. Sources:
entrypoints/openai/chat_encoding.py, serving_chat.py and the encoders beside them in 0.5.6, 0.5.12,
0.5.17 and 0.5.23, and what deepseek-recipe 0.2.0 answers. tests/tokens/data holds their answers to
the chats of tests/tokens/chats.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Literal

from gateway.tokens.encoders.dsv4 import encode_dsv4
from gateway.tokens.encoders.dsv32 import encode_dsv32
from gateway.tokens.encoders.recipe import V4, V41, encode_recipe
from gateway.tokens.encoders.words import NO_WORDS, Token, Words
from gateway.tokens.profile import NotPrepared
from gateway.tokens.template import MOST_MESSAGES, RenderError, bounded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gateway.tokens.profile import Profile

Spec = Literal["dsv32", "dsv4", "dsv41"]

_BY_PARSER: Final[Mapping[str, Spec]] = {
    "deepseekv32": "dsv32", "deepseekv4": "dsv4", "deepseekv41": "dsv41"
}  # fmt: skip


def spec_of(
    architecture: str, model_type: str, tool_parser: str, *, has_template: bool
) -> Spec | None:
    """The encoder that SGLang takes, None for the model's template or one that is not known here.

    The server's parser of tool calls decides first, then the architecture; V3.2 is one only
    where the files hold no template.
    """
    if tool_parser in _BY_PARSER:
        return _BY_PARSER[tool_parser]
    if tool_parser == "kimi_k3":
        return None
    if model_type == "deepseek_v41" or "DeepseekV41" in architecture:
        return "dsv41"
    if "DeepseekV4" in architecture:
        return "dsv4"
    return "dsv32" if "DeepseekV3" in architecture and not has_template else None


@dataclass(frozen=True, slots=True)
class Written:
    """A prompt as its encoder made it."""

    parts: tuple[str, ...] = field(repr=False)
    continued: str | None = field(repr=False)
    marked: bool  # special tokens are those of type Token, whatever else the text spells
    framed: bool  # the tokenizer puts its own special tokens around it

    @property
    def text(self) -> str:
        """The whole prompt, without what is continued."""
        return "".join(self.parts)

    @property
    def pieces(self) -> tuple[list[str], int]:
        """(the texts between special tokens, the number of those)."""
        texts = [text for text, is_token in self.runs if text and not is_token]
        return texts, sum(map(_is_token, self.parts))

    @property
    def runs(self) -> Iterator[tuple[str, bool]]:
        """Each special token, and each text between two of them in one piece; which it is."""
        for is_token, run in groupby(self.parts, _is_token):
            if is_token:
                yield from ((token, True) for token in run)
            else:
                yield "".join(run), False


def _is_token(part: str) -> bool:
    return isinstance(part, Token)


def encode(
    spec: Spec, chat: Mapping[str, Any], profile: Profile, words: Words = NO_WORDS
) -> Written:
    """The prompt of `chat` with the model's `words`; NotPrepared and RenderError as for a template."""
    if len(chat["messages"]) > MOST_MESSAGES:
        raise RenderError("more messages than are rendered")
    recipe = profile.recipe and spec != "dsv32"
    if not recipe and (spec == "dsv41" or (spec == "dsv4" and profile.bare_encoder)):
        raise NotPrepared("no_encoder")  # not known to that version
    try:
        if recipe:
            parts, continued = encode_recipe(chat, profile, words, V4 if spec == "dsv4" else V41)
        else:
            write = encode_dsv4 if spec == "dsv4" else encode_dsv32
            parts, continued = write(chat, profile, words)
        return Written(tuple(bounded(parts)), continued, marked=recipe, framed=not recipe)
    except (NotPrepared, RenderError):
        raise
    except Exception as error:  # noqa: BLE001 - a schema may be nested deeper than can be printed
        raise RenderError(type(error).__name__) from None
