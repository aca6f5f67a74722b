"""The pages say what the code does: every code with its status, every sum as the core does it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.core.caps import kv_demand
from gateway.core.model import Ask, Code
from gateway.edge.replies import STATUS
from gateway.plan.launch import read_launch
from gateway.plan.options import table
from gateway.plan.settings import of_launch
from gateway.policy.compile import pool_limits
from gateway.policy.schema import Backend, Policy

DOCS = Path(__file__).parents[2] / "docs"
OPERATIONS = (DOCS / "operations.md").read_text()
WHICH = (DOCS / "which-policy.md").read_text()
PLAN = (DOCS / "plan-and-audit.md").read_text()


@pytest.mark.parametrize("code", Code)
def test_every_refusal_is_explained(code):
    row = re.search(rf"^\| `{code.value}` \| (\d+) \|", OPERATIONS, re.MULTILINE)
    assert row, f"docs/operations.md does not explain {code.value}"
    assert int(row[1]) == STATUS[code]


def test_every_setting_named_exists():
    schema = str(Policy.model_json_schema())
    for page in (OPERATIONS, WHICH):
        names = re.findall(r"`(?:queue\.|limits\.|observe\.)?([a-z]+(?:_[a-z]+)+)`", page)
        codes = {code.value for code in Code} | {"upstream_error", "upstream_timeout"}
        unknown = {n for n in names if n not in codes and f"'{n}'" not in schema}
        events = {"server_away", "server_ready", "cap_not_kept", "repeated_truncation"}
        assert unknown <= {"max_tokens", "finish_reason"} | events


def test_every_option_named_exists():
    ours = {
        "--backend",
        "--command",
        "--policy",
        "--info",
        "--json",
        "--model",
        "--card",
        "--desktop",
    }
    ours |= {"--measured", "--prompt-tokens", "--requests", "--want-context", "--state-slots"}
    ours |= {"--key-env", "--engine-version", "--pool-tokens", "--available-gib", "--weights-gib"}
    ours |= {"--state-gib", "--cell-bytes"}
    for page in (OPERATIONS, WHICH, PLAN):
        for name in set(re.findall(r"--[a-z][a-z-]+", page)) - ours:
            assert table().find(name, (0, 5, 17)), name


def test_the_sum_of_the_page():
    settings = of_launch(read_launch("sglang serve"), pool_tokens=67_375)
    limits = pool_limits(Backend(url="http://127.0.0.1:1"), settings.pool)
    rows = re.findall(r"^\| ([\d,]+) \| ([\d,]+) \| (\d) \|$", WHICH, re.MULTILINE)
    assert len(rows) == 4
    for cap, each, together in rows:
        demand = kv_demand(Ask((19_000,)), int(cap.replace(",", "")), limits)
        assert demand == int(each.replace(",", ""))
        assert limits.kv_tokens // demand == int(together)


def test_the_number_of_options():
    assert f"{len(table().options)} options" in PLAN
