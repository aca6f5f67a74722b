"""What a server has read before: which beginnings of prompts lie in its prefix cache.

Theory. The engine keeps the KV of prompts it has read in a radix tree and throws away what was
least recently used when it needs room. A gate that knows where a beginning was sent last therefore
knows, roughly, where it still is. A *lead* is a prompt's beginning at several depths: marks, each of
all the text up to there, with the tokens it stands for. A pool remembers the marks that went to it,
the least recently used leaving first, in as many tokens as the pool has. A mark leaves before those
it continues, so that what is known of a lead is always its front, and found by bisection.

What is remembered is a hope, since nobody tells of an eviction. Where the server says how much it
found (`cached_tokens`), the hope is scaled by what came true of it lately.

Marks are keyed hashes made elsewhere: no text, and nothing that could be compared between processes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.core.model import Lead

MOST_MARKS = 32_768
"""Marks of one pool, about 100 bytes each: 3 MB. A mark stands for a message: that is 60 tokens each in
a pool of two million."""

LEARN = 0.1
"""Weight of the newest answer in `trust`: ten requests after a restart or a flush decide."""


class Prefixes:
    """Of one pool."""

    def __init__(self) -> None:
        self._own: OrderedDict[int, int] = OrderedDict()  # tokens a mark adds to those before it
        self._tokens = 0
        self.trust = 1.0
        """The part of what was hoped for that was there, lately."""

    def __len__(self) -> int:
        return len(self._own)

    def known(self, lead: Lead) -> int:
        """Tokens at the front of a prompt that were sent here before and may still be there."""
        low, high = 0, len(lead)
        while low < high:
            middle = (low + high) // 2
            if lead.marks[middle] in self._own:
                low = middle + 1
            else:
                high = middle
        return lead.tokens[low - 1] if low else 0

    def put(self, lead: Lead, most: int) -> None:
        """A prompt was sent here; forget the oldest beyond `most` tokens."""
        for place in range(
            len(lead) - 1, -1, -1
        ):  # so that a front is never older than what follows
            mark = lead.marks[place]
            if mark not in self._own:
                self._own[mark] = lead.tokens[place] - (lead.tokens[place - 1] if place else 0)
                self._tokens += self._own[mark]
            self._own.move_to_end(mark)
        while self._own and (self._tokens > most or len(self._own) > MOST_MARKS):
            self._tokens -= self._own.popitem(last=False)[1]

    def found(self, hoped: int, cached: int) -> None:
        """So many of the tokens hoped for were there."""
        if hoped > 0:
            self.trust += LEARN * (min(cached / hoped, 1.0) - self.trust)

    def forget(self) -> None:
        """The server died: its cache is empty."""
        self._own.clear()
        self._tokens = 0
