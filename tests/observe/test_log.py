"""Log lines: one a request, no secret, no forged line, no message of a foreign exception."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING, Any, get_args

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.model import Outcome
from gateway.observe import log as logging_of_ours
from gateway.observe.log import LEVELS, REDACTED, Straight, configure, redact, request_line
from gateway.policy.schema import Observe

from .made_up import finished, refused

if TYPE_CHECKING:
    from collections.abc import Iterator


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(logging_of_ours, "_lines", None)
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in [h for h in root.handlers if h not in before]:
        root.removeHandler(handler)
    root.setLevel(level)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_one_json_line_per_request_without_the_unknown() -> None:
    stream = io.StringIO()
    configure("info", stream)
    request_line(structlog.get_logger(), finished())
    (line,) = lines(stream)
    assert line["event"] == "request"
    assert line["level"] == "info"
    assert line["cap_source"] == "injected"
    assert line["kv_reserved"] == 27_193
    assert "code" not in line


def test_a_failure_is_a_warning() -> None:
    stream = io.StringIO()
    configure("warning", stream)
    request_line(structlog.get_logger(), refused())
    request_line(structlog.get_logger(), finished(outcome=Outcome.FAILED))
    assert [line["level"] for line in lines(stream)] == ["warning"]


def test_a_terminal_gets_text() -> None:
    stream = Terminal()
    configure("debug", stream)
    structlog.get_logger().debug("server_ready", backend="gpu0")
    assert "server_ready" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_libraries_go_the_same_way_from_warning_upwards() -> None:
    stream = io.StringIO()
    configure("debug", stream)
    logging.getLogger("aiohttp").info("chatter")
    logging.getLogger("aiohttp").warning("lost %s", "Authorization: Bearer sk-planted")
    (line,) = lines(stream)
    assert line["event"] == f"lost Authorization: {REDACTED}"


def test_configuring_again_replaces() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure("info", first)
    log = structlog.get_logger()
    configure("error", second)
    log.warning("quiet")
    log.error("loud")
    logging.getLogger("x").error("library")
    assert first.getvalue() == ""
    assert [line["event"] for line in lines(second)] == ["loud", "library"]


def fail_twice(text: str) -> None:
    try:
        int(text)  # its message quotes the text
    except ValueError as error:
        raise KeyError(text) from error


def test_an_exception_is_told_by_type_and_place_only() -> None:
    stream = io.StringIO()
    configure("info", stream)
    secret = "the user's whole prompt"
    for log in (structlog.get_logger(), logging.getLogger("lib")):
        try:
            fail_twice(secret)
        except KeyError:
            log.exception("broken")
    assert "prompt" not in stream.getvalue()
    for line in lines(stream):
        assert line["exception"] == "KeyError from ValueError"
        assert "test_log.py" in line["frames"][-1]


PLANTED = "sk-planted-0123456789"


@pytest.mark.parametrize(
    "facts",
    [
        {"authorization": PLANTED},
        {
            "headers": {
                "Authorization": PLANTED,
                "X-Api-Key": PLANTED,
                "Cookie": PLANTED,
                "set-cookie": PLANTED,
            }
        },
        {
            "api_key": PLANTED,
            "key": PLANTED,
            "apikey": PLANTED,
            "client_secret": PLANTED,
            "token": PLANTED,
        },
        {"text": f"Bearer {PLANTED}"},
        {"text": f"curl -H 'x-api-key: {PLANTED}' x"},
        {"url": f"http://user:{PLANTED}@box/"},
        {"nested": [{"deep": {"password": PLANTED}}, (f"Basic {PLANTED}",)]},
        {"bytes": PLANTED.encode()},
        {"object": type("Leaky", (), {"__str__": lambda self: f"key={PLANTED}"})()},
        {"text": f"in the middle {PLANTED} of a sentence"},
    ],
)
@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_planted_secret_is_in_no_output(facts: dict[str, Any], stream: type[io.StringIO]) -> None:
    out = stream()
    configure("debug", out)
    log = structlog.get_logger().bind(**facts)
    log.info("hello", **facts)
    log.info("event %s", PLANTED)
    logging.getLogger("lib").error("%s", facts.get("text", PLANTED))
    structlog.contextvars.bind_contextvars(authorization=PLANTED)
    log.warning("bound")
    structlog.contextvars.clear_contextvars()
    assert out.getvalue().count("\n") == 4
    assert "planted" not in out.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        "bearer PLANTED",
        "Basic PLANTED",
        "Authorization: PLANTED",
        "'x-api-key': 'PLANTED'",
        "api_key=PLANTED",
        "apikey = PLANTED",
        "Cookie: a=PLANTED",
        "x sk-PLANTED",
        "pk-PLANTED",
        "hf_PLANTED",
        "gsk_PLANTED",
        "ghp_PLANTED",
        "redis://:PLANTED@box/0",
        {"sk-PLANTED": 1},
        {1, "Bearer PLANTED"},
        [[[[[["sk-PLANTED"]]]]]],
    ],
)
def test_each_kind_of_secret_is_found_in_text(text: object) -> None:
    assert "PLANTED" not in str(redact(None, "", {"reason": text}))


def test_what_is_no_secret_stays() -> None:
    facts = {
        "prompt_tokens": 5,
        "max_tokens": 6,
        "tokenizer": "/t",
        "kv": 1.5,
        "open": True,
        "none": None,
    }
    assert redact(None, "", dict(facts)) == facts


@given(st.text())
def test_no_text_can_forge_a_line(text: str) -> None:
    for out in (io.StringIO(), Terminal()):
        configure("info", out)
        structlog.get_logger().info("x", reason=text)
        plain = out.getvalue()
        assert len(plain.splitlines()) == 1
        if not out.isatty():
            assert "\x1b" not in plain


def test_long_text_is_cut() -> None:
    (cut,) = redact(None, "", {"reason": "word " * 1000}).values()
    assert cut.endswith("… (5000 characters)")
    assert len(cut) < 530


def test_level_words_are_those_of_the_policy() -> None:
    assert get_args(Observe.model_fields["log_level"].annotation) == LEVELS


def test_a_broken_stream_costs_lines_and_nothing_else(tmp_path) -> None:
    """A full disk, a closed pipe, a file somebody closed: whoever logs must not fail for it."""
    with (tmp_path / "log").open("w") as stream:
        configure("info", stream)
    structlog.get_logger("kvgate").info("after the file was closed")
    logging.getLogger("library").warning("neither does a library fail")
    configure()


def test_requests_are_told_in_the_very_words_of_all_other_lines() -> None:
    straight, chain = io.StringIO(), io.StringIO()
    facts = {
        "reason": f"Bearer {PLANTED}\n",
        "token": PLANTED,
        "n": 1,
        "at": None,
        "of": ["a", 2.5],
    }
    for stream, log in ((straight, Straight()), (chain, structlog.get_logger())):
        configure("info", stream)
        log.info("request", **facts)
        log.warning("request", client="é" * 600)
    without = [{**line, "timestamp": ""} for line in lines(straight)]
    assert without == [{**line, "timestamp": ""} for line in lines(chain)]
    assert [list(line) for line in lines(straight)] == [list(line) for line in lines(chain)]
    assert PLANTED not in straight.getvalue()
    assert len(lines(straight)[0]["timestamp"]) >= len("2026-11-30T03:25:18Z")


def test_straight_lines_keep_to_the_level_and_to_a_terminal() -> None:
    quiet, terminal = io.StringIO(), Terminal()
    configure("warning", quiet)
    Straight().info("request", n=1)
    configure("info", terminal)
    Straight().info("request", n=1)
    assert quiet.getvalue() == ""
    assert not terminal.getvalue().startswith("{")
    assert "request" in terminal.getvalue()
