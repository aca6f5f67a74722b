"""What must hold between the values of a policy. Pure: no file, no environment.

The functions take lists with gaps (index → item), so that one broken backend does not hide what
is wrong between the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.policy.problems import Finding
from gateway.policy.types import host_port, is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gateway.policy.problems import Loc
    from gateway.policy.schema import Backend, Client

ANYONE = "anyone"
CROSS_ERROR = "kvgate_between"
"""Error type of the findings of this module where pydantic reports them."""


def between(
    backends: Mapping[int, Backend], clients: Mapping[int, Client], listen: str, control: str
) -> list[Finding]:
    """Every contradiction between values that are well formed by themselves."""
    same_url = _twice("backends", "url", ((i, b.url) for i, b in backends.items()))
    repeated = {f.loc[1] for f in same_url}  # their names, made from the URL, are equal as well
    found = [
        *same_url,
        *_twice(
            "backends", "name", ((i, b.name) for i, b in backends.items() if i not in repeated)
        ),
        *_twice("clients", "name", ((i, c.name) for i, c in clients.items())),
        *_twice(
            "clients",
            "header",
            ((i, (c.header.name, c.header.value)) for i, c in clients.items() if c.header),
        ),
    ]
    for i, backend in backends.items():
        found += _backend(("backends", i), backend)
    for i, client in clients.items():
        found += _client(("clients", i), client)
    if listen == control and host_port(listen)[1] != 0:
        found.append(
            Finding(
                ("control",),
                control,
                "is the data plane's address too",
                "give the control plane a port of its own, where it answers however busy the other is",
            )
        )
    return found


def _twice(section: str, field: str, values: Iterable[tuple[int, object]]) -> list[Finding]:
    first: dict[object, int] = {}
    found = []
    for i, value in values:
        if value in first:
            found.append(
                Finding(
                    (section, i, field),
                    value,
                    f"is already used by {section}[{first[value]}]",
                    "make them different or remove one",
                )
            )
        first.setdefault(value, i)
    return found


def _backend(loc: Loc, backend: Backend) -> list[Finding]:
    found = []
    if backend.api_key_env and backend.api_key_file:
        found.append(
            Finding(
                (*loc, "api_key_file"),
                str(backend.api_key_file),
                "stands beside api_key_env",
                "keep one of the two",
            )
        )
    default, largest = backend.default_output_tokens, backend.max_output_tokens
    if default != "auto" and largest != "auto" and default > largest:
        found.append(
            Finding(
                (*loc, "default_output_tokens"),
                default,
                f"is above max_output_tokens ({largest})",
                "lower it or raise max_output_tokens",
            )
        )
    return found


def _client(loc: Loc, client: Client) -> list[Finding]:
    ways = [w for w in ("key_env", "key_file", "header") if getattr(client, w) is not None]
    if client.name == ANYONE and ways:
        return [
            Finding(
                (*loc, ways[0]),
                _way_value(client, ways[0]),
                f"cannot belong to {ANYONE}, who is everybody not known otherwise",
                "remove it, or give this client another name",
            )
        ]
    if client.name != ANYONE and not ways:
        return [
            Finding(
                (*loc, "name"),
                client.name,
                "names a client that nothing would recognise",
                f"add key_env, key_file or header; only {ANYONE} goes without",
            )
        ]
    if len(ways) > 1:
        return [
            Finding(
                (*loc, ways[1]),
                _way_value(client, ways[1]),
                f"stands beside {ways[0]}",
                "keep one, or list the client's keys in one key_file",
            )
        ]
    return []


def _way_value(client: Client, way: str) -> object:
    value = getattr(client, way)
    return {} if way == "header" else str(value)


def open_door(listen: str, *, keyed: bool, allowed: bool) -> list[Finding]:
    """A data plane open to the network without a single key, unless the operator said so."""
    if keyed or allowed or is_loopback(listen):
        return []
    return [
        Finding(
            ("listen",),
            listen,
            "is reachable from the network and no client has a key",
            "give clients keys (key_env or key_file), listen on 127.0.0.1, or set allow_open: true",
        )
    ]
