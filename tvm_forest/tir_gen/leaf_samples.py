"""Emits tallies of the samples in leaves: quantiles, means, scores and proximities.

takes: the name of a tally; gives: a TIR function (leaves, arrays of the model ..., results).

    for each row
        for the leaf of each tree, for each sample in it    counts[rank] += 1
        for the ranks that have samples, ascending          compute the tally
        for the same samples again                          counts[rank] = 0

A sample is a training row in the leaf that it reached; it is identified by its rank among the
sorted targets. A second table counts the samples of each block of ranks, so that the time for a row
depends on the number of its samples, not on the number of training rows. Rows are divided into
parts, which run in parallel, with their own counters.
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
"""A block of ranks has 2 ** BITS ranks."""

AHEAD = 6
"""Number of trees by which the prefetch of samples is ahead of counting them."""

REAL, WHOLE, PLACE = "float64", "int64", "int32"

MODEL = ("offsets", "starts", "ranks", "values", "shares", "order")
"""Names of the arrays of the model: the first node of each tree (T,), the first sample of each node
(M + 1,), the ranks of the samples (S,), the target of each rank (N,), 1 / the number of samples of
each node (M,), and the training row of each rank (N,)."""


def takes_numbers(name: str) -> bool:
    """Return whether a tally takes a number for each row.

    It is the number of the row's samples if samples of a leaf share a weight, and the observed
    value for "crps".
    """
    return name.endswith(SHARED) or name == "crps"


def emit_tally(name: str, rank_dtype: str) -> tirx.PrimFunc:
    """Return the function of a tally.

    Args:
        name: one of `OF_SAMPLES`.
        rank_dtype: dtype of the ranks.

    Emits:
        A function (leaves int32 (n, t), arrays of `MODEL` ..., numbers float64 (n,) see
        `takes_numbers`, thresholds (n, q) for `select`, counts (parts, N), blocks int32 (parts,
        N / 256 + 1), results ...). Thresholds are int64, or float64 if samples of a leaf share a
        weight. Counts and blocks must be zero, and are zero again afterwards.
    """
    return _Tally(name, rank_dtype).emit()


class _Tally:
    """Emits the function that computes one tally, such as "mean", for each row."""

    def __init__(self, name: str, rank_dtype: str) -> None:
        self.name, self.code = name, Builder()
        self.shared = name.endswith(SHARED)
        self.sum_dtype = REAL if self.shared else WHOLE
        n, self.n_trees, parts, self.n_ranks, q = (tirx.Var(x, WHOLE) for x in "ntprq")
        self.n_rows, self.parts, self.n_thresholds = n, parts, q
        own = {"ranks": rank_dtype, "values": REAL, "shares": REAL, "order": PLACE}
        self.leaves = _declare("leaves", (n, self.n_trees), PLACE)
        # the function gets only addresses of these arrays, so their lengths do not matter
        self.model = {x: _declare(x, (i64(1 << 40),), own.get(x, WHOLE)) for x in MODEL}
        self.numbers = _declare("numbers", (n,), REAL)
        self.thresholds = _declare("thresholds", (n, q), self.sum_dtype)
        self.counts = _declare("counts", (parts, self.n_ranks), REAL if self.shared else PLACE)
        self.blocks = _declare("blocks", (parts, tirx.Var("b", WHOLE)), PLACE)
        shapes = {"select": (n, q), "proximity": (n, self.n_ranks)}
        shape = shapes.get(name.removesuffix(SHARED), (n,))
        self.results = {x: _declare(x, shape, y) for x, y in OF_SAMPLES[name].items()}

    def emit(self) -> tirx.PrimFunc:
        """Return the function of the tally."""
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
        """Open a loop over all samples of the row, in the order of trees; yield a sample's rank.

        Args:
            at_leaf: function that emits code at each leaf, given its node and number of samples.
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
        """Return the leaf that the row reaches in a tree, by its index among all trees' nodes.

        Tree numbers past the last one stand for the last tree.
        """
        tree = tirx.min(tree, self.n_trees - 1)
        return self.model["offsets"][tree] + self.leaves[self.row, tree].astype(WHOLE)

    def _fetch(self, load: Any) -> None:
        """Emit a prefetch of an element, given by its load."""
        address = tirx.address_of(load)
        self.code.add(tirx.Evaluate(tirx.call_llvm_intrin("void", PREFETCH, address, *TO_READ)))

    def _count(self) -> None:
        """Emit the counting of the samples of the row by rank, and their total number."""
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
        """Emit the reset of the counters to zero: only of the used ones, or of all if cheaper."""
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
        """Return the rank after the last one of a block."""
        return tirx.min((block + 1) << BITS, self.n_ranks)

    @contextmanager
    def _each_touched(self) -> Iterator[tuple[Any, Any]]:
        """Open a loop over the ranks that have samples, ascending; yield (rank, weight float64)."""
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
        """Emit the number of the row's samples, or the sum of their weights in order of ranks."""
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
        """Emit the weighted mean of the samples' targets, added in the order of ranks."""
        code = self.code
        self._count()
        total, weights = code.hold("sum", _real(0.0)), code.hold("weights", _real(0.0))
        with self._each_touched() as (rank, weight):
            code.put(total, total + keep_rounded(self.model["values"][rank] * weight))
            code.put(weights, weights + weight)
        code.store(self.results["mean"], total / weights, [self.row])
        self._clear()

    def give_mean_in_order(self) -> None:
        """Emit the mean of the samples' targets, added in the order of trees."""
        code = self.code
        total, count = code.hold("sum", _real(0.0)), code.hold("n", i64(0))
        with self._each_sample() as rank:
            code.put(total, total + self.model["values"][rank])
            code.put(count, count + 1)
        code.store(self.results["mean"], total / count.astype(REAL), [self.row])

    def give_crps(self) -> None:
        """Emit the CRPS, a score of the samples' distribution given the observed value.

        It is the integral of the squared difference between the distribution function and the step
        function at the observed value.
        """
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
        known = tirx.min(self.total, i64(1)).astype(REAL)  # without samples the score is 0 / 0
        code.store(self.results["score"], (score + beyond) / known, [self.row])
        self._clear()

    def give_proximity(self) -> None:
        """Emit the number of samples of each training row in the leaves of a predicted row."""
        result = self.results["proximity"]
        with self._each_sample() as rank:
            place = [self.row, self.model["order"][rank].astype(WHOLE)]
            self.code.store(result, result[place[0], place[1]] + tirx.const(1, PLACE), place)

    def give_select(self) -> None:
        """Emit the search for the ranks at which the sum of weights passes each threshold."""
        self._count()
        with self.code.repeat("at", self.n_thresholds) as self.at:
            self._find()
        self._clear()

    def _find(self) -> None:
        """Emit the search for one threshold.

        `ceil` is the first rank at which the sum of weights is above the threshold, and `floor` the
        rank with samples before it. If the sum never is, both are the last rank with samples. If
        `ceil` is the first rank with samples, `floor` is 0, as in quantile-forest.
        """
        code, ranks = self.code, self.n_ranks
        threshold = code.hold("threshold", self.thresholds[self.row, self.at])
        below = code.hold("below", tirx.const(0, self.sum_dtype))
        rank, block = code.hold("rank", i64(0)), code.hold("block", i64(0))
        if not self.shared:  # sums of float weights by blocks would have another order
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
