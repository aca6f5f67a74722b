"""The command line: one file a command, one table here.

Exit codes: 0 ok, 1 the thing checked falls short, 2 usage or configuration (one sentence on
stderr), 1 too where the disk is full; 130 and 141, as shells have it, where it was interrupted or nobody reads on.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from contextlib import suppress

from gateway.cli.outset import early_signals, standard_files

COMMANDS = {
    "serve": "the gate: kvgate serve [POLICY] [--backend URL]…",
    "demo": "see it work: no GPU, no configuration",
    "check": "validate policy files",
    "schema": "print the JSON schema of policy files",
    "count": "count the tokens of a file or request body",
    "plan": "the memory of a card: pool, context, headroom; what to set",
    "audit": "a server's arguments, or a launch line, against the policy",
    "evaluate": "compare policies on the twin, in virtual time",
    "stress": "load a server: concurrency x prompt x output",
    "replay": "the same load again, from the gate's records",
    "twin": "a model of an SGLang server with its HTTP face",
}
HELPS = {"-h", "--help", "help"}


INTERRUPTED = 130
PIPE_CLOSED = 141
"""What a shell says of a program that SIGINT or SIGPIPE has ended."""

CANNOT_WRITE = 1
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""How a disk says that it takes nothing more: `kvgate schema > /full/schema.json`."""


def main(argv: list[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    standard_files()
    try:
        try:
            return _main(argv)
        finally:  # also where argparse has shown its help and leaves
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _to_nowhere()  # `kvgate schema | head -1`
        return PIPE_CLOSED
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        _to_nowhere()
        with suppress(OSError):
            print(f"kvgate: cannot write: {error.strerror}", file=sys.stderr)  # noqa: T201
        return CANNOT_WRITE


def _to_nowhere() -> None:
    """What is left of standard output is not tried again at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _main(argv: list[str] | None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in HELPS:
        lines = [f"  {name:8} {what}" for name, what in COMMANDS.items()]
        print("usage: kvgate COMMAND …\n\n" + "\n".join(lines), file=sys.stdout)  # noqa: T201
        return 0 if argv else 2
    if argv[0] == "--version":
        from gateway.version import VERSION  # noqa: PLC0415 - only here

        print(f"kvgate {VERSION}")  # noqa: T201
        return 0
    if argv[0] not in COMMANDS:
        print(f"kvgate: there is no command {argv[0]!r}; see kvgate --help", file=sys.stderr)  # noqa: T201
        return 2
    if argv[0] == "serve":
        early_signals()
    # Each command imports only what it needs: `kvgate check` starts without an HTTP server.
    command = importlib.import_module(f"gateway.cli.{argv[0]}")
    code: int = command.run(argv[1:])
    return code
