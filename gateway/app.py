"""The composition root: the one place that builds and wires, and the life of the process.

start: policy → core → gate → fleet → both planes listen (`listeners`) → servers are watched → ready line.
stop: not ready → drain → close. Nothing else constructs these parts; nothing is global.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from gateway import drain
from gateway.control import ControlPlane
from gateway.core.admission import Admission
from gateway.core.amount import NOTHING
from gateway.edge.backends import Fleet
from gateway.edge.callers import Callers
from gateway.edge.common import Common
from gateway.edge.deaths import Deaths
from gateway.edge.handler import DataPlane
from gateway.edge.leases import Leases
from gateway.edge.lookout import Lookout, local_server
from gateway.edge.memory import Memory
from gateway.edge.reaper import Reaper
from gateway.edge.signals import Signals
from gateway.gate import Gate
from gateway.lease.redis import RedisStore
from gateway.listeners import Listeners
from gateway.observe.collector import Collector
from gateway.observe.journal import Journal
from gateway.observe.log import Straight, configure
from gateway.observe.metrics import Metrics
from gateway.observe.recorder import RecordWriter
from gateway.observe.traces import Traces
from gateway.policy.certificate import Presented
from gateway.policy.change import change
from gateway.policy.checks import keyed
from gateway.policy.clients import Identify
from gateway.policy.compile import client_rules, queue_rule
from gateway.policy.notes import control_open
from gateway.policy.source import loaded
from gateway.policy.types import is_loopback
from gateway.reload import Reload

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from gateway.core.model import ClientRule, QueueRule, QuotaView
    from gateway.gate import Lease
    from gateway.observe.record import Record
    from gateway.policy.change import Change
    from gateway.policy.clients import Secrets
    from gateway.policy.schema import Policy
    from gateway.policy.source import Loaded, Source
    from gateway.seat import Seat

AT_ONCE = 16
"""Requests that are started, or sent away, between two turns of the loop: each is then 0.3 to 1 ms of work (its
body is read again and sent, or its refusal written and told of), and thousands may wait when a server comes
back, their time is over or the gate goes down."""

CUT_S = 1.0
"""How long connections may take to end once draining is over and what is left is cancelled, and
after that the aborts of what was cut: a process that left without them would leave the engine at
work for nobody."""


class App:
    """One gate, from its policy. `start`, then `stop`, each once.

    `source` is where the policy came from, to be read again; without one it stays as it is. `seat`:
    its place among several processes on one port.
    """

    def __init__(
        self, policy: Policy, source: Source | None = None, seat: Seat | None = None
    ) -> None:
        self.policy = policy
        self.seat = seat
        self.log = structlog.get_logger("kvgate")
        named = loaded(policy) if source is None else loaded(policy, source.env)
        callers = self._callers(policy, named.secrets)
        self._rules = callers.rules
        self.metrics = Metrics([one.name for one in policy.backends], list(callers.rules))
        self.records = RecordWriter(
            self._own_file(policy.observe.records),
            recent=policy.observe.recent,
            max_bytes=policy.observe.records_max_bytes,
            keep=policy.observe.records_keep,
            warn=self.log.warning,
        )
        self.journal = Journal(Straight(), self.metrics, self.records)
        # Jitter only spreads retries; nothing secret hangs on it.
        core = Admission(self._queue_rule(policy), jitter=random.Random().random)  # noqa: S311
        core.at_once = AT_ONCE
        common = policy.leases is not None or (seat is not None and seat.store is not None)
        shared = common and policy.admission == "on"
        core.first_ceiling = NOTHING if shared else None
        self.gate = Gate(core, listener=self.journal.transition, on_abandon=self._abandoned)
        self.reaper = Reaper(self.gate.confirmed, self.gate.prolong)
        reports = self._own_folder(policy.observe.crash_reports)
        secret = named.secrets.of_leases or ""
        self.deaths = Deaths(self.gate, self.reaper, self.log, reports, secret)
        self.memory = Memory(self._own_file(policy.state), self.gate, self.log)
        self.fleet = Fleet(
            policy,
            _readable(named.secrets),
            gate=self.gate,
            reaper=self.reaper,
            deaths=self.deaths,
            signals=Signals(self.gate, self.log),
            memory=self.memory,
        )
        self.leases = self._shares(policy, named.secrets) if shared else None
        self.common: Common | None = None
        if self.leases is not None:
            self.common = Common(
                self.leases, self.gate, self.deaths, self._rules_in_force, self.log
            )
        self.data = DataPlane(
            policy,
            gate=self.gate,
            fleet=self.fleet,
            reaper=self.reaper,
            callers=callers,
            deaths=self.deaths,
            journal=self.journal,
        )
        self.draining = drain.Drain(self.gate, self.data.under_way, policy.drain_s)
        self.lookout = Lookout(
            gate=self.gate,
            fleet=self.fleet,
            reaper=self.reaper,
            journal=self.journal,
            state=lambda: self.control.state,
            booked=policy.admission == "on",
        )
        self.collector = Collector(
            self.lookout.take,
            log=self.log,
            interval_s=policy.observe.collect_every_s,
            folder=self._own_folder(policy.observe.collect),
            max_bytes=self._part(policy.observe.collect_max_bytes),
            local=local_server(self.fleet),
        )
        self.traces = Traces(policy.observe.otlp, self.log, self._url_of)
        self.journal.on_end = self._ended
        self.reload = Reload(source, policy, self.adopt, self.log)
        self.control = ControlPlane(
            gate=self.gate,
            fleet=self.fleet,
            reaper=self.reaper,
            journal=self.journal,
            draining=self.draining,
            collector=self.collector,
            reload=self.reload,
            quotas=self.quotas,
            shadow=policy.admission == "shadow",
            leases=self.leases,
            common=self.common,
            seat=seat,
        )
        self._tls = None if named.tls is None else Presented(named.tls)
        self.listeners = Listeners(policy, seat, self._tls, cut_s=CUT_S)

    async def start(self) -> None:
        """Listen on both planes and begin to watch the servers. Raises OSError for a taken port."""
        self.metrics.set_view(self.gate.view)
        self.metrics.set_engines(self.fleet.engines)
        self.metrics.set_quotas(self.quotas)
        await self.listeners.open(
            self.data.handle, self.control.app(), leaving=lambda: self.draining.begun
        )
        await self.memory.start(self.fleet)
        await self.deaths.start()
        self.fleet.start()
        if self.leases is not None:
            self.leases.start()
        if self.common is not None:
            self.common.start()
        self.collector.start()
        self.traces.start()
        self.reload.start()
        self.listeners.follow(self.fleet.open, self._say_listening)

    @property
    def listen_url(self) -> str:
        """Of the data plane; empty while it does not listen."""
        return self.listeners.data_url

    @property
    def control_url(self) -> str:
        """Of the control plane."""
        return self.listeners.control_url

    def _say_listening(self) -> None:
        self.log.info(
            "listening",
            listen=self.listen_url,
            control=self.control_url,
            backends=[backend.url for backend in self.fleet],
        )
        if not keyed(self.policy.clients):
            self._tell_it_is_open()
        if self.seat is None and (why := control_open(self.policy)):  # else it is the supervisor's
            self.log.info("control_open", control=self.control_url, reason=why)

    async def stop(self) -> drain.Drained:
        """Drain, then close everything."""
        drained = await self.draining.run()
        self.log.info("drained", finished=drained.finished, cut=drained.cut)
        await self.close()
        return drained

    async def close(self) -> None:
        """Close everything, whatever of it was opened."""
        await self.reload.stop()
        await self.listeners.close()
        await self.reaper.stop(CUT_S)
        if self.common is not None:
            await self.common.stop()
        if self.leases is not None:
            await self.leases.stop()
        await self.collector.stop()
        await self.traces.stop()
        await self.fleet.stop()
        await self.memory.stop()
        await asyncio.to_thread(self.records.close)

    def _tell_it_is_open(self) -> None:
        """Nobody needs a key: that is told, and as a warning where others than this machine come."""
        tell = self.log.info if is_loopback(self.policy.listen) else self.log.warning
        reason = "no client has a key: whoever reaches this address may call; `clients` gives keys"
        tell("no_keys", listen=self.listen_url, reason=reason)

    def quotas(self) -> list[QuotaView]:
        """How the clients stand that have a quota by the policy in force."""
        return self.gate.core.quotas(self._rules_in_force(), self.gate.now())

    def _rules_in_force(self) -> Iterable[ClientRule]:
        return self._rules.values()

    def _ended(self, record: Record) -> None:
        self.lookout.ended(record)
        self.collector.ended(record)
        self.traces.ended(record)

    def _url_of(self, server: str) -> str | None:
        backend = self.fleet.backends.get(server)
        return None if backend is None else backend.url

    def adopt(self, wanted: Loaded) -> Change:
        """Put another policy in force, in one step, or raise PolicyError and change nothing."""
        where = "policy" if self.reload.file is None else str(self.reload.file)
        change_ = change(self.policy, wanted.policy, where, self.fleet.leaving)
        policy = change_.policy
        callers = self._callers(policy, wanted.secrets)
        # From here on nothing can fail and nothing awaits: no request meets half of it.
        if policy.observe.log_level != self.policy.observe.log_level:
            configure(policy.observe.log_level)
        if keyed(self.policy.clients) and not keyed(policy.clients):
            self._tell_it_is_open()
        self.policy = policy
        self.gate.rule(self._queue_rule(policy))
        self.data.adopt(policy, callers)
        self._rules = callers.rules
        self.draining.limit_s = policy.drain_s
        if self._tls is not None and wanted.tls is not None:
            self._tls.use(wanted.tls)
        keys = _readable(wanted.secrets)
        self.fleet.adopt(policy, keys)
        self.metrics.set_names(self.fleet.backends, callers.rules)
        kept = [f"backends[{one.name}] (its key)" for one in self.fleet if one.stays_keyed(keys)]
        return replace(change_, needs_restart=(*change_.needs_restart, *kept))

    def _shares(self, policy: Policy, secrets: Secrets) -> Leases | None:
        """Raises StoreError where what they need is not installed."""
        seat = self.seat
        if (of := policy.leases) is None:
            if seat is None or seat.store is None:
                return None
            return Leases(
                seat.store,
                seat.ttl_s,
                gate=self.gate,
                fleet=self.fleet,
                log=self.log,
                me=seat.replica,
                fresh=True,
            )
        password = secrets.of_leases
        store = RedisStore(of.url, password=password, prefix=of.prefix)
        return Leases(store, of.ttl_s, gate=self.gate, fleet=self.fleet, log=self.log)

    # ---- of several processes, what is this one's ------------------------------------------------

    def _callers(self, policy: Policy, secrets: Secrets) -> Callers:
        return Callers(policy, Identify(policy, secrets), client_rules(policy, self._part))

    def _queue_rule(self, policy: Policy) -> QueueRule:
        return queue_rule(policy, self._part)

    def _part(self, whole: int) -> int:
        return whole if self.seat is None else self.seat.part(whole)

    def _own_file(self, path: Path | None) -> Path | None:
        return path if self.seat is None else self.seat.file(path)

    def _own_folder(self, path: Path | None) -> Path | None:
        return path if self.seat is None else self.seat.folder(path)

    def _abandoned(self, lease: Lease) -> None:
        self.reaper.bury(lease)


def _readable(secrets: Secrets) -> dict[str, str]:
    """The servers' keys, as they are sent."""
    return {name: key.get_secret_value() for name, key in secrets.backend_keys.items()}
