"""The walk of one row through tiles of bytes in 8 trees, as a function in LLVM's language.

takes: codes of a row, addresses of tiles; gives: a call of the function, which `Vectors` writes.

A byte of `reached` is 4 times the number of the tile on its tier, so that an address, 16 bytes a
tile, needs a shift by 2 only, and the leaf number of a tree of 8 levels still fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from ...layouts.octets import REGISTER, TILE_BYTES, TILE_LEVELS, TREES, first_levels
from .vectors import BYTES, PERMUTE, PERMUTE_TWO, Vectors, load_register

WORDS = f"<{TREES} x i64>"
OUTCOMES = 1 << 7
"""What 7 tests of a tile can say."""


def find_child(outcome: int) -> int:
    """Return the child of a tile that its tests lead to, bit i being the truth that i goes right."""
    node = 0
    for _ in range(TILE_LEVELS):
        node = 2 * node + 1 + (outcome >> node & 1)
    return node - OUTCOMES // 16 + 1


@dataclass(frozen=True)
class Tiers:
    """Writes the walk through all tiers of tiles.

    Attributes:
        vectors: takes the function.
        depth: levels of a tree.
    """

    vectors: Vectors
    depth: int

    @property
    def counts(self) -> list[int]:
        """Tiles of a tree on the tiers behind the first: 8, 64."""
        first = first_levels(self.depth)
        return [1 << level for level in range(first, self.depth, TILE_LEVELS)]

    def begin(self, codes: Sequence[Any], root: Any) -> Any:
        """Return what 8 trees reach by their first tiles, a byte of a uint64 each.

        Args:
            codes: one or two vectors of 64 uint8.
            root: load of the first byte of the tiles.
        """
        first = first_levels(self.depth)
        skipped = 4 * ((1 << TILE_LEVELS) - (1 << first)) * (2**64 // 255)
        lines = [
            *load_register("columns", "%tiles", 0),
            *load_register("ranks", "%tiles", REGISTER),
            *self._decide(len(codes)),
            f"%reached = sub i64 %child, {skipped}",
        ]
        if self.counts:
            return self._call("begin", lines, "%reached", codes, tiles=tirx.address_of(root))
        lines.append("%leaf = lshr i64 %reached, 2")
        return self._call("begin", lines, "%leaf", codes, tiles=tirx.address_of(root))

    def follow(self, tier: int, codes: Sequence[Any], tile: Any, reached: Any) -> Any:
        """Return what 8 trees reach by the tiles of a tier, from 1 on; on the last one, leaves.

        Args:
            tier: number of the tier.
            codes: as for `begin`.
            tile: load of the first byte of the tiles of all tiers.
            reached: what `begin` or the tier before gave.
        """
        lines = [*self._load_tiles(tier), *self._decide(len(codes))]
        if tier < len(self.counts):
            lines += [
                f"%first = shl i64 %reached, {TILE_LEVELS}",
                "%result = add i64 %first, %child",
            ]
        else:  # 4 times a leaf number might not fit
            lines += [
                "%first = shl i64 %reached, 1",
                "%number = lshr i64 %child, 2",
                "%result = add i64 %first, %number",
            ]
        arguments = {"tiles": tirx.address_of(tile), "reached": reached}
        return self._call(f"tier{tier}", lines, "%result", codes, **arguments)

    def _call(
        self, name: str, lines: list[str], result: str, codes: Sequence[Any], **arguments: Any
    ) -> Any:
        each = {f"codes{k}": x for k, x in enumerate(codes)}
        name = f"octet_{name}_{self.depth}_{len(codes)}"
        return self.vectors.call(name, "uint64", lines, result, **each, **arguments)

    def _decide(self, registers: int) -> list[str]:
        """Set %child to 4 times the child of every tile, whose %columns and %ranks are set."""
        pick = f"{PERMUTE}({BYTES} %codes0, {BYTES} %columns)"
        if registers == 2:
            pick = f"{PERMUTE_TWO}({BYTES} %codes0, {BYTES} %columns, {BYTES} %codes1)"
        halves = [
            ", ".join(f"i8 {4 * find_child(x)}" for x in range(begin, begin + REGISTER))
            for begin in (0, REGISTER)
        ]
        tables = f"{BYTES} <{halves[0]}>, {BYTES} %wide, {BYTES} <{halves[1]}>"
        return [
            f"%seen = {pick}",
            f"%truth = icmp uge {BYTES} %seen, %ranks",
            f"%bits = bitcast <{REGISTER} x i1> %truth to i64",
            # LLVM would bring bits to a vector by way of memory, or byte by byte
            '%outcome = call i64 asm "", "=r,0"(i64 %bits)',
            f"%word = insertelement {WORDS} poison, i64 %outcome, i32 0",
            f"%wide = bitcast {WORDS} %word to {BYTES}",
            f"%children = {PERMUTE_TWO}({tables})",
            f"%words = bitcast {BYTES} %children to {WORDS}",
            f"%child = extractelement {WORDS} %words, i32 0",
        ]

    def _load_tiles(self, tier: int) -> list[str]:
        """Set %columns and %ranks to those of the tiles that were reached."""
        of_tree, before, lines = sum(self.counts), sum(self.counts[: tier - 1]), list[str]()
        for tree in range(TREES):
            at = TILE_BYTES * (tree * of_tree + before)
            lines += [
                f"%shifted{tree} = lshr i64 %reached, {8 * tree}",
                f"%byte{tree} = and i64 %shifted{tree}, 255",
                f"%place{tree} = shl i64 %byte{tree}, 2",
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
    """Return the text that puts vectors of two words behind each other, and the name of the whole."""
    lines, width = list[str](), 2
    while len(parts) > 1:
        mask, joined = ", ".join(f"i32 {k}" for k in range(2 * width)), list[str]()
        for k, (low, high) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
            both = f"<{width} x i64> {low}, <{width} x i64> {high}"
            joined.append(f"%{name}_{width}_{k}")
            lines.append(f"{joined[-1]} = shufflevector {both}, <{2 * width} x i32> <{mask}>")
        parts, width = joined, 2 * width
    return lines, parts[0]
