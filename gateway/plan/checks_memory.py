"""Memory: what is promised beside what there is, and what a prefill step takes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gateway.core.caps import Misfit, decide
from gateway.core.model import UNBOUNDED, Ask
from gateway.plan.chain import STEP, context_for
from gateway.plan.findings import Finding, Severity
from gateway.plan.model import chunk_gib
from gateway.plan.risk import SAFE_GIB, SAMPLER_GIB, Risk, risk
from gateway.policy.compile import pool_limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.plan.settings import Settings
    from gateway.plan.traffic import Traffic
    from gateway.policy.compile import PoolFacts
    from gateway.upstream.facts import ServerFacts

LIMIT_SINCE = (0, 5, 17)
"""From here SGLANG_MAX_NEW_TOKENS_LIMIT bounds answers; older versions do not know it."""

LIMIT = "SGLANG_MAX_NEW_TOKENS_LIMIT"


def context(settings: Settings, _traffic: Traffic) -> Iterator[Finding]:
    """The longest request beside the pool it must fit."""
    pool = settings.pool
    if settings.line is not None and settings.whole("context_length") is None:
        yield Finding(
            Severity.WARNING,
            "context_open",
            "--context-length",
            "Without it the model's own context is in force, often 262,144 tokens, whatever the "
            "pool holds.",
            "Start with --context-length, a multiple of 1,024 below the pool; kvgate plan computes it.",
        )
    elif pool is not None and pool.context > pool.pool_tokens:
        fits = context_for(pool.pool_tokens, pool.page)
        longest = f"Start with --context-length {fits}" if fits else "Give the server a larger pool"
        yield Finding(
            Severity.WARNING,
            "context_above_pool",
            "--context-length",
            f"The context is {pool.context:,} tokens and the pool {pool.pool_tokens:,}: a prompt "
            "between the two is queued and refused only when its turn comes.",
            f"{longest}; the gate refuses such prompts at the door meanwhile.",
        )
    limited = settings.whole("max_total_tokens")
    if limited is not None:
        yield Finding(
            Severity.NOTE,
            "pool_set_by_hand",
            "--max-total-tokens",
            f"It sizes the whole KV pool for all requests together ({limited:,} tokens), not the "
            "longest request.",
            "Leave it out unless the pool must be small; --context-length bounds a request.",
        )


def promises(settings: Settings, traffic: Traffic) -> Iterator[Finding]:
    """What the engine alone may promise, and what passes the gate."""
    pool = settings.pool
    if pool is None:
        yield Finding(
            Severity.NOTE,
            "pool_not_known",
            "KV pool",
            "A launch line does not tell the pool, so promises can not be summed.",
            "Give --pool-tokens N from the log (max_total_num_tokens), or audit the running server.",
        )
        return
    yield _alone(settings, traffic, pool)
    yield from _through_the_gate(traffic, pool)


def _alone(settings: Settings, traffic: Traffic, pool: PoolFacts | ServerFacts) -> Finding:
    """The sum of incident A, prompts included."""
    prompt = traffic.prompt or 0
    of = f"of {prompt:,} tokens " if traffic.prompt else ""
    beside = "" if traffic.prompt else ", prompts not counted"
    each = max(0, min(pool.context, pool.pool_tokens) - prompt)
    limit = settings.environment.get(LIMIT)
    newer = settings.version is None or settings.version >= LIMIT_SINCE
    if limit is not None and newer:
        each = min(each, int(float(limit)))
    requests = traffic.requests or pool.max_running or 1
    total = requests * (prompt + each)
    chats = "1 chat" if requests == 1 else f"{requests:,} chats"
    short = total > pool.pool_tokens and (traffic.stated or not traffic.admission)
    return Finding(
        Severity.WARNING if short else Severity.NOTE,
        "promises_alone",
        "max_tokens",
        f"{chats} {of}without max_tokens may {'' if requests == 1 else 'each '}write {each:,}: "
        f"{total:,} tokens "
        f"promised to a pool of {pool.pool_tokens:,} ({total / pool.pool_tokens:.1f} times{beside}) "
        "if nothing stands in front.",
        "Let nobody reach the server but the gate, with admission on; it does this sum first.",
    )


def _through_the_gate(traffic: Traffic, pool: PoolFacts | ServerFacts) -> Iterator[Finding]:
    limits = pool_limits(traffic.backend, pool)
    if not traffic.admission:
        yield Finding(
            Severity.WARNING,
            "admission_off",
            "admission",
            "The policy forwards everything at once: nothing bounds what is promised.",
            "Write admission: on.",
        )
        return
    prompt = traffic.prompt or min(limits.kv_tokens, limits.context, limits.max_input) // 4
    asked = decide(Ask((prompt,)), limits)
    if isinstance(asked, Misfit):
        yield Finding(
            Severity.WARNING,
            "prompt_never_fits",
            "KV pool",
            f"A chat of {prompt:,} tokens is refused: it needs {asked.needed:,} of "
            f"{asked.what} {asked.available:,}.",
            "Give it a larger pool or context, or send such prompts to another server.",
        )
        return
    together = min(limits.kv_tokens // asked.kv, limits.slots)
    short = traffic.requests is not None and traffic.prompt is not None
    short = short and (traffic.requests or 0) > together
    yield Finding(
        Severity.WARNING if short else Severity.NOTE,
        "promises_gate",
        "policy",
        f"The gate promises at most {limits.kv_tokens:,} of {pool.pool_tokens:,} tokens: of chats of "
        f"{prompt:,} without max_tokens {together:,} run at once, each with a cap of {asked.cap:,}"
        + (f"; {traffic.requests:,} were expected, the rest waits." if short else "."),
        "A smaller default_output_tokens lets more run at once; a larger one lets each write more.",
    )
    yield from _policy_beyond(traffic, pool)


def _policy_beyond(traffic: Traffic, pool: PoolFacts | ServerFacts) -> Iterator[Finding]:
    """Limits of the policy that the server does not have."""
    backend, longest = traffic.backend, min(pool.context, pool.pool_tokens)
    for name, asked, there in (
        ("max_output_tokens", backend.max_output_tokens, longest),
        ("default_output_tokens", backend.default_output_tokens, longest),
        ("max_prompt_tokens", backend.max_prompt_tokens, pool.max_input),
        ("max_image_prompt_tokens", backend.max_image_prompt_tokens, pool.max_input),
        ("slots", backend.slots, pool.max_running),
    ):
        if isinstance(asked, int) and there is not None and asked > there:
            yield Finding(
                Severity.NOTE,
                "policy_beyond_server",
                name,
                f"The policy says {asked:,}, the server allows {there:,}; the smaller one holds.",
                f"Write {name}: {there} or leave it out.",
            )


def running(settings: Settings, traffic: Traffic) -> Iterator[Finding]:
    """The running limit beside the pool."""
    pool = settings.pool
    if pool is None or pool.max_running is None:
        return
    share = pool.pool_tokens // pool.max_running
    needed = (traffic.prompt or 0) + 256  # 256: the gate's useful floor of an answer
    if share >= needed:
        return
    fits = max(1, pool.pool_tokens // needed)
    yield Finding(
        Severity.NOTE,
        "running_above_pool",
        "--max-running-requests",
        f"{pool.max_running:,} may run at once, which leaves {share:,} tokens of the pool to each.",
        f"At most {fits:,} can hold {needed:,} tokens each; set it so, and the engine can not start "
        "what it must throw out again.",
    )


def prefill(settings: Settings, traffic: Traffic) -> Iterator[Finding]:
    """A chunk's activations beside the headroom."""
    chunk = _chunk(settings)
    if chunk == 0:
        bounded = isinstance(traffic.backend.max_prompt_tokens, int)
        yield Finding(
            Severity.WARNING,
            "chunking_off",
            "--chunked-prefill-size",
            "Chunked prefill is off: the longest prompt sets the peak of activation memory"
            + (", which max_prompt_tokens bounds." if bounded else "."),
            "Set --chunked-prefill-size 2048 (4096 from 40 GB on), or bound max_prompt_tokens.",
        )
    if not settings.on_gpu:
        return
    if settings.headroom_gib is None:
        yield Finding(
            Severity.NOTE,
            "headroom_not_known",
            "headroom",
            "What is free beside the pool is not known, so the chunk can not be judged.",
            "Give --headroom-gib (available_gpu_mem in the log of the start) or --card.",
        )
        return
    yield _chunk_in(settings.headroom_gib, chunk, traffic)


def _chunk(settings: Settings) -> int | None:
    """0: chunking is off. None: not said, the engine picks by the card."""
    if settings.live and settings.pool is not None:
        return settings.pool.chunk or 0
    asked = settings.whole("chunked_prefill_size")
    return asked if asked is None else max(0, asked)


def _chunk_in(headroom: float, chunk: int | None, traffic: Traffic) -> Finding:
    tokens = 2048 if chunk is None else chunk or 16_384  # off: max_prefill_tokens' default a step
    tokens = min(tokens, UNBOUNDED)  # whatever is written there, no prompt is longer
    step = chunk_gib(tokens, traffic.hidden, traffic.intermediate)
    level = risk(headroom, step)
    severity = {Risk.HIGH: Severity.ERROR, Risk.SOME: Severity.WARNING, Risk.LOW: Severity.NOTE}
    room = headroom - SAFE_GIB
    smaller = math.floor(tokens * room / step / 512) * 512 if step else 0
    remedy = f"Lower --mem-fraction-static until {step + SAFE_GIB:.2f} GiB are free"
    if level is not Risk.LOW and STEP <= smaller < tokens:
        remedy += f", or set --chunked-prefill-size {smaller}"
    return Finding(
        severity[level],
        "chunk_in_headroom",
        "--chunked-prefill-size",
        f"The headroom is {headroom:.2f} GiB and a prefill step of {tokens:,} tokens takes about "
        f"{step:.2f}; with the sampler's {SAMPLER_GIB:g} the risk of running out is {level}.",
        remedy + "." if level is not Risk.LOW else "Nothing to do.",
    )
