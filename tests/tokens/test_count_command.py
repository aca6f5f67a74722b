"""`kvgate count`: one integer a line for scripts, a table for people, one sentence when it cannot."""

import asyncio
import io
import json
import sys

import pytest

from gateway.cli.count import run


@pytest.fixture
def count(model_dir, capsys):
    async def call(*argv):
        # In a thread, as the command runs an event loop of its own.
        code = await asyncio.to_thread(run, ["--tokenizer", str(model_dir), *map(str, argv)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


LINES = [
    {"text": "The quick brown fox"},
    {"messages": [{"role": "user", "content": "hi"}]},
    {"messages": [{"role": "user", "content": "hi"}], "system": "s"},
    {"prompt": [1, 2, 3]},
    {"model": "m", "prompt": ["The quick", "brown"], "max_tokens": 4},
]


async def test_one_integer_a_line(count, tmp_path, hf_count):
    path = tmp_path / "bodies.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in LINES) + "\n\n")
    code, out, err = await count("--jsonl", path)
    assert (code, err) == (0, "")
    chat = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    system = "<|im_start|>system\ns<|im_end|>\n"
    assert list(map(int, out.split("\n")[:-1])) == [
        hf_count("The quick brown fox"),
        hf_count(chat),
        hf_count(system + chat),
        3,
        hf_count("The quick") + hf_count("brown"),
    ]


async def test_standard_input(count, monkeypatch):
    stdin = io.TextIOWrapper(io.BytesIO(b'{"prompt": [7, 8]}\n'))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert await count("--jsonl", "-") == (0, "2\n", "")


async def test_a_table_adds_up(count, tmp_path):
    path = tmp_path / "body.json"
    path.write_text(json.dumps(LINES[1]))
    code, out, _ = await count(path)
    rows = [line.split(maxsplit=1) for line in out.splitlines()]
    assert code == 0
    assert rows[-1][1] == "total"
    assert sum(int(number.replace(",", "")) for number, _ in rows[:-1]) == int(rows[-1][0])
    assert ["1", "<|im_start|>"] in rows


async def test_a_text_file(count, tmp_path, hf_count):
    path = tmp_path / "prompt.txt"
    path.write_text("The quick\nbrown 词表")
    assert (await count(path))[1].splitlines()[-1].split() == [
        str(hf_count(path.read_text())),
        "total",
    ]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "line 1 of {path} is not JSON."),
        ("{}\n[1]", "line 1 of {path}: One of `text`"),
        ("[1]", "line 1 of {path} must be a JSON object."),
        ('{"messages": 3}', "line 1 of {path}: `messages` must be a list"),
    ],
)
async def test_a_bad_line_is_named(count, tmp_path, content, sentence):
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    code, _, err = await count("--jsonl", path)
    assert code == 2
    assert err.startswith("kvgate count: " + sentence.format(path=path))
    assert err.count("\n") == 1


async def test_what_is_missing_is_said(count, tmp_path, capsys):
    assert (await count())[0] == 2
    assert await count("--jsonl", tmp_path / "absent") == (
        2, "", f"kvgate count: {tmp_path / 'absent'} cannot be read: No such file or directory.\n"
    )  # fmt: skip
    assert await asyncio.to_thread(run, ["--tokenizer", str(tmp_path), "x"]) == 2
    assert "must be a directory with a tokenizer.json" in capsys.readouterr().err
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert "must be UTF-8 text" in (await count(tmp_path / "binary"))[2]


@pytest.mark.parametrize("version", ["banana", "0.5", ""])
async def test_a_version_that_is_none_is_refused(count, tmp_path, version):
    """It was counted as the newest would, without a word."""
    path = tmp_path / "body.json"
    path.write_text(json.dumps(LINES[1]))
    code, out, err = await count(f"--engine-version={version}", path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "three numbers, as 0.5.17" in err
