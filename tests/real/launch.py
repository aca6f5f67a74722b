"""Start SGLang on a machine without a GPU; run by `engine` with the Python of the install.

SGLang's CPU path imports three packages that exist for GPUs only, and calls none of them: the
names must resolve, nothing more. Instead of placing fake packages on the disk, this file teaches
the running interpreter to answer for them:

- `sgl_kernel` (CUDA kernels) and `torchvision` (whose wheel does not import beside a CPU torch)
  become modules in which every name exists and none works: a call raises, so that no result can
  ever be made up. Image inputs are therefore out of reach.
- `triton` is answered by the mock inside SGLang's own wheel, made for macOS. Where the wheel has none
  that can be used elsewhere (0.5.23), the genuine triton is installed: it imports without a GPU.

It is a script, not a module: SGLang starts its scheduler and detokenizer with `spawn`, and a spawned
child runs the parent's main script first (under another `__name__`), so they get the same answers.

Started with `--exit-with-stdin`, the server dies with whoever holds the other end of its standard
input, even when that one is killed without a chance to clean up.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import signal
import sys
import threading
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import MutableSequence

ABSENT = ("sgl_kernel", "torchvision")

# SGLang has a fallback of its own for this one, and takes it only when the import fails.
NOT_EVEN_A_NAME = "sgl_kernel.scalar_type"


class Unusable(type):
    """The type of every name in an absent package.

    As a class it can be inherited from, annotated with and asked for members (enumerations are);
    calling it is an error.
    """

    def __getattr__(cls, name: str) -> Unusable:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unusable(f"{cls.__name__}.{name}", (), {})

    def __call__(cls, *_args: object, **_kwargs: object) -> NoReturn:
        msg = f"{cls.__name__} was called, but its package is absent on this CPU"
        raise RuntimeError(msg)


class AbsentModule(ModuleType):
    """A package without content, in which every name can be imported."""

    __version__ = "0.0.0"
    __path__: MutableSequence[str] = []  # noqa: RUF012 (nothing is ever found in it)

    def __getattr__(self, name: str) -> Unusable:
        if name.startswith("__"):
            raise AttributeError(name)
        member = Unusable(f"{self.__name__}.{name}", (), {})
        setattr(self, name, member)
        return member


class AbsentPackages(MetaPathFinder, Loader):
    """Answers imports below the `ABSENT` packages, before the path is searched."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        if fullname.partition(".")[0] not in ABSENT or fullname == NOT_EVEN_A_NAME:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to execute."""


def mock_triton() -> None:
    """Put SGLang's own triton mock in place, without importing SGLang (which imports triton)."""
    package = importlib.util.find_spec("sglang")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("sglang is not installed for this Python; run tests.real.install")
    source = Path(package.submodule_search_locations[0]) / "_triton_stub.py"
    if not source.exists():
        return
    spec = importlib.util.spec_from_file_location("sglang_triton_mock", source)
    if spec is None or spec.loader is None:
        msg = f"{source} cannot be loaded"
        raise SystemExit(msg)
    mock = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mock)
    mock.install()


def exit_with_stdin() -> None:
    """Kill the whole process group (ours: `engine` starts us as its leader) when stdin ends."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="exit-with-stdin", daemon=True).start()


sys.meta_path.insert(0, AbsentPackages())
mock_triton()

if __name__ == "__main__":
    if "--exit-with-stdin" in sys.argv:
        sys.argv.remove("--exit-with-stdin")
        exit_with_stdin()
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=False)
