"""The JSON that SGLang answers with, for each version: shapes taken from real responses.

Pure: values in, dictionaries out, `created` passed in. Key order is the real one, because clients
and caches see bytes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gateway.twin.asks import Dialect
from gateway.twin.jobs import Ending, Finished, Progress

if TYPE_CHECKING:
    from gateway.twin.asks import Ask
    from gateway.twin.versions import Traits

HTTP_BAD = 400
HTTP_BUSY = 503
END_OF_TEXT = 151_645  # <|im_end|>, what `matched_stop` names when the model stops by itself

Json = dict[str, Any]


def dumps(value: object) -> bytes:
    """Compact JSON, as SGLang's response class writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def event(value: object) -> bytes:
    """One server-sent event."""
    return b"data: " + dumps(value) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def stream_error(message: str, status: int) -> bytes:
    """A scheduler's abort inside a 200 stream. json.dumps defaults, hence the spaces."""
    kind = {400: "BAD_REQUEST", 503: "SERVICE_UNAVAILABLE"}.get(status, "INTERNAL_SERVER_ERROR")
    error = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
    return b"data: " + json.dumps({"error": error}).encode() + b"\n\n"


def openai_error(message: str, status: int, kind: str) -> Json:
    """The error object of the OpenAI routes; also /generate's for anything but a 400."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": status}


def usage(traits: Traits, prompt: int, completion: int) -> Json:
    """`usage` of the OpenAI routes."""
    body: Json = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
    }
    if traits.newest_bodies:
        body["completion_tokens_details"] = None
    return body


def metadata(traits: Traits, completion: int) -> Json:
    """`metadata` of a whole answer."""
    body: Json = {"weight_version": "default"}
    if traits.newest_bodies:
        body["weight_versions"] = [{"version": "default", "start": 0, "end": completion}]
    return body


def matched_stop(ending: Ending) -> int | None:
    """The stop token the model ended with, if it did."""
    return END_OF_TEXT if ending is Ending.STOP else None


def chat_choice(traits: Traits, index: int, text: str, ending: Ending) -> Json:
    """One choice of a whole chat answer."""
    message: Json = {"role": "assistant", "content": text, "reasoning_content": None}
    if not traits.newest_bodies:
        message["tool_calls"] = None
    return {
        "index": index,
        "message": message,
        "logprobs": None,
        "finish_reason": ending.value,
        "matched_stop": matched_stop(ending),
    }


def text_choice(index: int, text: str, ending: Ending | None) -> Json:
    """One choice of a completion, whole or a chunk of it."""
    return {
        "index": index,
        "text": text,
        "logprobs": None,
        "finish_reason": None if ending is None else ending.value,
        "matched_stop": None if ending is None else matched_stop(ending),
    }


def whole(traits: Traits, ask: Ask, created: int, choices: list[Json], out: int) -> Json:
    """A whole answer of the OpenAI routes."""
    return {
        "id": ask.sequences[0].rid,
        "object": "chat.completion" if ask.dialect is Dialect.CHAT else "text_completion",
        "created": created,
        "model": ask.model,
        "choices": choices,
        "usage": usage(traits, ask.prompt_tokens, out),
        "metadata": metadata(traits, out),
    }


def chat_chunk(ask: Ask, rid: str, created: int, choices: list[Json]) -> Json:
    """One event of a chat stream."""
    return {
        "id": rid,
        "object": "chat.completion.chunk",
        "created": created,
        "model": ask.model,
        "choices": choices,
    }


def chat_delta(index: int, delta: Json, ending: Ending | None = None) -> Json:
    """One choice of a chat stream's event."""
    return {
        "index": index,
        "delta": {"reasoning_content": None, **delta},
        "logprobs": None,
        "finish_reason": None if ending is None else ending.value,
        "matched_stop": None if ending is None else matched_stop(ending),
    }


def text_chunk(ask: Ask, rid: str, created: int, choices: list[Json], use: Json | None) -> Json:
    """One event of a completion stream; its `usage` is always there."""
    return {
        "id": rid,
        "object": "text_completion",
        "created": created,
        "model": ask.model,
        "choices": choices,
        "usage": use,
    }


def finish_reason(end: Finished) -> Json:
    """`meta_info.finish_reason` of /generate."""
    match end.ending:
        case Ending.LENGTH:
            return {"type": "length", "length": end.out}
        case Ending.STOP:
            return {"type": "stop", "matched": END_OF_TEXT}
        case Ending.ABORT if end.status is None:
            return {"type": "abort", "message": "Aborted by AbortReq."}
        case Ending.ABORT:
            body: Json = {"type": "abort", "message": end.message, "status_code": end.status}
            if end.status == HTTP_BAD:
                body["err_type"] = "BadRequestError"
            return body


def meta_info(traits: Traits, event: Progress | Finished, prompt: int) -> Json:
    """`meta_info` of /generate. Times are engine seconds."""
    job = event.job
    end = event if isinstance(event, Finished) else None
    if end is not None and end.status == HTTP_BUSY:  # never scheduled: the short form
        return {
            "id": job.rid,
            "finish_reason": finish_reason(end),
            "weight_version": "default",
            "e2e_latency": end.at - job.arrived,
            "completion_tokens": 0,
        }
    body: Json = {
        "id": job.rid,
        "finish_reason": None if end is None else finish_reason(end),
        "prompt_tokens": prompt if job.refusal is None else 1,
        "weight_version": "default",
        "num_retractions": job.retractions,
        "queue_time": max(0.0, job.admitted - job.arrived),
        "reasoning_tokens": 0,
        "completion_tokens": event.out,
        "cached_tokens": job.cached,
    }
    if traits.newest_bodies:
        body["weight_versions"] = [{"version": "default", "start": 0, "end": event.out}]
    body["cached_tokens_details"] = {"device": job.cached, "host": 0} if job.cached else None
    body["dp_rank"] = None
    if end is not None:
        body["e2e_latency"] = end.at - job.arrived
    return body
