"""The store in Redis or Valkey (`pip install kvgate[redis]`): one key a pool and one for the board, two
scripts.

The script reads the server's run id, which every process draws anew when it starts, in the same step as
it swaps: a table written before a restart, or in a primary whose replica has taken over since, is told
from one of today. Needs Redis 5 or Valkey, and a user that may GET, SET, EVAL and INFO; for the board also
HGETALL, HSET, HSETNX, HDEL, PEXPIRE and TIME. The board's clock is the store's, and only differences of
it are told. Where it went back (set right, or another copy has taken over), what was written later than
now was written now: nobody who has fallen silent seems to speak until it is as late again. What is none
of ours on the board is taken off: it would be read each second, by everybody.

Whoever has used a salt for a while insists on it, and the first who insists is right: a gate that has just
been started, and is the first at a store that came back empty, has brought one that nobody's marks are made by.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import re
from itertools import chain
from typing import TYPE_CHECKING, Any

from gateway.core.others import MOST
from gateway.lease.store import LONGEST_DOCUMENT, LONGEST_S, Answer, Heard, Said, StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.lease.store import Lost

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

BOARD = "~board"
"""Its key. No server can be called that."""

POST = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSETNX', KEYS[1], 'salt', ARGV[2])
local written = string.format('%.0f %.0f ', now, now + ARGV[4]) .. ARGV[3]
redis.call('HSET', KEYS[1], 'of:' .. ARGV[1], written)
redis.call('PEXPIRE', KEYS[1], ARGV[5])
local salt, kept, there = '', '', {}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local name, value = all[i], all[i + 1]
  if name == 'salt' then
    salt = value
  elseif name == 'kept' then
    kept = value
  else
    local at, till, document = string.match(value, '^(%d+) (%d+) (.*)$')
    if at == nil or #at > 15 or #till > 15 or #document > tonumber(ARGV[7])
        or string.sub(name, 1, 3) ~= 'of:' then
      at, till = 0, 0
    end
    at, till = tonumber(at), tonumber(till)
    if at > now then
      at, till = now, till - at + now
      redis.call('HSET', KEYS[1], name, string.format('%.0f %.0f ', at, till) .. document)
    end
    if till <= now or till > at + tonumber(ARGV[5]) then
      redis.call('HDEL', KEYS[1], name)
    else
      table.insert(there, {at, string.sub(name, 4), document})
    end
  end
end
if ARGV[8] == '1' and kept ~= salt then
  salt = ARGV[2]
  redis.call('HSET', KEYS[1], 'salt', salt, 'kept', salt)
end
table.sort(there, function(a, b) return a[1] > b[1] end)
local out = {salt}
for i, one in ipairs(there) do
  if i > tonumber(ARGV[6]) then
    redis.call('HDEL', KEYS[1], 'of:' .. one[2])
  elseif one[2] ~= ARGV[1] then
    table.insert(out, one[2])
    table.insert(out, string.format('%.0f', now - one[1]))
    table.insert(out, one[3])
  end
end
return out
"""

RESTORE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for i = 1, #ARGV, 4 do
  local written = string.format('%.0f %.0f ', now - ARGV[i + 1], now + ARGV[i + 2]) .. ARGV[i + 3]
  redis.call('HSETNX', KEYS[1], 'of:' .. ARGV[i], written)
end
"""


COPY = "READONLY"
WORDS = {
    COPY: "is a copy that takes no writes (a replica): the URL must lead to the primary",
    "OOM": "is full (its maxmemory) and takes no writes",
    "NOPERM": "forbids its user what leases need: see docs/scale.md",
    "MISCONF": "takes no writes, as it cannot save to its disk (MISCONF in its log)",
    "MOVED": "is one of a cluster: leases need a single store, or one with copies",
    "CLUSTERDOWN": "is one of a cluster: leases need a single store, or one with copies",
}
"""What a store says no with, in words. Its own text is not told: it quotes the script."""

_CODES = {
    "ReadOnlyError": COPY,
    "OutOfMemoryError": "OOM",
    "NoPermissionError": "NOPERM",
    "MovedError": "MOVED",
    "ClusterDownError": "CLUSTERDOWN",
}
"""The package's names for some of them, which come without the word."""


def in_words(error: Exception) -> str | None:
    """Inside a script the word stands somewhere within the sentence (before Redis 7), or is missing."""
    if code := _CODES.get(type(error).__name__):
        return WORDS[code]
    said = str(error)
    if "ACL failure" in said or "user executing the script" in said:
        return WORDS["NOPERM"]
    return next((words for code, words in WORDS.items() if re.search(rf"\b{code}\b", said)), None)


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
        taken, now, document = await self._eval(SWAP, name, run, expects or b"", new, KEPT_S)
        return Answer(bool(taken), now.decode(), document or None)

    async def post(
        self, me: str, salt: bytes, document: bytes, lasts_s: float, *, kept: bool = False
    ) -> Heard:
        """See `Store`."""
        name, lasts_ms = f"{self._prefix}:{BOARD}", max(int(1000 * lasts_s), 1)
        kept_ms = int(1000 * LONGEST_S)
        values = (me, salt, document, lasts_ms, kept_ms, MOST, LONGEST_DOCUMENT, int(kept))
        told = await self._eval(POST, name, *values)
        try:
            rows = zip(told[1::3], told[2::3], told[3::3], strict=True)
            of = {
                who.decode(errors="replace"): Said(int(age) / 1000, said) for who, age, said in rows
            }
            return Heard(b"" + told[0], of)
        except (ValueError, TypeError, AttributeError, IndexError):
            msg = "answers what is nothing of ours"
            raise StoreError(msg) from None

    async def restore(self, lost: Mapping[str, Lost]) -> None:
        """See `Store`."""
        rows: list[tuple[str | bytes | int, ...]] = [
            (who, int(1000 * one.said.age_s), int(1000 * one.lasts_s), one.said.document)
            for who, one in lost.items()
        ]
        await self._eval(RESTORE, f"{self._prefix}:{BOARD}", *chain.from_iterable(rows))

    async def _eval(self, script: str, name: str, *values: str | bytes | int) -> Any:  # noqa: ANN401
        """What a script answers; all that goes wrong as StoreError."""
        try:
            return await self._asked(script, name, *values)
        except self._errors.AuthenticationError:
            msg = "refuses the password (leases.password_env)"
            raise StoreError(msg) from None
        except self._errors.ResponseError as error:
            if why := in_words(error):
                if why is WORDS[COPY]:
                    await self._look_up_anew()
                raise StoreError(why) from None
            msg = f"answers with an error: {type(error).__name__}"
            raise StoreError(msg) from None
        except (self._errors.RedisError, OSError, TimeoutError) as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                msg = "has a certificate that is not accepted: SSL_CERT_FILE names authorities of your own"
                raise StoreError(msg) from None
            msg = f"does not answer: {type(error).__name__}"
            raise StoreError(msg) from None

    async def _asked(self, script: str, name: str, *values: str | bytes | int) -> Any:  # noqa: ANN401
        """Raises CancelledError where it was cancelled meanwhile: the package writes by `asyncio.wait_for`,
        which loses that where the write is done by then (Python before 3.12), and who goes on for ever until
        it is cancelled, as `edge.common`, would never end."""
        task = asyncio.current_task()
        before = 0 if task is None else task.cancelling()
        try:
            return await self._client.eval(script, 1, name, *values)
        finally:
            if task is not None and task.cancelling() > before:
                raise asyncio.CancelledError

    async def _look_up_anew(self) -> None:
        """After a failover the one that was the primary lives on as a copy, and so do connections to
        it; where the name leads by now is found out only by a new one."""
        with contextlib.suppress(self._errors.RedisError, OSError):
            await self._client.connection_pool.disconnect(inuse_connections=False)

    async def close(self) -> None:
        """See `Store`."""
        await self._client.aclose()
