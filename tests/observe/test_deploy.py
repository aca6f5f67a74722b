"""Names follow Prometheus' rules, and what is shipped for Prometheus and Grafana names only what is
there: metrics, their labels and the values of closed labels."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.model import Code, Outcome, Release
from gateway.observe.metrics import UPSTREAM_CODES
from gateway.observe.record import PHASES, Source, Verdict
from gateway.observe.view import EngineView
from gateway.workers import exposition, front
from gateway.workers.crew import Hand

from .made_up import finished, refused, view
from .test_metrics import BACKENDS, every_transition, metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.observe.metrics import Metrics

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "kvgate.json"

PROMTOOL = shutil.which("promtool")

PROMETHEUS_OWN = {"up"}
TARGET_LABELS = {"instance", "job"}
VALUES = {
    "code": {*(code.value for code in Code), *UPSTREAM_CODES, "none"},
    "outcome": {outcome.value for outcome in Outcome},
    "why": {why.value for why in Release},
    "source": set(get_args(Source)),
    "phase": set(PHASES),
    "verdict": set(get_args(Verdict)),
    "job": {"kvgate"},
}
UNITS = ("_seconds", "_bytes", "_tokens", "_requests", "_info")
COUNTS_OF_THINGS = {
    "kvgate_slots_limit",
    "kvgate_slots_reserved",
    "kvgate_pool_open",
    "kvgate_server_on_trial",
    "kvgate_loads_stale",
}
"""Gauges without a unit: they count slots, or are 0 or 1."""


def everything() -> Metrics:
    """A gate's metrics after everything has happened once."""
    m = metrics()
    m.set_view(view)
    m.set_engines(lambda: [EngineView("gpu0", drift={0: -5, 1: 0})])
    for backend in BACKENDS:
        for transition in every_transition(backend):
            m.on_transition(transition)
    for drift in (4, -4):
        m.on_request(finished(usage_prompt_tokens=19_000 + drift, shadow="admit"))
    m.on_request(refused())
    m.own_error("log")
    return m


def families() -> dict[str, Any]:
    """All of them."""
    return {family.name: family for family in everything().registry.collect()}


def labels() -> dict[str, set[str]]:
    """By name of a sample: the labels it has, those of several workers among them."""
    one = generate_latest(everything().registry).decode()
    text = exposition.merged([(0, one)]) + front.own_metrics([Hand(0)])
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_names_follow_the_rules() -> None:
    """prometheus.io/docs/practices/naming: one prefix, base units last, total for counters."""
    for name, family in families().items():
        if name.startswith("process_"):
            continue  # the client library's
        assert re.fullmatch(r"kvgate(_[a-z0-9]+)+", name)
        assert not re.search(r"_(ms|milliseconds|minutes|kb|mb|count|sum|bucket|total)$", name)
        assert family.documentation.endswith("."), name
        match family.type:
            case "counter":
                assert all(sample.name == f"{name}_total" for sample in family.samples)
            case "histogram":
                assert name.endswith(UNITS)
            case "gauge":
                assert name.endswith((*UNITS, "_seconds")) or name in COUNTS_OF_THINGS
            case other:
                pytest.fail(f"{name} is a {other}")
        used = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert not used & {*TARGET_LABELS, "le", "quantile"}
        assert all(re.fullmatch(r"[a-z]+", label) for label in used)
        assert not any(label in name.split("_") for label in used - {"client", "kind"}), name


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression that is shipped, and where it stands."""
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            yield f"alert {rule['alert']}", rule["expr"]
    board = json.loads(DASHBOARD.read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield f"panel {panel['title']}", target["expr"]
    for one in board["annotations"]["list"]:
        yield f"annotation {one['name']}", one["expr"]
    for one in board["templating"]["list"]:
        if one["type"] == "query":
            metric, label = re.fullmatch(
                r"label_values\((\w+), (\w+)\)", one["definition"]
            ).groups()
            yield f"variable {one['name']}", f"count by ({label}) ({metric})"


def wrong(expression: str, known: dict[str, set[str]]) -> list[str]:
    """What an expression names that is not there."""
    found = []
    plain = re.sub(r'"[^"]*"', '""', expression)
    names = set(re.findall(r"\b((?:kvgate|process|python)_\w+|up)\b", plain))
    if not names:
        found.append("names no metric")
    found += [name for name in names if name not in known and name not in PROMETHEUS_OWN]
    for name, selector in re.findall(r"(\w+)\{([^}]*)\}", expression):
        for label, value in re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"', selector):
            if label not in known.get(name, set()) | TARGET_LABELS:
                found.append(f"{name} has no label {label}")
            if not value.startswith("$"):
                allowed = VALUES.get(label, set())
                found += [f"{label}={one}" for one in value.split("|") if one not in allowed]
    has = {"le"} | TARGET_LABELS
    has |= {label for name in names for label in known.get(name, ())}
    for grouping in re.findall(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)", plain):
        found += [f"by {one}" for one in re.split(r"\s*,\s*", grouping) if one not in has]
    if expression.count("(") != expression.count(")"):
        found.append("a bracket is missing")
    return found


def test_alerts_and_dashboard_name_only_what_is_there() -> None:
    known = labels()
    bad = {where: what for where, text in expressions() if (what := wrong(text, known))}
    assert bad == {}


@pytest.mark.parametrize(
    "expression",
    [
        "kvgate_nothing_total > 0",
        "sum(rate(kvgate_ended[5m]))",
        'kvgate_ended_total{backend="x"}',
        'rate(kvgate_ended_total{outcome="broken"}[5m])',
        "sum by (backend) (kvgate_queue_requests)",
        "sum((kvgate_queue_requests)",
        "1",
    ],
)
def test_what_is_not_there_is_found(expression: str) -> None:
    assert wrong(expression, labels())


def promtool(*arguments: str, given: str | None = None) -> None:
    """What Prometheus itself says; fails with its words."""
    command = [str(PROMTOOL), *arguments]
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool (Debian: prometheus)")
def test_prometheus_itself_takes_the_rules_the_queries_and_the_metrics(tmp_path: Path) -> None:
    promtool("check", "rules", str(ALERTS))
    promtool("check", "config", str(ALERTS.parent / "prometheus.yml"))
    # A dashboard has no format of Prometheus': its queries are rules of a file made for it.
    queries = [
        {"record": f"query:{number}", "expr": text.replace("$__rate_interval", "1m")}
        for number, (_, text) in enumerate(expressions())
    ]
    path = tmp_path / "queries.yml"
    path.write_text(json.dumps({"groups": [{"name": "queries", "rules": queries}]}))  # JSON is YAML
    promtool("check", "rules", str(path))
    promtool("check", "metrics", given=everything().render()[0].decode())


def test_every_alert_says_what_and_what_to_do() -> None:
    operations = (DEPLOY.parent / "docs" / "operations.md").read_text()
    names = []
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            names.append(rule["alert"])
            assert rule["labels"]["severity"] in {"critical", "warning"}
            assert rule["annotations"].keys() == {"summary", "description"}
            for section in re.findall(r'See "([^"]+)"', rule["annotations"]["description"]):
                assert f"## {section}\n" in operations, section
    assert len(names) == len(set(names))


def test_the_dashboard_can_be_loaded_anywhere() -> None:
    """No data source of one installation, no panel over another, ids that are there once."""
    board = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
