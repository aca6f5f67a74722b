"""Strategies: JSON that is nearly right, header fields, HTTP and event-stream bytes."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from gateway.edge.dialects import guard
from tests.edge.rig import API_CHAT, API_GENERATE, CHAT, GENERATE, TEXT
from tests.fakes.typed import CLASSIFY, EMBEDDINGS, MESSAGES, RERANK, RESPONSES, SCORE

ODD_TEXT = st.sampled_from(
    [
        "", " ", "0", "-1", "4096", "1e3", "NaN", "null", "true", "\ud800", "\udfff\ud83d", "\x00", "💥" * 9,
        "<|im_end|>", "a" * 3000, "１２", "²", "١٢", "9" * 5000, "a b c",
    ]
)  # fmt: skip

ODD_NUMBERS = st.sampled_from(
    [
        0, -0.0, -1, -2, 1, 2, 7, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30, 1e308, 0.5, 1e-9, 300,
        float("inf"), float("nan"), 4096.0,
    ]
)  # fmt: skip

SCALARS = st.sampled_from([None, True, False]) | ODD_NUMBERS | ODD_TEXT

VALUES = SCALARS | st.one_of(
    st.lists(SCALARS, max_size=3),
    st.lists(st.lists(SCALARS, max_size=2), max_size=2),
    st.dictionaries(ODD_TEXT, SCALARS, max_size=2),
    st.sampled_from([[], {}, [[]], [{}], {"": {"": []}}, {"include_usage": 1}, [None] * 2000]),
)
"""What any field may turn out to hold. Sampled rather than grown: growing took a second a body."""

PARTS = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, VALUES),
    st.builds(lambda url: {"type": "image_url", "image_url": {"url": url}}, VALUES),
    st.builds(lambda kind, value: {"type": kind, "image_url": value}, VALUES, VALUES),
    VALUES,
)

BLOCK_KINDS = st.sampled_from(
    ["text", "image", "tool_use", "tool_result", "thinking", "search_result", "x"]
)

MESSAGES_OF_CHATS = st.lists(
    st.one_of(
        st.builds(lambda content: {"role": "user", "content": content}, ODD_TEXT),
        st.builds(lambda role, text: {"role": role, "content": text}, VALUES, VALUES),
        st.builds(lambda parts: {"role": "user", "content": parts}, st.lists(PARTS, max_size=2)),
        st.builds(
            lambda calls: {"role": "assistant", "content": None, "tool_calls": calls}, VALUES
        ),
        VALUES,
    ),
    max_size=3,
)

PROMPTS = st.one_of(
    ODD_TEXT,
    st.lists(ODD_TEXT, max_size=4),
    st.lists(st.integers(0, 9), max_size=6),
    st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=3),
    VALUES,
)

BLOCKS = st.one_of(
    PARTS,
    st.builds(lambda kind, value: {"type": kind, "content": value}, BLOCK_KINDS, VALUES),
    st.builds(lambda kind, value: {"type": kind, "source": value}, BLOCK_KINDS, VALUES),
    st.builds(lambda kind, value: {"type": kind, "input": value}, BLOCK_KINDS, VALUES),
    st.builds(lambda kind, value: {"type": kind, "thinking": value}, BLOCK_KINDS, VALUES),
)

TURNS = MESSAGES_OF_CHATS | st.lists(
    st.builds(
        lambda role, blocks: {"role": role, "content": blocks},
        st.sampled_from(["user", "assistant", "system"]),
        st.lists(BLOCKS, max_size=3),
    ),
    max_size=3,
)

ITEMS = st.one_of(
    VALUES,
    TURNS,
    st.lists(
        st.builds(
            lambda kind, name, value: {"type": kind, name: value},
            st.sampled_from(["function_call", "function_call_output", "reasoning", "message", "x"]),
            st.sampled_from(["arguments", "output", "summary", "content", "call_id", "role"]),
            VALUES,
        ),
        max_size=3,
    ),
)

PARAMS = st.dictionaries(
    st.sampled_from(["max_new_tokens", "min_new_tokens", "n", "regex", "beam_width", "stop"]),
    VALUES,
    max_size=2,
)

OPTIONS = st.dictionaries(
    st.sampled_from(["num_predict", "top_k", "seed", "stop", "temperature", "num_ctx", "rid"]),
    VALUES,
    max_size=3,
)

TURNS_OF_OLLAMA = MESSAGES_OF_CHATS | st.lists(
    st.builds(
        lambda role, name, value: {"role": role, "content": "a", name: value},
        st.sampled_from(["user", "assistant", "tool"]),
        st.sampled_from(
            ["images", "tool_calls", "tool_name", "thinking", "tool_call_id", "content"]
        ),
        VALUES
        | st.builds(
            lambda name, value: [{"function": {"name": name, "arguments": value}}], VALUES, VALUES
        ),
    ),
    max_size=3,
)

FIELDS_OF_BODIES = [
    "stream", "stream_options", "n", "model", "min_tokens", "logprobs", "top_logprobs", "stop", "echo",
    "tools", "tool_choice", "response_format", "user", "temperature", "chat_template_kwargs",
    "regex", "ebnf", "best_of", "return_logprob", "logprob_start_len", "image_data", "input_ids",
    "mm_processor_kwargs", "reasoning_effort", "max_tokens", "max_completion_tokens", "messages",
    "prompt", "text", "max_output_tokens", "system", "thinking", "instructions", "reasoning",
    "previous_response_id", "background", "output_config", "request_id", "query",
    "options", "format", "think", "images", "keep_alive", "raw", "suffix", "template", "context", *guard.STRIPPED, *guard.REFUSED,
]  # fmt: skip

EXTRA = st.lists(st.tuples(st.sampled_from(FIELDS_OF_BODIES), VALUES), max_size=3)

GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "a b"}]},
    TEXT: {"prompt": [1, 2, 3]},
    GENERATE: {"text": "a b", "sampling_params": {}},
    MESSAGES: {"messages": [{"role": "user", "content": "a b"}], "max_tokens": 4, "model": "m"},
    RESPONSES: {"input": "a b"},
    EMBEDDINGS: {"input": ["a b"]},
    CLASSIFY: {"input": "a b"},
    SCORE: {"query": "a", "items": ["b"]},
    RERANK: {"query": "a", "documents": ["b"]},
    API_CHAT: {"model": "m", "messages": [{"role": "user", "content": "a b"}]},
    API_GENERATE: {"model": "m", "prompt": "a b"},
}


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A good body in which a few fields are odd."""
    path = draw(st.sampled_from(list(GOOD)))
    body = {**GOOD[path], **dict(draw(EXTRA))}
    what = draw(st.integers(0, 3))
    if what == 0:
        field, values = {
            CHAT: ("messages", MESSAGES_OF_CHATS),
            TEXT: ("prompt", PROMPTS),
            GENERATE: ("text", PROMPTS),
            MESSAGES: ("messages", TURNS),
            RESPONSES: ("input", ITEMS),
            EMBEDDINGS: ("input", PROMPTS),
            CLASSIFY: ("input", PROMPTS),
            SCORE: ("items", PROMPTS),
            RERANK: ("documents", PROMPTS | st.lists(st.lists(PARTS, max_size=2), max_size=2)),
            API_CHAT: ("messages", TURNS_OF_OLLAMA),
            API_GENERATE: ("prompt", PROMPTS),
        }[path]
        body[field] = draw(values)
    elif what == 1 and path == GENERATE:
        body["sampling_params"] = draw(PARAMS | st.lists(PARAMS, max_size=3) | VALUES)
    elif what == 1 and path in (API_CHAT, API_GENERATE):
        body["options"] = draw(OPTIONS | VALUES)
    return path, body


def _bytes(value: Any) -> bytes:
    return json.dumps(value).encode()


JUNK = st.binary(min_size=1, max_size=4) | st.sampled_from([b"\xff", b"\xed\xa0\x80", b"\0"])
DEPTHS = st.sampled_from([100, 253, 254, 255, 1000, 50_000])
DIGITS = st.sampled_from([b"1" * 5000, b"1e999", b"-1e-999", b"NaN", b"Infinity", b"01", b"1."])
TWICE = st.sampled_from(["max_tokens", "n", "stream", "messages", "prompt", "rid"])


@st.composite
def raw_bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """A body as bytes: as it is, or spoilt in one of the ways of broken clients."""
    path, body = draw(bodies())
    data = _bytes(body)
    open_end = data[:-1] + (b"," if len(data) > 2 else b"")
    match draw(st.integers(0, 11)):
        case 0:
            data = data[: draw(st.integers(0, len(data)))]
        case 1:
            at = draw(st.integers(0, len(data)))
            data = data[:at] + draw(JUNK) + data[at:]
        case 2:  # a key twice: which one counts must not differ between us and the server
            name = draw(TWICE)
            twice = [_bytes({name: draw(VALUES)})[1:-1] for _ in range(2)]
            data = b"{" + b",".join([*twice, data[1:-1]]).rstrip(b",") + b"}"
        case 3:
            depth = draw(DEPTHS)
            data = open_end + b'"x":' + b"[" * depth + b"]" * depth + b"}"
        case 4:
            data = draw(st.binary(max_size=60))
        case 5:
            data = open_end + b'"max_tokens":' + draw(DIGITS) + b"}"
        case _:
            pass
    return path, data


NAMES = st.sampled_from(
    [
        "accept-encoding", "authorization", "x-api-key", "content-type", "content-encoding", "cookie",
        "connection", "keep-alive", "te", "trailer", "upgrade", "expect", "x-request-id", "forwarded",
        "x-data-parallel-rank", "x-override-rid", "x-body-compressed", "x-stainless-retry-count",
        "transfer-encoding", "content-length", "host", "proxy-authorization", "range", "if-match",
        "x-kvgate-backend", "http2-settings", "sec-websocket-key", "x-http-method-override",
    ]
) | st.text("abz-_!~0", min_size=1, max_size=9)  # fmt: skip

FIELD_VALUES = (
    st.sampled_from(
        [
            "",
            "close",
            "keep-alive",
            "gzip",
            "identity",
            "br",
            "chunked",
            "websocket",
            "100-continue",
            "gzip, chunked",
            "x-api-key, host",
            "0",
            "-1",
            "5",
            "99999999999999999999",
            "Bearer x",
            "a\tb",
            "é",
            "\x7f",
            "application/json; charset=utf-16",
            "multipart/form-data",
        ]
    )
    | st.text(
        st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=9
    )
    | st.sampled_from(["a" * 9000, "a" * 20_000])
)

FIELDS = st.lists(st.tuples(NAMES, FIELD_VALUES), max_size=5)

LINES = st.sampled_from(
    [
        b"POST /v1/completions HTTP/1.1", b"GET / HTTP/1.1", b"GET /v1/models HTTP/1.0", b"CONNECT a:1 HTTP/1.1",
        b"POST /generate HTTP/9.9", b"PRI * HTTP/2.0", b"POST /v1/completions", b"OPTIONS * HTTP/1.1",
        b"\x16\x03\x01\x02\x00", b"GET http://x/v1/models HTTP/1.1", b"post /generate http/1.1", b"",
    ]
)  # fmt: skip

RAW_FIELDS = st.sampled_from(
    [
        b"host: x", b"host:", b"content-length: 5", b"content-length: -5", b"content-length: 5, 5",
        b"transfer-encoding: chunked", b"transfer-encoding : chunked", b" folded: yes", b"nocolon",
        b"expect: 100-continue", b"connection: upgrade", b"upgrade: h2c", b"\xff\xfe: \x80", b"a: \x00",
        b"content-encoding: gzip", b"content-encoding: deflate", b"cookie: " + b"c" * 20_000, b"x:y\rz:w",
    ]
)  # fmt: skip

RAW_BODIES = st.sampled_from(
    [
        b"", b"hello", b'{"prompt":[1,2],"max_tokens":1}', b"5\r\nhello\r\n0\r\n\r\n", b"zz\r\n", b"-1\r\n\r\n",
        b"ffffffffffffffff1\r\n", b"0\r\nx: y\r\n\r\n", b"1;ext=\x00\r\na\r\n0\r\n\r\n", b"\x1f\x8b\x08junk",
    ]
)  # fmt: skip


@st.composite
def raw_requests(draw: st.DrawFn) -> bytes:
    """Bytes on the data port: requests, near-requests and noise, one or several."""
    out = b""
    for _ in range(draw(st.integers(1, 3))):
        end = draw(st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"]))
        head = [draw(LINES), *draw(st.lists(RAW_FIELDS, max_size=5))]
        out += end.join(head) + end + end + draw(RAW_BODIES | st.binary(max_size=30))
    return draw(st.sampled_from([out, out, out, out[: len(out) // 2]]) | st.binary(max_size=80))


EVENTS = st.sampled_from(
    [
        b'data: {"choices":[{"index":0,"delta":{"content":"w"},"finish_reason":null}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
        b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n',
        b'data: {"choices":[],"usage":{"prompt_tokens":-3,"completion_tokens":1e99}}\n\n',
        b'data: {"choices":{"0":1},"usage":[1],"error":null}\n\n',
        b'data: {"choices":[null,7,[],{"index":"a","finish_reason":{}}]}\n\n',
        b'data: {"error":{"message":"x","type":"SERVICE_UNAVAILABLE","code":503}}\n\n',
        b'data: {"error":{"message":7,"code":"\xd9\xa1"}}\n\n', b'data: {"error":"boom"}\n\n',
        b'data: {"error":{"code":99999999999999999999999,"type":[]}}\n\n',
        b'data: {"text":"w","meta_info":{"completion_tokens":1,"finish_reason":null},"index":0}\n\n',
        b'data: {"text":"w","meta_info":{"completion_tokens":99999999999999999999,"finish_reason":null}}\n\n',
        b'data: {"text":"","meta_info":{"finish_reason":{"type":"abort","status_code":503}}}\n\n',
        b'data: {"text":"","meta_info":{"finish_reason":{"type":"abort","status_code":true}}}\n\n',
        b'data: {"type":"message_start","message":{"usage":{"input_tokens":1e99}}}\n\n',
        b'data: {"type":"message_delta","delta":[],"usage":{"output_tokens":-1}}\n\n',
        b'data: {"type":"content_block_delta","delta":7}\n\n', b'data: {"type":"message_stop"}\n\n',
        b'data: {"type":["response.completed"],"response":[]}\n\n', b'data: {"type":"error","message":[]}\n\n',
        b'data: {"type":"response.completed","response":{"usage":{"input_tokens":"9"},"status":{}}}\n\n',
        b'data: {"type":"response.failed","response":7}\n\n',
        b'data: {"type":"response.completed","x":"' + b"y" * 70_000 + b'"}\n\n',
        b"data: [DONE]\n\n", b": ping\n\n", b"\n\n", b"data\n\n", b"data:\n\n", b"data: {\n\n", b"\r\n\r\n",
        b"event: error\ndata: {}\n\n", b"data: " + b"[" * 5000 + b"\n\n", b"data: " + b"9" * 5000 + b"\n\n",
        b'data: {"choices":[{"index":0,"delta":{"content":"' + b"y" * 70_000 + b'"}}]}\n\n', b"data: \xff\n\n",
    ]
)  # fmt: skip

CALLS = st.builds(
    lambda name, value, reason: _sse(
        {
            "choices": [
                {"delta": {"tool_calls": [{"function": {name: value}}]}, "finish_reason": reason}
            ]
        }
    ),
    st.sampled_from(["name", "arguments"]),
    VALUES | st.sampled_from(['{"a":', "1}", "{}", "[" * 2000]),
    st.sampled_from([None, None, "stop"]),
)
"""Pieces of calls of tools."""


def _sse(event: Any) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


STATUS_LINES = st.sampled_from(
    [b"HTTP/1.1 200 OK"] * 6
    + [
        b"HTTP/1.1 503 Busy", b"HTTP/1.1 429 Busy", b"HTTP/1.1 500 \xff\xfe", b"HTTP/1.1 204 None", b"HTTP/1.0 200 OK",
        b"HTTP/1.1 404", b"HTTP/1.1 101 Up", b"HTTP/1.1 999 What", b"HTTP/1.1 000 Nil", b"ICY 200 OK", b"HTTP/1.1 302 Go",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK", b"HTTP/2 200", b"HTTP/1.1 304 Same", b"HTTP/1.1 600 More",
    ]
)  # fmt: skip

ANSWER_FIELDS = st.sampled_from(
    [
        b"content-type: text/event-stream", b"content-type: text/event-stream", b"content-type: application/json",
        b"connection: close", b"connection: keep-alive", b"content-length: 7", b"content-length: -1", b"x: \xff\xc3",
        b"content-length: 99", b"transfer-encoding: gzip", b"content-encoding: br", b"set-cookie: a\x01b",
        b"x-request-id: theirs", b"x-kvgate-backend: theirs", b"connection: x-request-id", b"trailer: x", b"date:",
        b"upgrade: websocket", b"keep-alive: timeout=0", b"bad name: 1", b"x: " + b"h" * 70_000, b"x: " + b"h" * 9_000,
    ]
)  # fmt: skip


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """What a server may answer before it closes: streams, whole bodies, broken framing, noise."""
    body = b"".join(draw(st.lists(EVENTS, max_size=6)))
    fields = draw(st.lists(ANSWER_FIELDS, max_size=4))
    if draw(st.booleans()):
        fields.append(b"transfer-encoding: chunked")
        sizes = draw(st.lists(st.integers(1, 60), min_size=1, max_size=4))
        pieces, at = [], 0
        while at < len(body):
            size = sizes[len(pieces) % len(sizes)] * (1 if len(body) < 2000 else 999)
            pieces.append(body[at : at + size])
            at += size
        end = draw(
            st.sampled_from(
                [b"0\r\n\r\n", b"0\r\n\r\n", b"", b"x\r\n", b"0\r\nt: 1\r\n\r\n", b"0\r\n\r\nmore"]
            )
        )
        body = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + end
    whole = b"\r\n".join([draw(STATUS_LINES), *fields]) + b"\r\n\r\n" + body
    cut = draw(st.sampled_from([len(whole)] * 4 + [len(whole) // 2, len(whole) - 1]))
    return draw(st.sampled_from([whole[:cut]] * 9 + [draw(st.binary(max_size=60))]))
