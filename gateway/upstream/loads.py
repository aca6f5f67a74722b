"""What an SGLang server holds at this moment, rank by rank, from /v1/loads or /get_load.

Three shapes: /get_load of 0.5.6 (a list; running and waiting added together), /v1/loads of 0.5.12
(asked of the scheduler) and of 0.5.17 and later (read from a snapshot that the scheduler publishes
at each prefill, every 15 decode steps and when it idles; the row's `timestamp` tells its age, and a
frozen scheduler leaves it answering 200 with an age that grows).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.upstream.fields import as_dict, as_int, as_list, as_positive, as_seconds

if TYPE_CHECKING:
    from gateway.upstream.fields import JsonDict


@dataclass(frozen=True, slots=True)
class RankLoad:
    """What one rank holds. Token counts leave out prefix-cache entries nobody uses."""

    rank: int
    running: int  # requests
    waiting: int  # requests
    used: int  # KV tokens of running requests; from /get_load an upper bound: total
    total: int  # used and the prompts of waiting requests
    waiting_uncached: int | None  # prompt tokens still to prefill (>= 0.5.17)
    pool_tokens: int | None  # None: not said (/get_load)
    prefilled: int | None  # prompt tokens prefilled since the start (>= 0.5.17): only grows
    age_s: float | None  # by the server's own clock; None: not a snapshot, or not said
    throughput: float | None = (
        None  # tokens generated a second, of the whole batch, where it generates
    )
    prefill_s: float | None = None  # what reading `prefilled` took, seconds (>= 0.5.17)


@dataclass(frozen=True, slots=True)
class LoadsFacts:
    """What a server holds, rank by rank, in order of rank."""

    ranks: tuple[RankLoad, ...]

    @property
    def running(self) -> int:
        """Running requests of all ranks."""
        return sum(rank.running for rank in self.ranks)

    @property
    def waiting(self) -> int:
        """Requests that wait inside the engine, all ranks."""
        return sum(rank.waiting for rank in self.ranks)

    @property
    def used(self) -> int:
        """KV tokens in use on all ranks."""
        return sum(rank.used for rank in self.ranks)

    @property
    def freshest_s(self) -> float | None:
        """Age of the newest snapshot, seconds. An idle rank publishes none while others work."""
        return min((r.age_s for r in self.ranks if r.age_s is not None), default=None)

    @property
    def age_s(self) -> float | None:
        """Age of the oldest snapshot, seconds."""
        return max((r.age_s for r in self.ranks if r.age_s is not None), default=None)


def parse_loads(body: object) -> LoadsFacts | None:
    """Loads from a /v1/loads (object) or /get_load (list) body; None where it is neither."""
    if isinstance(body, list):
        ranks = [_old_load(as_dict(row), index) for index, row in enumerate(body)]
    else:
        rows = as_list(as_dict(body).get("loads"))
        now = as_seconds(as_dict(body).get("timestamp"))
        ranks = [_load(as_dict(row), index, now) for index, row in enumerate(rows)]
    known = [rank for rank in ranks if rank is not None]
    return LoadsFacts(tuple(sorted(known, key=lambda rank: rank.rank))) if known else None


def another_process(before: LoadsFacts, after: LoadsFacts) -> str:
    """The sign that these loads are not from the process of those; empty without one."""
    for old, new in zip(before.ranks, after.ranks, strict=False):
        if new.pool_tokens != old.pool_tokens:
            return f"its KV pool changed from {old.pool_tokens} to {new.pool_tokens} tokens"
        if (new.prefilled or 0) < (old.prefilled or 0):
            return "its count of prefilled tokens began anew: it has been restarted"
    return ""


def _load(row: JsonDict, index: int, now: float | None) -> RankLoad | None:
    running = as_int(row.get("num_running_reqs"), at_least=0)
    used = as_int(row.get("num_used_tokens"), at_least=0)
    if running is None or used is None:
        return None
    taken = as_seconds(row.get("timestamp"))
    rank = as_int(row.get("dp_rank"), at_least=0)
    busy_us = as_int(row.get("total_prefill_busy_us"), at_least=0)
    return RankLoad(
        rank=index if rank is None else rank,
        running=running,
        waiting=as_int(row.get("num_waiting_reqs"), at_least=0) or 0,
        used=used,
        total=max(as_int(row.get("num_total_tokens"), at_least=0) or 0, used),
        waiting_uncached=as_int(row.get("num_waiting_uncached_tokens"), at_least=0),
        pool_tokens=as_int(row.get("max_total_num_tokens"), at_least=1),
        prefilled=as_int(row.get("total_prefill_uncached_tokens"), at_least=0),
        age_s=None if taken is None or now is None else max(now - taken, 0.0),
        throughput=as_positive(row.get("gen_throughput")),
        prefill_s=None if busy_us is None else busy_us / 1e6,
    )


def _old_load(row: JsonDict, index: int) -> RankLoad | None:
    """`num_reqs` counts running and waiting together, `num_tokens` their tokens together."""
    both = as_int(row.get("num_reqs"), at_least=0)
    tokens = as_int(row.get("num_tokens"), at_least=0)
    if both is None or tokens is None:
        return None
    waiting = as_int(row.get("num_waiting_reqs"), at_least=0) or 0
    rank = as_int(row.get("dp_rank"), at_least=0)
    return RankLoad(
        rank=index if rank is None else rank,
        running=max(both - waiting, 0),
        waiting=waiting,
        used=tokens,
        total=tokens,
        waiting_uncached=as_int(row.get("num_pending_tokens"), at_least=0),
        pool_tokens=None,
        prefilled=None,
        age_s=None,
    )
