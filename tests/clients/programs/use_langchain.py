"""What LangChain makes of a gate's answers: `use_langchain.py URL`. Prints what it saw as one line of JSON."""

from __future__ import annotations

import json
import sys

from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

LONG = "sea " * 9000


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def too_long(model: ChatOpenAI, *, stream: bool) -> bool:
    """Whether it tells that a prompt is too long from any other error: its agents make room then."""
    try:
        list(model.stream(LONG)) if stream else model.invoke(LONG)
    except ContextOverflowError:
        return True
    return False


def main() -> None:
    """Ask and print."""
    model = ChatOpenAI(model="tiny", base_url=f"{sys.argv[1]}/v1", api_key="sk-any", max_tokens=8)
    call = {"name": "add", "args": {"a": 1, "b": 1}, "id": "call_0"}
    turns = [
        HumanMessage("1 + 1"),
        AIMessage("", tool_calls=[call]),
        ToolMessage("2", tool_call_id="call_0"),
    ]
    pieces = list(model.stream("hi", stream_usage=True))
    print(
        json.dumps(
            {
                "output": model.invoke("hi").usage_metadata["output_tokens"],
                "stream": sum(bool(piece.content) for piece in pieces),
                "tools": model.bind_tools([add]).invoke(turns).usage_metadata["output_tokens"],
                "many": len(model.batch(["hi"] * 12)),
                "too_long": [too_long(model, stream=stream) for stream in (False, True)],
            }
        )
    )


if __name__ == "__main__":
    main()
