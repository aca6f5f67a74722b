"""Log lines: JSON for machines, aligned text on a terminal, secrets in neither.

Theory of operation: one chain of processors serves our own lines (structlog) and those of libraries
(standard logging). It redacts by name and by pattern, escapes control characters (a client must not
be able to forge a line), shortens long text, and renders an exception as its type and frames: the
message of a foreign exception may quote what was being parsed.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import re
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, TextIO, cast

import orjson
import structlog
from structlog.stdlib import ProcessorFormatter

from gateway.core.model import Outcome
from gateway.observe.aside import Aside

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from types import TracebackType

    from structlog.typing import Processor

    from gateway.observe.record import Record

REDACTED = "[redacted]"
LEVELS = ("debug", "info", "warning", "error")

_SECRET_NAME = re.compile(
    r"(?i)(authorization|cookie|password|passwd|secret|credential|bearer"
    r"|(^|[_.-])(api[_-]?)?keys?$|(^|[_.-])token$)"
)
_SECRET_TEXT = (
    (re.compile(r"(?i)\b(bearer|basic)\s+\S+"), r"\1 " + REDACTED),
    (
        re.compile(r"(?i)((?:authorization|x-api-key|api[_-]?key|cookie)['\"]?\s*[:=]\s*)\S.*"),
        r"\1" + REDACTED,
    ),
    (re.compile(r"\b(?:sk|pk|hf|gsk|ghp)[-_][A-Za-z0-9_-]{4,}"), REDACTED),
    (re.compile(r"//[^/@\s]+@"), f"//{REDACTED}@"),
)
_SUSPECT = re.compile(
    r"(?i)bearer|basic|authorization|api[_-]?key|cookie|//|[sp]k[-_]|hf[-_]|gsk[-_]|ghp[-_]"
    r"|[\x00-\x1f\x7f-\x9f\u2028\u2029]"
)
"""What a text must hold for any pattern here to apply: most texts are passed by one search."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_LONGEST_TEXT = 500
"""Characters of one value. Our longest sentences are below 300; more is somebody's data."""
_DEEPEST = 4
_PLAIN = frozenset({int, float, bool, type(None)})
"""Values that hold no text."""
_LEVEL = {level: logging.getLevelNamesMapping()[level.upper()] for level in LEVELS}
_FRAMES = 12
"""Innermost stack frames shown: the way from a library's loop into our code and back fits."""


class Unbreakable:
    """A stream whose failures are its own: a full disk, a closed pipe or a closed file costs lines,
    never a request. Writes and flushes; everything else is the stream's. It waits as the stream does:
    see `aside` for a stream that may be stuck."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost = 0  # writes that failed

    def write(self, text: str) -> int:
        """Write if possible."""
        try:
            return self._stream.write(text)
        except (OSError, ValueError):
            self.lost += 1
            return 0

    def flush(self) -> None:
        """Flush if possible."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self.lost += 1

    def isatty(self) -> bool:
        """Whether somebody looks at it."""
        return not self._stream.closed and self._stream.isatty()


def configure(level: str = "info", stream: TextIO | None = None) -> None:
    """Send all logging to `stream` (default stderr): JSON lines, or text if it is a terminal.

    `level` is one of `LEVELS`. Libraries are heard from warning upwards whatever the level. May be
    called again; the last call holds.
    """
    # Typed as what it stands for: structlog and logging write and flush, nothing else.
    target = cast(
        "TextIO", _aside if stream is None and _aside else Unbreakable(stream or sys.stderr)
    )
    threshold = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        _with_always,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        frames_only,
        redact,
    ]
    renderer = _renderer(target)
    global _lines  # noqa: PLW0603  # there is one stderr, and one way of logging to it
    _lines = None if target.isatty() else _Lines(target, threshold)
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(target),
        cache_logger_on_first_use=False,  # a second call must reach loggers already in use
    )
    handler = _LibraryHandler(target)
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, _LibraryHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(max(threshold, logging.WARNING))


def write_aside() -> None:
    """From the next `configure` on, lines for stderr are written by a thread, see `aside`."""
    global _aside  # noqa: PLW0603  # there is one stderr
    with contextlib.suppress(OSError, ValueError):  # a stream without a file: written as it comes
        _aside = Aside(sys.stderr, warn=structlog.get_logger().warning)
        atexit.register(_aside.close)


def close_aside() -> None:
    """Write what waits, where the process ends without `atexit`."""
    if _aside is not None:
        _aside.close()


_aside: Aside | None = None


def always(**facts: object) -> None:
    """What every line of this process says from now on: which one of several it is."""
    _always.update(facts)


_always: dict[str, object] = {}


def _with_always(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    event.update(_always)
    return event


def request_line(log: Teller, record: Record) -> None:
    """The one line that tells how a request ended; a failure as a warning."""
    facts = {name: value for name, value in record.to_dict().items() if value is not None}
    (log.warning if record.outcome is Outcome.FAILED else log.info)("request", **facts)


class Teller(Protocol):
    """What tells of requests: a logger, or `Straight`."""

    def info(self, event: str, /, **facts: object) -> object:
        """Tell."""

    def warning(self, event: str, /, **facts: object) -> object:
        """Tell of a failure."""


class Straight:
    """A logger without exceptions: as `configure` said last, and JSON lines in one step. A chain of
    processors costs as much as counting a prompt, and one line is written for each request."""

    def __init__(self) -> None:
        self._log = structlog.get_logger()

    def info(self, event: str, /, **facts: object) -> None:
        """Tell."""
        if _lines is None:
            self._log.info(event, **facts)
        else:
            _lines.write("info", event, facts)

    def warning(self, event: str, /, **facts: object) -> None:
        """Tell of a failure."""
        if _lines is None:
            self._log.warning(event, **facts)
        else:
            _lines.write("warning", event, facts)


class _Lines:
    """The chain of `configure` for JSON lines without an exception."""

    def __init__(self, target: TextIO, threshold: int) -> None:
        self._target = target
        self._threshold = threshold

    def write(self, level: str, event: str, facts: dict[str, Any]) -> None:
        """Write one line, unless its level is not heard."""
        if _LEVEL[level] < self._threshold:
            return
        at = datetime.now(UTC).isoformat()
        facts |= _always | {"event": event, "level": level, "timestamp": at[: -len("+00:00")] + "Z"}
        self._target.write(_json(redact(None, level, facts)) + "\n")
        self._target.flush()


_lines: _Lines | None = None
"""Where JSON lines go since `configure`; None on a terminal."""


def redact(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Processor: no secret, no control character and no long text in any value, however nested."""
    for name, value in event.items():
        kind = type(value)
        if kind is str and value.isalnum() and len(value) <= _LONGEST_TEXT:
            kind = int  # no more to be hidden in it than in a number, see `_text`
        if kind not in _PLAIN or _secret_name(name):
            event[name] = _clean(name, value, _DEEPEST)
    return event


def frames_only(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Processor: an exception becomes its type, those of its causes, and its innermost frames."""
    info = event.pop("exc_info", None)
    error = sys.exception() if info is True else info[1] if isinstance(info, tuple) else info
    event.pop("stack_info", None)
    if isinstance(error, BaseException):
        event["exception"] = _types(error)
        event["frames"] = _frames(error.__traceback__)
    return event


class _LibraryHandler(logging.StreamHandler[TextIO]):
    """Our handler on the root logger, told apart from those of others (pytest has some)."""


def _renderer(stream: TextIO) -> Processor:
    if stream.isatty():
        return structlog.dev.ConsoleRenderer()
    return structlog.processors.JSONRenderer(serializer=_json)


def _json(event: object, **_: object) -> str:
    return orjson.dumps(event, default=str).decode()


def _clean(name: str, value: object, depth: int) -> object:
    if _secret_name(name):
        return REDACTED
    if isinstance(value, str):  # a StrEnum too: str() drops what else it carries
        return _text(str(value))
    if value is None or isinstance(value, int | float):
        return value
    return _clean_object(value, depth)


def _clean_object(value: object, depth: int) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if depth and isinstance(value, Mapping):
        return {_text(str(key)): _clean(str(key), inner, depth - 1) for key, inner in value.items()}
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [_clean("", inner, depth - 1) for inner in value]
    return _text(str(value))


@functools.lru_cache(maxsize=1024)  # the names are our own, and few
def _secret_name(name: str) -> bool:
    return bool(_SECRET_NAME.search(name))


def _text(text: str) -> str:
    if text.isalnum() and len(text) <= _LONGEST_TEXT:  # every pattern needs a mark or a blank
        return text
    if len(text) <= _LONGEST_TEXT and not _SUSPECT.search(text):
        return text
    for pattern, instead in _SECRET_TEXT:
        text = pattern.sub(instead, text)
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]}… ({len(text)} characters)"
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def _types(error: BaseException) -> str:
    names: list[str] = []
    link: BaseException | None = error
    while link is not None and len(names) < _FRAMES:
        names.append(type(link).__qualname__)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return " from ".join(names)


def _frames(trace: TracebackType | None) -> list[str]:
    frames = traceback.extract_tb(trace)[-_FRAMES:]
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
