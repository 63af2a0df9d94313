"""Decides about rows by early stopping if that is possible and pays, else by the whole model.

takes: Predictor, rows; gives: decisions for all rows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...forest import Array, Forest, choose_classes
from ...system.process.locks import make_lock
from ..inputs import to_blocks
from .deciding import EVERY, Above, Best, Leader, can_lead, rises
from .stretches import Stretches, read_ends
from .two_ways import EARLY, TwoWays

if TYPE_CHECKING:
    from ..predictor import Predictor

LEAST_ROWS = 64
"""Fewest rows for which early stopping is tried, since every stretch costs a call."""

LEAST_STEPS = 1000
"""Fewest hops and leaves per row for which it is tried: fewer take less than a microsecond."""

PROBED_ROWS, MANY_ROWS = 1024, 1 << 14
"""Rows that use one of the two ways together, until both ways were timed, and afterwards."""

MAX_THRESHOLDS = 8
"""Thresholds whose deciders are kept; the least recently used is dropped first."""

MAX_ENDS = 4
"""Choices of `ask_after` whose stretches are kept; the least recently used is dropped first."""

Sums = tuple[Array, Array]
"""Margins and values, both (R, C)."""


class Answering:
    """Keeps the stretches, deciders and times of early stopping for a model.

    A Predictor owns one, and passes itself to each call: a reference back would be a cycle. That
    one has others, for rows that are asked after other numbers of trees.
    """

    def __init__(self, ends: tuple[int, ...] | None = None) -> None:
        """Begin without stretches; `ends` are those of `Stretches`, None for equal ones."""
        self._ends, self._others = ends, OrderedDict[tuple[int, ...], Answering]()
        self._can_stop: bool | None = None  # until the first call
        self._stretches: Stretches | None = None
        self._leader: Leader | None = None
        self._cut: Stretches | None = None  # by `cut_at`
        self._above = OrderedDict[Any, Above]()
        self._ways = dict[int, TwoWays]()  # of `best`, by output
        self._lock = make_lock()  # held while stretches and deciders are made

    def asking_after(self, where: str, trees: Any, forest: Forest) -> Answering:
        """Return the Answering that asks rows after these numbers of trees, see `read_ends`.

        It is this one if `trees` is None. The latest others are kept, with the code of their
        stretches and the times of both ways.

        Args:
            where: the method, for messages.
            trees: the argument `ask_after`.
            forest: the model in canonical form.

        Raises:
            InputError: see `read_ends`.
        """
        if trees is None:
            return self
        ends = read_ends(where, trees, forest)
        with self._lock:
            kept = ends in self._others
            other = self._others[ends] = self._others.pop(ends) if kept else Answering(ends)
            while len(self._others) > MAX_ENDS:
                self._others.popitem(last=False)
        return other

    def above(
        self, whole: Predictor, rows: Any, threshold: Any, outputs: slice, n_jobs: int | None
    ) -> Array:
        """Return whether values of some outputs are above a threshold, bool (R, C')."""

        def answer(sums: Sums) -> Array:
            return np.asarray(sums[1][:, outputs] > threshold)

        read = self._read(whole, rows, rises(whole.forest))
        if read is None:
            return answer(whole._sums(rows, n_jobs, None))
        decider = self._find_above(threshold, outputs)
        found = np.empty((len(read), decider.yes.shape[1]), bool)
        return self._answer(whole, read, n_jobs, decider, answer, found)

    def classes(self, whole: Predictor, rows: Any, n_jobs: int | None) -> Array:
        """Return the class number of each row, int64, as `Predictor.predict_class` gives it."""
        forest = whole.forest

        def answer(sums: Sums) -> Array:
            return choose_classes(forest, *sums)

        if forest.class_rule == "half":
            above = self.above(whole, rows, 0.5, EVERY, n_jobs)
            return (above[:, 0] if forest.n_outputs == 1 else above).astype(np.int64)
        read = self._read(whole, rows, can_lead(forest))
        if read is None:
            return answer(whole._sums(rows, n_jobs, None))
        with self._lock:
            leader = self._leader = self._leader or Leader(self._get_stretches())
        return self._answer(whole, read, n_jobs, leader, answer, np.empty(len(read), np.int64))

    def best(self, whole: Predictor, rows: Any, k: int, output: int, n_jobs: int | None) -> Sums:
        """Find the k rows with the largest values of an output, the largest first.

        Returns:
            Row numbers, int64 (k,), and the values of these rows, (k,).
        """

        def sort(sums: Sums) -> Sums:
            values = sums[1][:, output]
            order = np.argsort(-values, kind="stable")[:k]
            return order, values[order]

        read = self._read(whole, rows, rises(whole.forest) and k > 0)
        if read is None or k >= len(read):
            return sort(whole._sums(rows, n_jobs, None))
        stretches, found = self._get_stretches(), list[Sums]()

        def at_once() -> None:
            found.append(sort(_predict(whole, read, n_jobs)))

        def early() -> None:
            left = stretches.run(read, n_jobs, Best(stretches, k, output).decide)
            order, values = sort(_predict(whole, read[left], n_jobs))
            found.append((left[order], values))

        ways = self._ways.setdefault(output, TwoWays())
        way = ways.choose()
        ways.take(way, len(read), early if way == EARLY else at_once)
        return found[0]

    def cut_at(self, whole: Predictor, ends: list[int]) -> Stretches:
        """Return stretches that end after the given rounds; made anew if the last call's differ."""
        with self._lock:
            if self._cut is None or self._cut.ends != ends:
                self._cut = Stretches(whole, ends)
            return self._cut

    def _read(self, whole: Predictor, rows: Any, is_known: bool) -> Array | None:
        """Return rows as an array if they may stop early; None if the whole model must be used.

        `is_known` is whether there is a rule for early stopping with this kind of model.

        Raises:
            InputError: rows of the wrong kind.
        """
        if not is_known or whole._job is not None:
            return None
        if self._can_stop is None:
            self._can_stop = _can_stop(whole)
        if not self._can_stop:
            return None
        read = to_blocks(rows, whole.forest)
        if not isinstance(read, np.ndarray) or len(read) < LEAST_ROWS:
            return None
        with self._lock:
            self._stretches = self._stretches or Stretches(whole, self._ends)
        return read if self._stretches.bounds.are_finite else None

    def _get_stretches(self) -> Stretches:
        assert self._stretches is not None, "rows may stop"
        return self._stretches

    def _find_above(self, threshold: Any, outputs: slice) -> Above:
        """Return the decider for a threshold, which is made unless an earlier call made it."""
        kind = str(getattr(threshold, "dtype", type(threshold)))
        key = (np.asarray(threshold).tobytes(), np.shape(threshold), kind, outputs.start)
        with self._lock:
            decider = self._above.pop(key, None)
            decider = decider or Above(self._get_stretches(), threshold, outputs)
            self._above[key] = decider
            while len(self._above) > MAX_THRESHOLDS:
                self._above.popitem(last=False)
        return decider

    def _answer(
        self,
        whole: Predictor,
        rows: Array,
        n_jobs: int | None,
        decider: Above | Leader,
        answer: Callable[[Sums], Array],
        found: Array,
    ) -> Array:
        """Write the decisions for rows into `found`, part by part, and return it.

        Args:
            whole, rows, n_jobs: as in `above`; rows from `_read`.
            decider: decides about rows early.
            answer: returns decisions, given margins and values.
            found: array for the decisions.
        """
        stretches, begin, ways = self._get_stretches(), 0, decider.ways
        while begin < len(rows):
            end = begin + (MANY_ROWS if ways.is_known else PROBED_ROWS)
            part, answers, way = rows[begin:end], found[begin:end], ways.choose()

            def early(part: Array = part, answers: Array = answers) -> None:
                left = stretches.run(part, n_jobs, decider.decide(answers))
                if len(left):
                    answers[left] = answer(_predict(whole, part[left], n_jobs))

            def at_once(part: Array = part, answers: Array = answers) -> None:
                answers[...] = answer(_predict(whole, part, n_jobs))

            ways.take(way, len(part), early if way == EARLY else at_once)
            begin = end
        return found


def _can_stop(whole: Predictor) -> bool:
    """Return whether rows of a model can stop early, and it is large enough to gain by that."""
    forest: Forest = whole.forest
    if whole.target.on_gpu:
        return False
    adds_up = forest.aggregate in ("sum", "average") and not forest.is_linear
    is_large = whole._functions.steps_per_row >= LEAST_STEPS and forest.sum_scale > 0
    return adds_up and is_large and all(x.keeps_order for x in whole.schedules.values())


def _predict(whole: Predictor, rows: Array, n_jobs: int | None) -> Sums:
    """Return margins and values, both (R, C), of rows from `to_blocks`."""
    functions = whole._functions
    results = functions.new_results(len(rows))
    functions.write_sums(rows, results, n_jobs)
    return results[functions.margin_place], results[-1]
