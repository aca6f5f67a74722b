"""YAML with line numbers: the same data as the safe loader, plus what that loader lets pass."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.document import MOST_VALUES, read

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False)
)
DATA = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("abcxyz", min_size=1), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(DATA)
def test_reads_what_the_safe_loader_reads(data: object) -> None:
    text = yaml.safe_dump(data)
    document = read(text, "f")
    assert document.findings == []
    assert document.data == yaml.safe_load(text)


def test_knows_the_line_of_every_value_and_of_the_nearest_parent() -> None:
    document = read("a:\n  - x: 1\n    y: 2\n  - 3\nb: {c: 4}\n", "f.yaml")
    assert document.where(("a", 0, "y")) == "f.yaml:3"
    assert document.where(("a", 1)) == "f.yaml:4"
    assert document.where(("b", "c")) == "f.yaml:5"
    assert document.where(("b", "missing")) == "f.yaml:5"


def test_the_second_of_two_equal_keys_is_found() -> None:
    (finding,) = read("a: 1\nb: 2\na: 3\n", "f").findings
    assert (finding.path, finding.line, finding.wrong) == ("a", 3, "was already said in line 1")


def test_aliases_and_merge_keys_work() -> None:
    document = read("base: &b {x: 1, y: 2}\none: {<<: *b, y: 3}\ntwo: *b\n", "f")
    assert document.findings == []
    assert document.data == {
        "base": {"x": 1, "y": 2},
        "one": {"x": 1, "y": 3},
        "two": {"x": 1, "y": 2},
    }


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("a: &a [*a]", "contains itself"),
        ("a: {[1]: 2}", "has a key that is not a word"),
        ("a: !!python/object:os.system x", "is not a value YAML knows"),
        ("a: 2026-99-99", "is not a value YAML knows"),
        *(
            (
                f"a: {number}",
                "is read to the base of 8 or 60, as it begins with 0 or has colons (YAML 1.1)",
            )
            for number in ("010", "-0_7", "1:30", "190:20:30", "1:30.5")
        ),
        ("a: [1", "is not YAML: expected ',' or ']', but got '<stream end>'"),
        ("a: !!bool maybe", "is not a value YAML knows"),
        ("a: !!timestamp soon", "is not a value YAML knows"),
        ("a: " + "[" * 5000, "is not YAML that can be read: it is nested too deeply"),
        ("a: 1\n---\nb: 2", "is not YAML: but found another document"),
        ("a: \x07", "is not YAML: it holds characters YAML does not allow"),
        ("a: *unknown", "is not YAML: found undefined alias 'unknown'"),
        ("a: *sk-planted1234", "is not YAML: it does not parse"),
    ],
)
def test_what_cannot_be_read_is_found_and_not_quoted(text: str, wrong: str) -> None:
    (finding,) = read(text, "f").findings
    assert finding.wrong == wrong


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-0", 0),
        ("0.5", 0.5),
        ("1_000", 1000),
        ("0x10", 16),
        ("'010'", "010"),
        ("08", "08"),
        ("8000:30000", "8000:30000"),
    ],
)
def test_numbers_that_are_what_they_look_like_are_read(text: str, value: object) -> None:
    document = read(f"a: {text}", "f")
    assert document.findings == []
    assert document.data == {"a": value}


def test_aliases_of_aliases_end_before_they_take_the_memory() -> None:
    lines = [
        "a0: &a0 [x]",
        *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)),
    ]
    document = read("\n".join(lines), "f")
    (finding,) = document.findings
    assert finding.wrong == f"holds more than {MOST_VALUES:,} values, aliases written out"
    assert len(document.lines) <= MOST_VALUES, "millions would take minutes"


def test_an_empty_text_is_no_mistake() -> None:
    document = read("# nothing\n", "f")
    assert (document.data, document.findings) == (None, [])
