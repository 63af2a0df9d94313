"""Give parallel iterations over trees sums of their own, and add these up behind the loop.

takes: IRModule without blocks, its loops marked parallel but not yet so; gives: IRModule.

    for t0 in range(4):    # parallel              part[:, :, :] = 0
        for r in range(n):                         for t0 in range(4):    # parallel
            margin[r, c] += walk(...)      -->         for r in range(n):
                                                           part[t0, c, r] += walk(...)
                                                   for t0 in range(4):
                                                       for r in range(n):
                                                           margin[r, c] += part[t0, c, r]

The base score is in `margin` already, so it enters once. The sums live in a buffer of the call, so
calls do not meet. `part` covers the rows and classes that the loop can reach: all values below it,
from the sum of the loops around it on. Nested loops over trees have one dimension each and are
added up level by level, innermost first. A loop marked `reduce atomic` has no dimension; its
additions are atomic. On a GPU, the threads of a loop marked `reduce vector` share a part for each
group of so many, see `thread_sums`, and need none if they are one group.

From the SilvanForge drafts on reductions: one private copy per conflicting loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ..nest import paths
from ..schedule import Schedule
from ..tir_gen import ops
from ..tir_gen.builder import Code, find_walk, i64
from .cpu.fuse_parallel import is_parallel
from .ir import GPU, replaced
from .write_nest import value_of, with_body

MARK = "tvm_forest."
REDUCE = "tvm_forest.reduce"


@tirx.transform.prim_func_pass(opt_level=0, name="tvm_forest.PrivatizeSums")
@dataclass(frozen=True)
class PrivatizeSums:
    """Rewrite the accumulations inside parallel loops over trees.

    Attributes:
        sch: the schedule, asked for the ranges of loops by name.
    """

    sch: Schedule

    def transform_function(
        self, func: tirx.PrimFunc, mod: tvm.IRModule, ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Visit the nest with the loops around in mind."""
        return func.with_body(self._visit(func.body, func.params[0].shape[0], ()))

    def _visit(self, statement: tirx.Stmt, n: Any, around: tuple[tirx.For, ...]) -> tirx.Stmt:
        if isinstance(statement, tirx.SeqStmt):
            return tirx.SeqStmt([self._visit(part, n, around) for part in statement.seq])
        if isinstance(statement, tirx.IfThenElse):
            inside = self._visit(statement.then_case, n, around)
            return tirx.IfThenElse(statement.condition, inside, None)
        if not isinstance(statement, tirx.For):
            return statement
        if not _is_outermost(statement):
            return with_body(statement, self._visit(statement.body, n, (*around, statement)))
        trees = [x for x in _concurrent(statement) if _kind(x) == "tree"]
        margin = _accumulated(statement)
        if not trees or margin is None:
            return statement
        statement, trees = _with_threads_in_common(self.sch, statement, trees)
        return _Region(self.sch, statement, tuple(trees), margin, n, around).rewrite()


def _is_outermost(loop: tirx.For) -> bool:
    """Whether partial sums inside live as long as this loop.

    A parallel loop, a thread block of a GPU, or blocks that share the rows.
    """
    level = _level(loop)
    return is_parallel(loop) or level == "block" or (level == "grid" and _kind(loop) == "tree")


def _concurrent(loop: tirx.For) -> list[tirx.For]:
    """The loops here and inside whose iterations run at the same time, outermost first."""
    found: list[tirx.For] = []

    def look(x: tirx.For) -> None:
        if is_parallel(x) or _level(x):
            found.append(x)

    tvm_ffi.structural_walk(loop, (tirx.For, look))
    return found


def _with_threads_in_common(
    sch: Schedule, region: tirx.For, trees: list[tirx.For]
) -> tuple[tirx.For, list[tirx.For]]:
    """Let loops beside each other have one variable if they are on one dimension of a GPU.

    Returns the region, and the longest loop of each dimension: the others leave sums at zero.
    """
    kept = list[tirx.For]()
    for loop in trees:
        mine = [x for x in trees if _level(x) and x.annotations[GPU] == loop.annotations.get(GPU)]
        longest = max(mine or [loop], key=lambda x: sch[_name(x)].count or 0)
        if any(longest.same_as(x) for x in kept):
            continue
        kept.append(longest)
        if len(mine) > 1:
            region = _like(region, {x.loop_var for x in mine}, longest)
    return region, kept


def _like(region: tirx.For, names: set[Any], first: tirx.For) -> tirx.For:
    """Give loops the variable of another one, and its way of adding up."""
    how = {key: x for key, x in first.annotations.items() if key == REDUCE}

    def rename(loop: tirx.For) -> tirx.For:
        if loop.loop_var not in names:
            return loop
        body = replaced(loop.body, {loop.loop_var: first.loop_var})
        notes = {key: x for key, x in loop.annotations.items() if key != REDUCE} | how
        return tirx.For(first.loop_var, loop.min, loop.extent, loop.kind, body, None, notes)

    return tvm_ffi.structural_map(region, (tirx.For, rename))


def _closed(s: Any, free: set[Any]) -> Any:
    """Return code that is at iteration 0 of the loops of some variables where it is in none."""
    if not free:
        return s
    if isinstance(s, tirx.SeqStmt):
        return tirx.SeqStmt([_closed(part, free) for part in s.seq])
    if isinstance(s, tirx.IfThenElse):
        return tirx.IfThenElse(s.condition, _closed(s.then_case, free), None)
    if isinstance(s, tirx.For):
        return with_body(s, _closed(s.body, free - {s.loop_var}))
    return replaced(s, {var: i64(0) for var in free})


def _level(loop: tirx.For) -> str:
    """Where a GPU runs the iterations: "grid", "block", or "" for one after the other."""
    return str(loop.annotations.get(f"{MARK}gpu", "")).split(".")[0]


def _kind(loop: tirx.For) -> str:
    return str(loop.annotations.get(f"{MARK}kind", ""))


def _accumulated(statement: tirx.Stmt) -> Any | None:
    """Return the buffer that walks are added to, or None where leaves are only stored."""
    found: list[Any] = []

    def look(store: tirx.BufferStore) -> None:
        if _added(store) is not None:
            found.append(store.buffer)

    tvm_ffi.structural_walk(statement, (tirx.BufferStore, look))
    return found[0] if found else None


def _added(store: tirx.BufferStore) -> Any | None:
    """Return v of a store `b[i] = b[i] + v` that holds a walk, or None."""
    value = store.value
    if not isinstance(value, tirx.Add) or find_walk(value) is None:
        return None
    same = getattr(value.a, "source", None)
    return value.b if same is not None and same.same_as(store.buffer) else None


@dataclass(frozen=True)
class _Region:
    """A parallel loop over trees, together with what is around.

    Attributes:
        sch: the schedule.
        loop: the outermost parallel loop.
        trees: the parallel loops over trees, outermost first.
        margin: the buffer that walks are added to.
        n: number of rows.
        around: the loops outside.
    """

    sch: Schedule
    loop: tirx.For
    trees: tuple[tirx.For, ...]
    margin: Any
    n: Any
    around: tuple[tirx.For, ...]

    @property
    def _levels(self) -> list[tirx.For]:
        """The loops that get a dimension."""
        return [x for x in self.trees if _strategy(x) != "atomic" and not self._is_one_group(x)]

    @property
    def _atomic(self) -> bool:
        return any(_strategy(loop) == "atomic" for loop in self.trees)

    def _is_one_group(self, loop: tirx.For) -> bool:
        return shuffled(loop) > 0 and int(self._count(loop)) == 1

    def rewrite(self) -> tirx.Stmt:
        """Return the statements in the place of the loop."""
        row0, rows, most_rows = self._range("batch", self.n)
        class0, classes, most_classes = self._range("class", self.margin.shape[1])
        counts = [self._count(loop) for loop in self._levels]
        if not counts:
            return self._redirected(lambda indices: (self.margin, list(indices)))
        dtype = self.margin.dtype
        shape = (*counts, most_classes, most_rows)
        shared = all(_is_shared(loop) for loop in self._levels)
        part = tirx.decl_buffer(shape, dtype, "part", scope="shared" if shared else "global")
        own_vars = [x.loop_var for x in self._levels]
        own = [tirx.floordiv(x.loop_var, i64(shuffled(x) or 1)) for x in self._levels]

        def place(indices: Sequence[Any]) -> tuple[Any, list[Any]]:
            return part, [*own, indices[1] - class0, indices[0] - row0]

        code = Code()
        code.add(tirx.AllocBuffer(part))
        spread = any(_level(loop) for loop in _concurrent(self.loop))
        if spread:  # constant lengths are cheap to divide by
            rows, classes = _known(rows, most_rows), _known(classes, most_classes)
        with code.nest("zero", [*counts, classes, rows], spread) as indices:
            code.add(tirx.BufferStore(part, tirx.const(0.0, dtype), list(indices)))
        code.add(_closed(self._redirected(place), set(own_vars)))
        for level in reversed(range(len(counts))):
            self._add_level(code, part, level, (row0, rows), (class0, classes))
        return code.finish()

    def _count(self, loop: tirx.For) -> Any:
        """Iterations of a loop over trees, also where fewer are left inside other loops.

        Groups of them where they are added up by shuffles.
        """
        count = self.sch[_name(loop)].count
        return loop.extent if count is None else i64(-(-count // (shuffled(loop) or 1)))

    def _range(self, kind: str, total: Any) -> tuple[Any, Any, Any]:
        """First value of a kind inside the region, how many there are here, and at most."""
        outside = [loop for loop in self.around if _kind(loop) == kind]
        first = sum((value_of(loop, self.n) for loop in outside), i64(0))
        inside = [[x for x in path if x.kind == kind] for path in paths(self.sch[_name(self.loop)])]
        if any(loop.last is None for path in inside for loop in path):
            return first, tirx.max(i64(0), total - first), total
        span = i64(1 + max(sum(loop.last or 0 for loop in path) for path in inside))
        return first, tirx.max(i64(0), tirx.min(span, total - first)), span

    def _redirected(self, place: Any) -> tirx.Stmt:
        def store(old: tirx.BufferStore) -> tirx.BufferStore:
            added = _added(old)
            if added is None:
                return old
            buffer, indices = place(old.indices)
            load = tirx.BufferLoad(buffer, indices)
            if self._atomic:
                total = tirx.call_intrin(added.ty, ops.ATOMIC_ADD, load, added)
                return tirx.BufferStore(buffer, total, indices)
            return tirx.BufferStore(buffer, load + added, indices)

        return tvm_ffi.structural_map(self.loop, (tirx.BufferStore, store))

    def _add_level(
        self, code: Code, part: Any, level: int, rows: tuple[Any, Any], classes: tuple[Any, Any]
    ) -> None:
        """Add up one dimension: the outermost into the margins, others into their element 0."""
        if _level(self._levels[level]):
            self._add_level_by_threads(code, part, level, rows, classes)
            return
        outer = [self._count(loop) for loop in self._levels[:level]]
        inner = [i64(0)] * (len(self._levels) - level - 1)
        first = 1 if level else 0
        strategy = _strategy(self._levels[level])
        width = int(strategy.split()[1]) if strategy.startswith("vector") else 1
        count = self._count(self._levels[level]) - first
        with code.nest("add", [*outer, count, classes[1]]) as (*places, i, c):
            for lanes, begin, groups in code.groups(rows[1], width):
                with code.repeat("row", groups) as group, code.lanes("lane", lanes) as lane:
                    r = begin + group * lanes + lane
                    source = tirx.BufferLoad(part, [*places, i + first, *inner, c, r])
                    if level:
                        target, at = part, [*places, i64(0), *inner, c, r]
                    else:
                        target, at = self.margin, [rows[0] + r, classes[0] + c]
                    total = tirx.BufferLoad(target, at) + source
                    code.add(tirx.BufferStore(target, total, at))

    def _add_level_by_threads(
        self, code: Code, part: Any, level: int, rows: tuple[Any, Any], classes: tuple[Any, Any]
    ) -> None:
        """The same on a GPU, whose threads share the rows and classes.

        In shared memory the upper half is added to the lower one until one sum is left.
        """
        outer = [self._count(loop) for loop in self._levels[:level]]
        inner = [i64(0)] * (len(self._levels) - level - 1)
        count = self._count(self._levels[level])
        if _is_shared(self._levels[level]) and isinstance(count, tirx.IntImm):
            count = int(count)
            while count > 1:
                half = (count + 1) // 2
                spans = [*outer, i64(count - half), classes[1], rows[1]]
                with code.nest("halve", spans, spread=True) as (*places, i, c, r):
                    into, source = ([*places, i + x, *inner, c, r] for x in (0, half))
                    total = tirx.BufferLoad(part, into) + tirx.BufferLoad(part, source)
                    code.add(tirx.BufferStore(part, total, into))
                count = half
            count = i64(count)
        first = 1 if level else 0
        with code.nest("add", [*outer, classes[1], rows[1]], spread=True) as (*places, c, r):
            target, at, ends = part, [*places, i64(0), *inner, c, r], [True]
            if not level:
                target, at = self.margin, [rows[0] + r, classes[0] + c]
                ends = [i < end for i, end in zip(at, target.shape, strict=True)]
            with code.block(lambda body: tirx.IfThenElse(tirx.all(*ends), body, None)):
                with code.repeat("each", count - first) as i:
                    source = tirx.BufferLoad(part, [*places, i + first, *inner, c, r])
                    code.add(tirx.BufferStore(target, tirx.BufferLoad(target, at) + source, at))


def _known(here: Any, most: Any) -> Any:
    """A number of things, or the most that there can be if that is known."""
    return most if isinstance(most, tirx.IntImm) else here


def shuffled(loop: tirx.For) -> int:
    """Return how many threads that share a loop add up their sums by shuffles; 0 for none."""
    strategy = _strategy(loop)
    vector = strategy.startswith("vector") and _level(loop) == "block"
    return int(strategy.split()[1]) if vector else 0


def _is_shared(loop: tirx.For) -> bool:
    """Whether the partial sums of a loop lie in shared memory."""
    return _strategy(loop) == "shared" or shuffled(loop) > 0


def _strategy(loop: tirx.For) -> str:
    return str(loop.annotations.get(REDUCE, "plain"))


def _name(loop: tirx.For) -> str:
    return str(loop.annotations[f"{MARK}name"])
