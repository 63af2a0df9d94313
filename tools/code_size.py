"""How large the package is, in lines of code, and how large it may be.

A line of code is one that holds a token of a statement: docstrings, comments and blank lines are
free, so nobody saves on words. The budget of each room stands in the table of rooms of
`ARCHITECTURE.md`. Run as a script, it prints a line for each room and fails if one is over its
budget, if a file has more than 400 lines, or a folder more than 15 files. The last two hold for the
benchmarks, too.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, BENCHMARKS = ROOT / "tvm_forest", ROOT / "benchmarks"
MAX_LINES_OF_FILE = 400
MAX_FILES_OF_FOLDER = 15
BUDGET = re.compile(r"^\| `(?P<room>[\w/]+)`.*\| (?P<lines>[\d,]+) \|$", re.MULTILINE)
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstring_lines(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of all docstrings, those of attributes among them."""
    for node in ast.walk(tree):
        for statement in getattr(node, "body", []) if isinstance(node, DOCUMENTED) else []:
            value = getattr(statement, "value", None)
            text = value.value if isinstance(value, ast.Constant) else None
            if isinstance(statement, ast.Expr) and isinstance(text, str):
                yield from range(statement.lineno, statement.end_lineno + 1)


def count_code_lines(source: str) -> int:
    """Count the lines of code of one file."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines.difference(docstring_lines(ast.parse(source))))


def read_budgets(text: str) -> dict[str, int]:
    """Return the most lines of code of each room that the table of rooms allows."""
    return {m["room"]: int(m["lines"].replace(",", "")) for m in BUDGET.finditer(text)}


def room_of(path: Path, rooms: set[str]) -> str:
    """Name the room of a file of the package: the innermost folder that has a budget."""
    parts = path.with_suffix("").parts
    names = ("/".join(parts[:k]) for k in range(len(parts), 0, -1))
    return next((name for name in names if name in rooms), parts[0])


def count_rooms(package: Path, rooms: set[str]) -> Counter[str]:
    """Count the lines of code of each room."""
    sizes: Counter[str] = Counter()
    for path in package.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        sizes[room_of(path.relative_to(package), rooms)] += count_code_lines(source)
    return sizes


def list_faults(package: Path, budgets: dict[str, int]) -> list[str]:
    """Say which rooms, files and folders are too large."""
    faults = []
    for room, lines in sorted(count_rooms(package, set(budgets)).items()):
        if room not in budgets:
            faults.append(f"{room}: has no budget in ARCHITECTURE.md")
        elif lines > budgets[room]:
            faults.append(
                f"{room}: {lines} lines of code, at most {budgets[room]}; make it smaller, or "
                "raise its number in the table of rooms of ARCHITECTURE.md"
            )
    return [*faults, *list_large(package)]


def list_large(package: Path) -> list[str]:
    """Say which files and folders are too large to be read."""
    faults = []
    for path in sorted(package.rglob("*.py")):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_LINES_OF_FILE:
            faults.append(f"{path.name}: {lines} lines, at most {MAX_LINES_OF_FILE}")
    for folder in [package, *(x for x in package.rglob("*") if x.is_dir())]:
        files = len(list(folder.glob("*.py")))
        if files > MAX_FILES_OF_FOLDER:
            faults.append(f"{folder.name}: {files} files, at most {MAX_FILES_OF_FOLDER}")
    return faults


if __name__ == "__main__":
    allowed = read_budgets((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    measured = count_rooms(PACKAGE, set(allowed))
    for name, size in sorted(measured.items()):
        print(f"{name:20} {size:6} of {allowed.get(name, 0):6}")
    print(f"{'total':20} {measured.total():6} of {sum(allowed.values()):6}")
    problems = [*list_faults(PACKAGE, allowed), *list_large(BENCHMARKS)]
    sys.exit("\n".join(problems) if problems else 0)
