"""The parts of a conversation that may be left out of it, in the words of each API.

`trimming` decides on messages of chats. What a client sent may be something else: Ollama's messages,
whose calls have no ids, or the items of OpenAI's responses, of which the engine makes a message of
all that the model thought, said and called in a row (0.5.6-0.5.23). So each part that goes whole has
a message that stands for it, and what is written is what is left of what was sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.edge import trimming
from gateway.edge.dialects import guard
from gateway.tokens import Kind
from gateway.upstream.answer import type_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.edge.dialects import Body, Intent

CALL, RESULT, THOUGHT = "_call", "_call_output", "reasoning"
"""Items of responses that have no role, by their type or how it ends: `function_call` and its like."""


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation: `parts` of what `field` of `sent` holds, and the message each stands for."""

    sent: Body
    field: str
    parts: list[list[Any]]
    messages: Sequence[Any]

    def cuts(self, stride: int) -> list[trimming.Cut]:
        """See `trimming.cuts`."""
        sizes = [sum(len(guard.dump(one)) for one in part) for part in self.parts]
        return trimming.cuts(self.messages, sizes, stride)

    def less(self, cut: trimming.Cut) -> Body:
        """The body without what goes; what is left is as it came."""
        left = trimming.kept(self.parts, cut)
        return {**self.sent, self.field: [one for part in left for one in part]}


def talk(intent: Intent, sent: Body) -> Talk | None:
    """The conversation of a body that was read as `intent`; None where it has no turns."""
    match intent.kind:
        case Kind.CHAT if intent.instead is not None:
            given, read = sent.get("messages"), intent.instead.body.get("messages")
            if not isinstance(given, list) or not isinstance(read, list) or len(given) != len(read):
                return (
                    None  # Ollama's prompts are chats as well: of one message, from another field
                )
            return Talk(sent, "messages", [[one] for one in given], read)
        case Kind.CHAT if sent.get("input_ids") is not None:
            return None  # they stand in the place of the messages
        case Kind.CHAT | Kind.MESSAGES:
            messages = sent["messages"]
            return Talk(sent, "messages", [[one] for one in messages], messages)
        case Kind.RESPONSES if isinstance(items := sent.get("input"), list):
            parts = _turns(items)
            return Talk(sent, "input", parts, [_message(part) for part in parts])
        case _:
            return None


def _turns(items: Sequence[Any]) -> list[list[Any]]:
    """Items by the message that they become: those of the model in a row are one."""
    parts: list[list[Any]] = []
    for item in items:
        if parts and _is_the_model_s(item) and _is_the_model_s(parts[-1][-1]):
            parts[-1].append(item)
        else:
            parts.append([item])
    return parts


def _message(part: list[Any]) -> Any:  # noqa: ANN401  # a client may send anything
    """What stands for a part: its role, and which calls it makes or answers."""
    first = part[0]
    if _is_the_model_s(first):
        calls = [{"id": item.get("call_id")} for item in part if type_of(item).endswith(CALL)]
        return {"role": "assistant", "tool_calls": calls}
    if type_of(first).endswith(RESULT):
        return {"role": "tool", "tool_call_id": first.get("call_id")}
    return first


def _is_the_model_s(item: Any) -> bool:  # noqa: ANN401
    kind = type_of(item)
    said = isinstance(item, dict) and item.get("role") == "assistant"
    return said or kind == THOUGHT or kind.endswith(CALL)
