"""The store in Redis or Valkey (`pip install kvgate[redis]`): one key a pool, one script.

The script reads the server's run id, which every process draws anew when it starts, in the same step as
it swaps: a table written before a restart, or in a primary whose replica has taken over since, is told
from one of today. Needs Redis 5 or Valkey, and a user that may GET, SET, EVAL and INFO.
"""

from __future__ import annotations

import importlib
from typing import Any

from gateway.lease.store import Answer, StoreError

ANSWER_S = 1.0
"""Longest wait for the store: it answers in a millisecond, and a lease has time for many tries."""

KEPT_S = 7 * 86_400
"""How long the table of a pool that nobody asks for is kept: over a long weekend."""

SWAP = """
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local now = redis.call('GET', KEYS[1])
if run == ARGV[1] and (now or '') == ARGV[2] then
  redis.call('SET', KEYS[1], ARGV[3], 'EX', ARGV[4])
  return {1, run, ''}
end
return {0, run, now or ''}
"""


class RedisStore:
    """See the module. Raises StoreError where the package is not installed.

    `url` holds no credentials: the policy forbids it.
    """

    def __init__(self, url: str, *, password: str | None = None, prefix: str = "kvgate") -> None:
        try:
            asynchronous = importlib.import_module("redis.asyncio")
            self._errors: Any = importlib.import_module("redis.exceptions")
        except ImportError:
            msg = "leases need the redis package, which is not here: pip install kvgate[redis]"
            raise StoreError(msg) from None
        self._prefix = prefix
        self._client: Any = asynchronous.Redis.from_url(
            url,
            password=password,
            socket_timeout=ANSWER_S,
            socket_connect_timeout=ANSWER_S,
            retry=None,  # whoever asks asks again, with what holds then
        )

    async def swap(self, key: str, run: str, expects: bytes | None, new: bytes) -> Answer:
        """See `Store`."""
        name = f"{self._prefix}:{key}"
        try:
            taken, now, document = await self._client.eval(
                SWAP, 1, name, run, expects or b"", new, KEPT_S
            )
        except self._errors.AuthenticationError:
            msg = "refuses the password (leases.password_env)"
            raise StoreError(msg) from None
        except (self._errors.RedisError, OSError, TimeoutError) as error:
            msg = f"does not answer: {type(error).__name__}"
            raise StoreError(msg) from None
        return Answer(bool(taken), now.decode(), document or None)

    async def close(self) -> None:
        """See `Store`."""
        await self._client.aclose()
