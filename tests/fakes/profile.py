"""What the fake engine says about itself: the answers of SGLang's introspection routes.

The field names, their nesting and the differences between versions follow real answers of
0.5.12, 0.5.17 and 0.5.23 (CPU servers) and, for 0.5.6, its source. Only fields somebody could
read are kept: a real /server_info has about 400.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True)
class Profile:
    """One engine as its operator started it. Token counts are per data-parallel rank."""

    version: str = "0.5.17"
    pool: int = 2048
    context: int = 8192
    page: int = 1
    dp: int = 1
    max_running: int = 1024
    max_queued: int | None = None
    chunk: int = 2048
    model: str = "tiny"
    model_type: str = "qwen3"
    model_path: str = "/models/tiny"
    tokenizer_path: str = "/models/tiny"
    api_key: str | None = None
    admin_api_key: str | None = None
    enable_metrics: bool = True
    adapters: tuple[str, ...] = ()  # --lora-paths
    enable_lora: bool = False
    loras_per_batch: int = 8
    warm_up: int = 2  # prompt tokens before it says it is ready; 0: --skip-server-warmup
    random_seed: int | None = None  # None: drawn at each start, as the engine does

    @property
    def number(self) -> tuple[int, int, int]:
        major, minor, patch = (int(part) for part in self.version.split("."))
        return major, minor, patch

    @property
    def max_input(self) -> int:
        """Longest prompt: min(context, pool) - 1 - 5, as the engine computes it."""
        return min(self.context, self.pool) - 6


@dataclass(frozen=True)
class Start:
    """What differs between two starts of one engine."""

    seed: int
    load_s: float

    @classmethod
    def of(cls, profile: Profile) -> Start:
        seed = profile.random_seed
        return cls(random.randrange(1 << 30) if seed is None else seed, random.random() + 0.1)


@dataclass(frozen=True)
class RankUse:
    """What one rank holds now: requests and tokens."""

    running: int = 0
    waiting: int = 0
    used: int = 0
    total: int = 0
    prefilled: int = 0  # prompt tokens since the start


def server_info(profile: Profile, start: Start) -> dict[str, Any]:
    """/server_info, and /get_server_info of 0.5.6."""
    args: dict[str, Any] = {
        "model_path": profile.model_path,
        "tokenizer_path": profile.tokenizer_path,
        "context_length": None,
        "max_running_requests": None,
        "max_queued_requests": profile.max_queued,
        "max_total_tokens": None,
        "chunked_prefill_size": profile.chunk,
        "max_prefill_tokens": 16384,
        "schedule_policy": "fcfs",
        "schedule_conservativeness": 1.0,
        "page_size": profile.page,
        "dp_size": profile.dp,
        "enable_dp_attention": profile.dp > 1,
        "random_seed": start.seed,
        "disable_radix_cache": False,
        "is_embedding": False,
        "enable_metrics": profile.enable_metrics,
        "enable_lora": profile.enable_lora or bool(profile.adapters),
        "max_loras_per_batch": profile.loras_per_batch,
        "allow_auto_truncate": False,
        "api_key": profile.api_key,
        "admin_api_key": profile.admin_api_key,
        "served_model_name": profile.model,
        "speculative_algorithm": None,
        "speculative_num_steps": None,
        "speculative_eagle_topk": None,
        "speculative_num_draft_tokens": None,
    }
    state = args | {
        "last_gen_throughput": 0.0,
        "memory_usage": {
            "weight": 0.01,
            "kvcache": 0.0,
            "token_capacity": profile.pool,
            "graph": 0,
        },
    }
    if profile.number >= (0, 5, 12):
        state["effective_max_running_requests_per_dp"] = profile.max_running
    body = args | {
        "status": "ready",
        "max_total_num_tokens": profile.pool,
        "max_req_input_len": profile.max_input,
        "internal_states": [state] * profile.dp,
        "version": profile.version,
    }
    if profile.number >= (0, 5, 17):
        body["startup_time"] = {"load_weight": start.load_s, "scheduler_e2e": start.load_s + 3.0}
    return body


def model_info(profile: Profile) -> dict[str, Any]:
    """/model_info and /get_model_info."""
    typed = {"model_type": profile.model_type} if profile.number >= (0, 5, 12) else {}
    return {
        **typed,
        "model_path": profile.model_path,
        "tokenizer_path": profile.tokenizer_path,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "has_image_understanding": False,
        "has_audio_understanding": False,
    }


def models(profile: Profile) -> dict[str, Any]:
    """/v1/models. `created` is the time of the request, not of the start."""

    def card(name: str, root: str, parent: str | None, context: int | None) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "sglang",
            "root": root,
            "parent": parent,
            "max_model_len": context,
        }

    cards = [card(profile.model, profile.model, None, profile.context)]
    cards += [card(name, f"/adapters/{name}", profile.model, None) for name in profile.adapters]
    return {"object": "list", "data": cards}


def loads(profile: Profile, ranks: list[RankUse], taken: float | None = None) -> dict[str, Any]:
    """/v1/loads: the 0.5.12 shape (aggregate, no time per rank) or the newer one, whose rows tell
    when they were `taken` (now, where that is None)."""
    new = profile.number >= (0, 5, 17)
    at = time.time() if taken is None else taken
    rows = [_load(profile, index, use, at, new=new) for index, use in enumerate(ranks)]
    body: dict[str, Any] = {
        "timestamp": datetime.now(UTC).isoformat(),
        "version": profile.version,
    }
    if new:
        return body | {"accelerator": None, "num_accelerators": 1, "loads": rows}
    total_running = sum(use.running for use in ranks)
    return body | {
        "dp_rank_count": profile.dp,
        "loads": rows,
        "aggregate": {
            "total_running_reqs": total_running,
            "total_waiting_reqs": sum(use.waiting for use in ranks),
            "total_used_tokens": sum(use.used for use in ranks),
            "total_tokens": sum(use.total for use in ranks),
        },
    }


def _load(profile: Profile, rank: int, use: RankUse, at: float, *, new: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "num_running_reqs": use.running,
        "num_waiting_reqs": use.waiting,
        "num_used_tokens": use.used,
        "num_total_tokens": use.total,
        "max_total_num_tokens": profile.pool,
        "token_usage": round(use.used / profile.pool, 4),
        "max_running_requests": profile.max_running,
        "queues": {"waiting": use.waiting, "grammar": 0, "paused": 0, "retracted": 0},
    }
    if not new:
        return row | {"num_total_reqs": use.running + use.waiting}
    return (
        {"timestamp": at, "dp_rank": rank}
        | row
        | {
            "num_waiting_uncached_tokens": use.total - use.used,
            "num_active_tokens": use.used,
            "total_prefill_uncached_tokens": use.prefilled,
        }
    )


def metrics(profile: Profile, retracted: list[int], ratio: float | None) -> bytes:
    """/metrics: the few series that somebody reads. `retracted` is by rank, since the start.

    The counter (from 0.5.12) is listed from its first retraction on, as in prometheus_client's
    multiprocess mode. The gauge before it holds the last report's; here all of them.
    """
    lines = ["# HELP sglang:num_retracted_reqs The number of retracted requests."]
    for rank, number in enumerate(retracted):
        shared = f'engine_type="unified",model_name="{profile.model}",pp_rank="0",tp_rank="0"'
        labels = (f'dp_rank="{rank}",' if profile.dp > 1 else "") + shared
        lines.append(f'sglang:num_retracted_reqs{{pid="7",{labels}}} {float(number)}')
        if number and profile.number >= (0, 5, 12):
            lines.append(f"sglang:num_retracted_requests_total{{{labels}}} {float(number)}")
        if ratio is not None:
            lines.append(f"sglang:new_token_ratio{{{labels}}} {ratio}")
    return ("\n".join(lines) + "\n").encode()


def get_load(ranks: list[RankUse]) -> list[dict[str, Any]]:
    """/get_load of 0.5.6 to 0.5.17: `num_reqs` counts running and waiting together."""
    return [
        {
            "dp_rank": index,
            "num_reqs": use.running + use.waiting,
            "num_waiting_reqs": use.waiting,
            "num_tokens": use.total,
        }
        for index, use in enumerate(ranks)
    ]
