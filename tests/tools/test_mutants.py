"""The scripts behind docs/testing.md: what counts as a fault, and how shares are counted."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest

import mutants
from code_size import ROOT
from coverage_rooms import Reached, add_up, count_rooms
from testing_page import put


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("a < b", ["a <= b", "a >= b"]),
        ("a == b", ["a != b"]),
        ("a < b < c", []),
        ("a + 1", ["a - 1"]),
        ("f'{a}' + b", []),
        ("a and b", ["a or b", "a", "b"]),
        ("a or b or c", ["a and b and c"]),
        ("not a", ["a"]),
        ("-a", ["a"]),
        ("a if b else c", ["c", "a"]),
        ("min", ["max"]),
        ("7", ["8"]),
        ("0.5", ["1.5"]),
        ("True", ["False"]),
        ("'text'", []),
        ("None", []),
    ],
)
def test_one_thing_is_changed(text: str, changes: list[str]) -> None:
    node = ast.parse(text, mode="eval").body
    assert [ast.unparse(change) for change in mutants.list_changes(node)] == changes


def test_a_mutant_is_the_module_with_its_change() -> None:
    path = "tvm_forest/schedule_prims/nest/__init__.py"
    before = ast.unparse(ast.parse((ROOT / path).read_text(encoding="utf-8"))).splitlines()
    some = list(mutants.list_mutants(path))[::40]
    for mutant in some:
        after = ast.unparse(mutants.make(mutant)).splitlines()
        changed = [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
        assert len(changed) == 1 and mutant.new in changed[0][1], mutant


def test_only_functions_that_change_are_replaced() -> None:
    from tvm_forest.schedule_prims.nest import Loop

    path = "tvm_forest/schedule_prims/nest/__init__.py"
    mutant = next(
        x for x in mutants.list_mutants(path) if (x.place, x.old) == ("Loop.take_iteration", "1")
    )
    code = compile(mutants.make(mutant), str(ROOT / path), "exec")
    assert [x for x, _ in mutants.find_replaced(code)] == [Loop.take_iteration]


def test_what_changes_nothing_is_a_mutant_that_there_is() -> None:
    same: dict[str, str] = json.loads(mutants.SAME.read_text(encoding="utf-8"))
    there = {x.key for path in {key.split()[0] for key in same} for x in mutants.list_mutants(path)}
    assert set(same) - there == set()
    assert all(len(why) > 20 for why in same.values())


def test_mutants_are_counted_by_room() -> None:
    found: dict[str, Any] = {
        "a": {"room": "nest", "outcome": "failed"},
        "b": {"room": "nest", "outcome": "timeout"},
        "c": {"room": "nest", "outcome": "survived"},
        "d": {"room": "nest", "outcome": "survived"},
        "e": {"room": "forest", "outcome": "survived"},
    }
    counts = mutants.count("nest", found, {"c": "why"})
    assert counts == (4, 2, 1, 1) and counts.score == 2 / 3


def test_files_are_added_up_by_room() -> None:
    def summary(lines: int, reached: int) -> dict[str, int]:
        return {
            "num_statements": lines,
            "covered_lines": reached,
            "num_branches": 2,
            "covered_branches": 1,
        }

    files = {
        "tvm_forest/schedule_prims/nest/__init__.py": summary(10, 9),
        "tvm_forest/forest/a.py": summary(10, 10),
        "tvm_forest/forest/rewrites/b.py": summary(4, 1),
        "tvm_forest/forest/rewrites/c.py": summary(4, 3),
    }
    rooms = count_rooms(files, {"schedule_prims/nest", "forest", "forest/rewrites"})
    assert list(rooms) == ["forest", "forest/rewrites", "schedule_prims/nest"]
    assert rooms["forest/rewrites"] == (8, 4, 4, 2)
    assert [x.share() for x in rooms.values()] == [1, 0.5, 0.9]
    assert add_up(rooms.values()) == (28, 23, 8, 4)
    assert Reached().share() == 1


def test_a_table_takes_the_place_of_the_old_one() -> None:
    text = "a\n<!-- x -->\nold\n<!-- end -->\nb <!-- y -->\n<!-- end -->\n"
    new = put(text, "x", "| new |")
    assert new == "a\n<!-- x -->\n\n| new |\n\n<!-- end -->\nb <!-- y -->\n<!-- end -->\n"
    assert put(new, "x", "| new |") == new


def test_a_changed_package_finds_its_modules() -> None:
    path = "tvm_forest/schedule_prims/nest/__init__.py"
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    spec = mutants.Changed(path, tree).find_spec("tvm_forest.schedule_prims.nest")
    assert spec.submodule_search_locations == [str((ROOT / path).parent)]
