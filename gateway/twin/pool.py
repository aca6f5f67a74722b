"""The paged KV pool: how many tokens are free, never which.

SGLang's allocator hands out slots by index; only the count decides admission, eviction and
retraction, so the twin keeps the count. Sizes are tokens, always whole pages.
"""

from __future__ import annotations


class KvPool:
    """Tokens in use out of `capacity`. Taking more than is free, or giving back more than was
    taken, raises: a negative count is a bug in the caller, never clamped."""

    def __init__(self, capacity: int, page: int = 1) -> None:
        self.page = page
        self.capacity = capacity - capacity % page
        self.used = 0
        self.peak = 0
        self.taken_total = 0
        self.freed_total = 0

    @property
    def free(self) -> int:
        """Tokens nobody holds."""
        return self.capacity - self.used

    def pages(self, tokens: int) -> int:
        """`tokens` rounded up to whole pages, in tokens."""
        return -(-tokens // self.page) * self.page

    def take(self, tokens: int) -> None:
        """Hold `tokens` more. Raises RuntimeError when fewer are free."""
        if tokens > self.free:
            message = f"the pool was asked for {tokens} tokens and has {self.free}"
            raise RuntimeError(message)
        self.used += tokens
        self.taken_total += tokens
        self.peak = max(self.peak, self.used)

    def give(self, tokens: int) -> None:
        """Return `tokens`. Raises RuntimeError when more than is held."""
        if tokens > self.used:
            message = f"{tokens} tokens were returned to a pool that holds {self.used}"
            raise RuntimeError(message)
        self.used -= tokens
        self.freed_total += tokens
