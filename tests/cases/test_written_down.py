"""docs/cases.md against the tests: each case is tested where it says, or says why not."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
ROW = re.compile(
    r"^\| ([A-P]\d\d) \| \[[^]]+\]\(https://[^)]+\) \| [^|]+ \| ([^|]+) \|$", re.MULTILINE
)
NAMED = re.compile(r'id=f?"([A-P]\d\d)|ids=\["([A-P]\d\d)|[, ]f?"([A-P]\d\d)-|\btest_([a-p]\d\d)_')
CASES = 123
OWN_FROM = 51
"""Numbers from here on are reports that were found later, in the same classes."""


def rows() -> dict[str, str]:
    return dict(ROW.findall((ROOT / "docs" / "cases.md").read_text()))


def named() -> set[str]:
    """The cases that tests in this folder are named after."""
    text = "".join(path.read_text() for path in HERE.glob("test_*.py"))
    return {name.upper() for match in NAMED.findall(text) for name in match if name}


def test_every_case_has_its_line() -> None:
    listed = [case for case in rows() if int(case[1:]) < OWN_FROM]
    assert len(listed) == CASES


def test_no_number_is_given_twice() -> None:
    lines = [case for case, _ in ROW.findall((ROOT / "docs" / "cases.md").read_text())]
    assert len(lines) == len(set(lines))


def test_what_is_said_to_be_tested_here_is() -> None:
    said = {case for case, where in rows().items() if where.startswith("test")}
    said -= {case for case, where in rows().items() if where.startswith("tests/")}
    assert said <= named(), said - named()


def test_what_is_tested_here_is_said() -> None:
    silent = {case for case, where in rows().items() if not where.startswith("test")}
    assert not (named() & silent) - {"F10"}, "a test that no line tells of"


def test_every_test_that_is_named_exists() -> None:
    for where in rows().values():
        for path, function in re.findall(r"(tests/[\w/]+\.py)::(\w+)", where):
            assert f"def {function}(" in (ROOT / path).read_text(), (path, function)


def test_what_is_not_met_names_its_issue_or_its_test() -> None:
    for case, where in rows().items():
        if where.startswith(("not ", "does not", "there is no", "as ")):
            assert re.search(r"issue \d|::|as C04", where), case
