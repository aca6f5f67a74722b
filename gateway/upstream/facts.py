"""What an SGLang server says about itself, read once into the few numbers the gate needs.

A pure parser: the JSON of /server_info, /v1/models and /model_info in, `ServerFacts` out. The
shapes differ between 0.5.6 and 0.5.23 and any field may be missing, null or odd, so each is read
by a reader that yields None instead of an error, and only a missing pool makes the answer useless.

/server_info carries every launch argument, API keys among them. Only the fields below are copied;
the parsed body is dropped, so no key can reach a log, a page or a repr.

Units: tokens; per data-parallel rank where it says so.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.upstream.fields import as_dict, as_flag, as_int, as_list, as_positive, as_text

if TYPE_CHECKING:
    from gateway.upstream.fields import JsonDict

Version = tuple[int, int, int]

MAX_REQ_LEN_ABOVE_INPUT = 5
"""max_req_input_len = max_req_len - 5 and max_req_len = min(context, pool) - 1 (0.5.6-0.5.23)."""

EAGLE_RESERVE_SINCE: Version = (0, 5, 12)
"""From here EAGLE reserves max(topk × steps, draft tokens); before, the draft tokens."""

STARTUP_TIME_SINCE: Version = (0, 5, 17)
"""From here /server_info tells its measured `startup_time`."""

OLDEST: Version = (0, 5, 6)
NEWEST: Version = (0, 5, 23)


class NotSGLangError(ValueError):
    """The answers do not describe an SGLang server. The message says what was missing."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """One start of one server. Fixed until it starts again."""

    version: Version | None
    version_text: str
    models: tuple[str, ...]  # names clients may ask for
    model_path: str
    tokenizer_path: str
    model_type: str  # of its config.json; empty before 0.5.12, which does not say
    chat_template: str  # its --chat-template; empty: the model's own
    context: int  # prompt + output of one sequence
    pool_tokens: int  # KV pool of each rank (max_total_num_tokens)
    max_input: int  # longest prompt the engine takes (max_req_input_len)
    max_running: int | None  # running requests per rank; None: not said
    page: int  # KV page size
    dp: int  # data-parallel ranks, each with its own pool
    chunk: int | None  # prompt tokens per prefill step; None: whole prompts
    max_prefill: int  # prompt tokens per prefill batch
    speculative_reserve: int  # KV tokens speculative decoding looks ahead, per sequence
    conservativeness: float  # schedule_conservativeness; 1.0 where it is not said
    max_queued: int | None  # the engine's own queue; None: unbounded
    metrics_enabled: bool
    radix_disabled: bool
    is_generation: bool
    has_images: bool
    started_key: str  # differs between two starts of the server, see `_started_key`
    warnings: tuple[str, ...]  # what an operator should know, in plain words
    tool_parser: str = ""  # its --tool-call-parser, which may decide how chats are written
    thinks_apart: bool = False  # with one that tells thoughts from the answer
    adapters: tuple[str, ...] = ()  # LoRA, as they are asked for: `model:adapter`
    takes_adapters: bool = False  # they may be loaded and unloaded while it runs
    adapters_at_once: int | None = None  # that run together, the model without one among them

    @property
    def names(self) -> tuple[str, ...]:
        """All that may be asked for."""
        return self.models + self.adapters


def parse_server(info: object, models: object = None, model_info: object = None) -> ServerFacts:
    """Facts from the bodies of /server_info, /v1/models and /model_info.

    The last two may be None where they were not to be had; what they would have said is then
    taken from /server_info. Raises NotSGLangError where no KV pool is named.
    """
    args, model = as_dict(info), as_dict(model_info)
    states = [as_dict(state) for state in as_list(args.get("internal_states"))]
    pool = _pool(args, states)
    rows = as_list(as_dict(models).get("data"))
    names, context = _served(args, rows)
    max_input = as_int(args.get("max_req_input_len"), at_least=1)
    if context is None:
        context = (max_input or pool) + MAX_REQ_LEN_ABOVE_INPUT + 1
    version_text = as_text(args.get("version"))
    version = parse_version(version_text)
    chunk = as_int(args.get("chunked_prefill_size"), at_least=1)
    tokenizer = as_text(model.get("tokenizer_path")) or as_text(args.get("tokenizer_path"))
    model_path = as_text(model.get("model_path")) or as_text(args.get("model_path"))
    embeds = as_flag(args.get("is_embedding"), default=False)
    adapters = _listed_adapters(rows)
    takes_adapters = bool(adapters) or as_flag(args.get("enable_lora"), default=False)
    at_once = as_int(args.get("max_loras_per_batch"), at_least=1) if takes_adapters else None
    return ServerFacts(
        version=version,
        version_text=version_text,
        models=names,
        adapters=adapters,
        takes_adapters=takes_adapters,
        adapters_at_once=at_once,
        model_path=model_path,
        tokenizer_path=tokenizer or model_path,
        model_type=as_text(model.get("model_type")),
        chat_template=as_text(args.get("chat_template")),
        context=context,
        pool_tokens=pool,
        max_input=max_input or max(min(context, pool) - 1 - MAX_REQ_LEN_ABOVE_INPUT, 1),
        max_running=_max_running(args, states),
        page=as_int(args.get("page_size"), at_least=1) or 1,
        dp=_ranks(args, states),
        chunk=chunk,
        max_prefill=as_int(args.get("max_prefill_tokens"), at_least=1) or 16384,  # SGLang's default
        speculative_reserve=_speculative_reserve(args, version),
        conservativeness=as_positive(args.get("schedule_conservativeness")) or 1.0,
        max_queued=as_int(args.get("max_queued_requests"), at_least=0),
        metrics_enabled=as_flag(args.get("enable_metrics"), default=False),
        radix_disabled=as_flag(args.get("disable_radix_cache"), default=False),
        is_generation=as_flag(model.get("is_generation"), default=not embeds),
        has_images=as_flag(model.get("has_image_understanding"), default=False),
        started_key=_started_key(args, pool, version_text),
        warnings=tuple(_warnings(args, model, version, context_known=bool(names), chunk=chunk)),
        tool_parser=as_text(args.get("tool_call_parser")),
        thinks_apart=bool(as_text(args.get("reasoning_parser"))),
    )


def parse_adapters(models: object) -> tuple[str, ...]:
    """The LoRA adapters in a body of /v1/models, as they are asked for."""
    return _listed_adapters(as_list(as_dict(models).get("data")))


def parse_version(text: str) -> Version | None:
    """The three leading numbers of "0.5.17", "v0.5.17.post1" or "0.5.17rc1"; None for others."""
    match = re.match(r"v?(\d{1,9})\.(\d{1,9})\.(\d{1,9})", text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def _pool(args: JsonDict, states: list[JsonDict]) -> int:
    """KV tokens of the smallest rank. The top-level number is rank 0's alone."""
    sizes = [as_int(args.get("max_total_num_tokens"), at_least=1)]
    sizes += [
        as_int(as_dict(state.get("memory_usage")).get("token_capacity"), at_least=1)
        for state in states
    ]
    known = [size for size in sizes if size is not None]
    if not known:
        raise NotSGLangError(
            "its /server_info names no KV pool (max_total_num_tokens); "
            "point the gate at an SGLang server, not at a router or another engine"
        )
    return min(known)


def _served(args: JsonDict, rows: list[object]) -> tuple[tuple[str, ...], int | None]:
    """Names of the base model, and its context. LoRA adapters are listed with a parent."""
    base = [row for row in map(as_dict, rows) if not row.get("parent") and as_text(row.get("id"))]
    names = tuple(as_text(row.get("id")) for row in base)
    if not names and (name := as_text(args.get("served_model_name"))):
        names = (name,)
    contexts = [as_int(row.get("max_model_len"), at_least=1) for row in base]
    contexts.append(as_int(args.get("context_length"), at_least=1))
    return names, next((context for context in contexts if context is not None), None)


def _listed_adapters(rows: list[object]) -> tuple[str, ...]:
    """LoRA adapters by the names they are asked for (0.5.6-0.5.23): the one they are listed by, alone, is
    answered by the model without them."""
    return tuple(
        f"{parent}:{name}"
        for row in map(as_dict, rows)
        if (parent := as_text(row.get("parent"))) and (name := as_text(row.get("id")))
    )


def _ranks(args: JsonDict, states: list[JsonDict]) -> int:
    return as_int(args.get("dp_size"), at_least=1) or max(len(states), 1)


def _max_running(args: JsonDict, states: list[JsonDict]) -> int | None:
    """The limit in force (>= 0.5.12), else the argument, which is for all ranks together."""
    effective = [
        limit
        for state in states
        if (limit := as_int(state.get("effective_max_running_requests_per_dp"), at_least=1))
    ]
    if effective:
        return min(effective)
    asked = as_int(args.get("max_running_requests"), at_least=1)
    return None if asked is None else max(asked // _ranks(args, states), 1)


def _speculative_reserve(args: JsonDict, version: Version | None) -> int:
    """Tokens a speculative step may write past the sequence.

    0.5.6 reserves `speculative_num_draft_tokens` whatever the algorithm; from 0.5.12
    max(topk × steps, draft tokens), for EAGLE alone. Algorithms that reserve nothing there still
    write their drafts into the pool, so they are charged the draft tokens here.
    """
    algorithm = as_text(args.get("speculative_algorithm")).upper()
    if not algorithm or algorithm == "NONE":
        return 0
    draft = as_int(args.get("speculative_num_draft_tokens"), at_least=0) or 0
    eagle = "EAGLE" in algorithm or algorithm == "NEXTN"
    if not eagle or (version is not None and version < EAGLE_RESERVE_SINCE):
        return draft
    topk = as_int(args.get("speculative_eagle_topk"), at_least=0) or 0
    steps = as_int(args.get("speculative_num_steps"), at_least=0) or 0
    return max(topk * steps, draft)


def _started_key(args: JsonDict, pool: int, version_text: str) -> str:
    """A digest of what a new process draws afresh.

    From 0.5.17 `startup_time` holds measured durations to the nanosecond: two starts never agree.
    Before, `random_seed` is drawn at each start unless the operator pinned it, and the pool
    follows the memory that happened to be free. With a pinned seed before 0.5.17 and an equal pool
    two starts look alike: then only a failed connection tells them apart.
    """
    times = {
        name: seconds
        for name, seconds in sorted(as_dict(args.get("startup_time")).items())
        if isinstance(seconds, float)
    }
    drawn = [version_text, pool, str(args.get("random_seed")), times]
    return hashlib.sha256(json.dumps(drawn).encode()).hexdigest()[:16]


def _warnings(
    args: JsonDict,
    model: JsonDict,
    version: Version | None,
    *,
    context_known: bool,
    chunk: int | None,
) -> list[str]:
    """What the arguments mean for the people behind the gate."""
    found = [_version_warning(version)]
    if not context_known:
        found.append("The served model's name is not known: /v1/models did not answer.")
    if model.get("is_generation") is False or args.get("is_embedding") is True:
        found.append(
            "The model does not generate text: of embeddings, classify, score and rerank it serves what it can."
        )
    if chunk is None:
        found.append(
            "Chunked prefill is off: each prompt is prefilled in one step, "
            "so the longest prompt sets the peak of activation memory."
        )
    if as_flag(args.get("allow_auto_truncate"), default=False):
        found.append("--allow-auto-truncate is on: the engine cuts long prompts without a word.")
    if as_int(args.get("max_queued_requests"), at_least=0) is not None:
        found.append(
            "--max-queued-requests is set: a request that is retracted while that queue is full "
            "ends with an error in the middle of its answer."
        )
    if as_text(args.get("disaggregation_mode")) not in ("", "null"):
        found.append(
            "Prefill and decode run on separate servers; the gate plans for one that does both."
        )
    if as_flag(args.get("skip_tokenizer_init"), default=False):
        found.append("--skip-tokenizer-init is on: the engine takes token ids only.")
    return [warning for warning in found if warning]


def _version_warning(version: Version | None) -> str:
    if version is None:
        return "The server does not say its version; it is treated as a recent one."
    number = ".".join(map(str, version))
    if version < OLDEST:
        return f"SGLang {number} is older than 0.5.6, the oldest version this was checked against."
    if version[:2] > NEWEST[:2]:
        return f"SGLang {number} is newer than 0.5.23, the newest version this was checked against."
    return ""
