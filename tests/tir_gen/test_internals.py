"""What we need of TVM's internals is there, and is said in one table.

Nothing here compiles, or imports what does, before a test does so: a TVM that lacks one thing is
still asked for all others.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from internals_page import PACKAGE, PAGE, find_users, list_names, list_nodes, page_text, sources
from tvm_forest.tir_gen.internals.table import KINDS, TABLE, Internal
from tvm_internals import CHECKS, find_fault

NAMES = [row for row in TABLE if row.kind in CHECKS]
INTERNAL = re.compile(r"(tirx|prim|ir|s_tir|target|tvm|ffi)\.(?!Var$)[A-Za-z]\w*(\.\w+)*")
"""What looks like the name of an operator or a function of TVM."""

PRIVATE = re.compile(r"tvm(_ffi)?(\.\w+)*\._[a-z]\w*(\.\w+)*")
TEXTS = [row for row in TABLE if row.kind not in CHECKS]


def id_of(row: Internal) -> str:
    return f"{row.kind}: {row.name}"


@pytest.mark.parametrize("row", NAMES, ids=id_of)
def test_tvm_has_what_we_need(row: Internal) -> None:
    fault = find_fault(row)
    assert not fault, fault


@pytest.mark.slow
@pytest.mark.parametrize("row", TEXTS, ids=id_of)
def test_tvm_writes_what_we_look_for(row: Internal) -> None:
    fault = find_fault(row)
    assert not fault, fault


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_missing_is_named_with_what_needs_it(kind: str) -> None:
    fault = find_fault(Internal(kind, "tvm.tirx.nowhere", "a wish of ours", ("targets/cpu.py",)))
    assert "lacks 'tvm.tirx.nowhere'" in fault
    assert fault.endswith("for: a wish of ours; targets/cpu.py")


def test_all_that_is_in_the_table_is_needed() -> None:
    assert [row.name for row in TABLE if not find_users(row)] == []
    assert [x for row in TABLE for x in row.files if not (PACKAGE / x).is_file()] == []


def test_private_names_of_tvm_are_in_the_table() -> None:
    files = [file for file in sources() if file.endswith(".py")]
    private = {x for file in files for x in list_names(file) if PRIVATE.fullmatch(x)}
    assert private <= {row.name for row in TABLE}


def test_no_name_is_written_out_elsewhere() -> None:
    known = {row.name for row in TABLE if row.kind in CHECKS}
    assert [x for x in list_literals() if x[1] in known or INTERNAL.fullmatch(x[1])] == []


def list_literals() -> Iterator[tuple[str, str]]:
    for file in sources():
        is_ours = file.endswith(".py") and not file.startswith("tir_gen/internals/")
        for node in list_nodes(file) if is_ours else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield file, node.value


def test_the_page_shows_the_table() -> None:
    """If it does not, `make golden` writes it anew."""
    assert PAGE.read_text(encoding="utf-8") == page_text()
