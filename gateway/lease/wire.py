"""A table as bytes: JSON, so that an operator can read it, and a version of the form in front.

What is not in this form is refused as a whole: a gate of another version must not share by half.
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway.core.amount import Amount
from gateway.core.lease import Entry, Table
from gateway.lease.store import StoreError

FORM = "kvgate-leases-1"


def encode(table: Table) -> bytes:
    """The document of `table`."""
    unclaimed = table.unclaimed
    return orjson.dumps(
        {
            "form": FORM,
            "run": table.run,
            "epoch": table.epoch,
            "version": table.version,
            "unclaimed": None if unclaimed is None else _row(unclaimed),
            "replicas": {
                who: {
                    "seq": entry.seq,
                    "at": entry.at,
                    "share": _row(entry.share),
                    "held": _row(entry.held),
                    "want": _row(entry.want),
                    "need": _row(entry.need),
                    "started": entry.started,
                    "since": entry.since,
                    "budget": _row(entry.budget),
                    "running": entry.running,
                    "steady": entry.steady,
                }
                for who, entry in table.entries.items()
            },
        }
    )


def decode(document: bytes) -> Table:
    """The table of a document. Raises StoreError where it is none."""
    try:
        data = orjson.loads(document)
        if data["form"] != FORM:
            msg = f"the table is of the form {str(data['form'])[:40]!r}; this gate knows {FORM}"
            raise StoreError(msg)
        unclaimed = data["unclaimed"]
        return Table(
            run=str(data["run"]),
            epoch=str(data["epoch"]),
            version=int(data["version"]),
            unclaimed=None if unclaimed is None else _amount(unclaimed),
            entries={str(who): _entry(row) for who, row in data["replicas"].items()},
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        msg = "what stands in the store is not a table of leases; delete the key, or change the prefix"
        raise StoreError(msg) from error


def _entry(row: dict[str, Any]) -> Entry:
    return Entry(
        seq=int(row["seq"]),
        at=int(row["at"]),
        share=_amount(row["share"]),
        held=_amount(row["held"]),
        want=_amount(row["want"]),
        need=_amount(row["need"]),
        started=int(row["started"]),
        since=int(row["since"]),
        budget=_amount(row["budget"]),
        running=int(row["running"]),
        steady=int(row["steady"]),
    )


def _row(amount: Amount) -> list[int]:
    return [amount.kv, amount.prefill, amount.slots]


def _amount(row: list[Any]) -> Amount:
    kv, prefill, slots = (int(value) for value in row)
    return Amount(kv, prefill, slots)
