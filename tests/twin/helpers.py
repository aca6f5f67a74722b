"""Playing an engine to its end without a clock."""

from gateway.twin.engine import Engine
from gateway.twin.jobs import Died, Event, Finished, Job
from gateway.twin.profiles import TINY_CPU, Profile
from gateway.twin.versions import traits_of

ENDLESS = 1 << 30


def engine(profile: Profile = TINY_CPU, version: str = "0.5.17") -> Engine:
    return Engine(profile, traits_of(version))


def drain(machine: Engine) -> list[Event]:
    """Every event until the engine is idle or dead."""
    events: list[Event] = []
    for _ in range(1_000_000):
        wake = machine.next_wakeup()
        if wake is None:
            return events + machine.advance(float("inf"))
        events += machine.advance(wake)
    raise AssertionError("the engine never comes to rest")


def run(machine: Engine, jobs: list[Job], at: float = 0.0) -> list[Event]:
    """Submit `jobs` at once and drain."""
    for job in jobs:
        machine.submit(job, at)
    return drain(machine)


def ends(events: list[Event]) -> dict[str, Finished]:
    return {event.rid: event for event in events if isinstance(event, Finished)}


def death(events: list[Event]) -> Died | None:
    return next((event for event in events if isinstance(event, Died)), None)


def cohorts(events: list[Event]) -> list[list[str]]:
    """Who finished together, in order of time."""
    groups: dict[float, list[str]] = {}
    for event in events:
        if isinstance(event, Finished):
            groups.setdefault(event.at, []).append(event.rid)
    return [sorted(groups[at]) for at in sorted(groups)]


def chats(count: int, prompt: int, cap: int | None) -> list[Job]:
    return [Job(f"g{index}", prompt, ENDLESS, cap) for index in range(count)]
