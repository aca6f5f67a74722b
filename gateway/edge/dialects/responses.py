"""OpenAI's responses, as SGLang serves them: one answer to one conversation that comes whole.

What the engine would keep or do on its own is not let through: a stored conversation has a length
that nobody here has counted, an answer in the background goes on after its client has left, and a
built-in tool makes the engine generate again and again, each time with all that is left of the
context for a cap (0.5.6-0.5.23). So `store` is always sent as false, and of the tools go on those
that the client runs itself. Agents list others beside them, whoever serves them (Codex: a search
of the web); the engine shows these to none but a few models, and a request is no worse without.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from gateway.edge import voices
from gateway.edge.dialects import FIRST, Body, Engine, Intent, Invalid, grammars, guard, hazards
from gateway.tokens import Kind

if TYPE_CHECKING:
    from gateway.core.model import Grant

CAP = "max_output_tokens"
OURS = ("function", "custom")
"""The kinds of tools that the client runs itself, and that are counted. The second takes a text: to the model
it is a function with one argument (0.5.23), or nothing (0.5.17)."""

KINDS = frozenset(
    {
        *(
            "apply_patch",
            "code_interpreter",
            "computer",
            "computer_use_preview",
            "file_search",
            "image_generation",
        ),
        *("local_shell", "mcp", "namespace", "programmatic_tool_calling", "shell", "tool_search"),
        *("web_search", "web_search_preview"),
    }
)
"""Kinds of tools of others, as openai-python 3.57 lists them (less the dates at their ends). A client may send any
word, so what is told of those left out is one of these, or OTHER."""
OTHER = "other"

LEAST = 3
"""The engine takes two tokens off this cap (0.5.6-0.5.23), and refuses what is then negative."""

KEPT = {
    "previous_response_id": "conversations are not kept here; send the whole of it as `input`",
    "conversation": "conversations are not kept here; send the whole of it as `input`",
    "background": "an answer in the background would outlive its reservation",
}
TOOLS_FROM = (0, 5, 13)
"""Before, it knows only tools of its own here, and a function is a bare 500 (0.5.12; of 0.5.6 read)."""
TOLD_FROM = (0, 5, 23)
UNTOLD = frozenset({"none", "xhigh", "max"})
"""Efforts that the engine takes, but cannot name where its stream repeats what was asked: the stream ends
before its first event (0.5.17). 0.5.6 says 400 itself."""
_DATED = re.compile(r"[a-z_]+?(?=(?:_\d{4}_\d{2}_\d{2})?\Z)")
"""A kind without its version (`web_search_2025_08_26`)."""
STRIPPED = ("request_id", "session_id", "data_parallel_rank")


class Responses:
    """POST /v1/responses."""

    voice: voices.Voice = voices.RESPONSES
    since = FIRST
    named = True
    steered = False

    def read(self, body: Body) -> Intent:
        """See `Dialect.read`."""
        guard.check(body)
        for field, why in KEPT.items():
            if body.get(field) not in (None, False):
                msg = f"{field} is not allowed through this gate: {why}"
                raise Invalid(msg, field)
        if not body.get("input"):
            raise Invalid("input is missing", "input")
        left_out = _check_tools(body.get("tools"))
        compile_s = grammars.check_tools(body) + grammars.check_within(body, "text")
        hazards.check_top(body.get("top_logprobs"), "top_logprobs")
        hazards.check_numbers(body)
        hazards.check_ranges(body)
        cap = guard.cap(body.get(CAP), CAP, zero_is_unset=False)
        if cap is not None and cap < LEAST:
            msg = f"{CAP} must be at least {LEAST}"
            raise Invalid(msg, CAP)
        return Intent(
            kind=Kind.RESPONSES,
            cap=cap,
            usual=None,
            n=1,
            stream=guard.flag(body.get("stream"), "stream"),
            model=guard.name(body.get("model")),
            compile_s=compile_s,
            tools_left_out=left_out,
        )

    def write(self, body: Body, intent: Intent, grant: Grant, rid: str, engine: Engine) -> bytes:
        """See `Dialect.write`."""
        effort = _effort(body)
        if intent.stream and effort in UNTOLD and engine.version < TOLD_FROM:
            version = ".".join(map(str, engine.version))
            msg = (
                f"reasoning.effort {effort!r} breaks a stream of SGLang {version}; send it without stream, or send "
                "minimal, low, medium or high"
            )
            raise Invalid(msg, "reasoning")
        if body.get("tools") and engine.version < TOOLS_FROM:
            version = ".".join(map(str, engine.version))
            msg = (
                f"SGLang {version} takes no such tools in responses; ask with /v1/chat/completions"
            )
            raise Invalid(msg, "tools")
        out = {key: value for key, value in guard.strip(body).items() if key not in STRIPPED}
        out[CAP] = grant.demand.cap
        out["request_id"] = rid
        out["store"] = False
        if tools := out.get("tools"):
            out["tools"] = [tool for tool in tools if tool["type"] in OURS]
        if "stream" in out:
            out["stream"] = intent.stream
        return guard.dump(out)


def _effort(body: Body) -> str | None:
    reasoning = body.get("reasoning")
    effort = reasoning.get("effort") if isinstance(reasoning, dict) else None
    return effort if isinstance(effort, str) else None


def _check_tools(tools: object) -> str | None:
    """Which of them will be left out, if any. Whoever lists only such wants just these, and is told.
    Raises Invalid."""
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise Invalid("tools must be a list", "tools")
    for tool in tools:
        if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
            raise Invalid("a tool must be an object with a type", "tools")
    if tools and not any(tool["type"] in OURS for tool in tools):
        msg = (
            f"only tools of type {' or '.join(OURS)} are allowed through this gate: the engine runs the others "
            "itself, without a cap, or not at all"
        )
        raise Invalid(msg, "tools")
    kinds = Counter(_kind(tool["type"]) for tool in tools if tool["type"] not in OURS)
    return " ".join(f"{kind}={kinds[kind]}" for kind in sorted(kinds)) or None


def _kind(word: str) -> str:
    return found[0] if (found := _DATED.match(word)) and found[0] in KINDS else OTHER
