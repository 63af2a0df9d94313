"""Walks one row through many trees at once, one piece of each tree in turn.

takes: a leaf loop over trees; gives: its code.

    at[k] = root of tree k                            for all trees
    while walks are left:                             a lap
        for each walk that is left:                   a step
            exit = exit of the piece at[k] for the row
            found[tree of the walk] = exit
            keep the walk, at the next piece, unless exit is a leaf
    add the values of found[k], in the order of the trees

A piece has up to 8 exits, each of which leads to another piece or to a leaf; the tests of the piece
decide which of them a row takes. A step has no branch, and prefetches the cache line that its walk
reaches next. The line arrives before the next lap, because a processor has some dozen loads in
flight at once; a single walk would wait for each load. Walks that have ended cost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tvm
from tvm import tirx

from ...layouts.pieces.lines import AT, EXIT_BYTES, LEAF_BIT, LINE, PLACE_BITS, UNIT_BITS
from ...layouts.pieces.shapes import PLACES, TESTS
from ...schedule_prims.nest import Loop
from ...schedule_prims.walks import WalkForm
from ...system.values import dataclass
from .. import ops
from ..builder import Builder
from ..ir import at_iteration, i64
from .picks import count_registers, load_row, pick_from_registers, write_pick
from .vectors import Vectors
from .walker import Walker, keep_sum

if TYPE_CHECKING:
    from ...layouts.pieces import PieceTree

MOST_WALKS = 126
"""Largest number of walks in a lap: enough to overlap their cache misses, and few enough that TVM
keeps them on the stack, where LLVM can prove that no store to them changes the row."""

LANES = TESTS + 1
"""Vector lanes of a line: its tests, and one unused lane."""

MOST_REGISTERS = 4
"""Largest number of registers that hold a row; features of wider rows are loaded from memory."""

NUMBER_AT = 40
"""First bit of the leaf value's number in the result of a step."""


@dataclass(frozen=True)
class PieceWalker(Walker):
    """Walks a row through the trees of a loop together, at most `MOST_WALKS` of them at a time."""

    def lower(self, loop: tirx.For, fact: Loop, form: WalkForm) -> tirx.Stmt:
        """Lower a leaf loop in parts of equal size; the trees of a part are walked together."""
        code = Builder()
        loop, put_back = keep_sum(code, loop)
        extent = loop.extent.astype("int64")
        at = code.buffer("at", (MOST_WALKS,), "uint64")
        found = code.buffer("found", (MOST_WALKS,), "uint32")
        call: Any = ops.find_walk(loop.body)
        steps = _Steps.of(self, code, call.args[0], self._open(code, loop.body))
        parts = code.hold("parts", _divide_up(extent, i64(MOST_WALKS)))
        size = code.hold("size", _divide_up(extent, tirx.max(parts, i64(1))))
        with code.repeat("part", parts) as part:
            begin = loop.min + part * size
            count = code.hold("count", tirx.min(extent - part * size, size))
            with code.repeat("walk", count) as walk:
                root = self._open(code, at_iteration(loop, begin + walk)).root
                code.store(at, _join(walk, root), [walk])
            left = code.hold("left", count)
            with code.block(lambda body: tirx.While(left > 0, body)):
                _emit_lap(code, steps, at, found, left)
            with code.repeat("walk", count) as walk:
                body = at_iteration(loop, begin + walk)
                self.add_end(code, body, steps.look_up(found[walk].astype("int64")))
        put_back()
        return code.finish()

    def _open(self, code: Builder, body: tirx.Stmt) -> PieceTree:
        """Return access to the tree of a walk."""
        (tree,) = self.open_trees(code, [ops.find_walk(body)])
        return tree


def _emit_lap(code: Builder, steps: _Steps, at: Any, found: Any, left: Any) -> None:
    """Emit a lap: one step for each of the `left` unfinished walks, the first ones of `at`."""
    kept = code.hold("kept", i64(0))
    with code.repeat("walk", left) as k:
        walk = code.hold("walk", at[k])
        piece = walk & _word((1 << 32) - 1)
        step = code.hold("step", steps.take(piece))
        is_leaf = tirx.shift_right(step, _word(63))
        code.store(found, steps.find(piece, step).astype("uint32"), [_tree_of(walk)])
        following = step & _word((1 << 32) - 1)
        code.store(at, (walk & _word((1 << 32) - 1 << 32)) | following, [kept])
        code.put(kept, kept + 1 - is_leaf.astype("int64"))
    code.put(left, kept)


def _divide_up(number: Any, by: Any) -> Any:
    return tirx.floordiv(number + (by - 1), by)


def _word(value: int) -> Any:
    return tirx.const(value, "uint64")


def _join(walk: Any, piece: Any) -> Any:
    """Pack the number of a walk and the piece that it has reached into one word."""
    return tirx.shift_left(walk.astype("uint64"), _word(32)) | piece.astype("uint64")


def _tree_of(walk: Any) -> Any:
    return tirx.shift_right(walk, _word(32)).astype("int64")


@dataclass(frozen=True)
class _Steps:
    """Emits a step of a walk, as a call of an LLVM IR function.

    Attributes:
        vectors: collects the text of the functions.
        comparison: "<" or "<=": the row goes left if `value < threshold`, or `<=`.
        row: load of the first feature of the row.
        held: variables for the registers that hold the row; none if it is read from memory.
        tree: access to the buffers of a tree.
    """

    vectors: Vectors
    comparison: str
    row: Any
    held: list[Any]
    tree: PieceTree

    @classmethod
    def of(cls, walker: Walker, code: Builder, row: Any, tree: PieceTree) -> _Steps:
        """Emit the load of a row into registers if these can hold it, and return the steps.

        The load is emitted before the loops, since LLVM does not always hoist it.
        """
        vectors, columns = walker.comparer.vectors, int(row.source.shape[-1])
        assert vectors is not None, "only LLVM compiles pieces"
        width, number = count_registers(columns, vectors.abilities)
        held, address = [], tirx.address_of(row)
        for k in range(number if number <= MOST_REGISTERS else 0):
            name, lines = f"row{k}_{columns}x{width}", load_row(k, columns, width)
            loaded = vectors.call(name, f"float32x{width}", lines, f"%h{k}", row=address)
            held.append(code.hold("row", loaded))
        return cls(vectors, walker.comparer.comparison, row, held, tree)

    def find(self, piece: Any, step: Any) -> Any:
        """Return the number of the leaf that a step has reached, for `look_up`.

        It is the number of the leaf's value, or of the exit in functions for leaf numbers, which do
        not read the values.
        """
        if "leaf_value" not in self.tree.buffers:
            return self.find_exit(piece)
        return tirx.shift_right(step, _word(NUMBER_AT)) & _word((1 << LEAF_BIT) - 1)

    def look_up(self, number: Any) -> Any:
        """Return the value of a leaf, or its number in the source model, from `find`'s result."""
        has_values = "leaf_value" in self.tree.buffers
        return self.tree.leaf_value(number) if has_values else self.tree.leaf_id(number)

    def take(self, piece: Any) -> Any:
        """Emit the step of a walk through a piece; return a uint64.

        Its lower half is the next piece. If the walk reaches a leaf instead, the highest bit is
        set, and the bits from `NUMBER_AT` on are the number of the leaf's value.
        """
        layout = self.tree.layout
        size = tvm.DataType(layout.dtype).itemsize
        lines = [
            *self._find_exit(),
            f"%place = mul i64 %exit, {EXIT_BYTES}",
            "%atexit = getelementptr i8, ptr %begin, i64 %place",
            *_load("word", "i32", "%atexit", AT["exits"] - 1),
            "%near = lshr i32 %word, 8",
            *self._add_base(),
            "%nextline = lshr i32 %next, 2",
            *_find_element("ahead", "%memory", "%nextline", LINE.itemsize),
        ]
        fetched, buffers = "%ahead", ["lines", "ends", "shapes"]
        if "leaf_value" in self.tree.buffers:
            buffers.append("leaf_value")
            lines += [
                f"%number = and i32 %near, {(1 << LEAF_BIT) - 1}",
                *_find_element("value", "%leaf_value", "%number", size),
                "%leaf = icmp slt i32 %word, 0",
                "%fetched = select i1 %leaf, ptr %value, ptr %ahead",
            ]
            fetched = "%fetched"
        lines += [
            f"call void @llvm.prefetch.p0(ptr {fetched}, i32 0, i32 3, i32 1)",
            "%low = zext i32 %next to i64",
            "%word64 = zext i32 %word to i64",
            "%high = shl i64 %word64, 32",
            "%step = or i64 %high, %low",
        ]
        return self._call("step", lines, "%step", piece, buffers)

    def find_exit(self, piece: Any) -> Any:
        """Return the exit by which a walk leaves a piece, numbered over all lines, uint64."""
        lines = [
            *self._find_exit(),
            f"%first = mul i64 %line, {LANES}",
            "%counted = add i64 %first, %exit",
        ]
        return self._call("exit", lines, "%counted", piece, ["lines", "ends", "shapes"])

    def _call(
        self, name: str, lines: list[str], result: str, piece: Any, buffers: list[str]
    ) -> Any:
        """Call the function of these IR lines with the row, a piece and addresses of buffers."""
        layout, strict = self.tree.layout, self.comparison == "<"
        facts = (strict, layout.any_default_left, layout.has_bases, self.row.source.shape[-1])
        name = "_".join(map(str, (f"piece_{name}", layout.dtype, *map(int, facts), len(buffers))))
        first = {x: tirx.address_of(self.tree.first(x)) for x in buffers}
        row = {f"h{k}": x for k, x in enumerate(self.held)} or {"row": tirx.address_of(self.row)}
        addresses = {"memory": first.pop("lines")} | first
        return self.vectors.call(name, "uint64", lines, result, piece=piece, **row, **addresses)

    def _find_exit(self) -> list[str]:
        """Return IR lines that find the exit by which the row leaves %piece.

        They set %begin to the address of the piece's line, and %exit to the exit, 0 to 7.
        """
        layout, columns = self.tree.layout, int(self.row.source.shape[-1])
        _, picks, x = write_pick("float32", columns, LANES, self.vectors.abilities)
        if self.held:
            width, number = count_registers(columns, self.vectors.abilities)
            picks, x = pick_from_registers(number, width, LANES), "%x"
        how = "olt" if self.comparison == "<" else "ole"
        sides, left = list[str](), "%below"
        if layout.any_default_left:
            left = "%left"
            sides = [
                f"%unordered = fcmp uno <8 x float> {x}, {x}",
                "%missing = bitcast <8 x i1> %unordered to i8",
                "%default = and i8 %missing, %sides",
                "%left = or i8 %below, %default",
            ]
        return [
            f"%line = lshr i64 %piece, {PLACE_BITS}",
            f"%begin = getelementptr [{LINE.itemsize} x i8], ptr %memory, i64 %line",
            # loaded first, or else LLVM extracts them from the vector of thresholds
            *_load("code", "i16", "%begin", AT["code"]),
            *_load("sides", "i8", "%begin", AT["sides"]),
            *_load("thresholds", "<8 x float>", "%begin", AT["threshold"]),
            *_load("columns", "<8 x i8>", "%begin", AT["feature"]),
            "%feature = zext <8 x i8> %columns to <8 x i32>",
            *picks,
            f"%ordered = fcmp {how} <8 x float> {x}, %thresholds",
            "%below = bitcast <8 x i1> %ordered to i8",
            *sides,
            f"%tests = and i8 {left}, {(1 << TESTS) - 1}",
            "%outcome = zext i8 %tests to i64",
            "%code64 = zext i16 %code to i64",
            f"%part = and i64 %piece, {PLACES - 1}",
            f"%atcode = getelementptr [{PLACES} x i16], ptr %shapes, i64 %code64, i64 %part",
            "%row16 = load i16, ptr %atcode",
            "%row64 = zext i16 %row16 to i64",
            f"%atend = getelementptr [{1 << TESTS} x i8], ptr %ends, i64 %row64, i64 %outcome",
            "%end = load i8, ptr %atend",
            "%exit = zext i8 %end to i64",
        ]

    def _add_base(self) -> list[str]:
        """Return IR lines that set %next to the piece of an exit, from %near."""
        if not self.tree.layout.has_bases:
            return ["%next = add i32 %near, 0"]
        return [
            *_load("units", "i8", "%begin", AT["base"]),
            "%units32 = zext i8 %units to i32",
            f"%base = shl i32 %units32, {UNIT_BITS + PLACE_BITS}",
            "%next = add i32 %near, %base",
        ]


def _load(name: str, kind: str, pointer: str, at: int) -> list[str]:
    """Return IR lines that load a value at a byte offset from a pointer."""
    return [
        f"%{name}p = getelementptr i8, ptr {pointer}, i64 {at}",
        f"%{name} = load {kind}, ptr %{name}p, align 1",
    ]


def _find_element(name: str, first: str, number: str, size: int) -> list[str]:
    """Return IR lines that set %name to the address of element `number`, i32, of `size` bytes."""
    return [
        f"%{name}64 = zext i32 {number} to i64",
        f"%{name} = getelementptr [{size} x i8], ptr {first}, i64 %{name}64",
    ]
