"""DeepSeek's special tokens, and the place of the sentences that its encoders put around a chat.

Token names and their order are the format, and stand here. The sentences (instructions before the
tools, before a schema to answer in, for an effort) are the model's own words: none is kept in this
code. They are learned from the server at its start (`learn`), and a chat that needs one which was
not learned is not written here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gateway.tokens.profile import NotPrepared

if TYPE_CHECKING:
    from collections.abc import Mapping


class Token(str):
    """One special token. Where an encoder marks them, text that only spells one is text."""

    __slots__ = ()


BOS: Final = Token("<｜begin▁of▁sentence｜>")
EOS: Final = Token("<｜end▁of▁sentence｜>")
SYSTEM: Final = Token("<｜System｜>")
USER: Final = Token("<｜User｜>")
ASSISTANT: Final = Token("<｜Assistant｜>")
REMINDER: Final = Token("<｜latest_reminder｜>")
THINK: Final = Token("<think>")
THOUGHT: Final = Token("</think>")
DSML: Final = Token("｜DSML｜")
TASKS: Final = {
    name: Token(f"<｜{name}｜>")
    for name in ("action", "query", "authority", "domain", "title", "read_url")
}
"""Single questions that V4 answers with one token."""

NOT_LEARNED: Final = "not_learned"
"""Why a chat is not written: a sentence in it is not known."""
UNASKABLE: Final = "template_effort"
"""The same of any chat that the server's /v1/tokenize would count wrongly: it does not see an effort
among the template's arguments, which a served chat is told."""


@dataclass(frozen=True, slots=True)
class Words:
    """Sentences of one server, each in parts (special tokens are parts of their own), by name.

    The names: `tools_before` and `tools_after` stand around the schemas of tools, `schema` before
    one to answer in, `json_object` where any JSON may be answered, `developer` before what a
    developer says, `effort_high` and `effort_max` in front of all, `number_before` and
    `number_after` around an effort that is a number, `system` where a chat has none.
    """

    known: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)

    def say(self, name: str) -> tuple[str, ...]:
        """The parts of the sentence `name`; NotPrepared where it is not known."""
        try:
            return self.known[name]
        except KeyError:
            raise NotPrepared(NOT_LEARNED) from None


NO_WORDS: Final = Words()
