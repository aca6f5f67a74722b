"""Serving: what the scheduler does with what it is given, and what can be seen of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.plan.findings import Finding, Severity
from gateway.plan.options import said
from gateway.upstream.facts import NEWEST, OLDEST, ServerFacts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.plan.settings import Settings
    from gateway.plan.traffic import Traffic

MIXED_KEPT_SINCE = (0, 5, 23)
MIXED_KEPT = ("EAGLE", "EAGLE3", "NEXTN", "DFLASH", "DSPARK")
"""From 0.5.23 these algorithms keep mixed chunks (SpeculativeAlgorithm.supports_mixed_chunk); before,
every algorithm switched them off at the start, with a line in the log."""

SPECULATIVE_RUNNING = 48
"""What the engine sets max_running_requests to under speculative decoding where it is not given."""

RATIO = 0.7
RATIO_FLOOR = 0.14
"""Of what a running request may still write, the engine counts this part at first, and this part of
that after 600 decode steps (SGLANG_INIT_NEW_TOKEN_RATIO, _MIN_…_FACTOR; 0.5.6-0.5.23)."""

ATTENTION_DP = 0.3
"""--enable-dp-attention multiplies the conservativeness by this."""

LORAS_AT_ONCE = 8
"""--max-loras-per-batch where it is not given (0.5.6-0.5.23)."""

LORAS_COUNTED_SINCE = (0, 5, 17)
"""From here the adapter of a prompt that is being read in chunks is counted with those that run; without it
one too many gets into a batch, which an assertion ends the scheduler for (0.5.12)."""

SILENT_POLL_S = 30
LIMIT_SINCE = (0, 5, 17)
LONE_REQUEST_SINCE = (0, 5, 12)
CONTENT_LEVEL = 2
"""log_requests_level from which prompts and answers are logged; also its default."""


def version(settings: Settings, _traffic: Traffic) -> Iterator[Finding]:
    """Whether the version is one that was read, and what is known to break in it."""
    if settings.line is None and (
        settings.version is None or not OLDEST <= settings.version <= NEWEST
    ):
        yield Finding(
            Severity.NOTE,
            "version_not_read",
            "version",
            f"Only {said(OLDEST)} to {said(NEWEST)} were read; this one may behave differently.",
            "Take the findings with care.",
        )
    if settings.version is not None and settings.version < LONE_REQUEST_SINCE:
        yield Finding(
            Severity.WARNING,
            "lone_request_kills",
            "version",
            "A request that is alone and outgrows the pool kills this version; from 0.5.12 it gets "
            "a 500.",
            "Update, and let nobody pass the gate by: it never lets one grow so far.",
        )


def speculative(settings: Settings, _traffic: Traffic) -> Iterator[Finding]:
    """What drafting switches off or takes."""
    algorithm = settings.text("speculative_algorithm").upper()
    if not algorithm:
        return
    kept = (
        settings.version is not None
        and settings.version >= MIXED_KEPT_SINCE
        and algorithm in MIXED_KEPT
    )
    if settings.on("enable_mixed_chunk") and not kept:
        yield Finding(
            Severity.WARNING,
            "mixed_chunk_off",
            "--enable-mixed-chunk",
            "Speculative decoding switches mixed chunks off at the start: every prefill stops all "
            "decoding.",
            "Choose one of the two: for many at once drop --speculative-algorithm, else drop "
            "--enable-mixed-chunk.",
        )
    if settings.whole("max_running_requests") is None:
        yield Finding(
            Severity.NOTE,
            "speculative_running",
            "--max-running-requests",
            f"Speculative decoding sets it to {SPECULATIVE_RUNNING} where it is not given.",
            "Set it yourself.",
        )
    if settings.pool is not None and settings.pool.speculative_reserve:
        yield Finding(
            Severity.NOTE,
            "speculative_reserve",
            "KV pool",
            f"Drafts look {settings.pool.speculative_reserve} tokens ahead per sequence; the gate "
            "charges them.",
            "Nothing to do.",
        )


def scheduler(settings: Settings, _traffic: Traffic) -> Iterator[Finding]:
    """How freely the engine admits, and what it does behind the client's back."""
    conservative = settings.number("schedule_conservativeness")
    by_attention = settings.on("enable_dp_attention") and conservative == ATTENTION_DP
    if conservative is not None and conservative < 1 and not by_attention:
        first = RATIO * conservative
        yield Finding(
            Severity.WARNING,
            "conservativeness_low",
            "--schedule-conservativeness",
            f"At {conservative:g} the engine counts {first:.0%} of what runs may still write, and "
            f"{first * RATIO_FLOOR:.1%} after 600 steps: it admits more and throws more out again.",
            "Leave it at 1; the gate decides what may start.",
        )
    if settings.whole("max_queued_requests") is not None:
        yield Finding(
            Severity.WARNING,
            "engine_queue_bounded",
            "--max-queued-requests",
            f"At {settings.whole('max_queued_requests')} waiting, a request that the engine takes "
            "back ends with an error in the middle of its answer.",
            "Leave it out; the gate bounds the queue before the engine.",
        )
    if settings.on("allow_auto_truncate"):
        yield Finding(
            Severity.WARNING,
            "prompts_cut",
            "--allow-auto-truncate",
            "The engine cuts long prompts without a word.",
            "Leave it out: the gate refuses them with the numbers.",
        )
    if settings.on("skip_tokenizer_init"):
        yield Finding(
            Severity.WARNING,
            "token_ids_only",
            "--skip-tokenizer-init",
            "The engine takes token ids only; chats and completions fail.",
            "Leave it out.",
        )
    if settings.text("disaggregation_mode"):
        yield Finding(
            Severity.WARNING,
            "disaggregated",
            "--disaggregation-mode",
            "Prefill and decode run on separate servers; the gate plans for one that does both.",
            "Put the router of the pair behind another gate, or serve from one server.",
        )
    if settings.on("disable_radix_cache"):
        yield Finding(
            Severity.NOTE,
            "no_prefix_cache",
            "--disable-radix-cache",
            "A conversation's history is prefilled anew at every turn.",
            "Leave it out unless every prompt is different.",
        )


def adapters(settings: Settings, _traffic: Traffic) -> Iterator[Finding]:
    """Whether all that may be asked for together can run together. The model without an adapter counts as one
    more (sgl-project/sglang#23141, #25865)."""
    listed = settings.pool.adapters if isinstance(settings.pool, ServerFacts) else ()
    kinds, at_once = len(listed) + 1, settings.whole("max_loras_per_batch") or LORAS_AT_ONCE
    if not listed or kinds <= at_once:
        return
    kills = settings.version is not None and settings.version < LORAS_COUNTED_SINCE
    yield Finding(
        Severity.ERROR if kills else Severity.WARNING,
        "adapters_over_batch",
        "--max-loras-per-batch",
        f"{len(listed)} adapters and the model itself are {kinds} kinds of requests; {at_once} run at once. "
        + (
            "Where one more comes beside a prompt that is read in chunks, this version's scheduler ends."
            if kills
            else "Requests for the others wait inside the engine, where the gate does not see why."
        ),
        f"Set --max-loras-per-batch {kinds}, or serve fewer adapters here.",
    )


def sight(settings: Settings, _traffic: Traffic) -> Iterator[Finding]:
    """What can be seen of it, and by whom."""
    if not settings.on("enable_metrics"):
        yield Finding(
            Severity.WARNING,
            "metrics_off",
            "--enable-metrics",
            "The engine counts nothing for others: no retractions, no cache hits, no speed.",
            "Start with --enable-metrics.",
        )
    if not settings.on("enable_cache_report"):
        yield Finding(
            Severity.NOTE,
            "cache_report_off",
            "--enable-cache-report",
            "Answers do not say how much of a prompt came from the cache.",
            "Start with --enable-cache-report to see it per request.",
        )
    level = settings.whole("log_requests_level")
    if settings.on("log_requests") and (CONTENT_LEVEL if level is None else level) >= CONTENT_LEVEL:
        yield Finding(
            Severity.WARNING,
            "content_logged",
            "--log-requests",
            "Prompts and answers are written into the engine's log.",
            "Set --log-requests-level 1, or leave --log-requests out.",
        )


def environment(settings: Settings, _traffic: Traffic) -> Iterator[Finding]:
    """Variables in front of the launch line, and what they do not do."""
    limit = settings.environment.get("SGLANG_MAX_NEW_TOKENS_LIMIT")
    if limit is not None and settings.version is not None and settings.version < LIMIT_SINCE:
        yield Finding(
            Severity.WARNING,
            "limit_not_known",
            "SGLANG_MAX_NEW_TOKENS_LIMIT",
            f"SGLang {said(settings.version)} does not know it (0.5.17 does): answers are not "
            f"limited to {limit}.",
            "Write max_output_tokens into the gate's policy; it works with every version.",
        )
    poll = settings.environment.get("SGLANG_REQUEST_STATE_WAIT_TIMEOUT")
    if poll is not None:
        slow = float(poll) > SILENT_POLL_S
        yield Finding(
            Severity.WARNING if slow else Severity.NOTE,
            "not_a_timeout",
            "SGLANG_REQUEST_STATE_WAIT_TIMEOUT",
            f"It ends no request: it is how often ({poll} s) the engine looks whether a client that "
            "waits is still there.",
            "Set it back to 4 to 10: a client that left keeps its memory that long."
            if slow
            else "Bound waits in the policy (queue.max_wait_s, limits).",
        )
