"""Where a policy comes from, kept so that it can be read again: file, options, environment."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.policy import certificate
from gateway.policy.clients import read_secrets
from gateway.policy.load import load_policy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from ssl import SSLContext

    from gateway.policy.clients import Secrets
    from gateway.policy.schema import Policy

Stamps = dict[Path, tuple[int, int, int] | None]
"""What tells one content of a file from another: inode, mtime in ns, size; None: no file."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A policy with its keys and, where it has one, its certificate."""

    policy: Policy
    secrets: Secrets
    tls: SSLContext | None


def loaded(policy: Policy, env: Mapping[str, str] = os.environ) -> Loaded:
    """What `policy` names, read. Raises PolicyError."""
    tls = None if policy.tls is None else certificate.context(policy.tls)
    return Loaded(policy, read_secrets(policy, env), tls)


@dataclass(frozen=True, slots=True)
class Source:
    """The arguments of `load_policy`, see there. Reading again gives what holds then."""

    path: Path | None = None
    backends: tuple[str, ...] = ()
    listen: str | None = None
    control: str | None = None
    tokenizer: Path | None = None
    workers: int | None = None
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def load(self) -> Policy:
        """The policy as it is written now. Raises PolicyError with every mistake."""
        return load_policy(
            self.path,
            backends=self.backends,
            listen=self.listen,
            control=self.control,
            tokenizer=self.tokenizer,
            workers=self.workers,
            env=self.env,
        )

    def read(self) -> Loaded:
        """The policy, and what it names. Raises PolicyError."""
        policy = self.load()
        return loaded(policy, self.env)

    @property
    def file(self) -> Path | None:
        """The policy file, where there is one."""
        named = self.path or self.env.get("KVGATE_POLICY") or None
        return None if named is None else Path(named)

    def stamps(self, policy: Policy) -> Stamps:
        """Of every file that `policy` was made from. Touches the disk."""
        return {path: _stamp(path) for path in self._files(policy)}

    def _files(self, policy: Policy) -> Iterator[Path]:
        if self.file is not None:
            yield self.file
        for backend in policy.backends:
            if backend.api_key_file is not None:
                yield backend.api_key_file
        for client in policy.clients:
            if client.key_file is not None:
                yield client.key_file
        if policy.tls is not None:
            yield from (policy.tls.cert, policy.tls.key)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()  # follows links: a mounted configuration is swapped by one
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
