"""A server that costs next to nothing, so that what is measured is what stands before it.

Answers discovery like SGLang 0.5.23 with a pool that never binds, chats at once, and streams with
CHUNKS events, GAP seconds apart. `python -m tests.bench.upstream PORT [POOL]`; with a POOL of
its own (tokens) it is small, and no chat is ever answered: for measuring those that wait.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httptools
import uvloop

POOL = int(sys.argv[2]) if len(sys.argv) > 2 else 100_000_000
CHUNKS, GAP = 200, 0.01
SILENT = len(sys.argv) > 2
PROBE_BYTES = 1000  # what asks whether a target is up is shorter
INFO = {
    "version": "0.5.23",
    "model_path": "m",
    "served_model_name": "m",
    "max_total_num_tokens": POOL,
    "max_req_input_len": 999_994,
    "chunked_prefill_size": 1 << 30,
    "internal_states": [{"effective_max_running_requests_per_dp": 1 << 20}],
}
LOAD = {
    "dp_rank": 0,
    "num_running_reqs": 0,
    "num_waiting_reqs": 0,
    "num_used_tokens": 0,
    "num_total_tokens": 0,
    "max_total_num_tokens": POOL,
}
GETS: dict[bytes, Any] = {
    b"/server_info": INFO,
    b"/model_info": {"model_path": "m", "is_generation": True},
    b"/v1/models": {"object": "list", "data": [{"id": "m", "max_model_len": 1_000_000}]},
    b"/v1/loads": {"version": "0.5.23", "loads": [LOAD]},
}
COUNT = {"count": 500, "max_model_len": 1_000_000, "tokens": []}
CHAT = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello" * 20},
            "finish_reason": "stop",
        }
    ],
    "usage": {"completion_tokens": 20, "total_tokens": 20},  # what was counted is not judged
}
EVENT = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":'
    b'0,"delta":{"reasoning_content":null,"content":" token"},"logprobs":null,"finish_reason":null,'
    b'"matched_stop":null}]}\n\n'
)
LAST = EVENT.replace(b'"finish_reason":null', b'"finish_reason":"stop"') + b"data: [DONE]\n\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _json(value: Any) -> bytes:
    body = json.dumps(value).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


ANSWERS = {path: _json(value) for path, value in GETS.items()}
COUNTED, CHATTED, NONE = _json(COUNT), _json(CHAT), _json({})


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Server(asyncio.Protocol):
    def connection_made(self, transport) -> None:
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.tasks: set[asyncio.Task[None]] = set()

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):  # is this HTTP/2? no
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n")
            self.transport.close()

    def on_url(self, url: bytes) -> None:
        self.url, self.headers, self.body = url.partition(b"?")[0], {}, b""

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        if self.parser.get_method() == b"GET":
            self.transport.write(ANSWERS.get(self.url, NONE))
        elif b"tokenize" in self.url:
            self.transport.write(COUNTED)
        elif SILENT and len(self.body) > PROBE_BYTES:
            pass
        elif b'"stream":true' in self.body or b'"stream": true' in self.body:
            task = asyncio.get_running_loop().create_task(self.stream())
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        else:
            self.transport.write(CHATTED)

    async def stream(self) -> None:
        chunks, gap = CHUNKS, GAP
        self.transport.write(STREAM)
        for _ in range(chunks - 1):
            if self.transport.is_closing():
                return
            self.transport.write(_framed(EVENT))
            await asyncio.sleep(gap)
        self.transport.write(_framed(LAST) + b"0\r\n\r\n")


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
