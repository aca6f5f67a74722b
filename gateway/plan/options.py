"""Which options an SGLang version has: the table in data/flags.tsv, read as argparse would read it.

SGLang leaves argparse's abbreviations on, so a unique beginning of an option counts as the option.
"""

from __future__ import annotations

import difflib
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_TABLE = Path(__file__).parent / "data" / "flags.tsv"

Version = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Option:
    """One option string."""

    name: str  # with its dashes
    versions: tuple[Version, ...]  # of the table's that have it
    takes: str  # argparse: 0, 1, ?, + or *
    sets: str  # the argument it sets, as /server_info calls it
    deprecated: tuple[Version, ...]  # versions in which it should no longer be used


@dataclass(frozen=True, slots=True)
class Table:
    """All options of all versions read."""

    versions: tuple[Version, ...]
    options: Mapping[str, Option]

    def nearest(self, version: Version) -> Version:
        """The table's version to judge `version` by: the last one not newer, else the oldest."""
        return max((v for v in self.versions if v <= version), default=self.versions[0])

    def find(self, name: str, version: Version | None) -> Option | None:
        """The option of that name, or the one it abbreviates. None: there is no such option, in
        `version` (a version of the table) or, where that is None, in any."""
        exact = self.options.get(name)
        if exact is not None and (version is None or version in exact.versions):
            return exact
        longer = [
            option
            for option in self.options.values()
            if option.name.startswith(name) and (version is None or version in option.versions)
        ]
        return longer[0] if len(longer) == 1 else None

    def like(self, name: str, version: Version | None) -> str | None:
        """An option that may have been meant."""
        names = [o.name for o in self.options.values() if version is None or version in o.versions]
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.75)  # typos, not topics
        return close[0] if close else None


@functools.cache
def table() -> Table:
    """The table in the package."""
    versions: tuple[Version, ...] = ()
    options = {}
    for line in _TABLE.read_text(encoding="utf-8").splitlines():
        cells = line.split("\t")
        if line.startswith("#"):
            continue
        if cells[0] == "versions":
            versions = tuple(_version(text) for text in cells[1].split())
            continue
        name, has, takes, sets, old = (*cells, "", "")[:5]
        options[name] = Option(
            name=name,
            versions=tuple(versions[int(digit)] for digit in has),
            takes=takes,
            sets=sets or name[2:].replace("-", "_"),
            deprecated=tuple(versions[int(digit)] for digit in old),
        )
    return Table(versions, options)


def _version(text: str) -> Version:
    major, minor, patch = map(int, text.split("."))
    return major, minor, patch


def said(version: Version) -> str:
    """0.5.17"""
    return ".".join(map(str, version))


INSTEAD: Mapping[str, str] = {
    "--enable-paged-attention": "leave it out: the KV cache is always paged, --page-size sets the page",
    "--max-pending-requests": "the bound on waiting requests is --max-queued-requests; behind the "
    "gate leave it unset and bound the gate's queue",
    "--disable-drafting": "leave it out: nothing is drafted unless --speculative-algorithm is given",
    "--max-model-len": "here it is called --context-length",
    "--max-seq-len": "here it is called --context-length",
    "--max-input-length": "bound prompts with --context-length, or max_prompt_tokens in the policy",
    "--ctx-size": "here it is called --context-length",
    "--gpu-memory-utilization": "here it is called --mem-fraction-static",
    "--max-num-seqs": "here it is called --max-running-requests",
    "--max-batch-size": "here it is called --max-running-requests",
    "--max-num-batched-tokens": "here it is called --chunked-prefill-size",
    "--max-batch-tokens": "here it is called --max-prefill-tokens",
    "--enable-chunked-prefill": "leave it out: chunking is on, --chunked-prefill-size sets its size",
    "--enable-prefix-caching": "leave it out: the radix cache is on unless --disable-radix-cache",
    "--max-new-tokens": "no option caps answers: set default_output_tokens and max_output_tokens in "
    "the gate's policy",
    "--max-tokens": "no option caps answers: set default_output_tokens and max_output_tokens in the "
    "gate's policy",
    "--request-timeout": "no option ends long requests: set queue.max_wait_s and limits in the policy",
}
"""What to write for options that advice on the web or another engine's habits suggest."""
