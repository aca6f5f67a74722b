"""Who is calling: keys are read once, kept as SHA-256 digests, and compared in constant time.

The policy names where keys are (an environment variable, a file), or holds their digests;
`read_secrets` reads them. The digests are unsalted because API keys are random and never leave this process; the point is that no
dump, log or repr of the gate holds a client's key. The keys of *backends* must be sent upstream and
stay readable, behind a type that does not print itself.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr

from gateway.policy.checks import ANYONE
from gateway.policy.problems import Finding, PolicyError, Problem, shown
from gateway.policy.salvage import is_read

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gateway.policy.leases import Leases
    from gateway.policy.problems import Loc
    from gateway.policy.schema import Backend, Client, Policy


@dataclass(frozen=True, slots=True)
class Secrets:
    """What the key variables and files held. `digests` are of client keys, each with its client."""

    digests: tuple[tuple[bytes, str], ...] = field(default=(), repr=False)
    backend_keys: Mapping[str, SecretStr] = field(default_factory=dict, repr=False)
    leases: SecretStr | None = field(default=None, repr=False)

    @property
    def of_leases(self) -> str | None:
        """The password of the store that leases are in."""
        return None if self.leases is None else self.leases.get_secret_value()


@dataclass(frozen=True, slots=True)
class Unauthorized:
    """Nobody the policy knows. The message says what was needed and never what was sent."""

    message: str


def read_secrets(policy: Policy, env: Mapping[str, str] = os.environ) -> Secrets:
    """Read every key the policy names.

    Raises PolicyError naming each variable that is unset and each file that cannot be read.
    `load_policy` has found those already, so this fails only if they vanished in between.
    """
    secrets, found = gather(
        dict(enumerate(policy.backends)), dict(enumerate(policy.clients)), env, policy.leases
    )
    if found:
        raise PolicyError(
            [Problem("policy", f.path, shown(f.loc, f.value), f.wrong, f.remedy) for f in found]
        )
    return secrets


def gather(
    backends: Mapping[int, Backend],
    clients: Mapping[int, Client],
    env: Mapping[str, str],
    leases: Leases | None = None,
) -> tuple[Secrets, list[Finding]]:
    """Read keys of well-formed items (index → item) and what is wrong with them."""
    found: list[Finding] = []
    backend_keys: dict[str, SecretStr] = {}
    for i, backend in backends.items():
        reader = _Reader(("backends", i), env, found)
        keys = [*reader.variable("api_key_env", backend.api_key_env)]
        keys += reader.file("api_key_file", backend.api_key_file)
        if keys:
            backend_keys[backend.name] = SecretStr(keys[0])
    digests: dict[bytes, tuple[int, str]] = {}
    for i, client in clients.items():
        reader = _Reader(("clients", i), env, found)
        known = [
            *(("key_env", digest(key)) for key in reader.variable("key_env", client.key_env)),
            *(("key_file", digest(key)) for key in reader.file("key_file", client.key_file)),
            *(("key_sha256", bytes.fromhex(sha)) for sha in client.key_sha256),
        ]
        for field_name, sha in known:
            owner, _ = digests.setdefault(sha, (i, client.name))
            if owner != i:
                value = getattr(client, field_name)
                found.append(
                    Finding(
                        ("clients", i, field_name),
                        str(value) if isinstance(value, str | Path) else list(value),
                        f"holds the same key as clients[{owner}]",
                        "give each client a key of its own",
                    )
                )
    flat = tuple((sha, name) for sha, (_, name) in digests.items())
    store = None
    if leases is not None:
        for password in _Reader(("leases",), env, found).password(
            "password_env", leases.password_env
        ):
            store = SecretStr(password)
    return Secrets(flat, backend_keys, store), found


def digest(key: str) -> bytes:
    """SHA-256 of a key as it travels in a header."""
    return hashlib.sha256(_bytes(key)).digest()


def _bytes(text: str) -> bytes:
    # A header that is not UTF-8 arrives with lone surrogates; it must not raise, only not match.
    return text.encode("utf-8", "surrogatepass")


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_QUOTES = frozenset(("'", '"'))


def _amiss(key: str) -> tuple[str, str] | None:
    """Why nobody could have been given this key, and what to do: it came with its wrapping.

    Found here, it is one sentence at the start; later it would be a 401 for everybody, or a question to
    a server that cannot even be written.
    """
    if _CONTROL.search(key):
        return (
            "holds a line break or control character within the key",
            "write the key alone, in one line",
        )
    if key[0] == key[-1] and key[0] in _QUOTES:
        return (
            "holds quotes around the key: a file for `docker --env-file` and a secret keep them",
            "write the key without quotes",
        )
    if key.lower().startswith("bearer "):
        return (
            "begins with the word Bearer, which is of the header and not of the key",
            "write the key alone",
        )
    return None


@dataclass(slots=True)
class _Reader:
    """Reads the keys of one item and notes what is wrong."""

    loc: Loc
    env: Mapping[str, str]
    found: list[Finding]

    def variable(self, field_name: str, name: str | None) -> Iterator[str]:
        """The key in a variable."""
        yield from self._sound(field_name, str(name), list(self.password(field_name, name)))

    def password(self, field_name: str, name: str | None) -> Iterator[str]:
        """What a variable holds, which may look like anything."""
        if name is None or not is_read(name):
            return
        value = self.env.get(name, "").strip()
        if value:
            yield value
            return
        state = "is an environment variable that is empty" if name in self.env else "is not set"
        self._find(field_name, name, state, f"export {name}=… before starting the gate")

    def file(self, field_name: str, path: Path | None) -> Iterator[str]:
        if path is None or not is_read(path):
            return
        try:
            if path.exists() and not path.is_file() and not path.is_dir():
                # A pipe is empty the second time, or nobody writes into it; a device may never end.
                wrong, remedy = "is no plain file", "name a file: it is read again with each reload"
                self._find(field_name, str(path), wrong, remedy)
                return
            text = path.read_text(encoding="utf-8-sig")  # Windows' editors begin with a mark
        except (OSError, UnicodeDecodeError) as error:
            reason = (error.strerror or "") if isinstance(error, OSError) else "not text"
            self._find(
                field_name,
                str(path),
                f"cannot be read: {reason.lower()}",
                "check path and permissions",
            )
            return
        keys = [line.strip() for line in text.splitlines() if line.strip()]
        if not keys:
            self._find(field_name, str(path), "holds no key", "write one key a line")
        yield from self._sound(field_name, str(path), keys)

    def _sound(self, field_name: str, value: str, keys: list[str]) -> Iterator[str]:
        for key in keys:
            if amiss := _amiss(key):
                self._find(field_name, value, *amiss)
            else:
                yield key

    def _find(self, field_name: str, value: str, wrong: str, remedy: str) -> None:
        self.found.append(Finding((*self.loc, field_name), value, wrong, remedy))


class Identify:
    """Tells from a request's headers and address which client of the policy it is."""

    def __init__(self, policy: Policy, secrets: Secrets) -> None:
        self._digests = secrets.digests
        self._headers = tuple((h.name, h.value, c.name) for c in policy.clients for h in c.header)
        networks = [(ip_network(n), c.name) for c in policy.clients for n in c.address]
        self._networks = sorted(networks, key=lambda known: -known[0].prefixlen)
        open_to_all = not policy.clients or any(c.name == ANYONE for c in policy.clients)
        self._anonymous = ANYONE if open_to_all else None

    def resolve(self, headers: Mapping[str, str], peer: str = "") -> str | Unauthorized:
        """The client's name, or why there is none.

        `headers` must find lower-case names, as a case-insensitive mapping does. A key that is
        known wins over a header, that over an address; an unknown key counts as none, since SDKs
        insist on sending one. `peer` is the address of whoever connected.
        """
        presented = list(_keys(headers))
        for key in presented:
            if (name := self._owner(key)) is not None:
                return name
        for header, value, name in self._headers:
            sent = headers.get(header)
            if sent is not None and hmac.compare_digest(_bytes(sent), _bytes(value)):
                return name
        if self._networks and (name := self._from(peer)) is not None:
            return name
        if self._anonymous is not None:
            return self._anonymous
        state = "is not known here" if presented else "is missing"
        return Unauthorized(f"The API key {state}")

    def _from(self, peer: str) -> str | None:
        """Whose network this is: the narrowest one that holds it."""
        try:
            address = ip_address(peer)
        except ValueError:
            return None
        # A socket that listens on both families shows callers of the old one in the new one.
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        caller = mapped or address
        return next((name for network, name in self._networks if caller in network), None)

    def _owner(self, key: str) -> str | None:
        sent = digest(key)
        owner = None
        for known, name in self._digests:  # to the end: the time must not tell which one matched
            if hmac.compare_digest(known, sent):
                owner = name
        return owner


def _keys(headers: Mapping[str, str]) -> Iterator[str]:
    scheme, _, token = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        yield token.strip()
    for name in ("x-api-key", "api-key"):  # Anthropic's SDKs; those for Azure
        if key := headers.get(name, "").strip():
            yield key
