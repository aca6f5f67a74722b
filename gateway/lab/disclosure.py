"""What a reader must know to believe a number: where parameters came from, what metrics mean.

The words `fitted` (on the box evaluated here), `inherited` (from a paper or the engine) and
`default` (ours, the same everywhere) are those of the seven reporting items of AdmitPerf's survey
of admission papers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gateway.lab import history, orders
from gateway.twin.budget import CLIP

if TYPE_CHECKING:
    from gateway.lab.scenarios import Scenario

Origin = Literal["fitted", "inherited", "default"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One number a policy was given, and where it came from."""

    value: float
    origin: Origin
    source: str


_QUANTILE = Parameter(0.9, "inherited", "the usual upper quantile of length predictors")
_WINDOW = Parameter(history.WINDOW, "default", "lengths kept, per client and in all")
_LEAST = Parameter(history.LEAST, "default", "lengths below which nothing is predicted")
_CLIP = Parameter(CLIP, "inherited", "SGLang's SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION, 0.5.6-0.5.23")


def parameters(policy: str, scenario: Scenario) -> dict[str, Parameter]:
    """Every number that `policy` (or a variant, `fixed-16`) was given in `scenario`."""
    wait = {
        "max_wait_s": Parameter(
            scenario.max_wait_s, "fitted", "the TTFT objective: later is of no use"
        )
    }
    family, _, most = policy.partition("-")
    if family == "fixed" and most:
        return wait | {
            "concurrency": Parameter(
                float(most), "fitted", "the best of several on this very load, in hindsight"
            )
        }
    lengths = {"window": _WINDOW, "least": _LEAST}
    more: dict[str, dict[str, Parameter]] = {
        "worst-case-capped": {
            "cap_quantile": Parameter(0.999, "default", "of lengths seen, times 1.25"),
            **lengths,
        },
        "per-request-quantile": {"level": _QUANTILE, "clip": _CLIP, **lengths},
        "mirror": {"clip": _CLIP},
        "past-future": {"clip": _CLIP, **lengths},
        "vtc": {
            "output_weight": Parameter(orders.OUTPUT_WEIGHT, "inherited", "VTC, arXiv 2401.00588"),
            "clip": _CLIP,
        },
        "oracle": {"clip": _CLIP},
        "oracle-mcsf": {"clip": _CLIP},
    }
    return wait | more.get(policy, {})


METRICS = {
    "goodput_rps": "requests served with TTFT and TPOT within the objectives, per second of the "
    "measured part; a refusal is a miss",
    "goodput_share": "the same over requests offered, refused ones included",
    "goodput_vs_oracle": "goodput over that of the FIFO oracle on the same arrivals",
    "kv_utilisation": "time average of pool tokens in use over the pool, cached prefixes left out",
    "retractions_per_1000": "requests thrown out half done by the engine, per 1000 offered",
    "crashes": "times the engine's process died",
    "lost": "requests in flight when it died, or aborted by it",
    "refused_share": "refused over offered",
    "ttft_p50": "median seconds from arrival to first token, refused requests left out; one that "
    "never saw a token counts with the time it waited",
    "ttft_p99": "the same, 99 of 100",
    "victim_ttft_p99": "ttft_p99 of the ordinary clients",
    "victim_ttft_p99_vs_alone": "the same over what it is without the runaway, same policy",
    "runaway_tokens_per_s": "prompt and output tokens served to the runaway, per second",
    "runaway_vs_vtc": "runaway_tokens_per_s over VTC's on the same arrivals: what isolation costs "
    "the runaway",
    "jain": "Jain's index of the service (prompt + 2 x output tokens, as it was given) of the clients "
    "that had a request without its first token at 90 % of all moments or more",
    "service_gap": "largest difference of service between two of those clients at any moment, over "
    "VTC's bound 2 max(prompt, 2 x output)",
    "goodput_vs_worst_case": "goodput over that of worst-case on the same arrivals",
    "retractions_per_1000_after": "retractions since outputs doubled, per 1000 requests since then",
    "wasted_prefill_share": "prompt tokens computed again after retractions over those asked",
    "retry_first_try": "refused requests that came back once when told and were let through then, "
    "over those that came back; measured in a second run in which every client does so",
    "ttft_mape": "mean absolute percentage error of the predicted TTFT",
    "ttft_q95_coverage": "share of requests whose TTFT was below the predicted 95th percentile",
    "cache_hit_share": "prompt tokens that the engines found in their prefix caches over those asked; "
    "absent where nothing begins alike",
    "limit": "the concurrency that was best in this scenario",
}

ABSENT = {
    "ttft_mape": "null where a policy predicts no TTFT",
    "ttft_q95_coverage": "null where a policy predicts no TTFT",
    "retry_first_try": "null where nothing was refused, or the policy names no time to come back",
    "victim_ttft_p99_vs_alone": "null where a scenario has no runaway",
    "runaway_vs_vtc": "null where a scenario has no runaway, or VTC serves it nothing",
    "jain": "null where fewer than two clients were backlogged throughout",
    "goodput_vs_oracle": "null where the oracle serves nothing in time",
}
