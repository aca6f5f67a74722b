"""Hosts by their name alone: which lie inside, and which are this machine.

Nothing is resolved here. A name is one thing when the gate asks and may be another when somebody else asks
again, so an answer would prove nothing (DNS rebinding). What can be told from the letters is told:

- **An address** is taken in its one usual spelling and refused in all others. `127.0.0.1` is also `127.1`,
  `2130706433`, `0x7f.1` and `0177.0.0.1` to the C library, and whoever reads these wants to be sure that
  everybody reads them alike. Nobody who means well writes so.
- **IPv6** is out in the world only in 2000::/3, less the parts of it that carry an IPv4 address or lead
  nowhere. So mapped, compatible and translated addresses (`::ffff:10.0.0.1`, `64:ff9b::a00:1`), loopback,
  link-local and private ones need no rule each.
- **A name** lies inside where its end says so (`.internal`, `.local`), where it has one label only, or where
  a cloud's metadata goes by it.

Ranges are written out, as Python's own `is_global` differs between its patch releases. They are IANA's
registries of special-purpose addresses, and one address that a cloud took from the public ones.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field

from gateway.policy.types import bad, listed

if TYPE_CHECKING:
    from asyncio import BaseTransport
    from collections.abc import Collection

ANY_PORT: Final = ""

_AUTHORITY: Final = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::(?P<port>[0-9]{1,5}))?"
)
"""No user, no backslash, no percent sign, no zone, no letter beyond ASCII: parsers differ about each of these,
and a host that two of them read differently is two hosts."""

_LAST_PORT: Final = 65_535

_INSIDE_4: Final = tuple(
    ipaddress.IPv4Network(net)
    for net in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3"),
        "168.63.129.16/32",  # Azure's own to each machine: a public address by its number only
    )
)

_OUTSIDE_6: Final = ipaddress.IPv6Network("2000::/3")
_NOT_OUTSIDE_6: Final = tuple(
    ipaddress.IPv6Network(net)
    for net in (
        "2001::/23",  # protocols, Teredo among them
        "2001:db8::/32",  # examples
        "2002::/16",  # 6to4: an IPv4 address within
        "3fff::/20",  # examples
    )
)

_INSIDE_ENDS: Final = frozenset(
    (
        *("localhost", "localdomain", "local", "internal", "intranet", "private", "corp", "home"),
        *("lan", "arpa", "test", "svc"),
    )
)
"""Last labels of names that lie inside: reserved for that (RFC 6761, 6762, 8375, ICANN's `internal`), or in
use inside and never given out. `svc` is what Kubernetes' search path completes."""

_METADATA: Final = frozenset(
    (
        *("metadata.goog", "metadata.tencentyun.com", "metadata.packet.net"),
        "metadata.platformequinix.com",
    )
)
"""Names under public ends by which clouds serve keys to their machines."""

_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")


class NoHost(ValueError):
    """Not the host, and perhaps the port, of an address as everybody reads it."""


def split(authority: str) -> tuple[str, str]:
    """Host in small letters, brackets kept, and port ("" where none is said) of what stands between `//` and
    the path. Raises NoHost."""
    found = _AUTHORITY.fullmatch(authority)
    if found is None or int(found["port"] or 1) not in range(1, _LAST_PORT + 1):
        raise NoHost
    host = found["host"].lower()
    return host, found["port"] or ANY_PORT


def why_inside(host: str) -> str | None:
    """Why a host of `split` is not one of the open internet, as far as its name tells; None where it is."""
    if host.startswith("["):
        try:
            address = ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            return "is no address"
        out = address in _OUTSIDE_6 and not any(address in net for net in _NOT_OUTSIDE_6)
        return None if out else "is not an address of the open internet"
    labels = host.removesuffix(".").split(".")
    if _NUMBER.fullmatch(labels[-1]):  # the C library takes it for an address
        return _why_inside_4(host)
    if not all(_LABEL.fullmatch(label) for label in labels):
        return "is no name of a host"
    name = ".".join(labels)
    if len(labels) == 1 or labels[-1] in _INSIDE_ENDS or name in _METADATA:
        return "is a name of the network inside"
    return None


def _why_inside_4(host: str) -> str | None:
    try:
        address = ipaddress.IPv4Address(host)  # refuses octal, hexadecimal and shorter ones
    except ValueError:
        return "is an address in no usual spelling"
    if any(address in net for net in _INSIDE_4):
        return "is not an address of the open internet"
    return None


def is_here(host: str, own: str) -> bool:
    """Whether a host that a browser was given is no name that somebody else's DNS answers for: an address, a
    name that browsers keep to this machine, or `own`, which is what this machine is called."""
    bare = host.removesuffix(".").lower()
    if bare == "localhost" or bare.endswith(".localhost") or bare == own.lower():
        return True
    try:
        ipaddress.ip_address(bare.strip("[]"))
    except ValueError:
        return False
    return True


def on_loopback(transport: BaseTransport | None) -> bool:
    """Whether a connection came to an address that only this machine reaches. Not so for a Unix socket."""
    name = None if transport is None else transport.get_extra_info("sockname")
    if not isinstance(name, tuple):
        return False
    try:
        address = ipaddress.ip_address(name[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped  # a listener on :: shows them so
    return address.is_loopback


# ---- as a policy names them --------------------------------------------------------------------

_REMEDY: Final = "write a host such as pictures.lan, 10.0.0.7, [fd00::7] or *.corp.example, with :PORT or without"
_NAMES_REMEDY: Final = "write the name alone, such as gpu.example or *.corp.example"


def listed_in(host: str, port: str, named: Collection[str]) -> bool:
    """Whether a host of `split` is one of those that a policy names."""
    host = host.removesuffix(".")
    for one in named:
        name, own_port = _parts(one)
        if own_port not in {ANY_PORT, port}:
            continue
        if host == name or (name.startswith("*.") and host.endswith(name[1:])):
            return True
    return False


def _parts(text: str) -> tuple[str, str]:
    """Host and port of an entry that was read."""
    if text.endswith("]") or ":" not in text:
        return text, ANY_PORT
    host, _, port = text.rpartition(":")
    return host, port


def _entry(value: str) -> str:
    return _host(value, _REMEDY, "write `media: any` for that, and leave the list out")


def _name(value: str) -> str:
    found = _host(value, _NAMES_REMEDY, _NAMES_REMEDY)
    if _parts(found)[1]:
        raise bad("has a port, and any port counts", _NAMES_REMEDY)
    return found


def _host(value: str, remedy: str, for_all: str) -> str:
    text = value.strip().lower()
    if "://" in text:
        raise bad("is an address with a scheme, and hosts have none", remedy)
    if "/" in text:
        raise bad("has a path or a prefix, and hosts have none", remedy)
    if "@" in text:
        raise bad("holds credentials, and hosts have none", remedy)
    if text in {"*", "*."}:
        raise bad("is every host", for_all)
    stem = text.removeprefix("*.")
    if "*" in stem:
        raise bad("has a * that is not its first label", remedy)
    if stem.count(":") > 1 and not stem.startswith("["):
        raise bad("is an IPv6 address without brackets", remedy)
    try:
        host, port = split(stem)
    except NoHost:
        raise bad("is not a host", remedy) from None
    if host.startswith("["):
        try:
            host = f"[{ipaddress.IPv6Address(host[1:-1])}]"
        except ValueError:
            raise bad("is not a host", remedy) from None
    host = host.removesuffix(".")
    star = "*." if text.startswith("*.") else ""
    return f"{star}{host}:{port}" if port else f"{star}{host}"


Hosts = Annotated[
    tuple[Annotated[str, AfterValidator(_entry)], ...],
    BeforeValidator(listed, json_schema_input_type=str | list[str]),
    Field(strict=False),
]
"""Hosts, each with a port or for every port."""

Names = Annotated[
    tuple[Annotated[str, AfterValidator(_name)], ...],
    BeforeValidator(listed, json_schema_input_type=str | list[str]),
    Field(strict=False),
]
"""Hosts without a port."""
