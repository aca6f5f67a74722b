"""Runs compose.twin.yaml's two services without Docker: `unshare -mn python -m tests.deploy.container`.

Called with the image's root and its settings as JSON. In a network of its own, the names of the
services are loopback; each process gets a root that cannot be written, a small /tmp and its own
user. Prints what was seen as one line of JSON; the test judges it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import signal
import socket
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.deploy import parts
from tests.deploy.parts import DEPLOY

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 60.0
UP = 0x1  # IFF_UP
GET_FLAGS, SET_FLAGS = 0x8913, 0x8914  # SIOCGIFFLAGS, SIOCSIFFLAGS


def loopback_up() -> None:
    """A new network namespace has loopback, but down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, GET_FLAGS, request))[1]
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh14x", b"lo", flags | UP))


def mount(*args: str | Path) -> None:
    subprocess.run(["mount", *args], check=True)


def read_only(root: Path, uid: str, services: list[str], policy: Path) -> None:
    """The image as Docker mounts it with `read_only`: what compose adds, and nothing to write."""
    hosts = "".join(f"127.0.0.1 {name}\n" for name in ("localhost", *services))
    (root / "etc/hosts").write_text(hosts)
    place = root / "etc/kvgate/policy.yaml"
    place.parent.mkdir(exist_ok=True)
    shutil.copy(policy, place)
    mount("--bind", root, root)
    mount("-t", "proc", "proc", root / "proc")
    mount("--bind", "/dev", root / "dev")
    mount("-t", "tmpfs", "-o", "size=16m,noexec,nosuid,nodev,mode=1777", "tmpfs", root / "tmp")
    mount("-o", "remount,bind,ro", root)


def get(url: str, body: object = None) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def main() -> None:
    image = json.loads(sys.argv[1])
    root = Path(image["root"])
    compose = parts.documents(DEPLOY / "docker" / "compose.twin.yaml")[0]["services"]
    loopback_up()
    policy = DEPLOY / "docker" / "policy.twin.yaml"
    read_only(root, image["user"], list(compose), policy)

    def start(*command: str, **env: str) -> subprocess.Popen[str]:
        chroot = shutil.which("chroot") or "/usr/sbin/chroot"
        who = [chroot, f"--userspec={image['user']}", "--groups=", root]
        cd = ["env", f"--chdir={image['workdir']}"]
        return subprocess.Popen(
            [*who, *cd, *command],
            env={**image["env"], **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    seen: dict[str, object] = {}
    twin = start("kvgate", *compose["twin"]["command"])
    try:
        for number in (1, 2):  # as compose says, and with two workers
            more = () if number == 1 else ("--workers", str(number))
            gate = start(
                "kvgate", *compose["kvgate"]["command"], *more, **compose["kvgate"]["environment"]
            )
            seen[str(number)] = looked(start, gate, image, compose)
        twin_probe = start(*compose["twin"]["healthcheck"]["test"][1:])
        seen["twin_healthy"] = twin_probe.wait(PATIENCE_S)
    finally:
        twin.kill()
        twin.communicate()
    print(json.dumps(seen))


def looked(
    start: Callable[..., subprocess.Popen[str]],
    gate: subprocess.Popen[str],
    image: dict[str, Any],
    compose: dict[str, Any],
) -> dict[str, object]:
    """What a gate does from its first word to its end."""
    seen: dict[str, object] = {}
    try:
        assert gate.stdout is not None
        seen["said"] = gate.stdout.readline()
        status = Path(f"/proc/{gate.pid}/status").read_text()
        seen["uid"] = status.partition("Uid:")[2].split()[0]
        probe = start(*image["healthcheck"], **compose["kvgate"]["environment"])
        seen["healthy"] = probe.wait(PATIENCE_S)
        write = start("python", "-c", "open('/var/lib/kvgate/x', 'w')")
        seen["writes"] = write.wait(PATIENCE_S)
        told = json.loads(get("http://127.0.0.1:8081/status")[1])
        seen["workers"] = len(told.get("workers", ()))
        models = told["backends"][0]["models"]
        chat = {"model": models[0], "messages": [{"role": "user", "content": "Hello"}]}
        chat["max_tokens"] = 8
        seen["chat"], body = get("http://127.0.0.1:8080/v1/chat/completions", chat)
        seen["finish"] = json.loads(body)["choices"][0]["finish_reason"]
        gate.send_signal(signal.SIGTERM)
        seen["ended"] = gate.wait(PATIENCE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            gate.kill()
        seen["log"] = gate.communicate()[1][-2000:]
    return seen


if __name__ == "__main__":
    main()
