"""What a process has to see to before it begins: its standard files, and signals that come too soon."""

from __future__ import annotations

import os
import signal
import sys

NOT_YET = ("SIGHUP", "SIGUSR1", "SIGUSR2")
"""Signals that end a process which has said nothing of them. The first means a reload once the gate
runs; until then what it is told to read is being read anyway. The others mean nothing here: they are sent
by rotations of logs that were written for other servers."""


def standard_files() -> None:
    """Open what is closed of stdin, stdout and stderr on nothing: the next socket would have that
    number, and be taken for it by libraries and by ourselves."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            os.set_inheritable(number, True)  # noqa: FBT003
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False, encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False, encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False, encoding="utf-8")  # noqa: SIM115


def early_signals() -> None:
    """Let none of `NOT_YET` end the gate."""
    for name in NOT_YET:
        if (number := getattr(signal, name, None)) is not None:
            signal.signal(number, signal.SIG_IGN)
