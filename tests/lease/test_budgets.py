"""When it is said that gates plan with different budgets: where that lasts, and once."""

from types import SimpleNamespace

from gateway.core.amount import Amount
from gateway.core.model import PoolId
from gateway.edge.leases import Leases, _Place

POOL = PoolId("gpu0")
LARGE, SMALL = Amount(120_000, 2_048, 24), Amount(66_000, 2_048, 24)


class Seen:
    """Leases over a table that a test writes, and what they log."""

    def __init__(self, ttl_s=5.0):
        self.now, self.told = 100.0, []
        gate = SimpleNamespace(now=lambda: self.now, ceiling=lambda *_: None)
        log = SimpleNamespace(warning=lambda event, **_: self.told.append(event))
        fleet = SimpleNamespace(backends={}, on_loads=None)
        self.leases = Leases(None, ttl_s, gate=gate, fleet=fleet, log=log, me="me")
        self.place = _Place(SimpleNamespace(ceiling=lambda _: None, until=0.0, table=None))

    def look(self, *budgets):
        """A second later, with these in the table."""
        self.now += 1.0
        entries = {
            str(n): SimpleNamespace(budget=budget, running=0, steady=0)
            for n, budget in enumerate(budgets)
        }
        self.place.tenant.table = SimpleNamespace(entries=entries)
        self.leases._wrote(POOL, self.place)


def test_a_server_that_starts_with_another_pool_is_no_fault_of_the_policies():
    """Each worker met the new pool in its own second, and people were told to give all gates the same policy."""
    seen = Seen()
    seen.look(LARGE, LARGE)
    for _ in range(4):
        seen.look(SMALL, LARGE)
    for _ in range(10):
        seen.look(SMALL, SMALL)
    assert seen.told == []


def test_a_difference_that_lasts_is_told_once_and_again_after_it_was_gone():
    seen = Seen()
    for _ in range(20):
        seen.look(SMALL, LARGE)
    assert seen.told == ["lease_budgets_differ"]
    seen.look(SMALL, SMALL)
    for _ in range(7):
        seen.look(SMALL, LARGE)
    assert seen.told == ["lease_budgets_differ"] * 2
