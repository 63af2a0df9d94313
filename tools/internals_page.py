"""The page for those who take up a new TVM; as a program, writes docs/upgrading_tvm.md.

python tools/internals_page.py        # or: make golden
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import tvm_forest
from tvm_forest.tir_gen.internals import names
from tvm_forest.tir_gen.internals.table import KINDS, TABLE, Internal

PACKAGE = Path(tvm_forest.__file__).parent
ROOM = PACKAGE / "tir_gen" / "internals"
PAGE = PACKAGE.parent / "docs" / "upgrading_tvm.md"
TEXTS = {".py", ".ll", ".c"}
MARK = "<!-- what is needed -->\n"


@functools.cache
def sources() -> dict[str, str]:
    """Return the texts of the package's files by their names, those of the room left out."""
    files = (path for path in sorted(PACKAGE.rglob("*")) if path.suffix in TEXTS)
    return {
        path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8")
        for path in files
        if ROOM not in path.parents or path.stem == "value_hooks"
    }


@functools.cache
def list_nodes(file: str) -> list[ast.AST]:
    """Return all nodes of a file of Python."""
    return list(ast.walk(ast.parse(sources()[file])))


@functools.cache
def list_names(file: str) -> frozenset[str]:
    """Return the imported names in a file of Python, each with all that is before it."""
    return frozenset(_find_names(list_nodes(file)))


def _find_names(nodes: list[ast.AST]) -> Iterator[str]:
    known = dict[str, str]()
    for node in nodes:
        if isinstance(node, ast.Import):
            known |= {x.name.partition(".")[0]: x.name.partition(".")[0] for x in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            known |= {x.asname or x.name: f"{node.module}.{x.name}" for x in node.names}
    yield from known.values()
    for node in nodes:
        path, owner = list[str](), node
        while isinstance(owner, ast.Attribute):
            path.append(owner.attr)
            owner = owner.value
        if path and isinstance(owner, ast.Name) and owner.id in known:
            yield ".".join([known[owner.id], *reversed(path)])


def find_users(row: Internal) -> list[str]:
    """List the files that need something of TVM's, by the constant or the name that they use."""
    constants = [
        key
        for key, value in vars(names).items()
        if value == row.name or (isinstance(value, dict) and row.name in value)
    ]
    last = row.name.rpartition(".")[2]
    if row.files:
        return list(row.files)
    if row.kind == "python" and not last.startswith("_"):
        files = (file for file in sources() if file.endswith(".py"))
        return [file for file in files if row.name in list_names(file)]
    word = constants[0] if constants else last
    whole = re.compile(rf"\b{word}\b")
    return [
        file
        for file, text in sources().items()
        if word in text  # most files lack it, and this is told at once
        and (not constants or "internals" in file + text)
        and whole.search(text)
    ]


def list_rows() -> str:
    """Return what is needed, kind by kind."""
    parts = []
    for kind, what in KINDS.items():
        parts.append(f"\n### {what}\n\n")
        for row in (row for row in TABLE if row.kind == kind):
            files = ", ".join(f"`{file}`" for file in find_users(row))
            parts.append(f"- `{row.name}`: {row.why} ({files})\n")
    return "".join(parts)


def page_text() -> str:
    """Return the page with the table of today."""
    before, mark, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    return f"{before}{mark}{list_rows()}"


if __name__ == "__main__":
    PAGE.write_text(page_text(), encoding="utf-8")
