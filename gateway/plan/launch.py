"""A launch line, read the way the shell and argparse would, without keeping what it must not.

Values are kept of the arguments in `KEPT` and of the environment in `ENVIRONMENT` only; of keys it
is known that they were there. Anything else in the line, and anything that is no option, is dropped
here: it may be a secret, and nothing later needs it.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.plan.options import Option, Table, Version, table
from gateway.upstream.facts import parse_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Value = bool | int | float | str

KEYS = ("api_key", "admin_api_key")

KEPT = frozenset({
    "allow_auto_truncate", "chunked_prefill_size", "context_length", "device",
    "disable_radix_cache", "disaggregation_mode", "dp_size", "enable_cache_report",
    "enable_custom_logit_processor", "enable_dp_attention", "enable_metrics", "enable_mixed_chunk",
    "host", "kv_cache_dtype", "log_requests", "log_requests_level", "max_loras_per_batch",
    "max_prefill_tokens", "max_queued_requests", "max_running_requests", "max_total_tokens", "mem_fraction_static",
    "page_size", "schedule_conservativeness", "schedule_policy", "skip_tokenizer_init",
    "speculative_algorithm", "speculative_eagle_topk", "speculative_num_draft_tokens",
    "speculative_num_steps", "tp_size", "trust_remote_code",
})  # fmt: skip
"""Arguments whose values are kept: those a check reads."""

ENVIRONMENT = frozenset({
    "SGLANG_MAX_NEW_TOKENS_LIMIT",
    "SGLANG_REQUEST_STATE_WAIT_TIMEOUT",
    "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION",
})  # fmt: skip

SHOWN_OPTION = re.compile(r"--[a-z][a-z0-9-]{1,47}")
"""An option's name that may be repeated to people: words, not something pasted."""

_DASHES = "–—−"  # what editors and web pages make of --
_IMAGE = re.compile(r"sglang[\w./-]*:v?(\d+\.\d+\.\d+)")
_ASSIGNED = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)", re.DOTALL)
_NUMBER = re.compile(r"-?(\d{1,15}(\.\d{0,15})?|\.\d{1,15})([eE][+-]?\d{1,2})?", re.ASCII)


class LaunchError(ValueError):
    """The line can not be read. The message says why and repeats nothing of it."""


@dataclass(slots=True)
class LaunchLine:
    """What a line says."""

    version: Version | None = None  # told by the caller, else by the image's tag
    args: dict[str, Value] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)  # of KEYS: those given on the line
    environment: dict[str, str] = field(default_factory=dict)
    used: list[tuple[str, Option]] = field(default_factory=list)  # as written, and what it is
    unknown: list[str] = field(default_factory=list)  # names of options that do not exist
    elsewhere: list[Option] = field(default_factory=list)  # in another version only
    strays: int = 0  # words that belong to no option
    dashes: int = 0  # options written with a typographer's dash
    config_file: bool = False  # --config: what is in it is not seen here


def read_launch(text: str, version: Version | None = None) -> LaunchLine:
    """Read a line such as `python -m sglang.launch_server --model-path …`, docker and environment
    in front of it included. Raises LaunchError."""
    try:
        words = [word.strip() for word in shlex.split(re.sub(r"\\\s+", " ", text))]
    except ValueError:
        raise LaunchError("The line has a quote that is not closed.") from None
    words = [word for word in words if word]
    start = _after_program(words)
    if start is None:
        raise LaunchError(
            "The line starts no SGLang server: python -m sglang.launch_server, or sglang serve, "
            "is needed in it."
        )
    image = next((match for word in words if (match := _IMAGE.search(word))), None)
    line = LaunchLine(version=version or (parse_version(image[1]) if image else None))
    line.environment = _environment(words[:start])
    _read_options(line, words[start:], table())
    return line


def _after_program(words: Sequence[str]) -> int | None:
    for place, word in enumerate(words):
        if word.endswith(("sglang.launch_server", "launch_server.py")):
            return place + 1
        if word.rpartition("/")[2] == "sglang" and words[place + 1 : place + 2] == ["serve"]:
            return place + 2
    return None


def _environment(words: Iterable[str]) -> dict[str, str]:
    found = {}
    for word in words:
        match = _ASSIGNED.fullmatch(word.removeprefix("--env=").removeprefix("-e"))
        if match and match[1] in ENVIRONMENT and _NUMBER.fullmatch(match[2]):
            found[match[1]] = match[2]
    return found


def _read_options(line: LaunchLine, words: Sequence[str], known: Table) -> None:
    judged_by = None if line.version is None else known.nearest(line.version)
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if word[0] in _DASHES:
            line.dashes += 1
            word = "--" + word.lstrip(_DASHES + "-")
        if not word.startswith("--"):
            line.strays += 1
            continue
        name, equals, inline = word.partition("=")
        values = []
        while place < len(words) and not _is_option(words[place]):
            values.append(words[place])
            place += 1
        _take(line, known, judged_by, name, [inline, *values] if equals else values)


def _is_option(word: str) -> bool:
    if _NUMBER.fullmatch(word):
        return False
    return word[0] in _DASHES or word.startswith("--")


def _take(
    line: LaunchLine, known: Table, judged_by: Version | None, name: str, values: list[str]
) -> None:
    """One option and the words after it."""
    option = known.find(name, judged_by)
    if option is None:
        other = known.find(name, None)
        if other is None or other.name != name:
            line.unknown.append(name if SHOWN_OPTION.fullmatch(name) else "--…")
            return
        line.elsewhere.append(other)
        option = other
    line.used.append((name if SHOWN_OPTION.fullmatch(name) else option.name, option))
    line.strays += max(0, len(values) - {"0": 0, "1": 1, "?": 1}.get(option.takes, len(values)))
    if option.name == "--config":
        line.config_file = True
    elif option.sets in KEYS:
        line.keys.add(option.sets)
    elif option.sets in KEPT:
        line.args[option.sets] = _value(option, values)


def _value(option: Option, values: list[str]) -> Value:
    if option.takes == "0" or not values:
        return not option.name.startswith("--no-")
    text = values[0]
    if not _NUMBER.fullmatch(text):
        return text[:64]  # longer than any choice or address there is
    number = float(text)
    return int(number) if number.is_integer() and "." not in text else number
