"""Tests lie where a contributor looks for them, and Python finds what they share."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from pathlib import Path

from code_size import PACKAGE, ROOT

TESTS, MAX_FILES = ROOT / "tests", 45
OTHER_ROOMS = {"benchmarks", "docs", "exporting", "helpers", "repository", "tools"}
NO_ROOMS = {"data", "golden", "__pycache__"}


def list_rooms() -> list[Path]:
    return [x for x in sorted(TESTS.iterdir()) if x.is_dir() and x.name not in NO_ROOMS]


def imported(file: Path) -> set[str]:
    """Return the names of the modules that a file imports."""
    nodes = [*ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    names = {alias.name for x in nodes if isinstance(x, ast.Import) for alias in x.names}
    return names | {str(x.module) for x in nodes if isinstance(x, ast.ImportFrom)}


def may_import(file: Path) -> set[str]:
    """Return the same and more, such as names that a text in a file imports, in less time."""
    text = file.read_text(encoding="utf-8")
    return {*re.findall(r"^\s*(?:from|import)\s+(\w+)", text, re.MULTILINE)}


def test_a_room_is_one_of_the_package_or_of_the_repository() -> None:
    package = {x.stem for x in PACKAGE.iterdir()}
    assert {x.name for x in list_rooms()} - package - OTHER_ROOMS == set()
    assert [x.name for x in TESTS.glob("*.py")] == ["conftest.py"]


def test_no_room_has_the_name_of_a_module_of_python() -> None:
    assert {x.name for x in list_rooms()} & sys.stdlib_module_names == set()


def test_no_folder_has_more_files_than_one_overlooks() -> None:
    folders = [*list_rooms(), ROOT / "tools"]
    counts = {x.name: sum(not y.is_dir() for y in x.iterdir()) for x in folders}
    assert {name: count for name, count in counts.items() if count > MAX_FILES} == {}


def test_files_that_are_imported_by_their_bare_names_have_different_ones() -> None:
    files = [*TESTS.glob("*/*.py"), *(ROOT / "tools").glob("*.py")]
    counts = Counter(x.name for x in files if x.parent.name not in NO_ROOMS)
    assert [name for name, count in counts.items() if count > 1] == []


def test_what_rooms_share_is_a_helper() -> None:
    rooms = {x.stem: x.parent for room in list_rooms() for x in room.glob("*.py")}
    helpers = TESTS / "helpers"
    for name, room in rooms.items():
        elsewhere = {x for x, other in rooms.items() if other not in (room, helpers)}
        if may_import(room / f"{name}.py") & elsewhere:
            assert imported(room / f"{name}.py") & elsewhere == set(), name


def test_helpers_need_no_program() -> None:
    programs = {x.stem for x in (ROOT / "tools").glob("*.py")}
    for file in (TESTS / "helpers").glob("*.py"):
        if may_import(file) & programs:
            assert imported(file) & programs == set(), file.name
