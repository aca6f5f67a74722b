"""`kvgate count`: the prompt tokens of a file, a request body or a stream of either.

    kvgate count --tokenizer DIR FILE           a table by segment, and the total
    kvgate count --tokenizer DIR --jsonl FILE   one integer a line (FILE - is standard input)

DIR holds tokenizer.json and tokenizer_config.json. A body is known by its fields: `messages` (with
`system` or tools that have an `input_schema`: Anthropic's), `prompt`, `text` or `input_ids`. A FILE
that is no JSON object is counted as plain text.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import orjson

from gateway.cli.usage import UsageError, engine_version
from gateway.tokens import Counter, CountRefused, Kind, Method, Unavailable, build_counter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

OK: Final = 0
USAGE: Final = 2

_WIDTH: Final = 72  # characters of a segment that are shown


def run(argv: Sequence[str]) -> int:
    """The command's exit code: 0, or 2 with a sentence on stderr."""
    options = _parser().parse_args(argv)
    if (options.file is None) == (options.jsonl is None):
        return _fail("Give either a FILE or --jsonl FILE, where - is standard input.")
    try:
        asyncio.run(_count(options))
    except UsageError as error:
        return _fail(str(error))
    except BrokenPipeError:
        raise  # whoever reads the output has read enough
    except OSError as error:
        return _fail(f"{error.filename} cannot be read: {error.strerror}.")
    return OK


async def _count(options: argparse.Namespace) -> None:
    counter = await _counter(options)
    if options.jsonl is not None:
        await _count_lines(counter, options.jsonl)
    else:
        await _show(counter, options.file)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvgate count", description="Prompt tokens, as the served model counts them."
    )
    parser.add_argument(
        "file", nargs="?", metavar="FILE", help="text or a request body; - for stdin"
    )
    parser.add_argument("--tokenizer", required=True, type=Path, metavar="DIR")
    parser.add_argument("--jsonl", metavar="FILE", help="one body a line; - for stdin")
    parser.add_argument(
        "--engine-version", metavar="X.Y.Z", help="render chats as this SGLang does (newest known)"
    )
    parser.add_argument(
        "--fast",
        action="store_true",
        help="encode with fastokens (kvgate[fast]) if it counts alike",
    )
    return parser


def _fail(sentence: str) -> int:
    sys.stderr.write(f"kvgate count: {sentence}\n")
    return USAGE


async def _counter(options: argparse.Namespace) -> Counter:
    directory: Path = options.tokenizer
    if not (directory / "tokenizer.json").is_file():
        needed = f"{directory} must be a directory with a tokenizer.json in it."
        raise UsageError(needed)
    if options.engine_version is not None:
        engine_version(options.engine_version)  # else the newest would count, without a word
    counter = await build_counter(
        tokenizer_dir=directory,
        engine_version=options.engine_version,
        remote=None,
        fast=options.fast,
    )
    for note in counter.notes:
        sys.stderr.write(f"kvgate count: {note}\n")
    return counter


def kind_of(body: Mapping[str, Any]) -> Kind:
    """Whose body this is, by its fields."""
    if "messages" in body:
        tools = body.get("tools")
        listed = tools if isinstance(tools, list) else []
        schemas = any(isinstance(tool, dict) and "input_schema" in tool for tool in listed)
        return Kind.MESSAGES if "system" in body or schemas else Kind.CHAT
    return Kind.COMPLETION if "prompt" in body else Kind.GENERATE


async def _count_lines(counter: Counter, name: str) -> None:
    for number, line in enumerate(_lines(name), 1):
        if not line.strip():
            continue
        try:
            body = orjson.loads(line)
        except orjson.JSONDecodeError:
            needed = f"line {number} of {name} is not JSON."
            raise UsageError(needed) from None
        if not isinstance(body, dict):
            needed = f"line {number} of {name} must be a JSON object."
            raise UsageError(needed)
        try:
            counted = await counter.count(kind_of(body), body, len(line))
        except CountRefused as why:
            needed = f"line {number} of {name}: {why}"
            raise UsageError(needed) from None
        sys.stdout.write(f"{counted.total}\n")
    sys.stdout.flush()


def _lines(name: str) -> Iterator[bytes]:
    with _open(name) as file:
        yield from file


def _open(name: str) -> BinaryIO:
    return sys.stdin.buffer if name == "-" else Path(name).open("rb")


async def _show(counter: Counter, name: str) -> None:
    with _open(name) as file:
        content = file.read()
    body = _body(content, name)
    kind = kind_of(body)
    try:
        counted = await counter.count(kind, body, len(content))
    except CountRefused as why:
        needed = f"{name}: {why}"
        raise UsageError(needed) from None
    try:
        segments = counter.segments(kind, body)
    except Unavailable as why:
        segments = []
        sys.stderr.write(f"kvgate count: no segments to show ({why.reason}).\n")
    for text, tokens in segments:
        sys.stdout.write(f"{tokens:>9,}  {_shown(text)}\n")
    if counted.media:
        sys.stdout.write(f"{counted.media:>9,}  (media, beside their placeholders)\n")
    sys.stdout.write(f"{counted.total:>9,}  total{_how(counted.method)}\n")


def _body(content: bytes, name: str) -> dict[str, Any]:
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        value = None
    if isinstance(value, dict):
        return value
    try:
        return {"text": content.decode()}
    except UnicodeDecodeError:
        needed = f"{name} must be UTF-8 text or a JSON body."
        raise UsageError(needed) from None


def _shown(text: str) -> str:
    if not text:
        return "(no text: token ids, or special tokens put around it)"
    shown = repr(text[: _WIDTH + 1])[1:-1]
    return shown if len(shown) <= _WIDTH else shown[: _WIDTH - 1] + "…"


def _how(method: Method) -> str:
    return "" if method is Method.EXACT else f" ({method})"
