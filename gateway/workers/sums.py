"""The /status of all workers as one of the same form, so that what reads that of one process reads on.

Only what can be added up is: ledgers, queue, clients, totals. What is the server's own is told once, by a
worker that finds it ready where there is one. The rest is each worker's, in the list beside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Document = dict[str, Any]

OF_THE_SERVER = (
    *("name", "url", "state", "error", "engine_version", "models", "context_tokens"),
    *("pool_tokens", "starts", "engine", "loads_stale"),
)
"""The same for all who look, but for the moment at which they did."""

ADDED = (
    "ledgers",
    "free_tokens",
    "forecast_tokens",
    "worst_tokens",
    "lingering_tokens",
    "compiling",
)
"""Each worker's share or holding of it."""

ADDED_OF_QUEUES = ("requests", "tokens", "bytes", "aside")

OF_A_QUOTA = ("used_tokens", "under_way_tokens")

ANY = ("ready", "leaving", "on_trial", "held")


def together(statuses: Sequence[Document]) -> Document:
    """`backends`, `queue`, `clients`, `quotas` and `totals` of them together."""
    queues = [status["queue"] for status in statuses]
    return {
        "backends": _backends(statuses),
        "queue": {
            **{name: sum(q[name] for q in queues) for name in ADDED_OF_QUEUES},
            "oldest_s": max((q["oldest_s"] for q in queues), default=0.0),
        },
        "clients": _named(client for status in statuses for client in status["clients"]),
        "quotas": _quotas([quota for status in statuses for quota in status["quotas"]]),
        "totals": added([status["totals"] for status in statuses]) or {},
        "common": _common([status["common"] for status in statuses if status.get("common")]),
        "abandoned": sum(status["abandoned"] for status in statuses),
    }


def added(values: Sequence[Any]) -> Any:  # noqa: ANN401  # JSON
    """Numbers are added up, mappings entry by entry; None counts as nothing where another is a number."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    if isinstance(known[0], dict):
        names = dict.fromkeys(name for value in known for name in value)
        return {name: added([value[name] for value in known if name in value]) for name in names}
    return sum(known)


def _backends(statuses: Sequence[Document]) -> list[Document]:
    by_name: dict[str, list[Document]] = {}
    for status in statuses:
        for backend in status["backends"]:
            by_name.setdefault(backend["name"], []).append(backend)
    return [_backend(views) for views in by_name.values()]


def _backend(views: Sequence[Document]) -> Document:
    best = next((view for view in views if view["ready"]), views[0])
    return {
        **{name: best[name] for name in OF_THE_SERVER},
        **{name: any(view[name] for view in views) for name in ANY},
        **{name: added([view[name] for view in views]) for name in ADDED},
        "deaths": max(view["deaths"] for view in views),
        # Each takes the others' requests for what passes the gate by, at a moment of its own: no sum says more.
        "drift_tokens": views[0]["drift_tokens"] if len(views) == 1 else None,
        "lease": _lease([view["lease"] for view in views if view.get("lease")]),
    }


def _lease(leases: Sequence[Document]) -> Document | None:
    """What they share: all of the server's ledgers, and whether that goes well."""
    if not leases:
        return None
    return {
        "budget": leases[0]["budget"],
        "replicas": max(lease["replicas"] for lease in leases),
        "settled": all(lease["settled"] for lease in leases),
        "error": next((lease["error"] for lease in leases if lease["error"]), None),
    }


def _common(told: Sequence[Document]) -> Document | None:
    """Whether each hears of the others."""
    if not told:
        return None
    return {
        "others": min(one["others"] for one in told),
        "error": next((one["error"] for one in told if one["error"]), None),
    }


def _named(clients: Iterable[Document]) -> list[Document]:
    by_name: dict[str, list[Document]] = {}
    for client in clients:
        numbers = {name: value for name, value in client.items() if name != "name"}
        by_name.setdefault(client["name"], []).append(numbers)
    return [{"name": name, **added(numbers)} for name, numbers in by_name.items()]


def _quotas(quotas: Sequence[Document]) -> list[Document]:
    """One quota in all, one window: the earliest is that of all as soon as they have heard of it. What
    is used elsewhere still is what the best informed of them knows beyond what they all say."""
    by_name: dict[str, list[Document]] = {}
    for quota in quotas:
        by_name.setdefault(quota["client"], []).append(quota)
    found = []
    for name, of in by_name.items():
        sums = {key: added([quota[key] for quota in of]) for key in OF_A_QUOTA}
        known = max(q["used_tokens"] + q["under_way_tokens"] + q["elsewhere_tokens"] for q in of)
        lefts = [q["window_left_s"] for q in of if q["window_left_s"] is not None]
        found.append(
            {
                "client": name,
                **sums,
                "elsewhere_tokens": max(known - sum(sums.values()), 0),
                "quota_tokens": of[0]["quota_tokens"],
                "window_s": of[0]["window_s"],
                "window_left_s": min(lefts, default=None),
            }
        )
    return found
