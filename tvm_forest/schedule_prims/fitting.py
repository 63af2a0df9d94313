"""What a schedule asks of a model: that it is of this size, and how the model is rewritten.

takes: Forest and Schedule; gives: Forest, or an error if the schedule is for another model.
"""

from __future__ import annotations

from ..errors import ScheduleError
from ..forest import Forest
from .directive import DIRECTIVES
from .schedule import Schedule


def check_fit(where: str, forest: Forest, sch: Schedule) -> None:
    """Refuse what is no schedule, or the schedule of another model.

    Raises:
        ScheduleError: as said.
    """
    if not isinstance(sch, Schedule):
        raise ScheduleError(
            f"{where}: argument 'schedule': expected a Schedule, got {type(sch).__name__}; "
            "make one with tvm_forest.new_schedule(model)"
        )
    size = (forest.n_trees, forest.n_outputs)
    if (sch.trees, sch.classes, sch.vectors) != (*size, forest.has_vectors):
        vectors = " with vectors in their leaves" if forest.has_vectors else ""
        raise ScheduleError(
            f"{where}: argument 'schedule': made for {sch.trees} trees and {sch.classes} classes, "
            f"the model has {size[0]} and {size[1]}{vectors}; make one with "
            f"tvm_forest.new_schedule(model)\n{sch}"
        )


def rewrite(forest: Forest, sch: Schedule) -> Forest:
    """Rewrite a model as the schedule asks.

    Args:
        forest: trees stand in the order `round * C + class`.
        sch: its `rewrites` are carried out in order.

    Raises:
        ScheduleError: a rewrite needs a leaf profile that the forest does not have.
        BuildError: padding makes the trees too large.
    """
    for step in sch.rewrites:
        onto_forest = DIRECTIVES[step.do].onto_forest
        assert onto_forest is not None, f"{step.do} is no rewrite of the model"
        forest = onto_forest(forest, **step.arguments)
    return forest
