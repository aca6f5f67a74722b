"""`cors`: origins are compared letter by letter, so they are brought into the letters browsers use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from gateway.policy.load import json_schema, load_policy
from gateway.policy.problems import PolicyError
from gateway.policy.schema import Backend, Policy

if TYPE_CHECKING:
    from pathlib import Path

SERVERS = (Backend(url="http://127.0.0.1:30000"),)


def origins(*written: str) -> tuple[str, ...]:
    return Policy(backends=SERVERS, cors=written).cors


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("https://chat.example", "https://chat.example"),
        (" HTTPS://Chat.Example ", "https://chat.example"),
        ("https://chat.example:443", "https://chat.example"),
        ("http://chat.example:443", "http://chat.example:443"),
        ("http://localhost:80", "http://localhost"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("http://[0:0:0:0:0:0:0:1]:3000", "http://[::1]:3000"),
        ("http://[::1]", "http://[::1]"),
        ("app://obsidian.md", "app://obsidian.md"),
        ("moz-extension://0f3a-77", "moz-extension://0f3a-77"),
        ("*", "*"),
    ],
)
def test_an_origin_is_written_as_browsers_send_it(written: str, meant: str) -> None:
    assert origins(written) == (meant,)


@pytest.mark.parametrize(
    ("written", "wrong", "remedy"),
    [
        ("chat.example", "without a scheme", "https://chat.example"),
        ("localhost:3000", "without a scheme", "http://localhost:3000"),
        ("https://chat.example/", "ends in a slash", "take the slash away"),
        ("https://chat.example/app", "has a path", "nothing behind it"),
        ("https://chat.example/app/", "has a path", "nothing behind it"),
        ("https://chat.example?x", "has a path", "nothing behind it"),
        ("https://*.example", "has a * in it", "list each"),
        ("https://u:p@chat.example", "credentials", "scheme and host"),
        ("https://bücher.example", "as browsers send it", "xn--"),
        ("null", "sandbox", '"*"'),
        *((f"https://{rest}", "is not an origin", "scheme and host") for rest in ("", "a b", "a:")),
        *(
            (f"https://{rest}", "is not an origin", "scheme and host")
            for rest in ("a:0", "a:65536")
        ),
        *((f"https://{rest}", "is not an origin", "scheme and host") for rest in ("a:x", "[:::]")),
        ("", "without a scheme", "https://chat.example"),
    ],
)
def test_what_no_browser_sends_is_refused_with_a_remedy(
    written: str, wrong: str, remedy: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        origins(written)
    (error,) = caught.value.errors()
    assert error["type"] == "kvgate"
    assert wrong in error["ctx"]["wrong"]
    assert remedy in error["ctx"]["remedy"]


def read(tmp_path: Path, line: str) -> Policy:
    file = tmp_path / "policy.yaml"
    file.write_text(f"backends: [{{url: 'http://127.0.0.1:30000'}}]\n{line}\n")
    return load_policy(file, env={})


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ('cors: "*"', ("*",)),
        ('cors: ["*"]', ("*",)),
        ("cors: https://chat.example", ("https://chat.example",)),
        ("cors: []", ()),
        ("", ()),
    ],
)
def test_a_policy_file_lists_them(tmp_path: Path, line: str, meant: tuple[str, ...]) -> None:
    assert read(tmp_path, line).cors == meant


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('cors: ["*", "https://chat.example"]', "cors = a list of 2: has a * beside others"),
        (
            "cors: [https://a.example, https://b.example/]",
            "cors[1] = 'https://b.example/': ends in",
        ),
        ("cors: *", 'put a * into quotes: "*"'),
        ("cors: [*]", 'put a * into quotes: "*"'),
        ("cors: [null]", "cors[0] = nothing: must be text"),
    ],
)
def test_mistakes_are_told_with_their_line(tmp_path: Path, line: str, told: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read(tmp_path, line)
    assert told in str(caught.value)
    assert "policy.yaml:2" in str(caught.value)


def test_the_schema_takes_one_or_a_list() -> None:
    kinds = json_schema()["properties"]["cors"]["anyOf"]
    assert [kind["type"] for kind in kinds] == ["string", "array"]
