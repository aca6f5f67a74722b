"""Fuzz of what a body means, without sockets: thousands of shapes a second."""

from __future__ import annotations

import json

import pytest
from hypothesis import strategies as st

from gateway.core import caps
from gateway.core.model import Ask, Demand, Grant, PoolId, PoolLimits, RequestId
from gateway.edge import body as bodies
from gateway.edge.dialects import Engine, Invalid
from gateway.edge.routes import ROUTES
from gateway.tokens.model import CountRefused
from gateway.tokens.request import read
from tests.edge.rig import GENERATE
from tests.fuzz import shapes
from tests.fuzz.host import EXAMPLES, fuzz
from tests.fuzz.test_clients import CAPS, caps_of

LIMITS = PoolLimits(kv_tokens=2000, context=4096, max_input=1900, slots=64)
RID = "f" * 32


ENGINES = [Engine((0, 5, 6)), Engine((0, 5, 17)), Engine((0, 5, 23), ranks=2)]


@pytest.mark.parametrize("examples", EXAMPLES)
def test_a_body_is_an_intent_or_a_400_and_the_cap_is_the_ledgers(examples: int) -> None:
    fuzz(st.tuples(shapes.raw_bodies(), st.sampled_from(ENGINES)), 3 * examples, judge)


def judge(example: tuple[tuple[str, bytes], Engine]) -> None:
    (path, data), engine = example
    dialect = ROUTES["POST", path]
    try:
        body = bodies.parse(data)
        intent = dialect.read(body)
        if intent.known is not None:  # nothing goes on
            return
        body = intent.put(body)
        request = read(intent.kind, body)
    except (Invalid, CountRefused):
        return
    number = len(request.prompts) or 1
    demand = caps.decide(Ask((5,) * number, intent.n, intent.cap, intent.usual), LIMITS)
    if not isinstance(demand, Demand):
        return
    grant = Grant(RequestId("f" * 28), PoolId("gpu0"), demand, None, False, 0.0)
    try:
        out = json.loads(dialect.write(body, intent, grant, RID, engine))
    except Invalid:
        return
    told = caps_of(path, out)
    assert all(type(cap) is int and 0 <= cap <= demand.cap for cap in told)
    assert len(told) == (path in CAPS) or path == GENERATE
