"""Finds a tokenizer's files on this machine: what the policy says, what the server says, the cache.

Only the disk is looked at, never the network.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_FILE: Final = "tokenizer.json"


def find_tokenizer(tokenizer_path: str | None, configured: Path | None) -> Path | None:
    """The directory that holds a model's tokenizer.json, None where there is none here.

    `configured` (from the policy) wins; `tokenizer_path` is what the server reports: a directory
    on its own machine, which may be ours, or a name on the hub, which may be in the local cache.
    """
    candidates: list[Path] = []
    if configured is not None:
        candidates.append(configured.parent if configured.name == _FILE else configured)
    if tokenizer_path:
        candidates += [Path(tokenizer_path), *_hub_snapshots(tokenizer_path)]
    for candidate in candidates:
        try:
            if (candidate / _FILE).is_file():
                return candidate
        except OSError:  # not ours to read, or a name too long to be a path
            continue
    return None


def _hub_snapshots(name: str) -> list[Path]:
    """The snapshots of a hub model in the local cache, the one `main` points to first."""
    if name.count("/") != 1 or name.startswith(("/", ".")):
        return []
    try:
        home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
        cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
        model = cache / ("models--" + name.replace("/", "--"))
        main = (model / "refs" / "main").read_text(encoding="utf-8").strip()
        snapshots = sorted((model / "snapshots").iterdir(), key=lambda path: path.name != main)
    except (OSError, UnicodeDecodeError, RuntimeError):  # the last: a user without a home
        return []
    return snapshots
