"""All checks over one server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.plan import checks_exposure, checks_memory, checks_options, checks_serving
from gateway.plan.findings import Finding, worst_first

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gateway.plan.settings import Settings
    from gateway.plan.traffic import Traffic

CHECKS: tuple[Callable[[Settings, Traffic], Iterator[Finding]], ...] = (
    checks_options.options,
    checks_serving.version,
    checks_memory.context,
    checks_memory.promises,
    checks_memory.running,
    checks_memory.prefill,
    checks_serving.speculative,
    checks_serving.scheduler,
    checks_serving.adapters,
    checks_serving.environment,
    checks_exposure.doors,
    checks_exposure.keys,
    checks_exposure.code,
    checks_serving.sight,
)


def audit(settings: Settings, traffic: Traffic) -> list[Finding]:
    """Everything found, the worst first."""
    return worst_first(finding for check in CHECKS for finding in check(settings, traffic))
