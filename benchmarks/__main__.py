"""Run a benchmark by its name; without one, list them all, each with the first line of its text."""

from __future__ import annotations

import ast
import difflib
import importlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
USAGE = "usage: python -m benchmarks NAME [options]; `NAME --help` says which options there are"


def commands() -> Iterator[tuple[str, str]]:
    """Yield the name of each benchmark, and what it says of itself; nothing is imported."""
    files = (x for x in HERE.rglob("*.py") if not x.stem.startswith("__"))
    for path in sorted(files, key=lambda x: (x.parent, x)):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(x, ast.FunctionDef) and x.name == "main" for x in tree.body):
            yield ".".join(path.relative_to(HERE).with_suffix("").parts), first_line(tree)


def first_line(tree: ast.Module) -> str:
    """Return the first line of the text of a file."""
    return (ast.get_docstring(tree) or "").partition("\n")[0]


def listing(known: dict[str, str]) -> str:
    """Return all names with what they say, aligned, a paragraph for each room."""
    width, lines = max(map(len, known)), [USAGE]
    for room, names in itertools.groupby(known, lambda x: x.rpartition(".")[0]):
        init = HERE.joinpath(*room.split("."), "__init__.py")
        lines += ["", first_line(ast.parse(init.read_text(encoding="utf-8"))), ""]
        lines += [f"  {name:{width}}  {known[name]}" for name in names]
    return "\n".join(lines)


def main() -> object:
    """Run what the command line names; return its status."""
    known, (name, *words) = dict(commands()), sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(listing(known))
        return 0
    if name not in known:
        near = difflib.get_close_matches(name, known, 3, 0.4) or known
        print(f"benchmarks: no '{name}' (near: {', '.join(near)}); see `python -m benchmarks`")
        return 2
    sys.argv = [f"benchmarks {name}", *words]
    return importlib.import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    sys.exit(main())
