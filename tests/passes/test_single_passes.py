"""Passes one by one: a small function before and behind each, as texts.

In the texts `8L` stands for `T.int64(8)`, `WALK(tree, rows[r, 0])` for the operator of a walk, and
`# @b0` says that a loop is loop "b0" of the schedule, `# spread` that threads may share it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm import s_tir, tirx

from forests import Split, forest_of
from tvm_forest.errors import ScheduleError
from tvm_forest.forest import Forest
from tvm_forest.layouts import protocol
from tvm_forest.passes.cache_near import CacheNear
from tvm_forest.passes.code_rows import CodeRows
from tvm_forest.passes.cpu.keep_sums import KeepSums
from tvm_forest.passes.cpu.share_blocks import TWIN, AddTwins
from tvm_forest.passes.gpu.array_facts import RANGES, STARTS
from tvm_forest.passes.gpu.cache_trees import CacheTrees
from tvm_forest.passes.gpu.kernel_code import axis_tag, thread_axis
from tvm_forest.passes.gpu.link_in_blocks import LinkInBlocks
from tvm_forest.passes.gpu.map_threads import MapThreads
from tvm_forest.passes.gpu.narrow_indices import NarrowIndices
from tvm_forest.passes.gpu.thread_sums import ThreadSums
from tvm_forest.passes.lower_linear import LowerLinear
from tvm_forest.passes.lower_reductions import LowerReductions
from tvm_forest.passes.lower_walks import LowerWalks
from tvm_forest.passes.nest_facts import NestFacts
from tvm_forest.schedule_prims import Schedule
from tvm_forest.schedule_prims.walks import TreeDepths, find_walk_forms
from tvm_forest.tir_gen.attributes import ModelFacts
from tvm_forest.tir_gen.ir import change_loop, i64, rewrite_loops

SUMS = 'rows: T.Buffer((16, 3), "float32"), margin: T.Buffer((16, 1), "float32")'
SHORT = {
    r"in range\((.+)\):  # @(\w+)": r'in T.serial(\1, annotations={"tvm_forest.name": "\2"}):',
    r"in range\((.+)\):  # (spread|finish)": r'in T.serial(\1, annotations={"tvm_forest.\2": 1}):',
    r"in T.unroll\((.+)\):  # @(\w+)": r'in T.unroll(\1, annotations={"tvm_forest.name": "\2"}):',
    r"WALK\((\w+), (\w+\[.+?\])\)": r'T.tvm_forest_walk("float32", \2, \1)',
    r"( +)(\w+): T\.(\w+) = ": r'\1\2 = T.alloc_scalar("\3", scope="global")\n\1\2 = ',
    "BARRIER": 'T.evaluate(T.call_intrin("", "tirx.tvm_storage_sync", "shared"))',
    r"\b(\d+)L\b": r"T.int64(\1)",
}
"""What stands for longer texts, and these."""

ROWS_IN_BLOCKS = Schedule(5).tile("batch", "b0", "b1", 8)
ON_GPU = ROWS_IN_BLOCKS.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x")


def function(body: str, parameters: str = SUMS, **attributes: Any) -> tvm.IRModule:
    """Parse a function."""
    for short, text in SHORT.items():
        body = re.sub(short, text, body)
    lines = "\n    ".join(
        ['T.func_attr({"global_symbol": "main"})', *body.strip("\n").splitlines()]
    )
    func = tvm.script.from_source(f"@T.prim_func\ndef main({parameters}):\n    {lines}")
    func = func.with_body(rewrite_loops(func.body, _with_own_axis))
    return tvm.IRModule({"main": func.with_attrs(attributes) if attributes else func})


def _with_own_axis(loop: tirx.For) -> tirx.For:
    """Let the axis that a loop is bound to have the variable of the loop, as passes write it."""
    tag = axis_tag(loop)
    axis = thread_axis(loop.loop_var, tag) if tag else None
    return change_loop(loop, thread_binding=axis)


def assert_becomes(step: Any, before: tvm.IRModule, expected: tvm.IRModule) -> None:
    """Compare what a pass makes of a function, but for what TVM's simplifier makes equal."""
    simple = s_tir.transform.StmtSimplify()
    found, wanted = (simple(mod)["main"] for mod in (step(before), expected))
    bodies = (func.with_body(_with_long_constants(func.body)) for func in (found, wanted))
    tvm.ir.assert_structural_equal(*bodies)


def _with_long_constants(body: tirx.Stmt) -> tirx.Stmt:
    """Index by constants of 64 bits, as TVMScript does not do for cells of one element."""

    def index(x: Any) -> Any:
        return i64(int(x)) if isinstance(x, tirx.IntImm) else x

    def load(x: Any) -> Any:
        return tirx.BufferLoad(x.source, [*map(index, x.indices)])

    def store(x: tirx.BufferStore) -> tirx.BufferStore:
        return tirx.BufferStore(x.buffer, x.value, [*map(index, x.indices)])

    kinds = [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store)]
    return tvm_ffi.structural_map(body, kinds)


def layout_of(forest: Forest, name: str = "array") -> Any:
    """Return the layout of a model."""
    return protocol.find(name).pack(forest)[0]


def facts_of(sch: Schedule, forest: Forest, layout: str = "array") -> NestFacts:
    """Return the facts of a schedule for a model in a layout."""
    depths, of_layout = TreeDepths.of(forest), layout_of(forest, layout)
    model = ModelFacts("predict", 1, 1, 1, False, "<", "sum", 1, depths, of_layout, [])
    return NestFacts(sch, model=model)


STUMP = forest_of([Split(0, 0.5, 1.0, 2.0)])
NODES = (
    'offset: T.Buffer((1,), "int64"), depth: T.Buffer((1,), "int32"), '
    'nodes: T.Buffer((7, 2), "int32")'
)


def test_rows_are_copied_near_the_walks_that_read_them() -> None:
    before = """
for b0 in range(2L):  # @b0
    for b1 in range(8L):  # @b1
        for tree in range(5L):  # @tree
            margin[b0 * 8L + b1, 0] = WALK(tree, rows[b0 * 8L + b1, 0])
"""
    expected = """
for b0 in range(2L):  # @b0
    near = T.alloc_buffer((8, 3), "float32")
    for r, f in T.grid(8L, 3L):
        near[r, f] = rows[b0 * 8L + r, f]
    for b1 in range(8L):  # @b1
        for tree in range(5L):  # @tree
            margin[b0 * 8L + b1, 0] = WALK(tree, near[b1, 0L])
"""
    step = CacheNear(facts_of(ROWS_IN_BLOCKS.cache("b0", "pack"), STUMP))
    assert_becomes(step, function(before), function(expected))


CUTS = (
    'column_feature: T.Buffer((1,), "int32"), column_cuts: T.Buffer((1,), "int64"), '
    'cuts: T.Buffer((16,), "float32"), group_stops: T.Buffer((2,), "int64")'
)
RANKED = (
    'T.tvm_forest_walk("float32", {0}, tree, offset[0], depth[0], nodes[0], '
    "column_feature[0], column_cuts[0], cuts[0], group_stops[0], leaf_value[0])"
)
RANKED_PARAMETERS = (
    'offset: T.Buffer((1,), "int64"), depth: T.Buffer((1,), "int32"), '
    f'nodes: T.Buffer((3,), "uint32"), {CUTS}, leaf_value: T.Buffer((3,), "float32")'
)
BINARY_SEARCH = """
            feature: T.int32 = column_feature[c]
            x: T.float32 = rows[b0 * 8L + r, T.Cast("int64", feature)]
            first: T.int64 = column_cuts[c]
            n8: T.int64 = T.Cast("int64", cuts[first + 7L] <= x) * 8L
            n4: T.int64 = T.Cast("int64", cuts[first + n8 + 3L] <= x) * 4L + n8
            n2: T.int64 = T.Cast("int64", cuts[first + n4 + 1L] <= x) * 2L + n4
            n1: T.int64 = n2 + T.Cast("int64", cuts[first + n2] <= x)
            n0: T.int64 = n1 + T.Cast("int64", cuts[first + n1] <= x)
            rank: T.int64 = n0
            codes[r, c] = T.Select(T.isnan(x), T.uint8(255), T.Cast("uint8", rank))
""".strip("\n")


def test_rows_are_coded_once_for_all_trees() -> None:
    before = f"""
for b0 in range(2L):  # @b0
    for b1 in range(8L):  # @b1
        for tree in range(5L):  # @tree
            margin[b0 * 8L + b1, 0] = {RANKED.format("rows[b0 * 8L + b1, 0]")}
"""
    expected = f"""
for b0 in range(2L):  # @b0
    codes = T.alloc_buffer((8L, 4L), "uint8")
    for r in range(8L):  # spread
        for c in range(1L):  # spread
{BINARY_SEARCH}
    for b1 in range(8L):  # @b1
        for tree in range(5L):  # @tree
            margin[b0 * 8L + b1, 0] = {RANKED.format("codes[b1, 0L]")}
"""
    step = CodeRows(facts_of(ROWS_IN_BLOCKS, STUMP, "ranked"), None)
    parameters = f"{SUMS}, {RANKED_PARAMETERS}"
    assert_becomes(step, function(before, parameters), function(expected, parameters))


def test_sums_of_a_block_of_rows_lie_beside_each_other() -> None:
    in_planes = Schedule(5).represent_as("bitsliced").tile("batch", "b0", "b1", 64)
    sch = in_planes.reorder("b0", "tree", "b1").simdize("b1", "bits")
    before = """
for b0 in range(2L):  # @b0
    for tree in range(5L):  # @tree
        for b1 in range(T.min(64L, 100L - b0 * 64L)):  # @b1
            margin[b0 * 64L + b1, 0] = T.tvm_forest_reduce(
                margin[b0 * 64L + b1, 0], WALK(tree, rows[b0 * 64L + b1, 0]), T.float32(0), "add")
"""
    expected = """
for b0 in range(2L):  # @b0
    sums = T.alloc_buffer((64L,), "float32")
    for r in range(T.min(64L, 100L - b0 * 64L)):
        sums[r] = margin[b0 * 64L + r, 0]
    for tree in range(5L):  # @tree
        for b1 in range(64L):  # @b1
            sums[b1] = T.tvm_forest_reduce(
                sums[b1], WALK(tree, rows[b0 * 64L + b1, 0]), T.float32(0), "add")
    for r in range(T.min(64L, 100L - b0 * 64L)):
        margin[b0 * 64L + r, 0] = sums[r]
"""
    parameters = SUMS.replace("16,", "100,")
    step = KeepSums(NestFacts(sch))
    assert_becomes(step, function(before, parameters), function(expected, parameters))


LINEAR = (
    'rows: T.Buffer((16, 3), "float32"), leaf: T.Buffer((16,), "int32"), '
    'value: T.Buffer((7,), "float64"), const: T.Buffer((7,), "float64"), '
    'terms: T.Buffer((7, 2), "int64"), feature: T.Buffer((9,), "int32"), '
    'coefficient: T.Buffer((9,), "float64"), out: T.Buffer((16,), "float64")'
)


def test_a_linear_leaf_adds_up_its_terms() -> None:
    before = """
for r in T.vectorized(16L):
    out[r] = out[r] + T.tvm_forest_linear("float64", leaf[r], rows[r, 0],
        value[0], const[0], terms[0, 0], feature[0], coefficient[0])
"""
    expected = """
for r in range(16L):
    number: T.int64 = T.Cast("int64", leaf[r])
    begin: T.int64 = terms[number, 0L]
    end: T.int64 = terms[number, 1L]
    total: T.float64 = const[number]
    hole: T.bool = T.bool(False)
    for k in range(end - begin):
        x: T.float64 = T.Cast("float64", rows[r, T.Cast("int64", feature[begin + k])])
        hole = hole or T.isnan(x)
        total = total + T.call_llvm_pure_intrin("float64", "llvm.arithmetic.fence",
            coefficient[begin + k] * T.Select(T.fabs(x) <= T.float64(1.0000000180025095e-35),
                T.float64(0), x))
    out[r] = out[r] + T.Select(hole, value[number], total)
"""
    assert_becomes(LowerLinear(), function(before, LINEAR), function(expected, LINEAR))


PAIRS_OF_ROWS = ROWS_IN_BLOCKS.tile("b1", "b2", "b3", 2).reorder("b0", "b2", "tree", "b3")
PAIRS_OF_ROWS = PAIRS_OF_ROWS.gpu_dimension("b0", "grid.x").gpu_dimension("b2", "block.x")


def test_a_thread_keeps_its_sums_in_registers() -> None:
    before = """
for b0 in range(2L):  # @b0
    for b2 in range(4L):  # @b2
        for tree in range(5L):  # @tree
            for b3 in range(2L):  # @b3
                margin[b0 * 8L + b2 * 2L + b3, 0] = T.tvm_forest_reduce(
                    margin[b0 * 8L + b2 * 2L + b3, 0],
                    WALK(tree, rows[b0 * 8L + b2 * 2L + b3, 0]), T.float32(0), "add")
"""
    expected = """
for b0 in range(2L):  # @b0
    for b2 in range(4L):  # @b2
        sums = T.alloc_buffer((2L,), "float32", scope="local")
        for b3 in T.unroll(2L):
            sums[b3] = margin[b0 * 8L + b2 * 2L + b3, 0]
        for tree in range(5L):  # @tree
            for b3 in T.unroll(2L):  # @b3
                sums[b3] = T.tvm_forest_reduce(
                    sums[b3], WALK(tree, rows[b0 * 8L + b2 * 2L + b3, 0]), T.float32(0), "add")
        for b3 in T.unroll(2L):
            margin[b0 * 8L + b2 * 2L + b3, 0] = sums[b3]
"""
    assert_becomes(ThreadSums(NestFacts(PAIRS_OF_ROWS)), function(before), function(expected))


def test_trees_are_copied_into_shared_memory() -> None:
    parameters = f'{SUMS}, offset: T.Buffer((6,), "int64"), nodes: T.Buffer((20,), "float32")'
    sch = Schedule(6).represent_as("array").tile("tree", "t0", "t1", 2)
    sch = sch.tile("batch", "b0", "b1", 16).reorder("b0", "t0", "b1", "t1")
    sch = sch.gpu_dimension("b1", "block.x").cache("t0")
    starts = {STARTS: {"offset": [0, 3, 6, 13, 14, 17]}}  # those of two trees are at most 10 apart
    before = """
for t0 in range(3L):  # @t0
    for b in range(16L):  # @b1
        for t1 in range(2L):  # @t1
            margin[b, 0] = nodes[offset[t0 * 2L + t1] + 1L]
"""
    expected = """
for t0 in range(3L):  # @t0
    near = T.alloc_buffer((10L,), "float32", scope="shared")
    for i in range(T.if_then_else(t0 < 2L, offset[t0 * 2L + 2L], 20L) - offset[t0 * 2L]):  # spread
        near[i] = nodes[offset[t0 * 2L] + i]
    for b in range(16L):  # @b1
        for t1 in range(2L):  # @t1
            margin[b, 0] = near[offset[t0 * 2L + t1] + 1L - offset[t0 * 2L]]
"""
    functions = (function(text, parameters, **starts) for text in (before, expected))
    assert_becomes(CacheTrees(NestFacts(sch)), *functions)


def test_a_block_does_the_epilogue_of_its_rows() -> None:
    before = """
for b0 in range(2L):  # @b0
    for b1 in range(8L):  # @b1
        margin[b0 * 8L + b1, 0] = WALK(b1, rows[b0 * 8L + b1, 0])
for r in range(16L):  # finish
    value[r, 0] = T.sigmoid(margin[r, 0])
"""
    expected = """
for b0 in range(2L):  # @b0
    for b1 in range(8L):  # @b1
        margin[b0 * 8L + b1, 0] = WALK(b1, rows[b0 * 8L + b1, 0])
    for r in range(8L):  # spread
        value[b0 * 8L + r, 0] = T.sigmoid(margin[b0 * 8L + r, 0])
"""
    parameters = f'{SUMS}, value: T.Buffer((16, 1), "float32")'
    functions = (function(text, parameters) for text in (before, expected))
    assert_becomes(LinkInBlocks(NestFacts(ON_GPU)), *functions)


def test_a_block_does_the_epilogue_of_no_more_rows_than_a_guard_leaves_it() -> None:
    sch = Schedule(5).tile("batch", "b0", "b1", 8).tile("b1", "b2", "b3", 3)
    before = """
for b0 in range(2L):  # @b0
    for b2 in range(3L):  # @b2
        for b3 in range(T.min(3L, 8L - b2 * 3L)):  # @b3
            margin[b0 * 8L + b2 * 3L + b3, 0] = WALK(b3, rows[b0 * 8L + b2 * 3L + b3, 0])
for r in range(16L):  # finish
    value[r, 0] = T.sigmoid(margin[r, 0])
"""
    nest, _ = before.split("for r in")
    expected = f"""{nest.rstrip()}
    for r in range(8L):  # spread
        value[b0 * 8L + r, 0] = T.sigmoid(margin[b0 * 8L + r, 0])
"""
    parameters = f'{SUMS}, value: T.Buffer((16, 1), "float32")'
    functions = (function(text, parameters) for text in (before, expected))
    assert_becomes(LinkInBlocks(NestFacts(sch.gpu_dimension("b0", "grid.x"))), *functions)


def test_a_block_whose_rows_lie_between_those_of_others_leaves_the_epilogue_alone() -> None:
    sch = Schedule(5).tile("batch", "b0", "b1", 8).tile("b1", "b2", "b3", 2)
    sch = sch.reorder("b3", "b2").gpu_dimension("b0", "grid.x").gpu_dimension("b3", "grid.y")
    text = """
for b0 in range(2L):  # @b0
    for b3 in range(2L):  # @b3
        for b2 in range(4L):  # @b2
            margin[b0 * 8L + b2 * 2L + b3, 0] = WALK(b3, rows[b0 * 8L + b2 * 2L + b3, 0])
for r in range(16L):  # finish
    value[r, 0] = T.sigmoid(margin[r, 0])
"""
    mod = function(text, f'{SUMS}, value: T.Buffer((16, 1), "float32")')
    assert_becomes(LinkInBlocks(NestFacts(sch)), mod, mod)


def test_loops_become_blocks_and_threads_that_wait_for_copies() -> None:
    before = """
for b0 in range(2L):  # @b0
    near = T.alloc_buffer((8L, 3L), "float32", scope="shared")
    for r in range(8L):  # spread
        for f in range(3L):  # spread
            near[r, f] = rows[b0 * 8L + r, f]
    for b1 in range(8L):  # @b1
        margin[b0 * 8L + b1, 0] = near[b1, 2]
"""
    expected = """
for bx in T.thread_binding(2L, thread="blockIdx.x"):
    for tx in T.thread_binding(8L, thread="threadIdx.x"):
        near = T.alloc_buffer((8L, 3L), "float32", scope="shared")
        for turn in T.unroll(3L):
            near[(turn * 8L + tx) // 3L, (turn * 8L + tx) % 3L] = rows[
                bx * 8L + (turn * 8L + tx) // 3L, (turn * 8L + tx) % 3L]
        BARRIER
        margin[bx * 8L + tx, 0] = near[tx, 2]
"""
    step = MapThreads(NestFacts(ON_GPU), shared_bytes=96)
    assert_becomes(step, function(before), function(expected))


def test_what_is_small_is_counted_with_32_bits() -> None:
    parameters = 'nodes: T.Buffer((31,), "int64"), n: T.int64, out: T.Buffer((4096,), "float32")'
    before = """
for bx in T.thread_binding(n, thread="blockIdx.x"):
    for tx in T.thread_binding(256L, thread="threadIdx.x"):
        node = T.alloc_buffer((1L,), "int64", scope="local")
        node[0L] = nodes[tx] + 1L
        out[bx * 256L + tx] = T.Cast("float32", node[0L] + n)
"""
    expected = """
for bx in T.thread_binding(n, thread="blockIdx.x"):
    for tx in T.thread_binding(256, thread="threadIdx.x"):
        node = T.alloc_buffer((1L,), "int32", scope="local")
        node[0L] = T.Cast("int32", nodes[tx]) + 1
        out[T.Cast("int32", bx * 256L + T.Cast("int64", tx))] = T.Cast(
            "float32", T.Cast("int64", node[0L]) + n)
"""
    known = {RANGES: {"nodes": [0, 30]}, STARTS: {}}
    functions = function(before, parameters, **known), function(expected, parameters)
    assert_becomes(NarrowIndices(), *functions)


def test_numbers_of_a_model_that_are_large_keep_64_bits() -> None:
    parameters = 'nodes: T.Buffer((31,), "int64"), out: T.Buffer((31,), "int64")'
    before = """
for tx in T.thread_binding(31L, thread="threadIdx.x"):
    node = T.alloc_buffer((1L,), "int64", scope="local")
    node[0L] = nodes[tx]
    out[tx] = node[0L]
"""
    large = {RANGES: {"nodes": [0, 2**27]}, STARTS: {}}
    expected = before.replace("31L", "31")
    functions = function(before, parameters, **large), function(expected, parameters)
    assert_becomes(NarrowIndices(), *functions)


def test_a_walk_becomes_loads_comparisons_and_steps() -> None:
    tree = forest_of([Split(0, 0.5, 1.0, Split(1, 0.25, 2.0, 3.0))])
    sch = Schedule(1)
    step = LowerWalks(replace(facts_of(sch, tree), forms=find_walk_forms(sch, tree)), None)
    before = """
for r in range(16L):  # @batch
    for t in range(1L):  # @tree
        margin[r, 0] = T.tvm_forest_walk("float32", rows[r, 0], t, offset[0], depth[0], nodes[0, 0])
"""
    expected = """
for r in range(16L):  # @batch
    for t in range(1L):  # @tree
        first: T.int64 = offset[t] - 1L
        node: T.int64 = 1L
        for hop in range(2):
            record = T.alloc_buffer((2,), "int32")
            record[0L:2L] = nodes[first + node, T.Ramp(0L, 1L, 2)]
            feature: T.int64 = T.Cast("int64", record[1])
            x: T.float32 = rows[r, feature]
            goes_left: T.bool = x < T.reinterpret("float32", record[0])
            node = node * 2L + T.Cast("int64", not goes_left)
        margin[r, 0] = T.reinterpret("float32", nodes[first + node, 0])
"""
    parameters = f"{SUMS}, {NODES}"
    assert_becomes(step, function(before, parameters), function(expected, parameters))


def test_reductions_become_additions_and_maxima() -> None:
    before = """
for r in range(16L):
    margin[r, 0] = T.tvm_forest_reduce(margin[r, 0], rows[r, 0], T.float32(0), "add")
    margin[r, 0] = T.tvm_forest_reduce(margin[r, 0], rows[r, 1], T.float32("-inf"), "max")
"""
    expected = """
for r in range(16L):
    margin[r, 0] = margin[r, 0] + rows[r, 0]
    margin[r, 0] = T.max(margin[r, 0], rows[r, 1])
"""
    assert_becomes(LowerReductions(), function(before), function(expected))


@pytest.mark.parametrize(("loop", "is_shared"), [("b0", True), ("tree", False)])
def test_a_function_with_threads_gets_a_twin_without(loop: str, is_shared: bool) -> None:
    text = "for r in T.parallel(16L):\n    margin[r, 0] = rows[r, 0]"
    step = AddTwins(NestFacts(ROWS_IN_BLOCKS.parallel(loop)))
    both = step(function(text, **{TWIN: "alone"}))
    alone = function(text.replace("T.parallel", "range"))["main"]
    tvm.ir.assert_structural_equal(both["alone"], alone.with_attr("global_symbol", "alone"))
    notes = {TWIN: "alone"} if is_shared else {}  # it has the code of the blocks for both
    tvm.ir.assert_structural_equal(both["main"], function(text, **notes)["main"])


def test_what_a_pass_refuses_keeps_its_class_on_the_way_through_tvm() -> None:
    text = """
for b0 in range(2L):  # @b0
    near = T.alloc_buffer((8L, 3L), "float32", scope="shared")
    for b1 in range(8L):  # @b1
        margin[b0 * 8L + b1, 0] = near[b1, 2]
"""
    step = tvm.transform.Sequential([MapThreads(NestFacts(ON_GPU), shared_bytes=95)])
    with pytest.raises(ScheduleError, match=r"96 \(near 8 x 3\) bytes of shared memory"):
        step(function(text))
