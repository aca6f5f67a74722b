"""Reading the policy again while the gate runs: on SIGHUP, on POST /reload, when a file changes.

Everything is read and checked first, in a thread; then one synchronous step puts it in force, so no
request ever meets half of it. A file with a mistake changes nothing: every mistake is told in the
log, in the answer to whoever asked, and in /status until a good one was read. What cannot change
while the gate runs stays and is named (see `policy.change`).

What is refused only for its moment (a server that comes back before it is gone) is tried again at each
look until it takes.

Files are looked at every few seconds and read when they have been the same for two looks: an editor
writes in steps, and half a file may be good YAML that says less than was meant.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from gateway.disk import Clerk
from gateway.policy.problems import PolicyError, Problem
from gateway.tasks import spawn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from structlog.typing import FilteringBoundLogger

    from gateway.policy.change import Change
    from gateway.policy.schema import Policy
    from gateway.policy.source import Loaded, Source, Stamps

POLL_S = 2.0
"""Between two looks at the files: who saves one sees it in force within five seconds, and a `stat`
every two seconds costs nothing."""
READ_S = 15.0
"""How long a policy, its keys and certificate may take to be read from a disk that is busy. Below what
workers are waited for when they are told to (`workers.asking.RELOAD_S`)."""

AGAIN = "tried again"
"""The cause of a reload that nobody asked for anew."""


class Reload:
    """See the module. `adopt` puts a policy in force and must not await; it raises PolicyError."""

    def __init__(
        self,
        source: Source | None,
        policy: Policy,
        adopt: Callable[[Loaded], Change],
        log: FilteringBoundLogger,
    ) -> None:
        self._source = source
        self._policy = policy
        self._adopt = adopt
        self._log = log
        self._disk = Clerk("policy files", READ_S)
        self._one_at_a_time = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        # Of the files as they were read last; those of the policy may be newer than what is in force.
        self._read: Stamps = {} if source is None else source.stamps(policy)
        self._done = 0
        self._needs_restart: tuple[str, ...] = ()
        self._problems: list[Problem] = []
        self._again = False  # what was refused last is right but for its moment

    def start(self) -> None:
        """Begin to look at the files, in the background."""
        if self._source is not None:
            self._task = spawn(self._look(self._source), "policy files")

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def now(self, cause: str) -> tuple[bool, dict[str, Any]]:
        """Read and put in force. Whether that went well, and the whole answer."""
        if self._source is None:
            return False, {"reloaded": False, "message": "this gate was not started from a policy"}
        async with self._one_at_a_time:
            return await self._now(self._source, cause)

    @property
    def file(self) -> Path | None:
        """The policy file, where there is one."""
        return None if self._source is None else self._source.file

    def hosts(self) -> tuple[str, ...]:
        """Names by which the control plane may be called, see `page.guard`."""
        return self._policy.control_hosts

    def status(self) -> dict[str, Any]:
        """The `policy` of /status."""
        return {
            "file": None if self.file is None else str(self.file),
            "reloads": self._done,
            "needs_restart": list(self._needs_restart),
            "tried_again": self._again,
            "problems": [_told(problem) for problem in self._problems],
        }

    # ---- inside --------------------------------------------------------------------------------

    async def _now(self, source: Source, cause: str) -> tuple[bool, dict[str, Any]]:
        before = self._read
        try:
            self._read = await self._disk.do(source.stamps, self._policy)
            loaded, stamps = await self._disk.do(_read, source)
            change = self._adopt(loaded)
        except PolicyError as error:
            return self._refused(cause, error)
        except _Fault as error:
            self._log.error("policy_not_understood", cause=cause, exc_info=error.__cause__)
            return self._refused(cause, self._fault(error))
        except OSError as error:  # what can be read and is wrong is a PolicyError
            return self._refused(cause, self._unread(error))
        self._policy = loaded.policy
        # What was there before it was read, where that is known: a change in between is seen later.
        self._read = {path: self._read.get(path, stamp) for path, stamp in stamps.items()}
        self._done += 1
        self._needs_restart, self._problems, self._again = change.needs_restart, [], False
        answer = {
            "reloaded": True,
            "files": [str(path) for path in self._read if self._read[path] != before.get(path)],
            "changed": list(change.changed),
            "needs_restart": list(change.needs_restart),
        }
        self._log.info("policy_reloaded", cause=cause, **answer)
        return True, answer

    def _unread(self, error: OSError) -> PolicyError:
        where = "policy" if self.file is None else str(self.file)
        wrong = error.strerror or type(error).__name__
        remedy = "look at the disk of the policy file, its keys and its certificate"
        return PolicyError([Problem(where, "", "", wrong, remedy)], passing=True)

    def _fault(self, error: _Fault) -> PolicyError:
        where = "policy" if self.file is None else str(self.file)
        remedy = "look at what was changed last, and report it: that is a fault of the gate"
        return PolicyError([Problem(where, "", "", str(error), remedy)])

    def _refused(self, cause: str, error: PolicyError) -> tuple[bool, dict[str, Any]]:
        told_before = cause == AGAIN and error.errors == self._problems
        self._problems, self._again = error.errors, error.passing
        stays = "the policy in force stays as it is"
        if error.passing:
            stays += f" for now: what was read is tried again every {POLL_S:g} s until it takes"
        if not told_before:
            self._log.error(
                "policy_refused",
                cause=cause,
                reason=stays,
                problems=[str(problem) for problem in error.errors],
            )
        return False, {
            "reloaded": False,
            "message": stays if error.passing else f"{stays}: what was read has mistakes",
            "tried_again": error.passing,
            "problems": [_told(problem) for problem in error.errors],
        }

    async def _look(self, source: Source) -> None:
        last: Stamps | None = None
        known = False
        while True:
            with contextlib.suppress(OSError):  # their disk hangs: who asks for a reload is told
                seen = await self._disk.do(source.stamps, self._policy)
                if seen == last:
                    changed = seen != self._read
                    if not known and not changed:
                        # What is in force was read, or handed over, before anybody looked at the files.
                        changed = not await self._disk.do(_says, source, self._policy)
                    known = True
                    if changed or self._again:
                        await self.now("file" if changed else AGAIN)
                last = seen
            await asyncio.sleep(POLL_S)


def _says(source: Source, policy: Policy) -> bool:
    """Whether it says that very policy now."""
    try:
        return source.load() == policy
    except Exception:  # noqa: BLE001  # who reads it next says what is wrong
        return False


class _Fault(Exception):
    """Reading a policy failed in a way nobody thought of."""


def _read(source: Source) -> tuple[Loaded, Stamps]:
    """Raises PolicyError, OSError or _Fault: who looks at the files goes on looking, whatever is in one."""
    try:
        loaded = source.read()
    except (PolicyError, OSError):
        raise
    except Exception as error:
        msg = f"cannot be read ({type(error).__name__})"
        raise _Fault(msg) from error
    return loaded, source.stamps(loaded.policy)


def _told(problem: Problem) -> dict[str, str]:
    return {
        "where": problem.where,
        "path": problem.path,
        "found": problem.found,
        "wrong": problem.wrong,
        "remedy": problem.remedy,
    }
