"""Stores the values that concurrent trees add, and adds them in the order of trees afterwards.

takes: a loop of PrivatizeSums with `ordered_reduce`; gives: statements.

    for t1 in range(8):    # block.y             for t1 in range(8):    # block.y
        for t0 in range(13):                         for t0 in range(13):
            margin[r, c] += walk(t0 * 8 + t1)            terms[t0 * 8 + t1, c, r] = walk(...)
                                           -->   for r in range(32):    # the threads of the block
                                                     for i in range(100):
                                                         margin[r, c] += terms[i, c, r]

A term is the value that a tree adds to a sum. Every tree has its own element, and terms are added
only when all are stored, so sums are bit-equal to those of a serial loop. There is an element for
each tree that the loop can reach, in ascending order. Elements that may stay unused, because of the
guard of a last tile or because trees are not evenly spaced, hold the neutral value: -0.0 in a sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

from ..forest import Array
from ..schedule_prims.nest import OUTPUT_KINDS, Guard, Kind, Loop
from ..schedule_prims.regions import has_no_gaps, is_cut, list_values_inside
from ..system.process.locks import cached_property
from ..system.values import dataclass
from ..tir_gen import ir, ops
from ..tir_gen.builder import Builder
from .nest_facts import NestFacts, name_of

TERMS = "terms"
"""Name of the buffer of terms."""

AHEAD = 16
"""Number of terms that are loaded before they are added, since loads take longer than additions."""

WITHOUT_EFFECT = {**ops.INITIAL, ops.ADD: -0.0}
"""The neutral value of each reduction, which does not even change -0.0."""


@dataclass(frozen=True)
class Region:
    """The outermost loop, over rows, classes or trees, around trees that run at the same time.

    Attributes:
        facts: facts about the loops of the nest.
        loop: the loop.
        margin: the buffer that leaf values are added to.
        n: number of rows.
        around: the loops around it.
    """

    facts: NestFacts
    loop: tirx.For
    margin: Any
    n: Any
    around: tuple[tirx.For, ...]

    def span(self, kind: Kind) -> tuple[Any, Any, Any]:
        """Return the region's first row or class, how many it covers here, and how many at most.

        See `NestFacts.span`.
        """
        total = self.n if kind == "batch" else self.margin.shape[1]
        return self.facts.span(kind, self.around, self.loop, self.n, total)


class OrderedRegion(Region):
    """A region whose trees are added in order, by way of their terms."""

    def rewrite(self) -> tirx.Stmt:
        """Return what replaces the loop: the loop with stores of terms, and their additions."""
        (row0, rows, most_rows), (class0, classes, most_classes) = map(self.span, OUTPUT_KINDS)
        spread = self.facts.has_level(self.loop)
        stores = ir.find_stores(self.loop)
        addition = next(x.value for x in stores if ops.is_call(x.value, ops.REDUCE))
        dtype, how = addition.args[1].ty.dtype, addition.args[3].value
        code, places = Builder(), ir.i64(self._places)
        scope = "shared" if self._fits_a_block(most_rows) else "global"
        shape = (ir.i64(max(1, self._places)), most_classes, most_rows)
        terms = code.buffer(TERMS, shape, dtype, scope)
        if self._may_leave_places_empty:
            with code.nest("empty", [places, classes, rows], spread) as indices:
                code.store(terms, tirx.FloatImm(dtype, WITHOUT_EFFECT[how]), list(indices))
        code.add(self._keep_terms(terms, row0, class0))
        begin = [row0, class0]
        if spread:
            self._add_by_threads(code, terms, begin, [rows, classes], how)
            return code.finish()
        with code.nest("add", [places, classes, rows]) as (i, c, r):
            at = [row0 + r, class0 + c]
            total = ops.reduce(self.margin[at], terms[i, c, r], how)
            code.store(self.margin, total, at)
        return code.finish()

    # -- trees ------------------------------------------------------------------------------------

    @property
    def _fact(self) -> Loop:
        return self.facts.nest[name_of(self.loop)]

    @property
    def _guards(self) -> tuple[Guard, ...]:
        return self.facts.nest.guards

    @cached_property
    def _trees(self) -> Array:
        """The numbers of the trees that the region covers, ascending, int64.

        They are counted from the tree at which the loops around the region are.
        """
        trees = list_values_inside(self._fact, self._guards, "tree")
        assert trees is not None, "the number of trees is known"
        return trees

    @cached_property
    def _step(self) -> int:
        """The difference between the numbers of the trees of two adjacent terms, at least 1."""
        return max(1, int(np.gcd.reduce(np.diff(self._trees))))

    @property
    def _places(self) -> int:
        trees = self._trees
        return int(trees[-1] - trees[0]) // self._step + 1 if len(trees) else 0

    @property
    def _may_leave_places_empty(self) -> bool:
        """Whether an element may stay without a term: its tree, row or class is not in the region.

        This is so if a guard cuts the trees, or if trees, rows or classes have gaps.
        """
        cut = is_cut(self._fact, self._guards, "tree")
        whole = (has_no_gaps(self._fact, self._guards, kind) for kind in OUTPUT_KINDS)
        return cut or self._places != len(self._trees) or not all(whole)

    def _fits_a_block(self, most_rows: Any) -> bool:
        """Return whether a GPU block has all trees of its rows, and a known number of rows."""
        loops = self.facts.on_levels(self.loop)
        trees = [loop for loop in loops if self.facts.of(loop).kind == "tree"]
        blocks = [loop for loop in trees if self.facts.level(loop) == "grid"]
        return bool(trees) and not blocks and isinstance(most_rows, tirx.IntImm)

    # -- code -------------------------------------------------------------------------------------

    def _keep_terms(self, terms: Any, row0: Any, class0: Any) -> tirx.Stmt:
        """Return the loop with stores of terms in place of its additions."""
        first = int(self._trees[0]) if len(self._trees) else 0

        def keep(s: tirx.Stmt, around: tuple[tirx.For, ...]) -> tirx.Stmt | None:
            if not isinstance(s, tirx.BufferStore) or not ops.is_call(s.value, ops.REDUCE):
                return None
            trees = [loop for loop in around if self.facts.of(loop).kind == "tree"]
            tree = sum((self.facts.value(loop, self.n) for loop in trees), ir.i64(-first))
            place = tree if self._step == 1 else tirx.floordiv(tree, ir.i64(self._step))
            row, output = s.indices
            return tirx.BufferStore(terms, s.value.args[1], [place, output - class0, row - row0])

        return ir.rewrite_nest(self.loop, keep)

    def _add_by_threads(
        self, code: Builder, terms: Any, begin: list[Any], counts: list[Any], how: str
    ) -> None:
        """Emit the additions for a GPU, with a thread for each row and class.

        Args:
            code: where statements go.
            terms: buffer of the terms.
            begin: the first row and the first class.
            counts: the number of rows and that of classes.
            how: the reduction, see `ops.reduce`.
        """
        with code.nest("add", counts[::-1], spread=True) as (c, r):
            at = [begin[0] + r, begin[1] + c]
            ends = [i < end for i, end in zip(at, self.margin.shape, strict=True)]
            with code.block(lambda body: ir.guard(body, ends)):
                total = code.hold("total", self.margin[at])
                whole, rest = divmod(self._places, AHEAD)
                for first, groups, width in ((0, whole, AHEAD), (whole * AHEAD, 1, rest)):
                    with (
                        code.repeat("group", ir.i64(groups)) as group,
                        code.repeat("each", ir.i64(width), unrolled=True) as each,
                    ):
                        term = terms[group * width + each + first, c, r]
                        code.put(total, ops.reduce(total, term, how))
                code.store(self.margin, total, at)
