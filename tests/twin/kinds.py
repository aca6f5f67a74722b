"""Every kind of request a client may send, right and wrong, and what a genuine SGLang 0.5.17 said.

`answers.jsonl` holds a line a request: what was sent, and the *gist* of the answer (see `gist`).
`tests/real/test_twin_bodies.py` asks a genuine server again and writes the file anew when told to;
`test_kinds.py` asks the twin.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp

ANSWERS = Path(__file__).with_name("answers.jsonl")

# Errors of pydantic as SGLang prints them: what is wrong, and with which field.
_ERRORS = re.compile(r"\{'type': '(\w+)', 'loc': \('body'(?:, ['\"]?(\w+))?")
_WORDS = re.compile(r"@words (\d+)")  # a long text, told shortly
# Words that stand for a value of their own in every answer.
_OWN = ("id", "created", "model", "object", "finish_reason", "type", "role", "stop_reason")


@dataclass(frozen=True)
class Kind:
    """One request. `raw` is sent as it is; otherwise `body` as JSON."""

    path: str
    body: dict[str, Any] | None = None
    raw: str | None = None
    media: str = "application/json"
    method: str = "POST"

    @property
    def data(self) -> bytes:
        if self.raw is not None:
            return self.raw.encode("latin-1")
        text = json.dumps(self.body)
        return _WORDS.sub(lambda found: "word " * int(found[1]), text).encode()

    @property
    def headers(self) -> dict[str, str]:
        return {"content-type": self.media} if self.media else {}

    @property
    def name(self) -> str:
        said = self.raw if self.raw is not None else json.dumps(self.body)
        return f"{self.method} {self.path} {self.media} {said[:120]}"


def known() -> list[tuple[Kind, dict[str, Any]]]:
    """The kinds with the gist of the real answer to each."""
    lines = [json.loads(line) for line in ANSWERS.read_text().splitlines()]
    return [(Kind(**line["ask"]), line["answer"]) for line in lines]


def gist(status: int, media: str | None, text: str) -> dict[str, Any]:
    """What two servers must agree on: status, media type, error, and the shape of a success."""
    kind = (media or "").partition(";")[0]
    return {"status": status, "media": kind, "body": _body(kind, text)}


def _body(media: str, text: str) -> Any:
    if media == "text/event-stream":
        events = [_event(event) for event in text.split("\n\n") if event.strip()]
        return [event for at, event in enumerate(events) if at == 0 or event != events[at - 1]]
    if media != "application/json" or not text:
        return text
    return shape(json.loads(text))


def _event(event: str) -> Any:
    head, _, data = event.rpartition("data: ")
    return [head.strip(), data if data == "[DONE]" else shape(json.loads(data))]


def shape(value: Any, key: str = "") -> Any:
    """Keys in order, types of leaves; errors and the protocol's own words as they are."""
    if isinstance(value, dict):
        if "message" in value and not isinstance(value["message"], dict):
            return {name: told(item) if name == "message" else item for name, item in value.items()}
        return {name: shape(item, name) for name, item in value.items() if name not in TIMES}
    if isinstance(value, list):
        if value and not isinstance(value[0], dict | list):
            return ["..."]
        return [shape(item) for item in value]
    if value is None or key in _OWN[3:]:
        return value
    return type(value).__name__


# Of /generate's meta_info: clocks of the machine, which a twin has no use for.
TIMES = (
    "forward_entry_time",
    "prefill_finished_time",
    "request_received_ts",
    "api_server_dispatch_finish_ts",
    "request_finished_ts",
    "response_sent_to_client_ts",
    "decode_throughput",
)


def told(message: str) -> Any:
    """An error's words. Of pydantic's: what is wrong with which field, each once; of a message's
    content only that it is wrong, because its many alternatives are listed in full."""
    if "validation error" not in message:
        # Two tokenizers count differently, and name the kinds of content blocks in their own way.
        return re.sub(r"list\[.*\]", "list[...]", re.sub(r"\d+ tokens", "N tokens", message))
    found = {(kind, field) for kind, field in _ERRORS.findall(message.partition("\n\n")[0])}
    if not found:
        return message
    if any(field in {"messages", "system", "response_format"} for _, field in found):
        return sorted({field for _, field in found})
    return sorted(f"{field}: {kind}" for kind, field in found)


async def ask(session: aiohttp.ClientSession, url: str, kind: Kind) -> dict[str, Any]:
    """The shape of a server's answer to one request."""
    async with session.request(
        kind.method,
        url + kind.path,
        data=kind.data if kind.method == "POST" else None,
        headers=kind.headers,
        skip_auto_headers=["content-type"],
        allow_redirects=False,
    ) as reply:
        return gist(reply.status, reply.headers.get("content-type"), await reply.text())
