"""Where a row goes at a node, or at all nodes of a tile.

takes: a TreeAccess, a node, a row; gives: expressions, and LLVM functions that they call.

A tile is decided in one of two forms. With vectors, for LLVM:

    x       = gather(row, features of the tile)
    outcome = bits(x < thresholds of the tile)

Without, for vectors whose lanes are rows and for other compilers, node by node:

    outcome = (x0 < threshold 0) << 0 | (x1 < threshold 1) << 1 | ...

TIR has neither a gather nor a way from truth values to bits, so these are functions in LLVM's own
language. LLVM makes of them what the CPU has: vgatherdps, vcmpps and kmov with AVX-512, and loads,
vcmpps and vmovmskps with AVX2, whose gather is no faster than loads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import tirx

from ..tir_gen.representation import NodeTest, TreeAccess

LLVM_TYPE = {"float32": ("float", "f32"), "float64": ("double", "f64")}


@dataclass(frozen=True)
class Seen:
    """What a walk looked up at a node: tests, and the values that they are about."""

    tests: list[NodeTest]
    values: list[Any]
    is_vector: bool = False


@dataclass
class Decide:
    """How rows are compared with nodes.

    Attributes:
        comparison: "<" or "<=".
        vectors: whether tiles are decided with vectors.
        functions: text of the LLVM functions that the expressions call, by name.
    """

    comparison: str
    vectors: bool
    functions: dict[str, str] = field(default_factory=dict)

    def look(self, access: TreeAccess, node: Any, row: Any, hold: Any) -> Seen:
        """Load what decides at `node`, and the values of the row; `row` is a load of the row."""
        if access.tile_size == 1:
            tests = [access.test(node, hold)]
        elif self.vectors:
            test = access.test(node, hold)
            return Seen([test], [hold("x", self._gather(row, test.feature))], is_vector=True)
        else:
            tests = [access.member(node, place, hold) for place in range(access.tile_size)]
        head = list(row.indices)[:-1]
        values = [
            hold("x", tirx.BufferLoad(row.source, [*head, hold("feature", test.feature)]))
            for test in tests
        ]
        return Seen(tests, values)

    def outcome(self, access: TreeAccess, seen: Seen) -> Any:
        """Return truth for left, or the bits of a tile."""
        if access.tile_size == 1:
            return self.goes_left(seen.values[0], seen.tests[0])
        if seen.is_vector:
            return self._bits(seen.values[0], seen.tests[0])
        total: Any = tirx.IntImm("int32", 0)
        for place, (value, test) in enumerate(zip(seen.values, seen.tests, strict=True)):
            bit = tirx.IntImm("int32", 1 << place)
            total = total | tirx.Select(self.goes_left(value, test), bit, tirx.IntImm("int32", 0))
        return total

    def goes_left(self, value: Any, test: NodeTest) -> Any:
        """An ordered comparison is false for NaN, so NaN goes right unless the node says left."""
        less = value < test.threshold if self.comparison == "<" else value <= test.threshold
        if test.default_left is None:
            return less
        return tirx.Or(less, tirx.And(test.default_left, tirx.isnan(value)))

    def _bits(self, value: Any, test: NodeTest) -> Any:
        threshold = test.threshold
        if value.ty.dtype != threshold.ty.dtype:  # TIR would make them alike by itself
            wide = f"float64x{tvm.DataType(value.ty.dtype).lanes}"
            value, threshold = value.astype(wide), threshold.astype(wide)
        left = self._compare("olt" if self.comparison == "<" else "ole", value, threshold)
        if test.default_left is None:
            return left
        return left | (self._compare("uno", value, value) & test.default_left)

    def wrap(self, body: tirx.Stmt) -> tirx.Stmt:
        """Add the functions that the statement calls."""
        if not self.functions:
            return body
        text = tvm.ir.StringImm("\n".join(self.functions.values()))
        return tirx.AttrStmt(tirx.IntImm("int32", 0), "pragma_import_llvm", text, body)

    def _gather(self, row: Any, feature: Any) -> Any:
        """The values of some features of a row."""
        dtype, lanes = str(row.source.dtype), tvm.DataType(feature.ty.dtype).lanes
        element, short = LLVM_TYPE[dtype]
        vector, name = f"<{lanes} x {element}>", f"tvm_forest_gather_{short}x{lanes}"
        gather = f"@llvm.masked.gather.v{lanes}{short}.v{lanes}p0"
        mask, size = f"<{lanes} x i1>", tvm.DataType(dtype).itemsize
        all_lanes = f"{mask} splat (i1 true), {vector} poison"
        self.functions[name] = f"""
declare {vector} {gather}(<{lanes} x ptr>, i32, {mask}, {vector})
define linkonce_odr {vector} @{name}(ptr %row, <{lanes} x i32> %feature) alwaysinline nounwind {{
  %index = zext <{lanes} x i32> %feature to <{lanes} x i64>
  %at = getelementptr {element}, ptr %row, <{lanes} x i64> %index
  %x = call {vector} {gather}(<{lanes} x ptr> %at, i32 {size}, {all_lanes})
  ret {vector} %x
}}"""
        start = tirx.address_of(row)
        return tirx.call_pure_extern(f"{dtype}x{lanes}", name, start, feature)

    def _compare(self, how: str, left: Any, right: Any) -> Any:
        """Bit i is the comparison of lanes i."""
        dtype = tvm.DataType(left.ty.dtype)
        lanes = dtype.lanes
        element, short = LLVM_TYPE[str(left.ty.dtype).partition("x")[0]]
        vector, name = f"<{lanes} x {element}>", f"tvm_forest_{how}_{short}x{lanes}"
        self.functions[name] = f"""
define linkonce_odr i32 @{name}({vector} %left, {vector} %right) alwaysinline nounwind {{
  %truth = fcmp {how} {vector} %left, %right
  %bits = bitcast <{lanes} x i1> %truth to i{lanes}
  %number = zext i{lanes} %bits to i32
  ret i32 %number
}}"""
        return tirx.call_pure_extern("int32", name, left, right)
