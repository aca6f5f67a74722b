"""Why a chat could not be read, in words for whoever sent it.

Such a chat is bounded by its bytes, and where that is too long for a server, its length is not what is
wrong with it. Where it is short enough the engine says what is.
"""

from __future__ import annotations

from typing import Final

LONGEST: Final = 300
"""Characters of another's words: a server quotes what it was sent."""

FAULTS: Final = {
    "role": "each message needs a `role` that is text",
    "tool_calls": "each of a message's `tool_calls` needs a `function` that is an object",
    "tool_arguments": "the `arguments` of an earlier tool call are no JSON",
    "tools": "each of `tools` needs a `function` that is an object",
    "template_arguments": "`chat_template_kwargs` has a name that the engine keeps for itself",
    "template_error": "the model's chat template does not take these messages",
}
"""By the reason for which there was no count; all others are no fault of the body's."""


class Unreadable(Exception):
    """The server does not take this body for a chat; the text is what it said."""

    def __init__(self, said: str) -> None:
        super().__init__(said if len(said) <= LONGEST else f"{said[:LONGEST]}…")


def refused(said: Unreadable) -> str:
    """What another said, as a fault."""
    return f"the server does not read this body: {said}"
