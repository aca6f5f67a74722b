"""The pages for people keep up with the code: codes, claims, both READMEs, the changelog."""

from __future__ import annotations

import ast
import re

import pytest

from gateway.core.model import Code
from gateway.edge.replies import STATUS
from gateway.policy.load import json_schema
from tests.deploy.parts import ROOT, control_paths

DOCS = ROOT / "docs"
THREATS = (DOCS / "threat-model.md").read_text()
OPERATIONS = (DOCS / "operations.md").read_text()


# --- operations --------------------------------------------------------------------------------


def faults_of_the_edge():
    """The codes with which the edge answers when a server breaks, from its source."""
    found = set()
    for path in (ROOT / "gateway" / "edge").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(re.findall(r"^upstream_[a-z]+$", node.value))
    return found


def rows(page):
    """The table of refusals: code, status, what happened, what to do."""
    return {
        row[1]: [cell.strip() for cell in row[0].strip().strip("|").split("|")]
        for row in re.finditer(r"^\| `([a-z_]+)` \| \d+ \|.*$", page, re.MULTILINE)
    }


def test_every_code_has_its_entry_and_no_entry_is_of_a_code_that_is_gone():
    faults = faults_of_the_edge()
    assert {"upstream_error", "upstream_timeout"} <= faults
    assert set(rows(OPERATIONS)) == {code.value for code in Code} | faults


@pytest.mark.parametrize("code", Code)
def test_an_entry_says_status_meaning_and_what_to_do(code):
    _, status, meaning, remedy = rows(OPERATIONS)[code.value]
    assert int(status) == STATUS[code]
    assert len(meaning) > 20
    assert len(remedy) > 20


def test_what_the_remedies_refer_to_is_on_the_page():
    titles = {title.lower() for title in re.findall(r"^## (.+)$", OPERATIONS, re.MULTILINE)}
    for words in re.findall(r"(?:see|go to) \*([^*]+)\*", OPERATIONS):
        assert words in titles


def test_routes_of_the_control_plane_that_are_named_exist():
    known = {path for _, path in control_paths()}
    named = set(re.findall(r"127\.0\.0\.1:8081(/[a-z]+)", OPERATIONS + THREATS))
    named |= set(
        re.findall(r"`(?:POST )?(/(?:drain|reload|status|metrics|healthz|readyz))`", OPERATIONS)
    )
    assert named
    assert named <= known


# --- threat model --------------------------------------------------------------------------------


def test_code_and_tests_that_hold_a_claim_exist():
    names = set(re.findall(r"`((?:gateway|tests|deploy)/[\w./-]*)((?:::\w+)?)`", THREATS))
    assert len(names) > 40
    for path, test in names:
        place = ROOT / path
        assert place.exists(), path
        if test:
            assert re.search(rf"def {test[2:]}\(", place.read_text()), path + test


def test_every_attack_of_a_client_has_code_and_test():
    table = THREATS.partition("## Against clients")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(lines) > 10
    for line in lines:
        *_, code, test = (cell.strip() for cell in line.strip("|").split(" | "))
        assert code.startswith("`gateway/"), line
        assert test.startswith("`tests/"), line


def test_settings_named_exist():
    schema = str(json_schema())
    for name in set(
        re.findall(r"`(?:limits\.|queue\.|observe\.)?((?:max|body|allow)_\w+)`", THREATS)
    ):
        assert f"'{name}'" in schema, name


# --- README in two languages -----------------------------------------------------------------------

ENGLISH, CHINESE = ((ROOT / name).read_text() for name in ("README.md", "README.zh-CN.md"))


def numbers(page):
    """Numbers of three characters and more: those that are measured or promised, not dates' days."""
    found = re.findall(r"\d[\d,.]*\d", page)
    return {n for n in found if len(n) > 2}


def code(page):
    """What is typed or matched: words in backticks, and blocks without their comments."""
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    typed = {
        line.partition("#")[0].strip()
        for block in blocks
        for line in block.splitlines()
        if "│" not in line and "──" not in line
    }
    prose = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    return typed | set(re.findall(r"`([^`\n]+)`", prose))


def test_each_readme_leads_to_the_other():
    assert "](README.zh-CN.md)" in ENGLISH.partition("## ")[0]
    assert "](README.md)" in CHINESE.partition("## ")[0]


def test_both_have_the_same_sections_and_rows():
    for mark in (r"^## ", r"^\|", r"^```"):
        counts = [len(re.findall(mark, page, re.MULTILINE)) for page in (ENGLISH, CHINESE)]
        assert counts[0] == counts[1], mark


def test_both_say_the_same_numbers():
    assert numbers(ENGLISH) == numbers(CHINESE)


def test_both_name_the_same_commands_and_fields():
    assert code(ENGLISH) == code(CHINESE)


@pytest.mark.parametrize(
    "page", ["README.md", "README.zh-CN.md", "CHANGELOG.md", "deploy/README.md"]
)
def test_links_lead_somewhere(page):
    place = (ROOT / page).parent
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / page).read_text())
    assert links
    assert [link for link in links if not (place / link).exists()] == []


def test_the_changelog_knows_this_version():
    version = re.search(
        r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert version[1] in (ROOT / "CHANGELOG.md").read_text()
