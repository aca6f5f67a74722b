"""Streams that show nothing while they write: what the books take them to have written."""

from __future__ import annotations

from gateway.core.model import PoolLimits, QueueRule
from gateway.core.pace import WINDOW_S
from tests.core.desk import GPU0, Desk, rid

LONG = QueueRule(max_requests=1_000, max_wait_s=1e9)


def desk() -> Desk:
    """Two streams have begun: one that shows its tokens, and one that will not."""
    one = Desk(LONG, gpu0=PoolLimits(kv_tokens=60_000, prefill_tokens=4_000, forecast=True))
    for name in ("shows", "silent"):
        one.ask(name, 1_000, 8_000)
        one.first_token(name)
        one.core.true_up(rid(name), 20)
    return one


def wrote(one: Desk, name: str) -> int:
    return one.core.books.pools[GPU0].ledger.holds[rid(name)].used - 1_000


def write(one: Desk, seconds: float, *names: str) -> None:
    """So many seconds, at 20 tokens each."""
    written = {name: wrote(one, name) for name in names}
    for second in range(int(seconds)):
        one.wait(1.0)
        for name in names:
            one.core.true_up(rid(name), written[name] + 20 * (second + 1))


def test_a_stream_that_is_silent_while_others_write_is_taken_to_write_as_they_do() -> None:
    """A file that an agent writes: thousands of tokens in the pool, of which its server shows none."""
    one = desk()
    write(one, 100, "shows")
    assert 1_500 < wrote(one, "silent") <= 2_020
    assert wrote(one, "shows") == 2_020
    write(one, 1_000, "shows")
    assert wrote(one, "silent") == 8_000, "not more than its cap"


def test_a_slow_stream_is_not_a_silent_one() -> None:
    """One piece in two windows, of many tokens."""
    one = desk()
    for tokens in range(200, 2_000, 200):
        one.core.true_up(rid("silent"), tokens)
        one.core.true_up(rid("shows"), tokens)
        one.wait(2 * WINDOW_S)
        assert wrote(one, "silent") == tokens


def test_what_it_turns_out_to_have_written_counts_where_it_is_more() -> None:
    one = desk()
    write(one, 30, "shows")
    guessed = wrote(one, "silent")
    one.core.true_up(rid("silent"), 21)
    assert wrote(one, "silent") == guessed, "its piece was one, of many tokens"
    one.core.true_up(rid("silent"), 3_000)
    assert wrote(one, "silent") == 3_000


def test_while_a_prompt_is_read_nobody_is_taken_to_write() -> None:
    """All streams are silent then. Alone, without a prompt being read, it is the silent one that writes."""
    one = desk()
    one.wait(4 * WINDOW_S)
    before = wrote(one, "silent")
    assert before > 100
    one.ask("long", 3_500, 100)
    assert "long" in one.running
    one.wait(6 * WINDOW_S)
    assert wrote(one, "silent") == before
    one.first_token("long")
    one.wait(4 * WINDOW_S)
    assert wrote(one, "silent") > before
