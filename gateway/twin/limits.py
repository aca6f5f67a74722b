"""How long one sequence may be: what the engine clips silently and what it refuses late.

`max_req_len` is one less than the context or the pool, whichever is smaller; a prompt must stay
five below it. A cap is clipped to what is left after the prompt and, from 0.5.12 on, to what the
pool can hold of it, less a page. None of this is told to the client: it sees a finish reason
"length".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.twin.pool import KvPool
    from gateway.twin.profiles import Profile
    from gateway.twin.versions import Traits

INPUT_MARGIN = 5  # tokens between the longest sequence and the longest prompt taken
UNLIMITED = 1 << 30  # SGLang's own stand-in for "no cap", tokens


class Limits:
    """The limits of one engine. Tokens."""

    def __init__(self, profile: Profile, traits: Traits, pool: KvPool) -> None:
        self.longest = min(profile.context, pool.capacity) - 1
        self.longest_prompt = self.longest - INPUT_MARGIN
        self._setting = profile.new_tokens_limit if traits.has_new_tokens_limit else None
        self._clips_to_pool = traits.clips_to_pool
        self._pool = pool

    def cap(self, prompt: int, asked: int | None) -> int:
        """The cap in force for a prompt of `prompt` tokens whose client asked for `asked`."""
        limit = UNLIMITED if asked is None else asked
        if self._setting is not None:
            limit = min(limit, self._setting)
        limit = min(limit, self.longest - prompt - 1)
        if self._clips_to_pool:
            page = self._pool.page
            limit = min(limit, self._pool.capacity - self._pool.pages(prompt) - page - 1)
        return max(limit, 0)

    def refusal(self, prompt: int) -> str | None:
        """What the scheduler says about a prompt that is too long for the pool."""
        if prompt <= self.longest_prompt:
            return None
        return (
            f"Input length ({prompt} tokens) exceeds the maximum allowed length "
            f"({self.longest_prompt} tokens). Use a shorter input or enable --allow-auto-truncate."
        )
