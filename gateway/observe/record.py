"""The numbers of one request: enough to explain its decision, and nothing of what it said."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, get_args

from gateway.core.model import Outcome

if TYPE_CHECKING:
    from collections.abc import Collection

    from gateway.core.model import Code

CapSource = Literal["asked", "clamped", "injected"]
Source = Literal["gateway", "upstream"]
Verdict = Literal["admit", "wait", "refuse", "undecided"]
"""What `admission: shadow` would have done. undecided: it ended before its prompt was counted."""
Retry = Literal["kept", "early", "damped"]
"""How a request came back that had been refused: when it was told to; before that; before that and beyond
its client's retry budget, so that it was refused again without being counted."""
Phase = Literal["door", "queue", "prefill", "stream", "done"]
PHASES: tuple[Phase, ...] = get_args(Phase)
OTHER = "other"
"""Stands for a name that is not in a closed set: a model nobody serves, a client unknown here."""

_FIRST_ERROR_STATUS = 400


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True)
class Record:
    """One request. Filled by whoever knows a number; None means it was never known.

    Times are milliseconds, sizes tokens unless named otherwise. Text fields hold our own words and
    names from policy or server, never words of the client.
    """

    id: str
    client: str = OTHER
    client_request_id: str | None = None  # the client's own x-request-id, once found clean
    session: str | None = None  # a mark of the conversation, see `tickets.session`
    traceparent: str | None = None  # the client's span, once found valid: numbers in hexadecimal
    at: datetime = field(default_factory=_now)  # arrival, wall clock
    dialect: str = OTHER
    model: str = OTHER  # see `served_or_other`
    streamed: bool = False

    # what was asked, and what was made of it
    prompts: int = 1
    n: int = 1
    prompt_tokens: int | None = None  # all prompts together
    count_method: str | None = None  # how they were counted
    trimmed_turns: int | None = None  # left out by `overflow: trim`; their results of tools apart
    trimmed_tokens: int | None = None  # by so much was the prompt longer as it came
    tools_left_out: str | None = (
        None  # that the client listed and the server did not get: kind=number
    )
    cap_asked: int | None = None
    cap_forwarded: int | None = None
    cap_source: CapSource | None = None

    # where it ran, and at what price
    backend: str | None = None
    rank: int = 0
    kv_reserved: int | None = None
    kv_free_at_grant: int | None = None  # before the reservation was taken
    attempts: int = 0  # dispatches to a server; above 1: it pushed back before the first byte
    client_retry: int | None = None  # which retry this is, where the client says
    retry: Retry | None = None  # of a request that was refused lately

    # what came of it
    outcome: Outcome | None = None
    code: Code | None = None
    reason: str | None = None
    needed: int | None = None
    available: int | None = None
    position: int | None = None
    eta_s: float | None = None
    retry_after_s: float | None = None
    upstream_status: int | None = None
    cached_tokens: int | None = None  # prompt tokens the server found in its prefix cache
    usage_prompt_tokens: int | None = None  # as the server counted them
    output_tokens: int | None = None
    door_ms: float | None = None  # from arrival until it was read and counted
    queue_ms: float | None = None  # None: it never waited
    ttft_ms: float | None = None  # from arrival to the first byte of the answer
    ttft_expected_ms: float | None = None  # from sending it, as predicted when it was sent
    ttft_bound_ms: float | None = None  # what 95 % of such predictions stay below
    compile_ms: float | None = None  # of one core that its grammar, new to its server, likely took
    tpot_ms: float | None = None  # mean time per output token after the first
    e2e_ms: float | None = None

    # what would have become of it: `admission: shadow` only
    shadow: Verdict | None = None
    shadow_code: Code | None = None
    shadow_wait_ms: float | None = None  # at least: its answer may have ended before its turn came
    shadow_cap: int | None = None  # the output cap it would have got

    told: bool = False  # the journal has told of it
    plain: dict[str, Any] | None = field(default=None, repr=False, compare=False)  # see `to_dict`

    @property
    def source(self) -> Source | None:
        """Who refused it: we, the server, or nobody."""
        if self.code is not None:
            return "gateway"
        if self.upstream_status is not None and self.upstream_status >= _FIRST_ERROR_STATUS:
            return "upstream"
        return None

    @property
    def phase(self) -> Phase:
        """How far it came."""
        if self.outcome is Outcome.COMPLETED:
            return "done"
        if self.ttft_ms is not None:
            return "stream"
        if self.kv_reserved is not None:
            return "prefill"
        return "door" if self.queue_ms is None else "queue"

    @property
    def count_drift(self) -> int | None:
        """Prompt tokens the server counted beyond ours; negative where we counted more."""
        if self.usage_prompt_tokens is None or self.prompt_tokens is None:
            return None
        return self.usage_prompt_tokens - self.prompt_tokens

    @property
    def kv_used(self) -> int | None:
        """KV tokens it had come to at its end: its prompts n times, and what it produced. Whole pages
        take up to a page a sequence more."""
        prompt = (
            self.prompt_tokens if self.usage_prompt_tokens is None else self.usage_prompt_tokens
        )
        if self.backend is None or prompt is None or self.output_tokens is None:
            return None
        return prompt * self.n + self.output_tokens

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the derived ones. Times are rounded to 0.01.

        Once the record was told of it is finished, and its values are made once.
        """
        if self.plain is not None:
            return self.plain
        values: dict[str, Any] = dict(zip(_FIELDS, _values_of(self), strict=True))
        for name in _ROUNDED:
            if (value := values[name]) is not None:
                values[name] = round(value, 2)
        values["at"] = self.at.isoformat(timespec="milliseconds")
        for name in _WORDS:
            if (word := values[name]) is not None:
                values[name] = str(word)
        values["source"], values["phase"] = self.source, self.phase
        values["kv_used"] = self.kv_used
        if self.told:
            self.plain = values
        return values


_FIELDS = tuple(f.name for f in fields(Record) if f.name not in {"told", "plain"})
_values_of = attrgetter(*_FIELDS)
_ROUNDED = tuple(f.name for f in fields(Record) if f.type == "float | None")
_WORDS = ("outcome", "code", "shadow_code")
"""Enumerations: words of the core."""


def served_or_other(model: object, served: Collection[str]) -> str:
    """The model's name if a server offers it, else `other`: a client may write anything there."""
    return model if isinstance(model, str) and model in served else OTHER
