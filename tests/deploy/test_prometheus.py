"""Prometheus finds the gate where it listens, and every metric that deploy/ names is exported."""

from __future__ import annotations

import re

import pytest

from gateway.core.model import LedgerView, PoolId, PoolLimits, PoolView, View
from gateway.observe.metrics import Metrics
from gateway.observe.view import EngineView
from gateway.workers import front
from gateway.workers.crew import Hand
from tests.deploy import parts
from tests.deploy.parts import CONTROL_PORT, DEPLOY

FILES = [DEPLOY / "prometheus" / name for name in ("prometheus.yml", "kubernetes.yml")]


def names():
    """Every metric name of a gate with one pool, as Prometheus sees it."""
    metrics = Metrics(["gpu0"], ["anyone"])
    ledger = LedgerView(1, 0, 0)
    pool = PoolView(PoolId("gpu0"), True, 0.0, PoolLimits(1), ledger, ledger, ledger, 0)
    metrics.set_view(lambda: View(pools=(pool,)))
    metrics.set_engines(lambda: [EngineView("gpu0", drift={0: 0})])
    text = metrics.render()[0].decode()
    text += front.own_metrics([Hand(0)])  # of several processes
    return set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)) | set(
        re.findall(r"^(kvgate_\w+)", text, re.MULTILINE)
    )


EXPORTED = names()


def exported(text):
    """The gate's metrics that a query names; fails for one that does not exist."""
    found = set(re.findall(r"\bkvgate_\w+", text))
    assert found <= EXPORTED, found - EXPORTED
    return found


def test_the_names_are_read_as_prometheus_reads_them():
    assert {
        "kvgate_queue_requests",
        "kvgate_kv_reserved_tokens",
        "kvgate_refused_total",
    } <= EXPORTED


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_configuration_is_whole(path):
    (config,) = parts.documents(path)
    assert set(config) == {"global", "rule_files", "scrape_configs"}
    jobs = [job["job_name"] for job in config["scrape_configs"]]
    assert len(jobs) == len(set(jobs))
    assert "kvgate" in jobs


def test_it_scrapes_the_control_plane():
    (config,) = parts.documents(FILES[0])
    targets = {
        job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]
    }
    assert targets["kvgate"] == [f"127.0.0.1:{CONTROL_PORT}"]
    assert ("GET", "/metrics") in parts.control_paths()  # Prometheus' own default path


def test_in_kubernetes_it_finds_the_control_service_and_labels_it_for_the_adapter():
    (config,) = parts.documents(FILES[1])
    (job,) = config["scrape_configs"]
    (keep,) = (rule for rule in job["relabel_configs"] if rule.get("action") == "keep")
    name, port = keep["regex"].split(";")
    service = parts.manifests()["Service", name]["spec"]
    assert port in [one["name"] for one in service["ports"]]
    targets = {rule.get("target_label") for rule in job["relabel_configs"]}
    assert {"namespace", "service"} <= targets
