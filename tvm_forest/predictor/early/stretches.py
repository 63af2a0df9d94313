"""Sums that grow stretch by stretch, for the rows that are not decided yet.

takes: a Predictor, rows, what decides; gives: the rows that nothing has decided.

    rows 0 1 2 3 4 5 6 7    trees 0 to 24, added to the sums of these rows: 1, 4 and 5 are decided
    rows 0 2 3 6 7          trees 25 to 49: 0 and 7 are decided
    rows 2 3 6              ...

Each stretch is a compiled function of its trees, which goes on from the sums that it finds. So a
sum has the bits that it has in the whole model after as many trees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

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
from .bounds import Bounds, start_of_sums

if TYPE_CHECKING:
    from .. import building
    from ..predictor import Predictor
else:
    building = import_late("tvm_forest.predictor.building")  # which imports who has stretches

STRETCHES = 8
"""Into how many stretches of equally many rounds a model is cut."""

WORTH_A_COPY = 8
"""Rows are copied together where one in so many is decided."""

Decide = Callable[[int, Array, Array], Array | None]
"""From a stretch, the places of rows and their sums to which rows are still undecided, bool (R,);
None where the stretch can decide none."""


class Stretches:
    """The stretches of a model.

    Attributes:
        forest: the model in canonical form.
        ends: the round behind each stretch, from 0 on.
    """

    def __init__(self, whole: Predictor, ends: list[int] | None = None) -> None:
        """Compile the functions, or find them in the cache.

        Args:
            whole: has the model.
            ends: see the attribute; None for stretches of equally many rounds.
        """
        self.forest = forest = whole.forest
        rounds = forest.n_trees // forest.round_size
        self.ends = ends or sorted({rounds * k // STRETCHES for k in range(STRETCHES + 1)})
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
        """Bounds of what comes behind each."""
        return Bounds(self.forest, self.ends)

    def run(self, rows: Array, n_jobs: int | None, decide: Decide) -> Array:
        """Add trees to the sums of rows as long as they are undecided.

        Args:
            rows: (R, row_width), as `to_rows` gives them.
            n_jobs: see `Predictor.predict`.
            decide: is asked behind each stretch, also for rows about which it has decided.

        Returns:
            The places of rows that are undecided behind the last stretch.
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


def _write(chosen: dict[int, Choice], work: Workload) -> dict[int, Schedule]:
    """Return schedules by which a part of the trees walks as the whole does; none if one is unfit.

    Those that are chosen for the part are for a model so small that caches have room for it.
    """
    space, written = Space(work, work.start, 1, threads=False), dict[int, Schedule]()
    for smallest, choice in chosen.items():
        schedule = space.schedule(choice.point)
        if schedule is None:
            return {}
        written[smallest] = choice._replace(schedule=schedule).write(work)
    return written


def _cut(forest: Forest, begin: int, end: int) -> Forest:
    """Return the forest of some trees in canonical form, whose values are their sums."""
    summing: dict[str, Any] = {"link": "identity", "value_dtype": None, "aggregate": "sum"}
    summing |= {"base_first": True, "sum_scale": 1.0, "label_rule": "none", "labels": None}
    summing |= {"targets": (), "score_offset": None, "tree_round": None, "with_all_rounds": None}
    summing |= {"copied_value": None, "bare_value": None, "tree_weight": None}
    part = take_trees(replace(forest, **summing), np.arange(begin, end))
    return replace(part, n_rounds=0, rounds_left_out=0)
