"""The code of what samples in leaves say together: quantiles, means, scores and proximities.

takes: the name of a tally; gives: a TIR function (leaves, arrays of the model ..., results).

    for each row
        for the leaf of each tree, for each sample in it    counts[rank] += 1
        for the ranks that were touched, ascending          the tally
        for the same samples again                          counts[rank] = 0

A sample is a training row in the leaf that it reached, and known by its rank among the sorted
targets. A second table counts the samples of each block of ranks, so that a row costs what its
samples do, however many the model was trained on. Each part of the rows has counters of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tvm
from tvm import tirx

from ..runtime.results import OF_SAMPLES, SHARED
from .builder import Builder
from .contribution_lookup import PREFETCH, TO_READ
from .ir import guard, i64
from .ops import keep_rounded

BITS = 8
"""Ranks of a block, as a power of two."""

AHEAD = 6
"""Trees between the one whose samples are counted, and that whose samples are fetched."""

REAL, WHOLE, PLACE = "float64", "int64", "int32"

MODEL = ("offsets", "starts", "ranks", "values", "shares", "order")
"""Arrays of the model: the first node of each tree (T,), the first sample of each node (M + 1,),
ranks of samples (S,), values by rank (N,), one over the samples of each node (M,) and the training
row of each rank (N,)."""


def takes_numbers(name: str) -> bool:
    """Return whether a tally takes a number for each row: its samples, or what is observed."""
    return name.endswith(SHARED) or name == "crps"


def emit_tally(name: str, rank_dtype: str) -> tirx.PrimFunc:
    """Return the function of a tally.

    Args:
        name: one of `OF_SAMPLES`.
        rank_dtype: of ranks.

    Emits:
        a function (leaves int32 (n, t), arrays of `MODEL` ..., numbers float64 (n,) if it takes
        them, thresholds (n, q) of the dtype of sums for `select`, counts (parts, N), blocks int32
        (parts, N / 256 + 1), results ...). Counts and blocks are zero before and after.
    """
    return _Tally(name, rank_dtype).emit()


class _Tally:
    """A tally under construction."""

    def __init__(self, name: str, rank_dtype: str) -> None:
        self.name, self.code = name, Builder()
        self.shared = name.endswith(SHARED)
        self.sum_dtype = REAL if self.shared else WHOLE
        n, self.n_trees, parts, self.n_ranks, q = (tirx.Var(x, WHOLE) for x in "ntprq")
        self.n_rows, self.parts, self.n_thresholds = n, parts, q
        own = {"ranks": rank_dtype, "values": REAL, "shares": REAL, "order": PLACE}
        self.leaves = _declare("leaves", (n, self.n_trees), PLACE)
        # the table of addresses says nothing of lengths
        self.model = {x: _declare(x, (i64(1 << 40),), own.get(x, WHOLE)) for x in MODEL}
        self.numbers = _declare("numbers", (n,), REAL)
        self.thresholds = _declare("thresholds", (n, q), self.sum_dtype)
        self.counts = _declare("counts", (parts, self.n_ranks), REAL if self.shared else PLACE)
        self.blocks = _declare("blocks", (parts, tirx.Var("b", WHOLE)), PLACE)
        shapes = {"select": (n, q), "proximity": (n, self.n_ranks)}
        shape = shapes.get(name.removesuffix(SHARED), (n,))
        self.results = {x: _declare(x, shape, y) for x, y in OF_SAMPLES[name].items()}

    def emit(self) -> tirx.PrimFunc:
        """Return the function."""
        code, takes = self.code, [self.leaves, *self.model.values()]
        takes += [self.numbers] if takes_numbers(self.name) else []
        takes += [self.thresholds] if self.name.startswith("select") else []
        with code.parallel("part", self.parts) as self.part:
            first = code.hold("first", tirx.floordiv(self.n_rows * self.part, self.parts))
            last = tirx.floordiv(self.n_rows * (self.part + 1), self.parts)
            with code.repeat("at", last - first) as at:
                self.row = code.hold("row", first + at)
                getattr(self, f"give_{self.name.removesuffix(SHARED)}")()
        params = [*takes, self.counts, self.blocks, *self.results.values()]
        return tirx.PrimFunc(params, code.finish())

    # -- samples ----------------------------------------------------------------------------------

    @contextmanager
    def _each_sample(self, at_leaf: Callable[[Any, Any], None] | None = None) -> Iterator[Any]:
        """Open a loop over the ranks of all samples, in the order of trees.

        Args:
            at_leaf: is told the node of each leaf, and how many samples it has.
        """
        code, model = self.code, self.model
        with code.repeat("tree", self.n_trees) as tree:
            self._fetch(model["starts"][self._node(tree + 2 * AHEAD)])
            self._fetch(model["ranks"][model["starts"][self._node(tree + AHEAD)]])
            node = code.hold("node", self._node(tree))
            begin = code.hold("begin", model["starts"][node])
            count = code.hold("count", model["starts"][node + 1] - begin)
            if at_leaf is not None:
                at_leaf(node, count)
            with code.repeat("sample", count) as sample:
                yield code.hold("rank", model["ranks"][begin + sample].astype(WHOLE))

    def _node(self, tree: Any) -> Any:
        """Return the number of the leaf that a row reaches in a tree, or in the last one."""
        tree = tirx.min(tree, self.n_trees - 1)
        return self.model["offsets"][tree] + self.leaves[self.row, tree].astype(WHOLE)

    def _fetch(self, load: Any) -> None:
        """Emit what brings an element near, before it is read."""
        address = tirx.address_of(load)
        self.code.add(tirx.Evaluate(tirx.call_llvm_intrin("void", PREFETCH, address, *TO_READ)))

    def _count(self) -> None:
        """Emit what counts the samples of a row, and how many they are."""
        code, one = self.code, tirx.const(1, PLACE)
        self.total = code.hold("total", i64(0))
        weight = code.hold("weight", _real(1.0)) if self.shared else one

        def start(node: Any, count: Any) -> None:
            code.put(self.total, self.total + count)
            if self.shared:
                share = keep_rounded(self.model["shares"][node] * self.numbers[self.row])
                code.put(weight, share / self.n_trees.astype(REAL))

        with self._each_sample(start) as rank:
            block = rank >> BITS
            code.store(self.counts, self.counts[self.part, rank] + weight, [self.part, rank])
            code.store(self.blocks, self.blocks[self.part, block] + one, [self.part, block])

    def _clear(self) -> None:
        """Emit what sets counters to zero: those that were touched, or all if that is less."""
        code, zero = self.code, tirx.const(0, PLACE)
        empty = _real(0.0) if self.shared else zero
        few = self.total * 2 < self.n_ranks
        with code.block(lambda body: guard(body, [few])), self._each_sample() as rank:
            code.store(self.counts, empty, [self.part, rank])
            code.store(self.blocks, zero, [self.part, rank >> BITS])
        with code.block(lambda body: guard(body, [tirx.Not(few)])):
            with code.repeat("rank", self.n_ranks) as rank:
                code.store(self.counts, empty, [self.part, rank])
            with code.repeat("block", self.blocks.shape[1]) as block:
                code.store(self.blocks, zero, [self.part, block])

    def _load(self, rank: Any) -> Any:
        return self.counts[self.part, rank]

    def _end(self, block: Any) -> Any:
        """Return the rank behind a block."""
        return tirx.min((block + 1) << BITS, self.n_ranks)

    @contextmanager
    def _each_touched(self) -> Iterator[tuple[Any, Any]]:
        """Open a loop over ranks that have samples, ascending: (rank, their weight, float64)."""
        code = self.code
        with code.repeat("block", self.blocks.shape[1]) as block:
            used = self.blocks[self.part, block] > 0
            with code.block(lambda body: guard(body, [used])):
                first = code.hold("first_rank", block << BITS)
                with code.repeat("in_block", self._end(block) - first) as place:
                    rank = code.hold("rank", first + place)
                    weight = code.hold("weight", self._load(rank).astype(REAL))
                    with code.block(lambda body: guard(body, [weight > 0])):
                        yield rank, weight

    # -- tallies -------------------------------------------------------------------------------

    def give_totals(self) -> None:
        """Count the samples of each row, or add up the weights in the order of ranks."""
        code = self.code
        total = code.hold("sum", tirx.const(0, self.sum_dtype))
        if self.shared:
            self._count()
            with self._each_touched() as (_, weight):
                code.put(total, total + weight)
            self._clear()
        else:
            starts = self.model["starts"]
            with code.repeat("tree", self.n_trees) as tree:
                node = code.hold("node", self._node(tree))
                code.put(total, total + starts[node + 1] - starts[node])
        code.store(self.results["total"], total, [self.row])

    def give_mean(self) -> None:
        """Average the values in the order of ranks, each with its weight."""
        code = self.code
        self._count()
        total, weights = code.hold("sum", _real(0.0)), code.hold("weights", _real(0.0))
        with self._each_touched() as (rank, weight):
            code.put(total, total + keep_rounded(self.model["values"][rank] * weight))
            code.put(weights, weights + weight)
        code.store(self.results["mean"], total / weights, [self.row])
        self._clear()

    def give_mean_in_order(self) -> None:
        """Average the values of all samples in the order of trees."""
        code = self.code
        total, count = code.hold("sum", _real(0.0)), code.hold("n", i64(0))
        with self._each_sample() as rank:
            code.put(total, total + self.model["values"][rank])
            code.put(count, count + 1)
        code.store(self.results["mean"], total / count.astype(REAL), [self.row])

    def give_crps(self) -> None:
        """Integrate the square between the distribution and the step at what is observed."""
        code, observed = self.code, self.code.hold("observed", self.numbers[self.row])
        self._count()
        score, below = code.hold("score", _real(0.0)), code.hold("below", _real(0.0))
        last = code.hold("last", observed)
        with self._each_touched() as (rank, weight):
            value = code.hold("value", self.model["values"][rank])
            share = code.hold("share", below / self.total.astype(REAL))
            left = tirx.min(value, observed) - tirx.min(last, observed)
            right = tirx.max(value, observed) - tirx.max(last, observed)
            rest = _real(1.0) - share
            code.put(score, score + (share * share * left + rest * rest * right))
            code.put(below, below + weight)
            code.put(last, value)
        beyond = tirx.max(observed - last, _real(0.0))
        known = tirx.min(self.total, i64(1)).astype(REAL)  # or 0 / 0, where there are no samples
        code.store(self.results["score"], (score + beyond) / known, [self.row])
        self._clear()

    def give_proximity(self) -> None:
        """Count for each training row in how many trees, with its weight, it is in the leaf."""
        result = self.results["proximity"]
        with self._each_sample() as rank:
            place = [self.row, self.model["order"][rank].astype(WHOLE)]
            self.code.store(result, result[place[0], place[1]] + tirx.const(1, PLACE), place)

    def give_select(self) -> None:
        """Find the rank at which the weights of a row pass each threshold, and the one before."""
        self._count()
        with self.code.repeat("at", self.n_thresholds) as self.at:
            self._find()
        self._clear()

    def _find(self) -> None:
        """Emit the search for one threshold: `ceil` passes it, `floor` is the one before.

        Where none passes it, both are the last one that has samples. Where the first of these does,
        `floor` is rank 0, as in quantile-forest.
        """
        code, ranks = self.code, self.n_ranks
        threshold = code.hold("threshold", self.thresholds[self.row, self.at])
        below = code.hold("below", tirx.const(0, self.sum_dtype))
        rank, block = code.hold("rank", i64(0)), code.hold("block", i64(0))
        if not self.shared:  # or weights would be added up in another order
            last_block = self.blocks.shape[1] - 1
            here = self.blocks[self.part, tirx.min(block, last_block)].astype(self.sum_dtype)
            more = tirx.And(block <= last_block, below + here <= threshold)
            with code.block(lambda body: tirx.While(more, body)):
                code.put(below, below + here)
                code.put(block, block + 1)
            code.put(rank, tirx.min(block << BITS, ranks))
        here = self._load(tirx.min(rank, ranks - 1)).astype(self.sum_dtype)
        more = tirx.And(rank < ranks, below + here <= threshold)
        with code.block(lambda body: tirx.While(more, body)):
            code.put(below, below + here)
            code.put(rank, rank + 1)
        floor = code.hold("floor", rank - 1)
        more = tirx.And(floor > 0, self._load(tirx.max(floor, i64(0))) <= 0)
        with code.block(lambda body: tirx.While(more, body)):
            code.put(floor, floor - 1)
        code.put(floor, tirx.max(floor, i64(0)))
        ceil = code.hold("ceil", tirx.Select(rank < ranks, rank, floor))
        values = {
            "floor": floor.astype(PLACE),
            "ceil": ceil.astype(PLACE),
            "below": below,
            "weight": self._load(ceil).astype(self.sum_dtype),
        }
        for name, value in values.items():
            code.store(self.results[name], value, [self.row, self.at])


def _declare(name: str, shape: tuple[Any, ...], dtype: str) -> Any:
    itemsize = tvm.DataType(dtype).itemsize
    return tirx.decl_buffer(shape, dtype, name, data_alignment=itemsize)


def _real(value: float) -> Any:
    return tirx.FloatImm(REAL, value)
