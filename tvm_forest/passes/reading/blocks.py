"""Finds the blocks of a scheduled function.

takes: a function with S-TIR blocks; gives: each block, with the loops around it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm import s_tir, tirx

from ...system.values import dataclass
from ...tir_gen import ops


@dataclass(frozen=True)
class WalkBlock:
    """An S-TIR block, such as that of the walk, with the loops around it.

    Attributes:
        realize: the block, with the values of its axes.
        around: the loops around it, outermost first.
    """

    realize: Any
    around: tuple[tirx.For, ...]

    @property
    def block(self) -> Any:
        """The block without the values of its axes."""
        return self.realize.block


def find_walk_block(func: tirx.PrimFunc) -> WalkBlock | None:
    """Return the only block of a function that contains a walk; None if none or several do."""
    found = [x for x in list_blocks(func) if ops.find_walk(x.block.body) is not None]
    return found[0] if len(found) == 1 else None


def list_blocks(func: tirx.PrimFunc) -> list[WalkBlock]:
    """Return the innermost blocks of a function, with the loops around each."""
    return list(_list_blocks(func.body, ()))


def _list_blocks(s: Any, around: tuple[tirx.For, ...]) -> Iterator[WalkBlock]:
    if isinstance(s, s_tir.SBlockRealize):
        inside = list(_list_blocks(s.block.body, around))
        yield from inside or [WalkBlock(s, around)]
    elif isinstance(s, tirx.For):
        yield from _list_blocks(s.body, (*around, s))
    else:
        for inside in getattr(s, "seq", ()):
            yield from _list_blocks(inside, around)
