"""From a policy and a server's facts to the core's plain values. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from gateway.core.model import UNBOUNDED, ClientRule, PoolLimits, QueueRule, Quota
from gateway.policy.checks import ANYONE

if TYPE_CHECKING:
    from gateway.policy.schema import Backend, Client, Policy

LEAST_PREFILL_TOKENS = 2048
"""Least `prefill_tokens: auto`. SGLang picks chunks of 2,048 for cards below 24 GB, its smallest
automatic value (0.5.6-0.5.23); a server started with a smaller chunk would otherwise make short
prompts go one by one, although several chunks of that size pass in the time of one network round
trip."""


class Facts(Protocol):
    """What a server says about one of its pools. Tokens, unless another unit is named."""

    @property
    def pool_tokens(self) -> int:
        """KV pool of one data-parallel rank (max_total_num_tokens)."""

    @property
    def page(self) -> int:
        """KV page size."""

    @property
    def context(self) -> int:
        """Prompt and output of one sequence together."""

    @property
    def max_input(self) -> int:
        """Longest prompt taken (max_req_input_len)."""

    @property
    def max_running(self) -> int | None:
        """Requests running at once per rank; None where the server does not say."""

    @property
    def chunk(self) -> int | None:
        """chunked_prefill_size; None or not positive: chunking is off."""

    @property
    def max_prefill(self) -> int | None:
        """max_prefill_tokens; None where the server does not say."""

    @property
    def speculative_reserve(self) -> int:
        """Tokens speculative decoding looks ahead, per sequence."""

    @property
    def conservativeness(self) -> float:
        """schedule_conservativeness: how much of a running request's cap the engine sets aside."""

    @property
    def adapters_at_once(self) -> int | None:
        """LoRA adapters that run together, the model without one among them; None where it takes none."""

    @property
    def radix_disabled(self) -> bool:
        """Whether it forgets each prompt once it is answered."""

    @property
    def is_generation(self) -> bool:
        """Whether it writes; else it embeds, scores or classifies."""


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """`Facts` as plain values, for a server that is not there to be asked: a launch line, a twin."""

    pool_tokens: int
    page: int
    context: int
    max_input: int
    max_running: int | None
    chunk: int | None
    max_prefill: int | None
    speculative_reserve: int = 0
    conservativeness: float = 1.0
    radix_disabled: bool = False
    adapters_at_once: int | None = None
    is_generation: bool = True


CHUNKS_READ = 2
"""Prefill chunks at once for a server that generates nothing: it would stand still while the next prompts come over
and are tokenized, where others decode meanwhile. A genuine 0.5.17 on two cores, 1,650 tokens a request, answered 0.76
times what it did alone with one chunk, and 0.98 to 1.01 times with two, three, four and eight (medians of three turns in
one run; 0.91 with two in another); chats of as many tokens and two words lost nothing with one."""

Part = Callable[[int], int]
"""Which part of a bound is this gate's, see `seat`."""


def _all_of_it(bound: int) -> int:
    return bound


def client_rules(policy: Policy, part: Part = _all_of_it) -> dict[str, ClientRule]:
    """The rule of each client by name. `anyone` is there exactly if unknown callers may come in.

    How many run and wait is divided. What a request is refused for is not (`max_held_tokens` at the
    door, a quota in its window): a client whose only connection is here would be refused too early.
    Of these all processes tell each other (see `core.others`).
    """
    if not policy.clients:
        return {ANYONE: ClientRule(ANYONE)}
    return {client.name: _client_rule(client, part) for client in policy.clients}


def _client_rule(client: Client, part: Part) -> ClientRule:
    quota = client.quota
    return ClientRule(
        name=client.name,
        weight=client.weight,
        max_inflight=None if client.max_inflight is None else part(client.max_inflight),
        max_held_tokens=client.max_held_tokens,
        max_waiting=None if client.max_waiting is None else part(client.max_waiting),
        priority=client.priority,
        default_output=client.default_output_tokens,
        max_output=client.max_output_tokens,
        quota=None if quota is None else Quota(quota.tokens, quota.window_s),
    )


def queue_rule(policy: Policy, part: Part = _all_of_it) -> QueueRule:
    """The queue's bounds. However small a part is, one body of the largest size may wait in it."""
    queue = policy.queue
    least = min(policy.limits.body_bytes, queue.max_bytes)
    return QueueRule(
        max_requests=part(queue.max_requests),
        max_tokens=part(queue.max_tokens),
        max_bytes=max(part(queue.max_bytes), least),
        max_wait_s=queue.max_wait_s,
    )


def pool_limits(backend: Backend, facts: Facts, *, forecast: bool = True) -> PoolLimits:
    """What one pool can take: what the server reports, narrowed by the policy, never widened.

    kv_tokens = pool - page - ceil(pool · kv_slack), at least 0. A page, because the engine admits
    on strictly less than what is left, so the last page of the advertised pool is not to be had;
    the slack for what runs beside the requests we know (see `Backend.kv_slack`).
    """
    pool = facts.pool_tokens
    kv_tokens = max(0, pool - facts.page - math.ceil(pool * backend.kv_slack))
    return PoolLimits(
        kv_tokens=kv_tokens,
        page=facts.page,
        context=facts.context,
        max_input=facts.max_input,
        max_prompt=_set(backend.max_prompt_tokens),
        max_image_prompt=_set(backend.max_image_prompt_tokens),
        default_output=_set(backend.default_output_tokens),
        max_output=_set(backend.max_output_tokens),
        prefill_tokens=_set(backend.prefill_tokens) or _auto_prefill(facts),
        slots=_slots(_set(backend.slots), facts.max_running),
        speculative=facts.speculative_reserve,
        forecast=forecast,
        conservativeness=facts.conservativeness,
        tpot_s=None if backend.tpot_s == "off" else backend.tpot_s,
        caches=not facts.radix_disabled,
        kinds=facts.adapters_at_once or UNBOUNDED,
        compile_s=math.inf if backend.compile_s == "off" else backend.compile_s,
    )


def _set(value: int | Literal["auto"]) -> int | None:
    return None if value == "auto" else value


def _slots(asked: int | None, served: int | None) -> int:
    known = [n for n in (asked, served) if n is not None]
    return min(known, default=UNBOUNDED)


def _auto_prefill(facts: Facts) -> int:
    """One prefill chunk of the server, so that nothing waits inside the engine; CHUNKS_READ where it only reads."""
    chunk = facts.chunk if facts.chunk is not None and facts.chunk > 0 else facts.max_prefill
    if chunk is None:
        return UNBOUNDED
    return max(chunk, LEAST_PREFILL_TOKENS) * (1 if facts.is_generation else CHUNKS_READ)
