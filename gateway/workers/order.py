"""What a worker is told when it is started: one line of JSON on its standard input.

The policy goes with it as it is in force, so that a worker that is started anew serves by it even while
the file has a mistake. Keys do not: the policy names them, and each process reads them itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import orjson

from gateway.policy.schema import Policy
from gateway.policy.source import Source

UP, READY = b"up", b"ready"
"""What it says itself, see `worker`."""


@dataclass(frozen=True, slots=True)
class Order:
    """See the module, and `Seat`."""

    number: int
    of: int
    replica: str
    folder: Path
    listen: tuple[str, int]
    patience_s: float
    policy: Policy
    source: Source

    def to_line(self) -> bytes:
        """As it is sent."""
        source = self.source
        return orjson.dumps(
            {
                "number": self.number,
                "of": self.of,
                "replica": self.replica,
                "folder": str(self.folder),
                "listen": self.listen,
                "patience_s": self.patience_s,
                "policy": self.policy.model_dump_json(),
                "source": {
                    "path": None if source.path is None else str(source.path),
                    "backends": source.backends,
                    "listen": source.listen,
                    "control": source.control,
                    "tokenizer": None if source.tokenizer is None else str(source.tokenizer),
                    "workers": source.workers,
                },
            },
            option=orjson.OPT_APPEND_NEWLINE,
        )

    @classmethod
    def of_line(cls, line: bytes) -> Order:
        """As it was sent."""
        data = orjson.loads(line)
        source = data["source"]
        path, tokenizer = source["path"], source["tokenizer"]
        host, port = data["listen"]
        return cls(
            number=data["number"],
            of=data["of"],
            replica=data["replica"],
            folder=Path(data["folder"]),
            listen=(host, port),
            patience_s=data["patience_s"],
            policy=Policy.model_validate_json(data["policy"]),
            source=Source(
                path=None if path is None else Path(path),
                backends=tuple(source["backends"]),
                listen=source["listen"],
                control=source["control"],
                tokenizer=None if tokenizer is None else Path(tokenizer),
                workers=source["workers"],
            ),
        )


def table_socket(folder: Path) -> Path:
    """Where the leases' table is asked."""
    return folder / "table"


def control_socket(folder: Path, number: int) -> Path:
    """Where a worker's control plane listens."""
    return folder / f"w{number}"
