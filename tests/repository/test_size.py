"""The package stays small enough to be read, and the table of rooms is that of the code."""

from pathlib import Path

import pytest

import code_size
from test_layers import LEVELS

BUDGETS = code_size.read_budgets((code_size.ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
SOURCE = '''"""A docstring of
two lines."""

import os  # counts


MAX = 3
"""What is said of a constant is free."""


def double(
    x: int,
) -> int:
    """One more docstring."""
    # a comment
    text = """three
    lines

    of code"""
    return 2 * x
'''


def test_words_are_free_and_statements_count_by_line() -> None:
    assert code_size.count_code_lines(SOURCE) == 2 + 3 + 4 + 1


def test_budgets_are_read_from_the_table_of_rooms() -> None:
    text = "| room | takes | code |\n|---|---|---|\n| `a/b` | x `y` | 1,200 |\n| `c` | | 7 |\n"
    assert code_size.read_budgets(text) == {"a/b": 1200, "c": 7}


def test_the_table_of_rooms_names_every_room_and_no_other() -> None:
    rooms = {room.replace(".", "/") for room in LEVELS if room != "relax"}
    assert rooms <= set(BUDGETS)
    assert all((code_size.PACKAGE / name).is_dir() for name in set(BUDGETS) - rooms)


REMEDY = "make it smaller, or raise its number in the table of rooms of ARCHITECTURE.md"


def write(package: Path, name: str, lines: int) -> None:
    path = package / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("x = 1\n" * lines)


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"a/one.py": 11}, f"a: 11 lines of code, at most 10; {REMEDY}"),
        ({"b.py": 1}, "b: has no budget in ARCHITECTURE.md"),
        ({"a/c/one.py": 401}, "one.py: 401 lines, at most 400"),
        ({f"a/c/f{k}.py": 1 for k in range(16)}, "c: 16 files, at most 15"),
    ],
)
def test_what_is_too_large_is_named(tmp_path: Path, files: dict[str, int], fault: str) -> None:
    for name, lines in files.items():
        write(tmp_path, name, lines)
    assert code_size.list_faults(tmp_path, {"a": 10, "a/c": 500}) == [fault]


def test_benchmarks_are_no_larger_than_one_reads() -> None:
    assert code_size.list_large(code_size.BENCHMARKS) == []


def test_rooms_within_their_budgets_are_no_fault(tmp_path: Path) -> None:
    write(tmp_path, "a/one.py", 10)
    write(tmp_path, "a/c/two.py", 400)
    assert code_size.list_faults(tmp_path, {"a": 10, "a/c": 400}) == []
