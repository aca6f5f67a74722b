"""The composition root: the one place that builds and wires, and the life of the process.

start: policy → core → gate → fleet → data plane and control plane, both listening → ready line.
stop: not ready → drain → close. Nothing else constructs these parts; nothing is global.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import structlog
from aiohttp import web

from gateway import drain
from gateway.control import ControlPlane
from gateway.core.admission import Admission
from gateway.edge.backends import Fleet
from gateway.edge.handler import DataPlane
from gateway.edge.reaper import Reaper
from gateway.gate import Gate
from gateway.observe.journal import Journal
from gateway.observe.metrics import Metrics
from gateway.observe.recorder import RecordWriter
from gateway.policy.clients import Identify, read_secrets
from gateway.policy.compile import client_rules, queue_rule
from gateway.policy.types import host_port

if TYPE_CHECKING:
    from gateway.gate import Lease
    from gateway.policy.schema import Policy

KEEPALIVE_S = 75.0
"""How long an idle client connection stays open. Longer than the pools of SDKs and proxies keep
theirs (httpx 5 s, nginx and aiohttp 60 and 15 s), so that the one who closes first is never us."""

HEAD_BYTES = 16 * 1024
"""Longest request line and longest header: agents send 2 KB of beta flags."""


LINGER_S = 2.0
"""How long the rest of a body that was refused unread is taken and dropped. Closed at once, the
connection is reset under a client that is still sending, and the refusal with it; 2 s pass a
64 MiB body on a network of 300 Mbit/s."""

CUT_S = 1.0
"""How long connections may take to end once draining is over and what is left is cancelled, and
after that the aborts of what was cut: a process that left without them would leave the engine at
work for nobody."""


class App:
    """One gate, from its policy. `start`, then `stop`, each once; `run` does both."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.log = structlog.get_logger("kvgate")
        secrets = read_secrets(policy)
        rules = client_rules(policy)
        self.metrics = Metrics([backend.name for backend in policy.backends], list(rules))
        self.records = RecordWriter(
            policy.observe.records,
            recent=policy.observe.recent,
            max_bytes=policy.observe.records_max_bytes,
            keep=policy.observe.records_keep,
            warn=self.log.warning,
        )
        self.journal = Journal(self.log, self.metrics, self.records)
        # Jitter only spreads retries; nothing secret hangs on it.
        core = Admission(queue_rule(policy), jitter=random.Random().random)  # noqa: S311
        self.gate = Gate(core, listener=self.journal.transition, on_abandon=self._abandoned)
        self.reaper = Reaper(self.gate.confirmed, self.gate.prolong)
        keys = {name: key.get_secret_value() for name, key in secrets.backend_keys.items()}
        self.fleet = Fleet(policy, keys, self.gate)
        self.data = DataPlane(
            policy,
            gate=self.gate,
            fleet=self.fleet,
            reaper=self.reaper,
            identify=Identify(policy, secrets),
            rules=rules,
            journal=self.journal,
        )
        self.draining = drain.Drain(self.gate, policy.drain_s)
        self.control = ControlPlane(
            gate=self.gate,
            fleet=self.fleet,
            reaper=self.reaper,
            journal=self.journal,
            draining=self.draining,
        )
        self._runners: list[web.BaseRunner] = []
        self.listen_url = ""
        self.control_url = ""

    async def start(self) -> None:
        """Listen on both planes and begin to watch the servers. Raises OSError for a taken port."""
        self.metrics.set_view(self.gate.view)
        server = web.Server(
            self.data.handle,
            handler_cancellation=True,  # a client that leaves ends its request, in every phase
            access_log=None,
            keepalive_timeout=KEEPALIVE_S,
            max_line_size=HEAD_BYTES,
            max_field_size=HEAD_BYTES,
            lingering_time=LINGER_S,
        )
        data = web.ServerRunner(server, handle_signals=False, shutdown_timeout=CUT_S)
        control = web.AppRunner(
            self.control.app(), access_log=None, handle_signals=False, shutdown_timeout=CUT_S
        )
        for runner, address in ((data, self.policy.listen), (control, self.policy.control)):
            self._runners.append(runner)
            await runner.setup()
            host, port = host_port(address)
            await web.TCPSite(runner, host, port, backlog=1024).start()
        self.listen_url, self.control_url = _url(data), _url(control)
        self.fleet.start()
        self.log.info(
            "listening",
            listen=self.listen_url,
            control=self.control_url,
            backends=[backend.url for backend in self.fleet],
        )

    async def stop(self) -> drain.Drained:
        """Drain, then close everything."""
        drained = await self.draining.run()
        self.log.info("drained", finished=drained.finished, cut=drained.cut)
        await self.close()
        return drained

    async def close(self) -> None:
        """Close everything, whatever of it was opened."""
        for runner in self._runners:
            await runner.cleanup()
        await self.reaper.stop(CUT_S)
        await self.fleet.stop()
        await asyncio.to_thread(self.records.close)

    def _abandoned(self, lease: Lease) -> None:
        self.reaper.bury(lease)


def _url(runner: web.BaseRunner) -> str:
    host, port = runner.addresses[0][:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
