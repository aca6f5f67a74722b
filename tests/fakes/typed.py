"""How the fake engine words Anthropic's messages, OpenAI's responses and the routes without output.

Shapes from genuine 0.5.17 answers. Events of the first two have a type, and their streams no [DONE].
"""

from __future__ import annotations

import json
from typing import Any

from gateway.tokens.anthropic import chat_from_messages
from gateway.tokens.responses import chat_from_responses

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
EMBEDDINGS, CLASSIFY = "/v1/embeddings", "/v1/classify"
SCORE, RERANK = "/v1/score", "/v1/rerank"
TYPED = (MESSAGES, RESPONSES)
MUTE = (EMBEDDINGS, CLASSIFY, SCORE, RERANK)
"""They generate nothing."""

Json = dict[str, Any]
KINDS = {400: "invalid_request_error", 503: "overloaded_error"}


def readable(path: str, body: Json) -> Json:
    """A body with its prompts where the fake's counting looks for them."""
    match path:
        case "/v1/messages":
            return chat_from_messages(body)
        case "/v1/responses":
            return chat_from_responses(body)
        case "/v1/embeddings" | "/v1/classify":
            return {"prompt": body["input"]}
        case "/v1/score" | "/v1/rerank":
            query, items = body["query"], body.get("items", body.get("documents"))
            many = [items] if isinstance(items, str) else items
            if isinstance(query, list) and query and isinstance(query[0], int):
                return {"prompt": [query + item for item in many]}
            return {"prompt": [f"{_text(query)} {_text(item)}" for item in many]}
        case _:
            return body


def _text(content: Any) -> str:
    parts = content if isinstance(content, list) else [{"text": content}]
    return " ".join(part.get("text", "") for part in parts)


def first_events(path: str, rid: str, model: str, prompt: int) -> list[Json]:
    """What a stream begins with, also one that is then refused."""
    if path == MESSAGES:
        usage = {"input_tokens": prompt, "output_tokens": 0}
        message = {"id": f"msg_{rid}", "type": "message", "role": "assistant", "content": []}
        return [{"type": "message_start", "message": message | {"model": model, "usage": usage}}]
    begun = response(rid, model, "in_progress", "", None)
    kinds = ("response.created", "response.in_progress")
    return [
        {"type": kind, "sequence_number": at, "response": begun} for at, kind in enumerate(kinds)
    ]


def opening(path: str) -> list[Json]:
    """What comes right before the first text."""
    if path == MESSAGES:
        block = {"type": "text", "text": ""}
        return [{"type": "content_block_start", "index": 0, "content_block": block}]
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress"}
    added = {"output_index": 0, "item": item | {"content": []}}
    part = {"type": "output_text", "text": "", "annotations": []}
    where = {"output_index": 0, "item_id": "msg_1", "content_index": 0}
    return [
        {"type": "response.output_item.added", "sequence_number": 2, **added},
        {"type": "response.content_part.added", "sequence_number": 3, **where, "part": part},
    ]


def delta(path: str, made: int, text: str) -> Json:
    """One token."""
    if path == MESSAGES:
        said = {"type": "text_delta", "text": text}
        return {"type": "content_block_delta", "index": 0, "delta": said}
    where = {"output_index": 0, "item_id": "msg_1", "content_index": 0, "logprobs": []}
    return {
        "type": "response.output_text.delta", "sequence_number": 3 + made, **where, "delta": text,
    }  # fmt: skip


def last_events(path: str, rid: str, model: str, usage: Json, text: str, finish: str) -> list[Json]:
    """What a stream ends with."""
    if path == MESSAGES:
        reason = {"stop_reason": stop_reason(finish)}
        made = {"output_tokens": usage["output_tokens"]}
        return [
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": reason, "usage": made},
            {"type": "message_stop"},
        ]
    whole = response(rid, model, "completed", text, usage)
    return [{"type": "response.completed", "sequence_number": 99, "response": whole}]


def stop_reason(finish: str) -> str:
    """Anthropic's word for OpenAI's."""
    return "max_tokens" if finish == "length" else "end_turn"


def response(rid: str, model: str, status: str, text: str, usage: Json | None) -> Json:
    """A response of OpenAI's responses."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": None}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
    return {
        "id": rid,
        "object": "response",
        "created_at": 1795961838,
        "model": model,
        "output": [item | {"content": [part]}] if text else [],
        "status": status,
        "usage": usage,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
    }


def parts(prompt: int, made: int) -> Json:
    """`usage` with input and output."""
    return {"input_tokens": prompt, "output_tokens": made, "total_tokens": prompt + made}


def whole(
    path: str, rid: str, model: str, prompts: list[int], text: str, finish: str, made: int
) -> Any:
    """An answer that is not streamed."""
    prompt = sum(prompts)
    usage = {"prompt_tokens": prompt, "total_tokens": prompt, "completion_tokens": 0}
    match path:
        case "/v1/messages":
            return {
                "id": f"msg_{rid}", "type": "message", "role": "assistant", "model": model,
                "content": [{"type": "text", "text": text}], "stop_reason": stop_reason(finish),
                "usage": {"input_tokens": prompt, "output_tokens": made},
            }  # fmt: skip
        case "/v1/responses":
            return response(rid, model, "completed", text, parts(prompt, made))
        case "/v1/score":
            return {
                "scores": [[0.5]] * len(prompts),
                "model": model,
                "usage": usage,
                "object": "scoring",
            }
        case "/v1/rerank":
            return [{"score": 0.5, "document": "w", "index": i} for i in range(len(prompts))]
        case "/v1/classify":
            rows = [
                {"index": i, "label": "A", "probs": [1.0], "num_classes": 1}
                for i in range(len(prompts))
            ]
            return {"object": "list", "data": rows, "model": model, "usage": usage}
        case _:
            rows = [
                {"object": "embedding", "embedding": [0.5, 0.25], "index": i}
                for i in range(len(prompts))
            ]
            return {"object": "list", "data": rows, "model": model, "usage": usage}


def error(path: str, status: int, message: str) -> Json:
    """An error of these two, whole or as an event."""
    if path == MESSAGES:
        return {
            "type": "error",
            "error": {"type": KINDS.get(status, "api_error"), "message": message},
        }
    said = {"message": message, "type": "server_error", "param": None, "code": status}
    return {"error": said}


def sse(event: Json) -> bytes:
    """An event with its type."""
    return f"event: {event['type']}\n".encode() + b"data: " + json.dumps(event).encode() + b"\n\n"
