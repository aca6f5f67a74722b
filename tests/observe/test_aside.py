"""A reader of stderr that has stopped: lines wait, then are dropped and counted; nobody waits with them."""

from __future__ import annotations

import io
import os
import threading
from typing import TYPE_CHECKING

import pytest

from gateway.observe import aside
from gateway.observe.aside import PIPE_BUF, Aside

if TYPE_CHECKING:
    from collections.abc import Iterator


class Pipe:
    """Read by the test, written by an `Aside`."""

    def __init__(self) -> None:
        self.read, self._write = os.pipe()
        self.stream = os.fdopen(self._write, "w")
        self.told: list[tuple[str, dict[str, object]]] = []
        self.log = Aside(self.stream, warn=lambda event, **facts: self.told.append((event, facts)))

    def rest(self) -> list[str]:
        """What the other end still gets, once its writer has closed."""
        with os.fdopen(self.read) as reader:
            return reader.read().splitlines()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    one = Pipe()
    yield one
    if not one.stream.closed:
        one.stream.close()


def fill(fd: int) -> int:
    """Take all room of a pipe; how many bytes that was."""
    os.set_blocking(fd, False)
    size = 0
    try:
        while True:
            size += os.write(fd, b"x" * PIPE_BUF)
    except BlockingIOError:
        os.set_blocking(fd, True)
    return size


def test_lines_come_out_in_order_and_whole(pipe: Pipe) -> None:
    said = [f"{number} {'é' * (number % 4000)}" for number in range(0, 40_000, 1111)]
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.extend(pipe.rest()))
    reader.start()
    for line in said:
        pipe.log.write(line + "\n")
    pipe.log.close()
    pipe.stream.close()
    reader.join(30)
    assert got == said
    assert pipe.told == []


def test_a_file_that_another_process_made_non_blocking_is_waited_for_too(pipe: Pipe) -> None:
    """A terminal's file is shared: what one program says of it holds for all."""
    os.set_blocking(pipe.stream.fileno(), False)
    said = [f"{number} {'x' * 100}" for number in range(3_000)]  # five times what a pipe holds
    for line in said:
        pipe.log.write(line + "\n")
    closed = threading.Thread(target=lambda: (pipe.log.close(30), pipe.stream.close()))
    closed.start()
    got = pipe.rest()
    closed.join(30)
    assert got == said
    assert pipe.told == []


def test_a_lone_surrogate_is_no_end_of_the_log(pipe: Pipe) -> None:
    pipe.log.write("\ud800\n")
    pipe.log.write("next\n")
    pipe.log.close()
    pipe.stream.close()
    assert pipe.rest() == ["\\ud800", "next"]


def test_lines_are_written_in_pieces_that_no_other_worker_can_tear(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[bytes] = []

    def write(_fd: int, data: memoryview) -> int:
        pieces.append(bytes(data))
        return len(data)

    monkeypatch.setattr(os, "write", write)
    lines = ["a" * 1500 + "\n"] * 7 + ["b" * 9000 + "\n", "c\n"]
    pipe.log._write(lines)
    assert b"".join(pieces) == "".join(lines).encode()
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert [len(piece) for piece in pieces] == [3002, 3002, 3002, 1501, 9001, 2]


def test_nobody_waits_for_a_reader_that_has_stopped(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aside, "BACKLOG", 5)
    log = Aside(pipe.stream, warn=lambda event, **facts: pipe.told.append((event, facts)))
    full = fill(pipe.stream.fileno())
    log.write("under way\n")
    while log._lines._waiting:  # the thread has taken it, and is stuck with it
        threading.Event().wait(0.001)
    for number in range(9):
        log.write(f"{number}\n")
    assert log.dropped == 4
    log.close(0.01)  # neither does the end
    assert log._lines._thread.is_alive()
    assert len(os.read(pipe.read, full)) == full
    log._lines._thread.join(30)
    assert not log._lines._thread.is_alive()
    pipe.log.close()
    pipe.stream.close()
    assert pipe.rest() == ["under way", "0", "1", "2", "3", "4"]
    assert pipe.told == [("log_written_again", {"path": "stderr", "dropped": 4})]


def test_a_closed_reader_costs_lines(pipe: Pipe) -> None:
    os.close(pipe.read)
    pipe.log.write("for nobody\n")
    pipe.log.close()
    assert pipe.log.dropped == 1
    assert pipe.told == [("log_not_written", {"path": "stderr", "reason": "Broken pipe"})]


def test_a_stream_without_a_file_is_refused() -> None:
    with pytest.raises(OSError, match="fileno"):
        Aside(io.StringIO(), warn=lambda _event, **_facts: None)
