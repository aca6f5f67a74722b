"""What a count is: the words that the rest of the gate uses about prompt tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gateway.core.model import NO_LEAD, Lead


class Kind(StrEnum):
    """Whose shape a body has. It decides where the prompt is and how the engine renders it."""

    CHAT = "chat"  # OpenAI /v1/chat/completions
    COMPLETION = "completion"  # OpenAI /v1/completions
    GENERATE = "generate"  # SGLang /generate
    MESSAGES = "messages"  # Anthropic /v1/messages
    RESPONSES = "responses"  # OpenAI /v1/responses
    INPUT = "input"  # /v1/embeddings, /v1/classify
    SCORE = "score"  # /v1/score: a query with each item
    RERANK = "rerank"  # /v1/rerank: a query with each document
    TEXT = "text"  # {"text": ...}: plain text, as it stands


class Method(StrEnum):
    """How much a number can be trusted."""

    EXACT = "exact"  # the engine's own number
    ESTIMATE = "estimate"  # close; corrected by what the engine reported; may be low
    BOUND = "bound"  # never low


@dataclass(frozen=True, slots=True)
class Counted:
    """Prompt tokens of one request.

    `prompts` holds one number a prompt (a chat has one), media included. The last three fields
    are what `Counter.observe` learns from: tokens of media, and the text's sum before correction
    with the way it was made.
    """

    prompts: tuple[int, ...]
    method: Method
    images: int = 0
    media: int = 0
    raw: int = 0
    basis: Method = Method.EXACT
    rough: bool = False  # the engine may count otherwise, so its number teaches nothing
    lead: Lead = NO_LEAD  # how its one prompt begins
    fault: str = field(default="", repr=False)  # what is wrong with a body that was only bounded
    late: bool = False  # only bounded, as the server was asked and gave no count in time
    pixels: int = 0  # of all images that are in the body
    unsized: int = 0  # how many of these are of no known size, and count as the largest

    @property
    def total(self) -> int:
        """Tokens over all prompts."""
        return sum(self.prompts)


class CountRefused(Exception):
    """The body has no prompt where its kind has one, or one of a type no engine takes (a 400)."""


class Busy(Exception):
    """So much of one client waits to be counted that this one is not (a 429). `waiting`: how many do."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} more of this client wait to be counted")
        self.waiting = waiting


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How the numbers compare with `usage.prompt_tokens`, since start. Tokens; error = ours − engine's."""

    requests: int = 0
    exact: int = 0  # requests where both numbers were equal
    unders: int = 0  # requests where ours was lower: each is an alarm
    mean_error: float = 0.0
    worst_under: int = 0  # largest shortfall, ≥ 0
    worst_over: int = 0  # largest excess, ≥ 0
    correction: float = 1.0  # factor now put on estimates and bounds
    margin: int = 0  # tokens now added to estimates
