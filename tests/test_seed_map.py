"""The map of the seed systems names tests that exist, for every capability once."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "seed-map.md"
SEEDS = ("agent-base", "agent-sdk", "synwire", "awaken", "agy-bridge")
REST = ("Not there yet", "Left out")
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")

Row = tuple[str, ...]


def read_sections(page: str) -> dict[str, list[Row]]:
    """The rows of each section's table, without its head."""
    sections: dict[str, list[Row]] = {}
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        lines = [line for line in text.splitlines() if line.startswith("|")]
        assert title not in sections, f"{title} is there twice"
        sections[title] = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines[2:]]
    return sections


@cache
def functions_in(path: Path) -> frozenset[str]:
    """The names of the test functions that a file has, in its classes too; none if there is no such file."""
    if not path.is_file():
        return frozenset()
    module = ast.parse(path.read_text())
    scopes = [module, *(node for node in module.body if isinstance(node, ast.ClassDef))]
    functions = (node for scope in scopes for node in scope.body)
    return frozenset(
        node.name
        for node in functions
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


def faults_in(rows: list[Row]) -> list[str]:
    """What is wrong with the rows of a seed's table."""
    faults = [f"{name!r} is there twice" for name, count in Counter(row[0] for row in rows).items() if count > 1]
    for row in rows:
        if len(row) != 3 or not all(row):
            faults.append(f"{row[0]!r} has to have three cells")
            continue
        named = NAMED_TEST.findall(row[2])
        if not named or NAMED_TEST.sub("", row[2]).strip(", "):
            faults.append(f"{row[0]!r} has to name tests, and nothing else, as its test")
        faults += [
            f"{row[0]!r} names {path}::{name}, which is not there"
            for path, name in named
            if name not in functions_in(ROOT / path)
        ]
    return faults


SECTIONS = read_sections(PAGE.read_text())


def test_every_seed_has_its_section_and_the_rest_is_told() -> None:
    assert tuple(SECTIONS) == SEEDS + REST
    assert all(SECTIONS.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_every_capability_is_there_once_with_tests_that_exist(seed: str) -> None:
    assert faults_in(SECTIONS[seed]) == []


@pytest.mark.parametrize("section", REST)
def test_what_is_missing_is_told_once_and_with_all_its_cells(section: str) -> None:
    rows = SECTIONS[section]
    assert [row for row in rows if len(row) != 3 or not all(row)] == []
    capability = 1 if section == "Not there yet" else 0
    assert max(Counter(row[capability] for row in rows).values()) == 1


THIS = "`tests/test_seed_map.py::test_wrong_rows_are_noticed`"


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([("fly", "`fly()`", THIS)], ""),
        ([("fly", "`fly()`", THIS.replace("wrong", "no_such"))], "which is not there"),
        ([("fly", "`fly()`", THIS.replace("seed_map", "no_such_file"))], "which is not there"),
        ([("fly", "`fly()`", f"{THIS}, `tests/test_seed_map.py::faults_in`")], "which is not there"),
        ([("fly", "`fly()`", "some day")], "has to name tests"),
        ([("fly", "`fly()`", f"{THIS} and others")], "has to name tests"),
        ([("fly", "", THIS)], "three cells"),
        ([("fly", "`fly()`", THIS), ("fly", "`soar()`", THIS)], "is there twice"),
    ],
)
def test_wrong_rows_are_noticed(rows: list[Row], told: str) -> None:
    faults = faults_in(rows)
    assert len(faults) == (1 if told else 0)
    assert all(told in fault for fault in faults)
