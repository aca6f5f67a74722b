"""The image and the compose files say what the command line, the policy and the engine know."""

from __future__ import annotations

import http.server
import os
import re
import shlex
import subprocess
import sys
import threading

import pytest

from gateway.cli import COMMANDS, serve
from gateway.plan.options import table
from gateway.policy.load import load_policy
from gateway.policy.problems import PolicyError
from gateway.policy.types import host_port
from gateway.twin.profiles import PROFILES
from tests.deploy import parts
from tests.deploy.parts import (
    CLOSING_S,
    CONTROL_PORT,
    DATA_PORT,
    DEPLOY,
    NO_TOOLS,
    PINNED_IMAGE,
    ROOT,
    TOOLS,
)

COMPOSE = sorted((DEPLOY / "docker").glob("compose.*.yaml"))
STEPS = parts.dockerfile()
LAST = [step for step in STEPS if step.stage == STEPS[-1].stage]
ENGINE = (0, 5, 17)


def last(word):
    return [step for step in LAST if step.word == word]


def services():
    return [
        pytest.param(path, name, service, id=f"{path.stem}-{name}")
        for path in COMPOSE
        for name, service in parts.documents(path)[0]["services"].items()
    ]


def seconds(text):
    return int(re.fullmatch(r"(\d+)s", text)[1])


# --- image -----------------------------------------------------------------------------------------


def test_every_base_image_is_pinned_by_digest():
    images = [step.rest.split(" AS ")[0] for step in STEPS if step.word == "FROM"]
    assert len(images) == 2
    assert all(PINNED_IMAGE.fullmatch(image) for image in images), images


def test_the_python_of_the_image_is_one_the_project_takes():
    version = re.search(r"python:(\d+)\.(\d+)", STEPS[0].rest)
    assert (int(version[1]), int(version[2])) >= (3, 11)


def test_everything_is_fetched_against_the_locks_hashes_and_installed_without_network():
    download, install, *_ = (step.rest for step in STEPS if step.stage == 0 and step.word == "RUN")
    assert "--require-hashes" in download
    assert "requirements.lock" in download
    assert "--no-index" in install
    assert not re.search(r"--(extra-)?index-url|--trusted-host", download + install)


def test_the_last_stage_installs_nothing_and_runs_as_somebody_else_than_root():
    assert not re.search(r"\b(apt|pip|curl|wget)\b", " ".join(step.rest for step in last("RUN")))
    (user,) = last("USER")
    uid, gid = user.rest.split(":")
    assert int(uid) >= 10_000
    assert int(gid) >= 10_000


def test_the_image_has_the_version_of_the_package():
    (label,) = last("LABEL")
    (version,) = re.findall(r'image\.version="([^"]+)"', label.rest)
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text()
    ours = {s["image"] for p in services() if (s := p.values[2])["image"].startswith("kvgate:")}
    assert ours == {f"kvgate:{version}"}


def test_entry_point_ports_and_listeners_are_those_of_the_command_line():
    assert last("ENTRYPOINT")[0].form == ["kvgate"]
    assert last("CMD")[0].form[0] in COMMANDS
    assert last("EXPOSE")[0].rest == f"{DATA_PORT} {CONTROL_PORT}"
    (env,) = last("ENV")
    values = dict(word.split("=", 1) for word in shlex.split(env.rest))
    assert host_port(values["KVGATE_LISTEN"]) == ("0.0.0.0", DATA_PORT)
    assert "KVGATE_CONTROL" not in values  # no keys there: it stays on loopback unless told


def test_without_a_key_the_image_does_not_open_its_door():
    with pytest.raises(PolicyError, match="allow_open"):
        load_policy(backends=["http://e:1"], env={"KVGATE_LISTEN": f"0.0.0.0:{DATA_PORT}"})


def test_the_build_sees_only_what_it_copies():
    ignore = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in ignore if line and not line.startswith("#")]
    assert rules[0] == "*"
    copied = {
        word
        for step in STEPS
        if step.word == "COPY" and not step.rest.startswith("--from")
        for word in step.form[:-1]
    }
    assert copied == {rule[1:] for rule in rules if rule.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)


@pytest.fixture
def control_plane():
    """Something that answers the probe with a status of our choice."""

    class Handler(http.server.BaseHTTPRequestHandler):
        status, asked = 200, []

        def do_GET(self):
            self.asked.append(self.path)
            self.send_response(self.status)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_health_check_asks_a_route_that_exists_and_needs_no_tool(control_plane):
    text = last("HEALTHCHECK")[0].rest
    command = parts.Step(0, "CMD", text[text.index("[") :]).form
    assert command[0] == "python"
    # Docker hands the proxy of its client's configuration to every container; nobody answers at this one.
    proxy = dict.fromkeys(("http_proxy", "HTTP_PROXY"), "http://127.0.0.1:9")
    env = {**os.environ, **proxy, "KVGATE_CONTROL": f"0.0.0.0:{control_plane.server_port}"}
    env.pop("no_proxy", None)
    env.pop("NO_PROXY", None)

    def probe():
        run = [sys.executable, "-I", *command[1:]]
        return subprocess.run(run, env=env, capture_output=True, check=False).returncode

    assert probe() == 0
    ((path),) = control_plane.RequestHandlerClass.asked
    assert ("GET", path) in parts.control_paths()
    control_plane.RequestHandlerClass.status = 503
    assert probe() != 0


@pytest.mark.slow
@pytest.mark.skipif(not TOOLS.is_dir(), reason=NO_TOOLS)
def test_hadolint_has_nothing_to_say():
    run = [TOOLS / "hadolint", "--failure-threshold", "style", DEPLOY / "docker" / "Dockerfile"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


# --- compose ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "name", "service"), services())
def test_a_service_is_pinned_and_cannot_become_more_than_it_is(path, name, service):
    assert PINNED_IMAGE.fullmatch(service["image"])
    assert "no-new-privileges:true" in service["security_opt"]
    assert not service.get("privileged")
    assert service["logging"]["options"]["max-size"]
    if service["image"].startswith("kvgate:"):
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.stem)
def test_only_the_gate_is_published_and_on_loopback_only(path):
    file = parts.documents(path)[0]
    published = {name: s["ports"] for name, s in file["services"].items() if s.get("ports")}
    assert published == {
        "kvgate": [f"127.0.0.1:{port}:{port}" for port in (DATA_PORT, CONTROL_PORT)]
    }
    (engine,) = set(file["services"]) - {"kvgate"}
    inside = file["services"][engine]["networks"]
    assert all(file["networks"][network].get("internal") for network in inside)
    assert set(inside) < set(file["services"]["kvgate"]["networks"])


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.stem)
def test_the_gate_gets_its_policy_and_the_time_it_needs(path):
    file = parts.documents(path)[0]
    gate = file["services"]["kvgate"]
    mounts = {m.split(":")[1]: m.split(":")[0] for m in gate["volumes"] if "MODEL_DIR" not in m}
    args = serve.parser().parse_args(gate["command"][1:])
    source = DEPLOY / "docker" / mounts[str(args.policy)]
    environment = {"KVGATE_LISTEN": f"0.0.0.0:{DATA_PORT}", **gate["environment"]}
    policy = load_policy(source, env=environment)
    assert policy.control == f"0.0.0.0:{CONTROL_PORT}"
    (backend,) = policy.backends
    host, port = host_port(backend.url.removeprefix("http://"))
    assert host in file["services"]
    assert str(port) in " ".join(file["services"][host]["command"])
    assert seconds(gate["stop_grace_period"]) >= policy.drain_s + CLOSING_S
    for written in (policy.state, policy.observe.records, policy.observe.crash_reports):
        assert written is None or any(
            str(written).startswith(f"{place}/") and not source.startswith(".")
            for place, source in mounts.items()
        )


def test_the_twins_command_is_one():
    command = parts.documents(DEPLOY / "docker" / "compose.twin.yaml")[0]["services"]["twin"][
        "command"
    ]
    assert command[0] in COMMANDS
    assert command[command.index("--profile") + 1] in PROFILES


def engine_args(command):
    return [word.partition("=")[0] for word in command if word.startswith("--")]


def test_the_engines_options_exist_in_its_version():
    service = parts.documents(DEPLOY / "docker" / "compose.sglang.yaml")[0]["services"]["sglang"]
    assert f":v{'.'.join(map(str, ENGINE))}@" in service["image"]
    names = engine_args(service["command"])
    assert "--enable-metrics" in names
    assert all(table().find(name, ENGINE) for name in names)
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}


def test_the_model_lies_where_the_engine_says_it_does():
    """So that the gate finds the tokenizer under the path that the server reports."""
    found = parts.documents(DEPLOY / "docker" / "compose.sglang.yaml")[0]["services"]
    (path,) = (
        w.partition("=")[2] for w in found["sglang"]["command"] if w.startswith("--model-path")
    )
    for service in found.values():
        assert any(volume.endswith(f"}}:{path}:ro") for volume in service["volumes"])
