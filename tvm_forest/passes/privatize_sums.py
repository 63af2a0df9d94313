"""Gives concurrent iterations over trees private sums, which are added after the loop.

takes: IRModule without blocks, whose parallel loops are still serial; gives: IRModule.

    for t0 in range(4):    # parallel              part[:, :, :] = 0
        for r in range(n):                         for t0 in range(4):    # parallel
            margin[r, c] += walk(...)      -->         for r in range(n):
                                                           part[t0, c, r] += walk(...)
                                                   for t0 in range(4):
                                                       for r in range(n):
                                                           margin[r, c] += part[t0, c, r]

The base score is in `margin` already, so it is added once. Each call allocates `part`, so
concurrent calls do not interfere. `part` covers the rows and classes that the loop can reach.
Nested parallel loops over trees have one dimension of `part` each, and are reduced one by one, the
outermost loop first. A loop with `atomic_reduce` has no dimension; its additions are atomic. On a
GPU, the threads of a loop with `vector_reduce` have one sum per shuffle group, see `thread_sums`,
and need no dimension if there is one group. With `ordered_reduce` there are no private sums, see
`ordered_sums`.

The method is that of the SilvanForge drafts on reductions: one private copy per conflicting loop.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ..schedule_prims.nest import OUTPUT_KINDS
from ..system.values import dataclass
from ..tir_gen import ir, ops
from ..tir_gen.builder import Builder
from .function_pass import NestPass, function_pass
from .nest_facts import SUMS_OF, NestFacts, name_of
from .ordered_sums import OrderedRegion, Region

BLOCK_ROWS = 512
"""Number of rows that a CPU thread reduces at a time, so that their sums stay in its cache."""


@function_pass
class PrivatizeSums(NestPass):
    """Lets concurrent iterations over trees add to private sums, and adds these afterwards.

    With `atomic_reduce` the additions become atomic instead, and with `ordered_reduce` the terms
    are stored.
    """

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Rewrite every region of a function: its loop, and the additions after that."""
        facts, n = self.facts, func.params[0].shape[0]

        def privatize(s: tirx.Stmt, around: tuple[tirx.For, ...]) -> tirx.Stmt | None:
            if not (facts.is_parallel(s) or facts.of(s).gathers_sums):  # no region begins here
                return None
            loops = ((loop, facts.of(loop)) for loop in ir.find_all(s, tirx.For))
            trees = [x for x, fact in loops if fact.kind == "tree" and fact.is_concurrent]
            margin = _find_sums(s)
            if not trees or margin is None:
                return s
            limits = facts.limits(around, n)  # rows beyond them belong to other iterations
            if any(facts.reduction(x)[0] == "ordered" for x in trees):
                return ir.guard(OrderedRegion(facts, s, margin, n, around).rewrite(), limits)
            s, trees = _with_threads_in_common(facts, s, trees)
            region = _Region(facts, s, margin, n, around, tuple(trees))
            return ir.guard(region.rewrite(), limits)

        own = func.with_body(ir.rewrite_nest(func.body, privatize))
        # loops that share a dimension of a GPU have the same variable, which TVM does not allow
        return tirx.transform.ConvertSSA()(tvm.IRModule({"main": own}))["main"]


def _with_threads_in_common(
    facts: NestFacts, region: tirx.For, trees: list[tirx.For]
) -> tuple[tirx.For, list[tirx.For]]:
    """Give loops over trees that are mapped to the same GPU dimension a common variable.

    Returns:
        The region, and the loops that get a dimension of the partial sums: all loops that share no
        GPU dimension, and the longest of those that share one. Where a shorter loop has no
        iteration, the sums stay zero.
    """
    nest, kept = facts.nest, list[tirx.For]()
    for loop in trees:
        gpu = nest[name_of(loop)].gpu
        mine = [x for x in trees if gpu and nest[name_of(x)].gpu == gpu]
        longest = max(mine or [loop], key=lambda x: nest[name_of(x)].count or 0)
        if any(longest.same_as(x) for x in kept):
            continue
        kept.append(longest)
        if len(mine) > 1:
            region = _share_variable(region, {x.loop_var for x in mine}, longest)
    return region, kept


def _share_variable(region: tirx.For, variables: set[Any], first: tirx.For) -> tirx.For:
    """Give the loops of some variables the variable of another loop, and its kind of reduction."""

    def rename(loop: tirx.For) -> tirx.For:
        if loop.loop_var not in variables:
            return loop
        body = ir.replace_vars(loop.body, {loop.loop_var: first.loop_var})
        notes = {**loop.annotations, SUMS_OF: name_of(first)}
        return ir.change_loop(loop, loop_var=first.loop_var, body=body, annotations=notes)

    return ir.rewrite_loops(region, rename)


def _zero_outside(region: tirx.Stmt, variables: list[Any]) -> tirx.Stmt:
    """Replace each of some loop variables by 0 in the statements that are not inside its loop."""

    def close(s: tirx.Stmt, around: tuple[tirx.For, ...]) -> tirx.Stmt | None:
        if isinstance(s, tirx.For):
            return None
        bound = [loop.loop_var for loop in around]
        others = {x: ir.i64(0) for x in variables if not any(map(x.same_as, bound))}
        return ir.replace_vars(s, others)

    return ir.rewrite_nest(region, close)


def _find_sums(statement: tirx.Stmt) -> Any | None:
    """Return the buffer that leaf values are added to; None if leaves are only stored."""
    found = (x.buffer for x in ir.find_stores(statement) if ops.is_call(x.value, ops.REDUCE))
    return next(found, None)


@dataclass(frozen=True)
class _Region(Region):
    """A region whose concurrent trees have private sums.

    Attributes:
        trees: the concurrent loops over trees, innermost first; one for each GPU dimension.
    """

    trees: tuple[tirx.For, ...]

    @property
    def levels(self) -> list[tirx.For]:
        """The loops that get a dimension of the buffer of private sums."""
        plain = [x for x in self.trees if self.facts.reduction(x)[0] != "atomic"]
        return [x for x in plain if not (self.facts.shuffle_width(x) and self.count(x) == 1)]

    def is_shared(self, loop: tirx.For) -> bool:
        """Return whether the private sums of a loop should be in shared memory."""
        return self.facts.reduction(loop)[0] == "shared" or bool(self.facts.shuffle_width(loop))

    def rewrite(self) -> tirx.Stmt:
        """Return what replaces the loop: zeros, the loop that adds to them, and their reduction."""
        (row0, rows, most_rows), (class0, classes, most_classes) = map(self.span, OUTPUT_KINDS)
        counts = [ir.i64(self.count(loop)) for loop in self.levels]
        if not counts:
            return self._redirect_additions(lambda indices: (self.margin, list(indices)))
        code, dtype = Builder(), self.margin.dtype
        fits = isinstance(most_rows, tirx.IntImm) and all(map(self.is_shared, self.levels))
        scope = "shared" if fits else "global"
        part = code.buffer("part", (*counts, most_classes, most_rows), dtype, scope)
        own = [
            tirx.floordiv(x.loop_var, ir.i64(self.facts.shuffle_width(x) or 1)) for x in self.levels
        ]
        spread = self.facts.has_level(self.loop)
        with code.nest("zero", [*counts, classes, rows], spread) as indices:
            code.store(part, tirx.const(0.0, dtype), list(indices))
        work = self._redirect_additions(lambda at: (part, [*own, at[1] - class0, at[0] - row0]))
        code.add(_zero_outside(work, [x.loop_var for x in self.levels]))
        for level in reversed(range(len(counts))):
            loop, blocks = self.levels[level], [(row0, rows), (class0, classes)]
            dimension = _Dimension(part, self.margin, counts, level, *blocks)
            if self.facts.level(loop):
                threads = self._count_threads() if self.is_shared(loop) else 0
                dimension.add_by_threads(code, threads)
            else:
                # threads share the rows of the final addition, since no other threads run then
                shares_rows = level == 0 and self.facts.is_parallel(self.loop)
                dimension.add(code, self.facts.reduction(loop)[1], shares_rows)
        return code.finish()

    def _count_threads(self) -> int:
        """Return the number of threads in a GPU block that runs this region."""
        sizes = dict[str, int]()
        for fact in map(self.facts.of, (*self.around, *ir.find_loops(self.loop))):
            if fact.gpu and fact.gpu.startswith("block"):
                sizes[fact.gpu] = max(sizes.get(fact.gpu, 1), fact.count or 1)
        return prod(sizes.values())

    def count(self, loop: tirx.For) -> int:
        """Return the number of private sums of a loop over trees, per row and class.

        It is one per iteration, or with shuffles one per group of threads.
        """
        count = self.facts.nest[name_of(loop)].count
        assert count is not None, "the number of trees is known"
        return -(-count // (self.facts.shuffle_width(loop) or 1))

    def _redirect_additions(self, place: Callable[[Any], tuple[Any, list[Any]]]) -> tirx.Stmt:
        """Return the loop with its additions going to the element that `place` returns for each.

        They are atomic if one of the loops over trees has `atomic_reduce`.
        """
        atomic = any(self.facts.reduction(loop)[0] == "atomic" for loop in self.trees)

        def store(old: tirx.BufferStore) -> tirx.BufferStore:
            if not ops.is_call(old.value, ops.REDUCE):
                return old
            buffer, at = place(old.indices)
            total = ops.reduce_into(buffer[at], old.value, ops.ATOMIC_ADD if atomic else "")
            return tirx.BufferStore(buffer, total, at)

        return tvm_ffi.structural_map(self.loop, (tirx.BufferStore, store))


@dataclass(frozen=True)
class _Dimension:
    """Emits the reduction of one dimension of the private sums.

    The elements of dimension 0 are added to the margins, those of others to their element 0.

    Attributes:
        part: buffer of the private sums: a dimension per loop over trees, then classes and rows.
        margin: buffer of the margins.
        counts: lengths of the dimensions of `part` that belong to loops over trees.
        level: index of this dimension.
        rows, classes: the first row or class, and the number of them.
    """

    part: Any
    margin: Any
    counts: list[Any]
    level: int
    rows: tuple[Any, Any]
    classes: tuple[Any, Any]

    @property
    def _first(self) -> int:
        """Index in this dimension of the first element to add: 1 if element 0 is the sum."""
        return 1 if self.level else 0

    def _at(self, places: list[Any], element: Any, c: Any, r: Any) -> list[Any]:
        """Return the indices of an element of `part`.

        Dimensions after this one have index 0, since they are reduced already.

        Args:
            places: indices in the dimensions before this one.
            element: index in this dimension.
            c, r: class and row, counted from the first ones of the region.
        """
        inner = [ir.i64(0)] * (len(self.counts) - self.level - 1)
        return [*places, element, *inner, c, r]

    def _add(self, code: Builder, places: list[Any], element: Any, c: Any, r: Any) -> None:
        """Emit the addition of an element to its sum; for the arguments see `_at`."""
        source = self.part[self._at(places, element + self._first, c, r)]
        target, at = self._sum(places, c, r)
        code.store(target, target[at] + source, at)

    def _sum(self, places: list[Any], c: Any, r: Any) -> tuple[Any, list[Any]]:
        """Return the buffer and the indices that elements of this dimension are added to.

        `places`, `c` and `r` are as in `_at`.
        """
        if self.level:
            return self.part, self._at(places, ir.i64(0), c, r)
        return self.margin, [self.rows[0] + r, self.classes[0] + c]

    def add(self, code: Builder, width: int, shares_rows: bool) -> None:
        """Emit the reduction on a CPU, with `width` rows in each vector.

        With `shares_rows`, the blocks of `BLOCK_ROWS` rows run in parallel, if there are several.
        """
        rows = self.rows[1]
        if not shares_rows or (isinstance(rows, tirx.IntImm) and int(rows) <= BLOCK_ROWS):
            return self._add_rows(code, width, ir.i64(0), rows)
        size = ir.i64(BLOCK_ROWS)
        with code.parallel("block", tirx.floordiv(rows + (BLOCK_ROWS - 1), size)) as block:
            begin = block * size
            self._add_rows(code, width, begin, tirx.min(size, rows - begin))

    def _add_rows(self, code: Builder, width: int, first: Any, rows: Any) -> None:
        """Emit the reduction loops for some rows."""
        *outer, count = self.counts[: self.level + 1]
        with code.nest("add", [*outer, count - self._first, self.classes[1]]) as (*places, i, c):
            for lanes, begin, groups in code.groups(rows, width):
                with code.repeat("row", groups) as group, code.lanes("lane", lanes) as lane:
                    self._add(code, places, i, c, first + begin + group * lanes + lane)

    def add_by_threads(self, code: Builder, threads: int) -> None:
        """Emit the reduction for a GPU, whose threads share the rows and classes.

        A thread computes whole sums. If there are fewer sums than half of the threads, several
        threads share a sum: the upper half of its elements is added to the lower half, until one
        element is left.

        Args:
            code: where statements go.
            threads: number of threads in the block if the sums are in shared memory, else 0.
        """
        (*outer, count), spans = self.counts[: self.level + 1], [self.classes[1], self.rows[1]]
        sums = [int(x) if isinstance(x, tirx.IntImm) else 1 for x in (*outer, *spans)]
        if 2 * prod(sums) < threads:
            count = int(count)
            while count > 1:
                half = (count + 1) // 2
                halves = [*outer, ir.i64(count - half), *spans]
                with code.nest("halve", halves, spread=True) as (*places, i, c, r):
                    into, source = (self._at(places, i + x, c, r) for x in (0, half))
                    total = self.part[into] + self.part[source]
                    code.store(self.part, total, into)
                count = half
            count = ir.i64(count)
        with code.nest("add", [*outer, *spans], spread=True) as (*places, c, r):
            target, at = self._sum(places, c, r)
            pairs = () if self.level else zip(at, target.shape, strict=True)
            ends = [i < end for i, end in pairs] or [True]
            with code.block(lambda body: ir.guard(body, ends)):
                with code.repeat("each", count - self._first) as i:
                    self._add(code, places, i, c, r)
