"""A bare Debian in a folder, and our Dockerfile carried out in it where no Docker is.

`bare` makes the Debian with debootstrap from the package mirrors that this machine's apt uses;
`build` runs the Dockerfile's instructions, each stage in a copy of it. It stands in for the base
image: the same distribution and the same minor version of Python, from Debian's packages. Needs
root, since chroot and mounts do.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.deploy import parts
from tests.deploy.parts import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SUITE = "bookworm"
"""Whose Python is 3.11, as in the image."""

PACKAGES = (
    "python3",
    "python3-venv",
    "python3-pip",
    "python-is-python3",
    "make",
    "ca-certificates",
)

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def cannot() -> str | None:
    """Why there can be no such folder here, in words; None where it can."""
    if os.geteuid() != 0:
        return "chroot and mounts need root"
    for tool, package in (("debootstrap", "debootstrap"), ("unshare", "util-linux")):
        if shutil.which(tool) is None:
            return f"{tool} is not here (Debian: apt install {package})"
    if subprocess.run(["unshare", "--mount", "--net", "true"], check=False).returncode:
        return "this machine allows no namespaces of one's own"
    if not _mirror():
        return f"apt on this machine knows no mirror of {SUITE}"
    return None


def _mirror() -> str:
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Identifier: Packages"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line.split()[1] for line in targets.stdout.splitlines() if line.split()[0] == SUITE]
    return found[0] if found else ""


def bare(cache: Path) -> Path:
    """The bare Debian, made once (a minute) and kept in `cache`. Nobody may write into it."""
    cache.mkdir(parents=True, exist_ok=True)
    base = cache / SUITE
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not base.exists():
            scratch = cache / f"{SUITE}.building"
            shutil.rmtree(scratch, ignore_errors=True)
            include = "--include=" + ",".join(PACKAGES)
            made = subprocess.run(
                ["debootstrap", "--variant=minbase", include, SUITE, scratch, _mirror()],
                check=False,
                stdout=subprocess.DEVNULL,
            )
            if made.returncode:  # a mirror or a kernel that will not: no fault of ours
                pytest.skip(f"debootstrap of {SUITE} from {_mirror()} failed")
            scratch.rename(base)
    return base


def copy_of(base: Path, where: Path) -> Path:
    """A copy that may be written into, and that reaches the package index as this machine does."""
    subprocess.run(["cp", "-a", base, where], check=True)
    for name in ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt"):
        if Path(name).exists():
            shutil.copy(name, where / name[1:])
    return where


def pip_settings() -> dict[str, str]:
    """What this machine tells pip by its environment: mirrors and certificates, if any."""
    return {name: value for name, value in os.environ.items() if name.startswith("PIP_")}


def inside(root: Path, command: Sequence[str], env: Mapping[str, str], **run: object) -> None:
    """Run a command in there, with `env` and the settings of this machine's pip, nothing else."""
    chroot = shutil.which("chroot") or "/usr/sbin/chroot"
    subprocess.run(
        [chroot, root, *command],
        env={"HOME": "/root", "PATH": PATH, **pip_settings(), **env},
        check=True,
        **run,  # type: ignore[call-overload]
    )


@dataclass
class Image:
    """What a build leaves: a root, and how it wants to be run."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    workdir: str = "/"


def build(base: Path, scratch: Path) -> Image:
    """Carry the Dockerfile out; the last stage is the image."""
    stages: list[Image] = []
    names: dict[str, Image] = {}
    for step in parts.dockerfile():
        if step.word == "FROM":
            image = Image(copy_of(base, scratch / f"stage{step.stage}"))
            stages.append(image)
            _, _, name = step.rest.partition(" AS ")
            names[name] = image
            continue
        image = stages[-1]
        match step.word:
            case "WORKDIR":
                image.workdir = step.rest
                (image.root / step.rest[1:]).mkdir(parents=True, exist_ok=True)
            case "ENV":
                image.env |= dict(word.split("=", 1) for word in shlex.split(step.rest))
            case "USER":
                image.user = step.rest
            case "COPY":
                _copy(step, image, names)
            case "RUN":
                script = f"cd {shlex.quote(image.workdir)}; {step.rest}"
                inside(image.root, ["/bin/sh", "-ec", script], image.env)
            case "LABEL" | "EXPOSE" | "HEALTHCHECK" | "ENTRYPOINT" | "CMD":
                pass
            case _:
                msg = f"this builder does not know {step.word}"
                raise NotImplementedError(msg)
    return stages[-1]


def _copy(step: parts.Step, image: Image, names: Mapping[str, Image]) -> None:
    words = step.form
    origin = ROOT
    if words[0].startswith("--from="):
        origin = names[words.pop(0).partition("=")[2]].root
    *sources, target = words
    into = image.root / (Path(image.workdir) / target).as_posix()[1:]
    for source in sources:
        one = origin / source.lstrip("/")
        place = into / one.name if target.endswith("/") else into
        place.parent.mkdir(parents=True, exist_ok=True)
        if one.is_dir():
            skip = shutil.ignore_patterns("__pycache__") if origin == ROOT else None
            shutil.copytree(one, place, symlinks=True, ignore=skip, dirs_exist_ok=True)
        else:
            shutil.copy2(one, place)
