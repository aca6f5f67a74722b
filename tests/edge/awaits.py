"""Where a request can be cancelled: every await of its way, by reading the source, and which of
them a coroutine stands at, by walking down what it waits for."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gateway

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(gateway.__file__).parent

# The modules of a request's way, and the coroutines in them that are not on it.
WAY: dict[str, set[str]] = {
    # They only call what is cut here; of what draining cuts, see test_drain.
    "edge/handler.py": {"_quick", "_generate"},
    "edge/lobby.py": {"for_model"},  # of a route without a record
    "edge/turnstile.py": set(),
    "edge/heartbeat.py": {"_beat", "_one"},  # a task of its own
    "edge/relay.py": set(),
    "edge/body.py": set(),
    "edge/open_door.py": set(),
    "edge/backend.py": {"gone", "make_counter", "token_ids"},
    "gate.py": {"idle"},
    "tokens/counter.py": {"_once"},  # of tokenizers here, which these servers have none of
    "upstream/client.py": {"close"},
    "upstream/reply.py": set(),
    "upstream/exchange.py": set(),
}

Place = tuple[str, int]
"""A module and a line."""


def awaits() -> dict[Place, str]:
    """Every await, `async with` and `async for` of the way, with its source line."""
    found: dict[Place, str] = {}
    for module, beside in WAY.items():
        text = (ROOT / module).read_text()
        lines = text.splitlines()
        for function in ast.walk(ast.parse(text)):
            if isinstance(function, ast.AsyncFunctionDef) and function.name not in beside:
                for line in _suspensions(function):
                    found[module, line] = lines[line - 1].strip()
    return found


def _suspensions(function: ast.AsyncFunctionDef) -> Iterator[int]:
    for node in ast.walk(function):
        if isinstance(node, ast.Await | ast.AsyncFor):
            yield node.lineno
        elif isinstance(node, ast.AsyncWith):
            for item in node.items:
                if not _is_timeout(item.context_expr):  # entering one never suspends
                    yield item.context_expr.lineno


def _is_timeout(expression: ast.expr) -> bool:
    return ast.unparse(expression).startswith(("asyncio.timeout", "in_time("))


def places(coroutine: Any) -> set[Place]:
    """Where in the gateway a suspended coroutine stands, from the outermost await to the innermost."""
    found: set[Place] = set()
    waits: Any = coroutine
    while inspect.iscoroutine(waits) or inspect.isgenerator(waits):
        is_coroutine = inspect.iscoroutine(waits)
        frame = waits.cr_frame if is_coroutine else waits.gi_frame
        if frame is not None:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(ROOT):
                found.add((str(path.relative_to(ROOT)), frame.f_lineno))
        waits = waits.cr_await if is_coroutine else waits.gi_yieldfrom
    return found
