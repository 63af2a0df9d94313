"""Emits LLVM IR functions that code panels of columns.

takes: addresses of rows, columns, and cuts; gives: calls of functions that LLVM inlines.

    transpose(...)           64 rows of up to 4 adjacent features (a unit) become columns
    compare(...)             bit i of a word is the outcome of a test for the i-th value of a column
    search(...)              64 values of a column become ranks, by permutes

Values of a column are in the order of `planes.bit_of_row`, which costs nothing: four registers hold
four values of rows 0, 32, 1 and 33, then of 8, 40, 9 and 41, and so on. Transposed, they give for
each feature the rows 0, 8, 16 to 56 and 1, 9, 17 to 57.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tvm import tirx

from ...layouts.row_codes.panels import (
    MAX_LEVELS,
    REGISTER_ENTRIES,
    ROWS,
    UNIT_FEATURES,
    table_begin,
)
from ...layouts.row_codes.planes import bit_of_row
from ..walks.llvm_types import ELEMENTS, SHORT
from ..walks.vectors import Vectors

LANES = 16
"""Number of float32 values in an AVX-512 register."""

LINES, LINE_BYTES = 4, 64
"""Number of cache lines that a row of a panel takes, and bytes of a cache line."""

PIECES = range(ROWS // LANES)
WHOLE = f"<{ROWS} x i8>"
NUMBERS = f"<{LANES} x i32>"
TRUTHS = f"<{LANES} x i1>"
FLOATS = f"<{LANES} x float>"
PERMUTE = f"call {FLOATS} @llvm.x86.avx512.permvar.sf.512"
PERMUTE_TWO = f"call {FLOATS} @llvm.x86.avx512.vpermi2var.ps.512"


def can_search(vectors: Vectors, dtype: str) -> bool:
    """Return whether values of a dtype can be searched by permute instructions."""
    return "avx512f" in vectors.abilities and dtype == "float32"


def transpose(
    vectors: Vectors, rows: Any, row_width: int, width: int, into: Any, ahead: Any | None
) -> tirx.Stmt:
    """Return a statement that transposes 64 rows of a unit, adjacent features, into columns.

    Args:
        vectors: collects the functions.
        rows: load of the first value of the first row.
        row_width: number of values from one row to the next.
        width: number of values taken from each row, up to 4.
        into: load of the first value of the first column.
        ahead: load of the data that is prefetched into the second-level cache, four cache lines in
            each of four rows; None for no prefetch.
    """
    source, target = (str(x.source.dtype) for x in (rows, into))
    element = ELEMENTS[source]
    item = 8 if source == "float64" else 4
    lines, arguments = list[str](), {"rows": tirx.address_of(rows), "into": tirx.address_of(into)}
    if ahead is not None:
        arguments["ahead"] = tirx.address_of(ahead)
        for row in range(UNIT_FEATURES):
            for line in range(LINES):
                at, name = row * row_width * item + line * LINE_BYTES, f"%f{row}_{line}"
                lines.append(f"{name} = getelementptr i8, ptr %ahead, i64 {at}")
                lines.append(f"call void @llvm.prefetch.p0(ptr {name}, i32 0, i32 2, i32 1)")
    for piece in PIECES:
        for row in range(UNIT_FEATURES):
            rows_of_quarters = [8 * row + 32 * (k % 2) + 2 * piece + k // 2 for k in range(4)]
            starts = [x * row_width * item for x in rows_of_quarters]
            lines += _load_quarters(f"{piece}_{row}", starts, width, element)
        lines += _transpose_quarters(f"{piece}_", element)
        for column in range(width):
            lines += _store_column(piece, column, source, target)
    name = f"transpose{width}_{SHORT[source]}_{SHORT[target]}_{row_width}"
    name += "_ahead" * (ahead is not None)
    return _do(vectors, name, lines, arguments)


def compare(vectors: Vectors, how: str, column: Any, cut: Any) -> Any:
    """Compare 64 values of a column with a cut, and return the outcomes as bits of a uint64.

    Args:
        vectors: collects the functions.
        how: LLVM's predicate, such as "olt".
        column: load of the first value.
        cut: the cut that the values are compared with.
    """
    dtype = str(column.source.dtype)
    element, vector = ELEMENTS[dtype], f"<{ROWS} x {ELEMENTS[dtype]}>"
    lines = [
        f"%x = load {vector}, ptr %column, align 4",
        f"%one = insertelement {vector} poison, {element} %cut, i32 0",
        f"%all = shufflevector {vector} %one, {vector} poison, <{ROWS} x i32> zeroinitializer",
        f"%truth = fcmp {how} {vector} %x, %all",
        f"%bits = bitcast <{ROWS} x i1> %truth to i64",
    ]
    arguments = {"column": tirx.address_of(column), "cut": cut}
    return vectors.call(f"compare_{how}_{SHORT[dtype]}", "uint64", lines, "%bits", **arguments)


def search(
    vectors: Vectors, how: str, levels: int, column: Any, table: Any, into: Any, words: int
) -> tirx.Stmt:
    """Return a statement that stores the ranks of 64 values of a column, as uint8.

    The eight bits of each rank are in reverse order, which `planes` takes into account.

    Args:
        vectors: collects the functions.
        how: LLVM's predicate that is true for values that reach a cut.
        levels: number of levels of the tables, see `layouts.row_codes.panels`.
        column: load of the first value.
        table: load of the first entry of the tables.
        into: load of the rank of the first row, see `planes.byte_of_row`.
        words: number of words of a plane that are made at once.
    """
    lines = list[str]()
    for level in range(1, levels):
        for part in range(max(1, (1 << level) // REGISTER_ENTRIES)):
            at = table_begin(level) + part * REGISTER_ENTRIES
            lines += _load(f"%t{level}_{part}", "%table", 4 * at, FLOATS)
    lines += _load("%root", "%table", 4 * table_begin(0), "float")
    lines += [
        f"%root1 = insertelement {FLOATS} poison, float %root, i32 0",
        f"%t0 = shufflevector {FLOATS} %root1, {FLOATS} poison, {NUMBERS} zeroinitializer",
    ]
    for piece in PIECES:
        lines += _search_piece(piece, how, levels)
    lines += [*_order_ranks(), *_store_ranks(words)]
    loads = {"column": column, "table": table, "into": into}
    arguments = {name: tirx.address_of(load) for name, load in loads.items()}
    return _do(vectors, f"search{levels}_{how}_{words}", lines, arguments)


def _search_piece(piece: int, how: str, levels: int) -> list[str]:
    """Return IR lines that set byte `piece` of each integer of %b<piece> to a value's rank.

    There are 16 values. The bits of a rank are in reverse order, the outcome at the root lowest.
    """
    lines = _load(f"%x{piece}", "%column", 4 * LANES * piece, FLOATS)
    number = "zeroinitializer"
    for level in range(levels):
        name = f"{piece}_{level}"
        more, entry = _look_up(piece, level, number)
        lines += [
            *more,
            f"%c{name} = fcmp {how} {FLOATS} %x{piece}, {entry}",
            f"%o{name} = or {NUMBERS} {number}, splat (i32 {1 << level})",
            f"%n{name} = select {TRUTHS} %c{name}, {NUMBERS} %o{name}, {NUMBERS} {number}",
        ]
        number = f"%n{name}"
    return [
        *lines,
        f"%b{piece} = shl {NUMBERS} {number}, splat (i32 {MAX_LEVELS - levels + 8 * piece})",
    ]


def _order_ranks() -> list[str]:
    """Return IR lines that set %ranks to the ranks in row order, from 4 bytes in 16 integers."""
    bits = [4 * (place % 16) + place // 16 for place in range(ROWS)]  # byte for each bit's place
    rows = [bits[bit_of_row(row)] for row in range(ROWS)]
    return [
        f"%b01 = or {NUMBERS} %b0, %b1",
        f"%b23 = or {NUMBERS} %b2, %b3",
        f"%all = or {NUMBERS} %b01, %b23",
        f"%bytes = bitcast {NUMBERS} %all to {WHOLE}",
        f"%ordered = shufflevector {WHOLE} %bytes, {WHOLE} poison, {_mask(rows)}",
        f"%ranks = bitcast {WHOLE} %ordered to <8 x i64>",
    ]


def _store_ranks(words: int) -> list[str]:
    """Return IR lines that store %ranks, eight ranks in a word."""
    if words == 1:
        return ["store <8 x i64> %ranks, ptr %into, align 1"]
    lines = list[str]()
    for k in range(8):
        lines += [
            f"%s{k} = extractelement <8 x i64> %ranks, i32 {k}",
            f"%s{k}p = getelementptr i8, ptr %into, i64 {8 * words * k}",
            f"store i64 %s{k}, ptr %s{k}p, align 1",
        ]
    return lines


def _look_up(piece: int, level: int, number: str) -> tuple[list[str], str]:
    """Return IR lines that look up a level's table entries by number, and the result's name."""
    if level == 0:
        return [], "%t0"
    name = f"%e{piece}_{level}"
    if 1 << level <= REGISTER_ENTRIES:
        return [f"{name} = {PERMUTE}({FLOATS} %t{level}_0, {NUMBERS} {number})"], name
    lines, found = list[str](), list[str]()
    for part in range(0, (1 << level) // REGISTER_ENTRIES, 2):
        tables = f"{FLOATS} %t{level}_{part}, {NUMBERS} {number}, {FLOATS} %t{level}_{part + 1}"
        found.append(f"{name}_{part}")
        lines.append(f"{found[-1]} = {PERMUTE_TWO}({tables})")
    before = 5  # the first level whose outcome selects between pairs of registers
    while len(found) > 1:
        pairs = list(zip(found[::2], found[1::2], strict=True))
        found = [f"{low}_{before}" for low, _ in pairs]
        for both, (low, high) in zip(found, pairs, strict=True):
            truth = f"{TRUTHS} %c{piece}_{before}"
            lines.append(f"{both} = select {truth}, {FLOATS} {high}, {FLOATS} {low}")
        before += 1
    return lines, found[0]


def _load(name: str, pointer: str, at: int, kind: str) -> list[str]:
    """Return IR lines that load a value at a byte offset from a pointer."""
    return [
        f"{name}p = getelementptr i8, ptr {pointer}, i64 {at}",
        f"{name} = load {kind}, ptr {name}p, align 1",
    ]


def _do(vectors: Vectors, name: str, lines: list[str], arguments: dict[str, Any]) -> tirx.Stmt:
    """Define an LLVM IR function, and return a statement that calls it for its side effects."""
    call = vectors.call(name, "int32", lines, "0", **arguments)
    return tirx.Evaluate(tirx.call_extern("int32", call.args[0].value, *call.args[1:]))


def _mask(places: Iterable[int]) -> str:
    some = [f"i32 {x}" for x in places]
    return f"<{len(some)} x i32> <{', '.join(some)}>"


def _load_quarters(name: str, starts: list[int], width: int, element: str) -> list[str]:
    """Return IR lines that load up to four values of each of four rows as %a<name>."""
    item, kind = 8 if element == "double" else 4, f"<{width} x {element}>"
    lines, wide = list[str](), [*range(width), *[0] * (UNIT_FEATURES - width)]
    for k, at in enumerate(starts):
        part = f"%q{name}_{k}"
        lines.append(f"{part}p = getelementptr i8, ptr %rows, i64 {at}")
        lines.append(f"{part}l = load {kind}, ptr {part}p, align {item}")
        lines.append(f"{part} = shufflevector {kind} {part}l, {kind} poison, {_mask(wide)}")
    four, eight = f"<4 x {element}>", f"<8 x {element}>"
    for k in (0, 2):
        low, high = f"{four} %q{name}_{k}", f"{four} %q{name}_{k + 1}"
        lines.append(f"%d{name}_{k} = shufflevector {low}, {high}, {_mask(range(8))}")
    both = f"{eight} %d{name}_0, {eight} %d{name}_2"
    return [*lines, f"%a{name} = shufflevector {both}, {_mask(range(LANES))}"]


def _transpose_quarters(name: str, element: str) -> list[str]:
    """Return IR lines that transpose each quarter of %a<name>0 to 3, into %v<name>0 to 3."""
    lines, vector = list[str](), f"<{LANES} x {element}>"

    def shuffle(into: str, a: str, b: str, places: list[int]) -> None:
        """Shuffle each quarter of two vectors by the same places; the second's begin at 4."""
        mask = [q + (x if x < 4 else x + LANES - 4) for q in range(0, LANES, 4) for x in places]
        lines.append(f"{into} = shufflevector {vector} {a}, {vector} {b}, {_mask(mask)}")

    for pair in (0, 2):
        for side in (0, 1):
            places = [2 * side, 4 + 2 * side, 2 * side + 1, 5 + 2 * side]
            shuffle(f"%p{name}{pair}{side}", f"%a{name}{pair}", f"%a{name}{pair + 1}", places)
    for column in range(UNIT_FEATURES):
        side, upper = divmod(column, 2)
        places = [2 * upper, 2 * upper + 1, 4 + 2 * upper, 5 + 2 * upper]
        shuffle(f"%v{name}{column}", f"%p{name}0{side}", f"%p{name}2{side}", places)
    return lines


def _store_column(piece: int, column: int, source: str, target: str) -> list[str]:
    """Return IR lines that store 16 values of a column, converted to the type of cuts."""
    value, kind = f"%v{piece}_{column}", f"<{LANES} x {ELEMENTS[source]}>"
    lines = list[str]()
    if source != target:
        wide = f"<{LANES} x {ELEMENTS[target]}>"
        lines.append(f"{value}w = fpext {kind} {value} to {wide}")
        value, kind = f"{value}w", wide
    item = 8 if target == "float64" else 4
    at = (ROWS * column + LANES * piece) * item
    return [
        *lines,
        f"{value}p = getelementptr i8, ptr %into, i64 {at}",
        f"store {kind} {value}, ptr {value}p, align {item}",
    ]
