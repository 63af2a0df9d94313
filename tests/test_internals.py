"""What we need of TVM's internals is there, and is said in one table."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tvm
import tvm_ffi
from tvm import s_tir
from tvm.script import tirx as T

import tvm_forest.tir_gen.ops  # noqa: F401 (it repairs the hooks)
from internals_page import PACKAGE, PAGE, find_users, list_names, page_text, sources
from tvm_forest.internals import names
from tvm_forest.internals.table import KINDS, TABLE, Internal
from tvm_forest.internals.value_hooks import FIRST
from tvm_internals import CHECKS, find_fault
from upstream import any_hash

REPORT = Path(any_hash.__file__)
DTYPES = ("bool", "int8", "int64", "uint32", "float16", "float32", "float32x4")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)


# -- values, where apache-tvm-ffi is newer than TVM -----------------------------------------------


def test_functions_become_json_and_back() -> None:
    func = tvm.tirx.PrimFunc([tvm.tirx.Var(x, x) for x in DTYPES], tvm.tirx.Evaluate(0))
    again = tvm.ir.load_json(tvm.ir.save_json(func))
    assert [str(x.ty.dtype) for x in again.params] == list(DTYPES)


def test_big_integers_are_told_apart() -> None:
    assert any_hash.compare(2**70, 2**71) == "differ"
    assert any_hash.compare(2**70, 2**70) == "taken for equal"


@pytest.mark.parametrize("dtype", DTYPES)
def test_types_of_numbers_are_hashed_and_compared_by_what_they_are(dtype: str) -> None:
    hash_of, is_equal = map(tvm.get_global_func, (names.RECURSIVE_HASH, names.RECURSIVE_EQUAL))
    one, others = tvm.ir.PrimType(dtype), [tvm.ir.PrimType(x) for x in DTYPES if x != dtype]
    assert is_equal(one, tvm.ir.PrimType(dtype)) and hash_of(one) == hash_of(tvm.ir.PrimType(dtype))
    assert not any(is_equal(one, other) or hash_of(one) == hash_of(other) for other in others)


@T.prim_func(s_tir=True)
def add_one(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")) -> None:
    for i in range(8):
        with T.sblock("sum"):
            at = T.axis.remap("S", [i])
            b[at] = a[at] + T.float32(1)


@T.prim_func(s_tir=True)
def four(x: T.handle, y: T.handle) -> None:
    a = T.match_buffer(x, (4,), "float32", offset_factor=1)
    b = T.match_buffer(y, (4,), "float32", offset_factor=1)
    with T.sblock("root"):
        T.reads(a[0:4])
        T.writes(b[0:4])
        for i in range(4):
            with T.sblock("one"):
                at = T.axis.remap("S", [i])
                b[at] = a[at] + T.float32(1)


def test_loops_can_be_tensorized() -> None:
    s_tir.TensorIntrin.register("tvm_forest.test.four", four, four, override=True)
    sch = s_tir.Schedule(add_one)
    _, inner = sch.split(sch.get_loops("sum")[0], [None, 4])
    sch.tensorize(inner, "tvm_forest.test.four")
    assert "T.match_buffer(" in sch.mod.script()


@pytest.mark.slow
def test_functions_in_place_of_addresses_serve_every_version_of_apache_tvm_ffi() -> None:
    code = (
        "import tvm; from tvm_forest.internals.value_hooks import replace_addresses; "
        "replace_addresses(); import runpy; runpy.run_path(__import__('sys').argv[1], "
        "run_name='__main__')"
    )
    done = run("-c", code, str(REPORT))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == [
        "2**70 and 2**71: differ",
        "1 and the same from JSON: equal",
    ]


@pytest.mark.slow
def test_the_report_for_the_authors_of_tvm_shows_what_it_says() -> None:
    """If it fails with a newer version, `value_hooks` may be needless: see upgrading_tvm.md."""
    done = run(str(REPORT))
    is_wrong = tuple(map(int, tvm_ffi.__version__.split(".")[:3])) >= FIRST
    assert ("2**71: taken for equal" in done.stdout) == is_wrong
    assert ("equal" in done.stdout.splitlines()[-1]) and (done.returncode != 0) == is_wrong


# -- the table ------------------------------------------------------------------------------------

NAMES = [row for row in TABLE if row.kind in CHECKS]
INTERNAL = re.compile(r"(tirx|prim|ir|s_tir|target|tvm|ffi)\.(?!Var$)[A-Za-z]\w*(\.\w+)*")
"""What looks like the name of an operator or a function of TVM."""

PRIVATE = re.compile(r"tvm(_ffi)?(\.\w+)*\._[a-z]\w*(\.\w+)*")
TEXTS = [row for row in TABLE if row.kind not in CHECKS]


def id_of(row: Internal) -> str:
    return f"{row.kind}: {row.name}"


@pytest.mark.parametrize("row", NAMES, ids=id_of)
def test_tvm_has_what_we_need(row: Internal) -> None:
    assert find_fault(row) == ""


@pytest.mark.slow
@pytest.mark.parametrize("row", TEXTS, ids=id_of)
def test_tvm_writes_what_we_look_for(row: Internal) -> None:
    assert find_fault(row) == ""


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
    for file, text in sources().items():
        is_ours = file.endswith(".py") and not file.startswith("internals/")
        for node in ast.walk(ast.parse(text)) if is_ours else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield file, node.value


def test_the_page_shows_the_table() -> None:
    """If it does not, `make golden` writes it anew."""
    assert PAGE.read_text(encoding="utf-8") == page_text()
