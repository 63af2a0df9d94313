"""Walks the trees stretch by stretch, with only those rows that are not decided yet.

takes: a Predictor, rows, a `Decide`; gives: numbers of the rows that stay undecided.

    rows 0 1 2 3 4 5 6 7    trees 0 to 24, added to the sums of these rows: 1, 4 and 5 are decided
    rows 0 2 3 6 7          trees 25 to 49: 0 and 7 are decided
    rows 2 3 6              ...

Each stretch has a compiled function, which adds its trees to the sums of the stretches before. So
the sums have the same bits as in the whole model after as many trees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InputError
from ...forest import Array, Forest
from ...forest.rewrites.ordering import take_trees
from ...runtime.results import RESUMED
from ...schedule_prims import Schedule
from ...search import heuristic
from ...search.space import Choice, Space
from ...search.workload import Workload
from ...system.late import import_late
from ...system.process.locks import cached_property
from ..compiling import compile_or_load
from ..functions import Functions
from ..inputs.checks import as_array
from .bounds import Bounds, start_of_sums

if TYPE_CHECKING:
    from .. import building
    from ..predictor import Predictor
else:
    building = import_late("tvm_forest.predictor.building")  # imports `predictor`

STRETCHES = 8
"""Number of stretches into which a model is cut, with equally many rounds each."""

WORTH_A_COPY = 8
"""Decided rows are removed from the batch, which copies the others, once they are 1 in 8."""

Decide = Callable[[int, Array, Array], Array | None]
"""Returns which rows are still undecided, bool (R,), given the number of a stretch, the numbers of
rows, and their sums; None if nothing can be decided after this stretch."""


class Stretches:
    """The rounds of a model cut into stretches, with a compiled function for each.

    Attributes:
        forest: the model in canonical form.
        ends: 0, and the round at which each stretch ends.
    """

    def __init__(self, whole: Predictor, ends: Sequence[int] | None = None) -> None:
        """Compile the functions, or find them in the cache.

        Args:
            whole: the predictor of the whole model.
            ends: see the attribute; None for stretches of equally many rounds.
        """
        self.forest = forest = whole.forest
        rounds = forest.n_trees // forest.round_size
        equal = {rounds * k // STRETCHES for k in range(STRETCHES + 1)}
        self.ends = sorted(equal) if ends is None else list(ends)
        self._functions = list[Functions]()
        given = whole.request.given if callable(whole.request.given) else None
        chosen = {} if given else heuristic.choose(Workload(forest, whole.target))
        for begin, end in pairwise(self.ends):
            part = _cut(forest, begin * forest.round_size, end * forest.round_size)
            written = _write(chosen, Workload(part, whole.target))
            plan = building.plan(part, written or given, whole.target)
            self._functions.append(Functions(*compile_or_load(plan.with_outputs(RESUMED))))

    @cached_property
    def bounds(self) -> Bounds:
        """Bounds on what the trees after each stretch add."""
        return Bounds(self.forest, self.ends)

    def run(self, rows: Array, n_jobs: int | None, decide: Decide) -> Array:
        """Add trees to the sums of rows, stretch by stretch, as long as rows are undecided.

        Args:
            rows: (R, row_width), from `to_rows`.
            n_jobs: see `Predictor.predict`.
            decide: called after each stretch; it may get rows that it has decided about before.

        Returns:
            Indices of the rows that are undecided after the last stretch.
        """
        sums = np.empty((len(rows), self.forest.n_outputs), self.forest.sum_dtype)
        sums[...] = start_of_sums(self.forest)
        places = np.arange(len(rows))
        for stretch, functions in enumerate(self._functions, 1):
            functions.write_sums(rows, [sums], n_jobs)
            undecided = decide(stretch, places, sums)
            if undecided is None:
                continue
            left = np.flatnonzero(undecided)
            is_last = stretch == len(self._functions)
            if is_last or (len(rows) - len(left)) * WORTH_A_COPY >= len(rows):
                sums, places = sums[left], places[left]
                rows = rows if is_last else rows[left]
            if not len(places):
                break
        return places


def read_ends(where: str, trees: Any, forest: Forest) -> tuple[int, ...]:
    """Read the argument `ask_after`, numbers of trees of each output; return `Stretches.ends`.

    Args:
        where: the method, for messages.
        trees: whole numbers from 1 on, ascending; the last may be all trees of an output.
        forest: the model in canonical form, which has a tree of each output in every round.

    Raises:
        InputError: they are not of that kind.
    """
    rounds = forest.n_trees // forest.round_size
    is_list = isinstance(trees, list | tuple | range | np.ndarray)
    given = as_array(trees if is_list else None)
    is_read = given.ndim == 1 and given.size > 0 and given.dtype.kind in "iu"
    ends = (0, *given.tolist()) if is_read else ()
    if not is_read or ends[-1] > rounds or any(a >= b for a, b in pairwise(ends)):
        of_each = " of each output" if forest.round_size > 1 else ""
        raise InputError(
            f"{where}: argument 'ask_after': expected ascending numbers of trees{of_each}, from 1 "
            f"to {rounds}, such as [{max(1, rounds // 4)}], got {trees!r:.80}; leave it out for "
            f"{STRETCHES} equal stretches"
        )
    return ends if ends[-1] == rounds else (*ends, rounds)


def _write(chosen: dict[int, Choice], work: Workload) -> dict[int, Schedule]:
    """Return the whole model's schedules for a part of its trees; {} if one does not fit the part.

    Schedules chosen for the part alone would suit a small model, whose trees stay in the caches.
    """
    space, written = Space(work, work.start, 1, threads=False), dict[int, Schedule]()
    for smallest, choice in chosen.items():
        schedule = space.schedule(choice.point)
        if schedule is None:
            return {}
        written[smallest] = choice._replace(schedule=schedule).write(work)
    return written


def _cut(forest: Forest, begin: int, end: int) -> Forest:
    """Return a forest of the trees `begin` to `end - 1`; its margins and values are plain sums."""
    summing: dict[str, Any] = {"link": "identity", "value_dtype": None, "aggregate": "sum"}
    summing |= {"base_first": True, "sum_scale": 1.0, "label_rule": "none", "labels": None}
    summing |= {"targets": (), "score_offset": None, "tree_round": None, "with_all_rounds": None}
    summing |= {"copied_value": None, "bare_value": None, "tree_weight": None}
    part = take_trees(replace(forest, **summing), np.arange(begin, end))
    return replace(part, n_rounds=0, rounds_left_out=0)
