"""Emits LLVM IR functions that walk one row through a tier of byte tiles in 8 trees.

takes: codes of a row, addresses of tiles; gives: calls of functions, whose text `Vectors` collects.

A byte of `reached` is 4 times the tile's number on its tier. So its address, at 16 bytes per tile,
needs only a shift by 2, and the leaf number of a tree of 8 levels still fits into a byte.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ...layouts import REGISTER
from ...layouts.octets import (
    END_WORDS,
    TILE_BYTES,
    TILE_LEVELS,
    TREES,
    OctetsLayout,
    first_levels,
)
from ...system.values import dataclass
from .vectors import BYTES, PERMUTE, PERMUTE_TWO, Vectors, load_register

OCTET, WORDS = f"<{TREES} x i8>", f"<{TREES} x i64>"
OUTCOMES = 1 << 7
"""Number of possible results of the 7 tests of a tile."""


def find_child(outcome: int) -> int:
    """Return the child, 0 to 7, for the outcome of a tile; bit i is 1 if test i goes right."""
    node = 0
    for _ in range(TILE_LEVELS):
        node = 2 * node + 1 + (outcome >> node & 1)
    return node - OUTCOMES // 16 + 1


@dataclass(frozen=True)
class Tiers:
    """Emits the walk through all tiers of tiles.

    Attributes:
        vectors: collects the text of the functions.
        layout: says how many tiers there are, and how columns and leaves are numbered.
    """

    vectors: Vectors
    layout: OctetsLayout

    def begin(self, codes: Any, root: Any) -> Any:
        """Return the tiles that the row reaches from the root tiles of 8 trees.

        The result is a uint64 with a byte for each tree: 4 times the number of the tile on its
        tier, or the number of the leaf if there is one tier.

        Args:
            codes: load of the first code of the row.
            root: load of the first byte of the tiles.
        """
        skipped = 4 * ((1 << TILE_LEVELS) - (1 << first_levels(self.layout.depth)))
        lines = [
            *load_register("columns", "%tiles", 0),
            *load_register("ranks", "%tiles", REGISTER),
            *self._decide(),
            f"%reached = sub i64 %child, {skipped * (2**64 // 255)}",
            "%leaf = lshr i64 %reached, 2",
        ]
        result = "%reached" if self.layout.tiers > 1 else "%leaf"
        return self._call("begin", lines, result, codes, tiles=tirx.address_of(root))

    def follow(self, tier: int, codes: Any, tile: Any, reached: Any) -> Any:
        """Return the tiles, or leaves after the last tier, that the row reaches from a tier.

        Args:
            tier: number of the tier.
            codes: as for `begin`.
            tile: load of the first byte of the tiles of the tier.
            reached: result of `begin`, or of this function for the tier before.
        """
        lines, is_last = [*self._load_tiles(tier), *self._decide()], tier == self.layout.tiers - 1
        # 4 times the number of a leaf might not fit into a byte
        shift = (2 if self.layout.counts_words else 1) if is_last else TILE_LEVELS
        lines += [
            f"%first = shl i64 %reached, {shift}",
            f"%number = lshr i64 %child, {2 if is_last else 0}",
            "%result = add i64 %first, %number",
        ]
        arguments = {"tiles": tirx.address_of(tile), "reached": reached}
        return self._call(f"tier{tier}", lines, "%result", codes, **arguments)

    def _call(self, name: str, lines: list[str], result: str, codes: Any, **arguments: Any) -> Any:
        columns, dtype = int(codes.source.shape[1]), self.layout.dtype
        name = f"octet_{name}_{self.layout.depth}_{columns}_{dtype}"
        row = {"codes": tirx.address_of(codes)}
        return self.vectors.call(name, "uint64", lines, result, **row, **arguments)

    def _decide(self) -> list[str]:
        """Return IR lines that set each byte of %child to 4 times the child of a tree's tile.

        They compare the row's codes at %columns with %ranks.
        """
        compared = [
            f"%truth = icmp uge {BYTES} %seen, %ranks",
            f"%bits = bitcast <{REGISTER} x i1> %truth to i64",
        ]
        if self.vectors.permutes_bytes:
            return [*self._permute_codes(), *compared, *_look_up_children()]
        return [*_load_codes(), *compared, *_count_children()]

    def _permute_codes(self) -> list[str]:
        """Return IR lines that set %seen to the codes at %columns, by one permute."""
        lines = load_register("codes0", "%codes", 0)
        if self.layout.code.room <= REGISTER:
            return [*lines, f"%seen = {PERMUTE}({BYTES} %codes0, {BYTES} %columns)"]
        lines += load_register("codes1", "%codes", REGISTER)
        tables = f"{BYTES} %codes0, {BYTES} %columns, {BYTES} %codes1"
        return [*lines, f"%seen = {PERMUTE_TWO}({tables})"]

    def _load_tiles(self, tier: int) -> list[str]:
        """Return IR lines that load %columns and %ranks of the tiles that were reached."""
        size, lines = TILE_BYTES, list[str]()
        if tier == self.layout.tiers - 1:
            size = END_WORDS * tvm.DataType(self.layout.dtype).itemsize
        for tree in range(TREES):
            at = size * tree * self.layout.tile_counts[tier]
            lines += [
                f"%shifted{tree} = lshr i64 %reached, {8 * tree}",
                f"%byte{tree} = and i64 %shifted{tree}, 255",
                f"%place{tree} = shl i64 %byte{tree}, {(size // 4).bit_length() - 1}",
                f"%there{tree} = getelementptr i8, ptr %tiles, i64 %place{tree}",
                f"%at{tree} = getelementptr i8, ptr %there{tree}, i64 {at}",
                f"%tile{tree} = load <2 x i64>, ptr %at{tree}, align 1",
            ]
        sides = [_join(f"side{k}", [f"%tile{tree}" for tree in range(k, TREES, 2)]) for k in (0, 1)]
        lines += [line for joined, _ in sides for line in joined]
        both = ", ".join(f"{WORDS} {name}" for _, name in sides)
        for half, field in enumerate(("columns", "ranks")):
            mask = ", ".join(f"i32 {2 * (k // 2) + half + TREES * (k % 2)}" for k in range(TREES))
            lines += [
                f"%{field}_words = shufflevector {both}, <{TREES} x i32> <{mask}>",
                f"%{field} = bitcast {WORDS} %{field}_words to {BYTES}",
            ]
        return lines


def _join(name: str, parts: list[str]) -> tuple[list[str], str]:
    """Return IR lines that concatenate vectors of two words, and the name of the result."""
    lines, width = list[str](), 2
    while len(parts) > 1:
        mask, joined = ", ".join(f"i32 {k}" for k in range(2 * width)), list[str]()
        for k, (low, high) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
            both = f"<{width} x i64> {low}, <{width} x i64> {high}"
            joined.append(f"%{name}_{width}_{k}")
            lines.append(f"{joined[-1]} = shufflevector {both}, <{2 * width} x i32> <{mask}>")
        parts, width = joined, 2 * width
    return lines, parts[0]


def _look_up_children() -> list[str]:
    """Return IR lines that look up %child by %bits, in a table of two registers."""
    halves = [
        ", ".join(f"i8 {4 * find_child(x)}" for x in range(begin, begin + REGISTER))
        for begin in (0, REGISTER)
    ]
    return [
        # without this, LLVM moves the bits to a vector through memory, or byte by byte
        '%outcome = call i64 asm "", "=r,0"(i64 %bits)',
        f"%word = insertelement {WORDS} poison, i64 %outcome, i32 0",
        f"%wide = bitcast {WORDS} %word to {BYTES}",
        f"%children = {PERMUTE_TWO}({BYTES} <{halves[0]}>, {BYTES} %wide, {BYTES} <{halves[1]}>)",
        f"%words = bitcast {BYTES} %children to {WORDS}",
        f"%child = extractelement {WORDS} %words, i32 0",
    ]


def _load_codes() -> list[str]:
    """Return IR lines that set %seen to the codes at %columns, by single loads."""
    lines = list[str]()
    for lane in range(REGISTER):
        before = f"%seen{lane - 1}" if lane else "poison"
        name = f"%seen{lane}" if lane < REGISTER - 1 else "%seen"
        lines += [
            f"%column{lane} = extractelement {BYTES} %columns, i32 {lane}",
            f"%index{lane} = zext i8 %column{lane} to i64",
            f"%code_at{lane} = getelementptr i8, ptr %codes, i64 %index{lane}",
            f"%code{lane} = load i8, ptr %code_at{lane}",
            f"{name} = insertelement {BYTES} {before}, i8 %code{lane}, i32 {lane}",
        ]
    return lines


def _count_children() -> list[str]:
    """Return IR lines that compute %child from %bits, level by level, for all trees at once."""

    def one(name: str, operation: str, left: str, right: str) -> str:
        right = right if right.startswith("%") else f"splat (i8 {right})"
        return f"%{name} = {operation} {OCTET} %{left}, {right}"

    return [
        f"%outcomes = bitcast i64 %bits to {OCTET}",
        one("one", "and", "outcomes", "1"),
        one("off1", "add", "one", "1"),
        one("rest1", "lshr", "outcomes", "%off1"),
        one("two", "and", "rest1", "1"),
        one("half", "shl", "one", "1"),
        one("path", "or", "half", "%two"),
        one("off2", "add", "path", "3"),
        one("rest2", "lshr", "outcomes", "%off2"),
        one("three", "and", "rest2", "1"),
        one("whole", "shl", "path", "1"),
        one("place", "or", "whole", "%three"),
        one("four", "shl", "place", "2"),
        f"%child = bitcast {OCTET} %four to i64",
    ]
