"""The manifests fit their schemas, the gate's ports and times, its policy, and each other."""

from __future__ import annotations

import subprocess
import time
import urllib.request

import pytest
import yaml

from gateway.cli import COMMANDS, serve
from gateway.plan.options import table
from gateway.policy.load import load_policy
from gateway.policy.types import host_port
from tests.deploy import parts
from tests.deploy.parts import (
    CLOSING_S,
    CONTROL_PORT,
    DATA_PORT,
    DEPLOY,
    NO_TOOLS,
    PINNED_IMAGE,
    TOOLS,
)
from tests.deploy.test_prometheus import exported

HERE = DEPLOY / "kubernetes"
OBJECTS = parts.manifests()
GATE = OBJECTS["Deployment", "kvgate"]["spec"]
ENGINE = OBJECTS["StatefulSet", "sglang"]["spec"]
VERSIONS = ("1.30", "1.37")
"""The oldest that deploy/README.md promises, and the newest that the schemas are there for."""


def pod(spec):
    return spec["template"]["spec"]


def container(spec):
    (only,) = pod(spec)["containers"]
    return only


@pytest.fixture
def policy(tmp_path):
    """As the pod loads it, with the secret's files in another place."""
    keys = tmp_path / "keys"
    keys.mkdir()
    text = (HERE / "policy.yaml").read_text()
    for client in yaml.safe_load(text)["clients"]:
        name = client["key_file"].rpartition("/")[2]
        (keys / name).write_text(f"key of {name}")
    path = tmp_path / "policy.yaml"
    path.write_text(text.replace("/etc/kvgate/keys", str(keys)))
    return load_policy(path, env={})


VALIDATE = """
import functools, sys, yaml
from kubernetes_validate import utils
utils.schema_contents = functools.cache(utils.schema_contents)  # megabytes, else read per object
for name in sys.argv[2:]:
    for one in yaml.safe_load_all(open(name)):
        for version in sys.argv[1].split(","):
            utils.validate(one, version, strict=True)
            print(one["kind"], one["metadata"]["name"], version)
"""


def validate(versions, *files):
    run = [TOOLS / "python", "-c", VALIDATE, ",".join(versions), *files]
    return subprocess.run(run, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not TOOLS.is_dir(), reason=NO_TOOLS)
def test_every_object_fits_its_schema_and_one_that_is_wrong_does_not(tmp_path):
    names = yaml.safe_load((HERE / "kustomization.yaml").read_text())["resources"]
    done = validate(VERSIONS, *(HERE / name for name in names))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(OBJECTS) * len(VERSIONS)
    bad = tmp_path / "bad.yaml"
    bad.write_text((HERE / "kvgate.yaml").read_text().replace("drop: [ALL]", "dropp: [ALL]"))
    done = validate(VERSIONS[-1:], bad)
    assert done.returncode != 0
    assert "dropp" in done.stderr


def test_images_are_pinned():
    assert all(PINNED_IMAGE.fullmatch(container(spec)["image"]) for spec in (GATE, ENGINE))


def test_the_pod_is_locked_down():
    inside = container(GATE)["securityContext"]
    assert inside["readOnlyRootFilesystem"]
    assert inside["allowPrivilegeEscalation"] is False
    assert inside["capabilities"] == {"drop": ["ALL"]}
    around = pod(GATE)["securityContext"]
    assert around["runAsNonRoot"]
    (user,) = (step for step in parts.dockerfile() if step.word == "USER")
    assert user.rest == f"{around['runAsUser']}:{around['runAsGroup']}"
    assert around["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod(GATE)["automountServiceAccountToken"] is False


def test_the_policy_loads_and_listens_where_the_container_says(policy):
    ports = {port["name"]: port["containerPort"] for port in container(GATE)["ports"]}
    assert ports == {"http": DATA_PORT, "control": CONTROL_PORT}
    assert host_port(policy.listen) == ("0.0.0.0", DATA_PORT)
    assert host_port(policy.control) == ("0.0.0.0", CONTROL_PORT)
    assert not policy.allow_open
    command, *rest = container(GATE)["args"]
    assert command in COMMANDS
    mounts = {m["mountPath"]: m for m in container(GATE)["volumeMounts"]}
    assert str(serve.parser().parse_args(rest).policy) in mounts
    for written in (policy.state, policy.observe.crash_reports):
        assert any(
            str(written).startswith(f"{place}/") and not mount.get("readOnly")
            for place, mount in mounts.items()
        )


def test_probes_ask_the_control_plane():
    for kind, path in (
        ("startupProbe", "/healthz"),
        ("livenessProbe", "/healthz"),
        ("readinessProbe", "/readyz"),
    ):
        probe = container(GATE)[kind]["httpGet"]
        assert probe == {"path": path, "port": "control"}
        assert ("GET", path) in parts.control_paths()


def test_before_it_is_told_to_stop_it_is_told_to_drain(monkeypatch):
    program, option, code = container(GATE)["lifecycle"]["preStop"]["exec"]["command"]
    assert (program, option) == ("python", "-c")
    seen = []
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    def opened(opener, request, timeout):
        proxied = [h for h in opener.handlers if isinstance(h, urllib.request.ProxyHandler)]
        assert not any(handler.proxies for handler in proxied), "what is here is asked here"
        seen.append(request)

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", opened)
    monkeypatch.setattr(time, "sleep", seen.append)
    exec(compile(code, "preStop", "exec"), {})
    request, slept = seen
    assert (request.get_method(), request.selector) in parts.control_paths()
    assert request.host == f"127.0.0.1:{CONTROL_PORT}"
    assert slept > 0


def test_the_pod_lives_until_the_drain_is_over(policy):
    code = container(GATE)["lifecycle"]["preStop"]["exec"]["command"][2]
    before = float(code.rpartition("sleep(")[2].partition(")")[0])
    asked = float(code.rpartition("timeout=")[2].partition(")")[0])
    needed = asked + before + policy.drain_s + CLOSING_S
    assert pod(GATE)["terminationGracePeriodSeconds"] >= needed


def test_every_server_that_may_run_is_in_the_policy_by_its_own_name(policy):
    scaler = OBJECTS["HorizontalPodAutoscaler", "sglang"]["spec"]
    assert scaler["scaleTargetRef"] == {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "name": "sglang",
    }
    service = OBJECTS["Service", ENGINE["serviceName"]]["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"]
    (port,) = (p["port"] for p in service["ports"])
    names = [f"sglang-{i}.{ENGINE['serviceName']}" for i in range(scaler["maxReplicas"])]
    assert [b.url for b in policy.backends] == [f"http://{name}:{port}" for name in names]
    assert "replicas" not in ENGINE


def test_there_is_one_gate():
    """Until several can share a server's memory, two would promise it twice."""
    assert GATE["replicas"] == 1
    assert all(key[1] != "kvgate" for key in OBJECTS if key[0] == "HorizontalPodAutoscaler")


def test_what_the_autoscaler_asks_for_the_adapter_serves_from_metrics_of_the_gate():
    (adapter,) = parts.documents(HERE / "prometheus-adapter.yaml")
    served = {rule["name"]["as"]: rule for rule in adapter["rules"]["custom"]}
    wanted = OBJECTS["HorizontalPodAutoscaler", "sglang"]["spec"]["metrics"]
    for metric in (m["object"] for m in wanted):
        assert metric["metric"]["name"] in served
        described = metric["describedObject"]
        assert (described["kind"], described["name"]) in OBJECTS
    assert "kvgate_queue_requests" in served
    for rule in served.values():
        for text in (rule["seriesQuery"], rule["metricsQuery"]):
            assert exported(text)


def test_selectors_find_their_pods():
    labels = {
        "kvgate": GATE["template"]["metadata"]["labels"],
        "sglang": ENGINE["template"]["metadata"]["labels"],
    }
    for (kind, name), one in OBJECTS.items():
        spec = one.get("spec", {})
        selector = {"Service": spec.get("selector")}.get(
            kind, (spec.get("podSelector") or spec.get("selector") or {}).get("matchLabels")
        )
        if selector:
            assert selector.items() <= labels[name.removesuffix("-control")].items(), (kind, name)


def test_nothing_but_the_gate_reaches_a_server():
    (rule,) = OBJECTS["NetworkPolicy", "sglang"]["spec"]["ingress"]
    (peer,) = rule["from"]
    assert peer == {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "kvgate"}}}
    (port,) = (p["containerPort"] for p in container(ENGINE)["ports"])
    assert rule["ports"] == [{"protocol": "TCP", "port": port}]


def test_clients_do_not_reach_the_control_plane():
    rules = OBJECTS["NetworkPolicy", "kvgate"]["spec"]["ingress"]
    opened = {port["port"]: rule["from"] for rule in rules for port in rule["ports"]}
    assert set(opened) == {DATA_PORT, CONTROL_PORT}
    (who,) = opened[CONTROL_PORT]
    assert {"namespaceSelector", "podSelector"} == set(who)
    services = {
        name: [port["targetPort"] for port in one["spec"]["ports"]]
        for (kind, name), one in OBJECTS.items()
        if kind == "Service"
    }
    assert services["kvgate"] == ["http"]
    assert services["kvgate-control"] == ["control"]


def test_the_engines_options_exist_in_its_version():
    command = container(ENGINE)["command"]
    names = [word.partition("=")[0] for word in command if word.startswith("--")]
    assert all(table().find(name, (0, 5, 17)) for name in names)
    assert "0.5.17" in container(ENGINE)["image"]
    (path,) = (w.partition("=")[2] for w in command if w.startswith("--model-path"))
    assert any(m["mountPath"] == path for m in container(ENGINE)["volumeMounts"])


def test_volumes_are_there():
    for spec in (GATE, ENGINE):
        have = {volume["name"] for volume in pod(spec)["volumes"]}
        assert {m["name"] for m in container(spec)["volumeMounts"]} == have
    (generated,) = yaml.safe_load((HERE / "kustomization.yaml").read_text())["configMapGenerator"]
    assert generated == {"name": "kvgate-policy", "files": ["policy.yaml"]}
