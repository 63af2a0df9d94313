"""Walks one row through 8 trees at once, with codes and tiles in registers.

takes: a leaf loop over trees; gives: its code.

    tiles   = the tile that the row has reached in each of 8 trees
    right   = codes[columns of tiles] >= ranks of tiles          64 bits, 8 for each tree
    reached = 8 * reached + child[right of the tree]             a byte for each tree

The outcomes of the 7 tests of a tile form a number below 128, the index of the child in a 128-byte
table, which is the same for all tiles. Leaves are added in the order of the trees; the processor
overlaps the additions with the walk through the next 8 trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from tvm import tirx

from ...errors import ScheduleError
from ...layouts.octets import TREES, WAITING
from ...schedule_prims import Schedule
from ...schedule_prims.nest import Loop
from ...schedule_prims.walks import WalkForm
from ...system.values import dataclass
from .. import ops
from ..builder import Builder
from ..ir import at_iteration, guard, i64
from .octet_vectors import Tiers
from .walker import Walker, keep_sum

if TYPE_CHECKING:
    from ...layouts.octets import Octet, OctetsLayout


@dataclass(frozen=True)
class OctetWalker(Walker):
    """Walks a row through 8 trees at a time."""

    @classmethod
    def check(cls, sch: Schedule, loops: Sequence[Loop]) -> None:
        """Refuse loops over trees whose iterations do not begin at multiples of 8 trees."""
        trees = (x for loop in loops for x in sch.path(loop.name)[:-1] if x.kind == "tree")
        odd = next((x for x in trees if x.start % TREES or x.step % TREES), None)
        if odd is not None:
            raise ScheduleError(
                f"simdize: argument 'how': 'octets' takes groups of {TREES} trees, but "
                f"'{odd.name}' begins at tree {odd.start} with a step of {odd.step}; use multiples "
                f"of {TREES}\n{sch.render(odd.name)}"
            )

    def lower(self, loop: tirx.For, fact: Loop, form: WalkForm) -> tirx.Stmt:
        """Lower a leaf loop in groups of 8 trees, with a smaller last group."""
        code, walk = Builder(), ops.find_walk(loop.body)
        assert walk is not None, "checked by LowerWalks"
        loop, put_back = keep_sum(code, loop)
        extent = loop.extent.astype("int64")
        groups = tirx.floordiv(extent, i64(TREES))
        left = extent - groups * TREES
        line = _Line(self, code, loop, walk.args[0])
        with code.repeat("octet", groups) as octet:
            line.emit(octet, i64(TREES))
        if not (isinstance(loop.extent, tirx.IntImm) and int(loop.extent) % TREES == 0):
            with code.block(lambda body: guard(body, [left > 0])):
                line.emit(groups, left)
        put_back()
        return code.finish()


class _Line:
    """A software pipeline over the octets of a loop, with a stage for each tier of tiles.

    While the leaves of an octet are added, one after the other, later octets are walked. A
    processor looks only some hundred instructions ahead, and the result of a tier is ready when two
    more octets have begun, so two octets wait behind each tier.
    """

    def __init__(self, walker: Walker, code: Builder, loop: tirx.For, codes: Any) -> None:
        self._walker, self._code, self._loop, self._codes = walker, code, loop, codes
        vectors, layout = walker.comparer.vectors, cast("OctetsLayout", walker.layout)
        assert vectors is not None, "only LLVM compiles octets"
        self._tiers = Tiers(vectors, layout)
        # for each tier, the results for the octets that wait behind it, the oldest first; those
        # behind the last tier are leaves
        zero = tirx.const(0, "uint64")
        self._reached = [
            [code.hold("reached", zero) for _ in range(WAITING)] for _ in range(layout.tiers)
        ]
        for octet in range(WAITING * layout.tiers):
            cell = self._reached[layout.tiers - 1 - octet // WAITING][octet % WAITING]
            for tier in range(layout.tiers - octet // WAITING):
                code.put(cell, self._walk(tier, i64(octet), cell))

    def emit(self, number: Any, here: Any) -> None:
        """Add or store the leaves of `here` trees of an octet, and advance the pipeline.

        Args:
            number: number of the octet in the loop; successive calls must pass successive octets.
            here: number of its trees that the loop has, 1 to 8.
        """
        leaves, code = self._reached[-1][0], self._code
        each = [self._trees(number, k) for k in range(TREES)]
        is_id, octet = ops.is_call(ops.find_walk(each[0]), ops.WALK_ID), self._open(number)
        for k, body in enumerate(each):
            leaf = tirx.shift_right(leaves, tirx.const(8 * k, "uint64"))
            leaf = (leaf & tirx.const(255, "uint64")).astype("int64")
            found = octet.leaf_id(k, leaf) if is_id else octet.leaf_value(k, leaf)
            with code.block(lambda done, k=k: guard(done, [i64(k) < here])):
                self._walker.add_end(code, body, found)
        tiers = len(self._reached)
        for tier in range(tiers - 1, -1, -1):
            cells, before = self._reached[tier], self._reached[tier - 1][0]
            value = self._walk(tier, number + WAITING * (tiers - tier), before)
            for cell, following in pairwise(cells):
                code.put(cell, following)
            code.put(cells[-1], value)

    def _walk(self, tier: int, number: Any, reached: Any) -> Any:
        """Return the tiles or leaves that the row reaches in an octet after a tier."""
        octet = self._open(number)
        if tier:
            return self._tiers.follow(tier, self._codes, octet.tile(tier), reached)
        return self._tiers.begin(self._codes, octet.tile(0))

    def _trees(self, number: Any, k: int) -> tirx.Stmt:
        """Return the body of the loop for tree `k` of an octet."""
        return at_iteration(self._loop, self._loop.min + number * TREES + k)

    def _open(self, number: Any) -> Octet:
        call: Any = ops.find_walk(self._trees(number, 0))
        (octet,) = self._walker.open_trees(self._code, [call])
        return octet
