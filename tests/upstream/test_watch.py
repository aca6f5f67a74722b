"""A server's life as the watch sees it, on a virtual clock: every second below is exact."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from gateway.upstream.watch import Life, Watch
from tests.fakes.profile import RankUse
from tests.upstream.scripted import ScriptedClient, status

pytestmark = pytest.mark.looptime


class Told:
    """What the callbacks were told, and when."""

    def __init__(self) -> None:
        self.up: list[Any] = []
        self.down: list[tuple[float, str]] = []
        self.loads: list[float] = []
        self.gone: list[tuple[float, str]] = []
        self.stalls: list[float] = []
        self.moves: list[float] = []
        self.away: list[str] = []
        self.busy: float | None = None

    def on_down(self, reason: str) -> None:
        self.down.append((now(), reason))

    def on_loads(self, loads: Any) -> None:
        self.loads.append(now())

    def on_gone(self, reason: str) -> None:
        self.gone.append((now(), reason))

    def on_stall(self, reason: str) -> None:
        self.stalls.append(now())

    def on_move(self) -> None:
        self.moves.append(now())


def now() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def watching(client: ScriptedClient):
    told = Told()
    watch = Watch(
        client,
        name="gpu0",
        api_key=None,
        on_up=told.up.append,
        on_down=told.on_down,
        on_loads=told.on_loads,
        on_gone=told.on_gone,
        on_stall=told.on_stall,
        on_move=told.on_move,
        on_away=told.away.append,
        busy_since=lambda: told.busy,
    )
    watch.start()
    try:
        yield watch, told
    finally:
        await watch.stop()


async def flow(watch: Watch, seconds: float) -> None:
    """A real stream that sends a byte every 0.1 s."""
    for _ in range(round(seconds * 10)):
        watch.alive()
        await asyncio.sleep(0.1)


async def test_ready_at_once():
    client = ScriptedClient(pool=5000)
    async with watching(client) as (watch, told):
        assert watch.snapshot().state is Life.CONNECTING
        await asyncio.sleep(0.1)
        view = watch.snapshot()
        assert (view.state, view.error, view.starts) == (Life.READY, None, 1)
        assert [facts.pool_tokens for facts in told.up] == [5000]
        assert view.facts is told.up[0]


async def test_server_info_once_and_loads_every_second():
    client = ScriptedClient()
    async with watching(client) as (_, told):
        await asyncio.sleep(60)
        assert len(client.times("/server_info")) == 1
        assert len(told.loads) in (59, 60)
        assert len(client.times("/v1/models")) == 1  # loads answer: nothing else to ask


async def test_waits_for_a_server_that_is_not_there_yet():
    client = ScriptedClient()
    client.mood = "refused"
    async with watching(client) as (watch, told):
        await asyncio.sleep(10)
        view = watch.snapshot()
        assert view.state is Life.CONNECTING
        assert "No connection" in str(view.error)
        tries = client.times("/v1/models")
        pauses = [round(b - a, 3) for a, b in pairwise(tries)]
        assert pauses[:5] == [0.2, 0.4, 0.8, 1.6, 2.0]
        assert told.away == [view.error], "said once, however often it is tried"
        assert max(pauses) == 2.0
        client.mood = "up"
        await asyncio.sleep(2.1)
        assert watch.snapshot().state is Life.READY
        assert (len(told.up), told.down) == (1, [])


async def test_loading_has_its_own_word():
    client = ScriptedClient()
    client.override["/v1/models"] = status(503)
    async with watching(client) as (watch, _):
        await asyncio.sleep(1)
        assert watch.snapshot().state is Life.STARTING


async def test_hint_is_believed_at_once_and_checked():
    client = ScriptedClient()
    async with watching(client) as (watch, told):
        await asyncio.sleep(0.5)
        watch.suspect("connection reset in the middle of an answer")
        assert watch.snapshot().state is Life.DOWN  # before suspect returns
        assert [reason for _, reason in told.down] == [
            "connection reset in the middle of an answer"
        ]
        watch.suspect("another stream of the same crash")
        assert len(told.down) == 1
        await asyncio.sleep(0.1)  # it was nothing: the same start, ready again
        assert watch.snapshot().state is Life.READY
        assert [facts.started_key for facts in told.up] == [told.up[0].started_key] * 2
        assert watch.snapshot().starts == 1


async def test_hint_then_death_then_another_start_with_another_pool():
    client = ScriptedClient(pool=2048)
    async with watching(client) as (watch, told):
        await asyncio.sleep(0.5)
        client.mood = "refused"
        watch.suspect("reset")
        await asyncio.sleep(30)
        view = watch.snapshot()
        assert view.state is Life.DOWN
        assert view.facts is told.up[0]
        client.restart(pool=1024)
        client.mood = "up"
        await asyncio.sleep(2.1)
        assert [facts.pool_tokens for facts in told.up] == [2048, 1024]
        assert watch.snapshot().starts == 2
        assert len(told.down) == 1
        assert len(client.times("/server_info")) == 2  # a shut door is never asked for it


@pytest.mark.parametrize(("version", "starts"), [("0.5.12", 2), ("0.5.17", 1)])
async def test_same_key_after_a_shut_door(version, starts):
    """A pinned seed makes starts before 0.5.17 look alike; after it, the key tells a blip apart."""
    client = ScriptedClient(version=version, random_seed=1)
    async with watching(client) as (watch, told):
        await asyncio.sleep(1)
        client.mood = "refused"
        watch.suspect("reset")
        await asyncio.sleep(3)
        client.mood = "up"
        await asyncio.sleep(2.1)
        assert [facts.started_key for facts in told.up] == [told.up[0].started_key] * 2
        assert watch.starts == starts
        watch.suspect("reset")
        await asyncio.sleep(2)
        assert watch.starts == starts


# ---- what it held is gone ------------------------------------------------------------------------


async def test_two_shut_doors_after_a_hint_mean_gone_and_one_does_not():
    client = ScriptedClient()
    async with watching(client) as (watch, told):
        await asyncio.sleep(0.5)
        client.mood = "refused"
        watch.suspect("reset")
        await asyncio.sleep(0.1)
        assert told.gone == []
        client.mood = "up"
        await asyncio.sleep(0.3)
        assert watch.snapshot().state is Life.READY
        client.mood = "refused"
        watch.suspect("reset")
        hint = now()
        await asyncio.sleep(30)
        ((at, reason),) = told.gone  # once, however long the door stays shut
        assert at - hint < 0.5
        assert "No connection" in reason


async def test_a_door_that_is_silent_is_not_shut():
    """As for 5.4 s after a scheduler was killed: nothing is known of what it held."""
    client = ScriptedClient()
    async with watching(client) as (watch, told):
        await asyncio.sleep(0.5)
        client.mood = "silent"
        watch.suspect("reset")
        await asyncio.sleep(60)
        assert told.gone == []
        client.mood = "refused"
        await asyncio.sleep(13)
        assert len(told.gone) == 1


async def test_a_server_that_was_never_there_is_not_gone():
    client = ScriptedClient()
    client.mood = "refused"
    async with watching(client) as (_, told):
        await asyncio.sleep(10)
        assert told.gone == []


async def test_a_hint_during_a_discovery_has_it_asked_once_more():
    """Its answers may be from before the death that the hint is about."""
    client = ScriptedClient()
    client.latency_s = 0.2
    async with watching(client) as (watch, told):
        await asyncio.sleep(1)
        watch.suspect("reset")
        await asyncio.sleep(0.3)  # in the midst of three questions
        watch.suspect("another reset")
        await asyncio.sleep(0.5)
        assert watch.snapshot().state is Life.DOWN
        await asyncio.sleep(0.5)
        assert watch.snapshot().state is Life.READY
        assert len(told.up) == 2
        assert len(client.times("/server_info")) == 3


async def test_a_hint_does_not_wait_for_a_question_that_is_out():
    client = ScriptedClient()
    async with watching(client) as (watch, told):
        await asyncio.sleep(5)
        client.mood = "silent"
        await asyncio.sleep(1.5)  # the next question is out, and has 3 s
        client.mood = "refused"
        hint = now()
        watch.suspect("reset")
        await asyncio.sleep(1)
        ((at, _),) = told.gone
        assert at - hint < 0.5


# ---- a scheduler that does not move ------------------------------------------------------------


def frozen(client: ScriptedClient, *, health: object = None) -> None:
    """Its HTTP side answers: the same loads for ever, older with each."""
    taken = now()
    row = {"num_running_reqs": 1, "num_used_tokens": 9, "max_total_num_tokens": 2048}

    def stale() -> Any:
        return {"timestamp": now(), "loads": [row | {"timestamp": taken}]}

    client.override |= {"/v1/loads": stale, "/health": status(503) if health is None else health}


async def test_a_frozen_scheduler_is_seen_within_its_time_though_everything_answers():
    client = ScriptedClient()
    async with watching(client) as (watch, told):
        await asyncio.sleep(5)
        told.busy = now()
        frozen(client)
        froze = now()
        await asyncio.sleep(29)
        assert told.stalls == []
        await asyncio.sleep(60)
        (at,) = told.stalls
        assert 30 <= at - froze <= 33
        view = watch.snapshot()
        assert view.state is Life.STALLED
        assert "nothing has moved" in str(view.error)
        assert (told.down, told.gone, len(told.up)) == ([], [], 1)
        assert len(client.times("/health")) == 1, "one probe, and only when in doubt"
        client.override.clear()
        told.busy = now()
        await asyncio.sleep(2)
        assert len(told.moves) == 1
        assert (watch.snapshot().state, watch.snapshot().error) == (Life.READY, None)


@pytest.mark.parametrize("sign", ["bytes", "health", "snapshots", "idle"])
async def test_any_sign_of_life_speaks_for_it(sign):
    client = ScriptedClient()
    async with watching(client) as (watch, told):
        await asyncio.sleep(5)
        told.busy = None if sign == "idle" else now()
        frozen(client, health={} if sign == "health" else None)
        if sign == "snapshots":
            row = {"num_running_reqs": 1, "num_used_tokens": 9}
            client.override["/v1/loads"] = lambda: {
                "timestamp": now(),
                "loads": [row | {"timestamp": now() - 5}],
            }
        await (flow(watch, 120) if sign == "bytes" else asyncio.sleep(120))
        assert told.stalls == []
        assert watch.snapshot().state is Life.READY


async def test_one_rank_at_work_speaks_for_a_server_whose_others_are_idle():
    client = ScriptedClient(dp=2)
    async with watching(client) as (_watch, told):
        told.busy = 0.0
        row = {"num_running_reqs": 1, "num_used_tokens": 9}
        client.override["/health"] = status(503)
        client.override["/v1/loads"] = lambda: {
            "timestamp": now() + 1e6,
            "loads": [
                row | {"dp_rank": 0, "timestamp": now() + 1e6 - 2},
                {"num_running_reqs": 0, "num_used_tokens": 0, "dp_rank": 1, "timestamp": 5.0},
            ],
        }
        await asyncio.sleep(120)
        assert told.stalls == []


async def test_a_byte_ends_a_stall_at_once():
    client = ScriptedClient()
    async with watching(client) as (watch, told):
        told.busy = 0.0
        frozen(client)
        await asyncio.sleep(60)
        assert len(told.stalls) == 1
        watch.alive()
        assert len(told.moves) == 1
        assert watch.snapshot().state is Life.READY


async def test_a_stalled_server_may_still_die():
    client = ScriptedClient()
    async with watching(client) as (watch, told):
        told.busy = 0.0
        frozen(client)
        await asyncio.sleep(60)
        client.mood = "refused"
        watch.suspect("reset")
        assert watch.snapshot().state is Life.DOWN
        await asyncio.sleep(1)
        assert (len(told.gone), told.moves) == (1, [])


async def test_a_server_whose_loads_go_through_the_scheduler_stalls_with_them():
    """0.5.6: an answer is a sign of life by itself, silence is none."""
    client = ScriptedClient(version="0.5.6")
    async with watching(client) as (_, told):
        told.busy = 0.0
        await asyncio.sleep(120)
        assert told.stalls == []
        silent = asyncio.Event()
        client.override |= {"/get_load": silent.wait, "/health": silent.wait}
        froze = now()
        await asyncio.sleep(60)
        (at,) = told.stalls
        assert at - froze <= 30 + 5 + 3 + 3


async def test_shut_door_without_traffic_is_noticed():
    client = ScriptedClient()
    async with watching(client) as (_, told):
        await asyncio.sleep(10)
        client.mood = "refused"
        died = now()
        await asyncio.sleep(5)
        ((at, reason),) = told.down
        assert at - died <= 1.0 + 0.5  # a poll of loads, and one more question
        assert "No connection" in reason


async def test_one_failed_question_is_no_evidence():
    client = ScriptedClient()
    async with watching(client) as (watch, told):
        await asyncio.sleep(10)
        client.override |= {"/v1/loads": status(500), "/v1/models": status(500)}
        await asyncio.sleep(0.4)
        assert watch.snapshot().error == "The engine answered with status 500."
        client.override.clear()
        await asyncio.sleep(10)
        assert (told.down, watch.snapshot().error) == ([], None)


@pytest.mark.parametrize("mood", ["refused", "silent"])
async def test_failing_polls_never_mark_down_while_bytes_flow(mood):
    client = ScriptedClient()
    async with watching(client) as (watch, told):
        await flow(watch, 5)
        client.mood = mood
        await flow(watch, 60)
        assert (told.down, watch.snapshot().state) == ([], Life.READY)
        client.mood = "up"
        await flow(watch, 10)
        assert len(told.up) == 1
        assert watch.snapshot().metrics_stale is False


async def test_silent_door_counts_after_its_time_once_bytes_stop():
    client = ScriptedClient()
    async with watching(client) as (watch, told):
        await asyncio.sleep(5)
        client.mood = "silent"
        await flow(watch, 20)
        assert told.down == []
        quiet = now()
        await asyncio.sleep(30)
        ((at, reason),) = told.down
        assert 10 <= at - quiet < 10 + 2 * (3 + 0.5)
        assert "accepts connections" in reason


async def test_the_silence_of_a_dying_server_ends_with_a_shut_door():
    client = ScriptedClient()
    async with watching(client) as (_, told):
        await asyncio.sleep(5)
        client.mood = "silent"
        await asyncio.sleep(5.4)
        assert told.down == []
        client.mood = "refused"
        await asyncio.sleep(4)
        assert len(told.down) == 1


async def test_frozen_scheduler_stays_down_after_a_hint():
    client = ScriptedClient()
    async with watching(client) as (watch, _):
        await asyncio.sleep(1)
        client.mood = "frozen"
        watch.suspect("no first byte in time")
        await asyncio.sleep(60)
        view = watch.snapshot()
        assert view.state is Life.DOWN
        assert "scheduler was silent" in str(view.error)
        assert len(client.times("/server_info")) <= 1 + 60 / 10
        client.mood = "up"
        await asyncio.sleep(13)
        assert watch.snapshot().state is Life.READY


async def test_another_pool_behind_the_same_door_means_restart():
    client = ScriptedClient(pool=2048)
    async with watching(client) as (watch, told):
        await asyncio.sleep(3)
        client.restart(pool=4096)
        await asyncio.sleep(2)
        assert [facts.pool_tokens for facts in told.up] == [2048, 4096]
        assert "from 2048 to 4096" in told.down[0][1]
        assert watch.snapshot().starts == 2


async def test_a_count_that_begins_anew_means_restart():
    client = ScriptedClient()
    row = {"num_running_reqs": 0, "num_used_tokens": 0, "max_total_num_tokens": 2048}
    client.override["/v1/loads"] = {"loads": [row | {"total_prefill_uncached_tokens": 500}]}
    async with watching(client) as (watch, told):
        await asyncio.sleep(3)
        assert told.down == []
        client.restart()
        client.override["/v1/loads"] = {"loads": [row | {"total_prefill_uncached_tokens": 2}]}
        await asyncio.sleep(2)
        assert len(told.down) == 1
        assert watch.snapshot().starts == 2


async def test_loads_are_polled_fast_while_somebody_waits():
    client = ScriptedClient()
    async with watching(client) as (watch, told):
        await asyncio.sleep(10.5)
        asked = now()
        watch.want_loads(asked + 2)
        await asyncio.sleep(2)
        fast = [at for at in told.loads if at > asked]
        assert len(fast) in (9, 10, 11)
        assert fast[0] - asked <= 0.21
        await asyncio.sleep(10)
        assert len([at for at in told.loads if at > asked + 2]) in (9, 10)


async def test_loads_through_the_scheduler_are_asked_rarely():
    client = ScriptedClient(version="0.5.6")
    async with watching(client) as (watch, told):
        await asyncio.sleep(60)
        assert 11 <= len(client.times("/get_load")) <= 13
        watch.want_loads(now() + 1)
        before = len(told.loads)
        await asyncio.sleep(1)
        assert len(told.loads) - before in (4, 5, 6)


async def test_server_without_loads_is_asked_for_its_models():
    client = ScriptedClient()
    client.override["/v1/loads"] = status(404)
    async with watching(client) as (watch, _):
        await asyncio.sleep(60)
        assert len(client.times("/v1/loads")) == 1
        assert 12 <= len(client.times("/v1/models")) <= 14
        assert (watch.snapshot().state, watch.snapshot().metrics_stale) == (Life.READY, False)


async def test_stale_loads_are_said_and_change_nothing():
    client = ScriptedClient()
    async with watching(client) as (watch, told):
        await asyncio.sleep(5)
        client.override["/v1/loads"] = status(500)
        await asyncio.sleep(15)
        view = watch.snapshot()
        assert view.metrics_stale
        assert view.loads_age_s == pytest.approx(15, abs=1.1)
        assert (view.state, told.down) == (Life.READY, [])
        del client.override["/v1/loads"]
        await asyncio.sleep(6)
        assert not watch.snapshot().metrics_stale


async def test_a_standstill_shows_in_the_age_of_the_snapshot():
    row = {"num_running_reqs": 1, "num_used_tokens": 9, "timestamp": 1000.0}
    client = ScriptedClient()
    client.override["/v1/loads"] = {"timestamp": 1012.0, "loads": [row]}
    async with watching(client) as (watch, _):
        await asyncio.sleep(2)
        assert watch.snapshot().metrics_stale
        client.override["/v1/loads"] = {
            "timestamp": 1012.0,
            "loads": [row | {"num_running_reqs": 0}],
        }
        await asyncio.sleep(2)
        assert not watch.snapshot().metrics_stale  # an idle scheduler publishes nothing


async def test_loads_reach_the_view_rank_by_rank():
    client = ScriptedClient(dp=2)
    client.use = [RankUse(1, 0, 10, 10), RankUse(2, 1, 30, 40)]
    async with watching(client) as (watch, _):
        await asyncio.sleep(1)
        loads = watch.snapshot().loads
        assert loads is not None
        assert [(r.running, r.used, r.total) for r in loads.ranks] == [(1, 10, 10), (2, 30, 40)]


async def test_nothing_is_told_after_stop():
    client = ScriptedClient()
    async with watching(client) as (_, told):
        await asyncio.sleep(1.5)
    before = (len(client.asked), len(told.loads))
    await asyncio.sleep(30)
    assert (len(client.asked), len(told.loads)) == before
