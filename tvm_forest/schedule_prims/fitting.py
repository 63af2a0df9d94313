"""Checks that a schedule fits the model and the machine.

takes: Forest, Schedule, Target; gives: Forest as the schedule rewrites it, or an error if the
schedule is for another model or machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from ..errors import ScheduleError
from ..forest import Forest
from ..layouts import SIMDIZED, SIMDIZED_TREES
from ..layouts.protocol import Layout
from ..target import Target
from .directive import DIRECTIVES
from .nest import OUTPUT_KINDS, Nest
from .regions import find_regions, has_no_gaps, is_atomic
from .schedule import Schedule

_ADVICE = "make one with tvm_forest.new_schedule(model)"


def check_schedule(where: str, sch: Any) -> None:
    """Refuse a value that is not a Schedule.

    Raises:
        ScheduleError: `sch` is not a Schedule; the message names what to pass instead.
    """
    if not isinstance(sch, Schedule):
        advice = _ADVICE
        own = getattr(sch, "schedules", sch)  # those of a Predictor, by the sizes of batches
        if isinstance(own, Mapping) and any(isinstance(x, Schedule) for x in own.values()):
            name = "its values" if own is sch else "its `schedules`"
            advice = f"give one of {name}, such as that at {max(own)}"
        what = f"expected a Schedule, got {type(sch).__name__}"
        raise ScheduleError(f"{where}: argument 'schedule': {what}; {advice}")


def check_fit(where: str, forest: Forest, sch: Schedule) -> None:
    """Refuse a value that is not a Schedule, or a schedule for a model of another size.

    Raises:
        ScheduleError: `sch` is not a Schedule, or was made for a model of another size.
    """
    check_schedule(where, sch)
    size = (forest.n_trees, forest.n_outputs)
    if (sch.trees, sch.classes, sch.vectors) != (*size, forest.has_vectors):
        vectors = " with vectors in their leaves" if forest.has_vectors else ""
        what = f"made for {sch.trees} trees and {sch.classes} classes, the model has {size[0]} and"
        raise _error(sch, f"{what} {size[1]}{vectors}; {_ADVICE}", where)


def check_additions(aggregate: str, sch: Schedule) -> None:
    """Refuse a schedule that regroups additions if the model takes a minimum or maximum of leaves.

    Raises:
        ScheduleError: `aggregate` is "min" or "max", and the schedule does not keep the order of
            trees, see `Schedule.keeps_order`.
    """
    if aggregate in ("min", "max") and not sch.keeps_order:
        what = f"it adds up parts of the forest, but the model takes the {aggregate} of its"
        raise _error(sch, f"{what} leaves; run rows in parallel, not trees")


def check_exact(sch: Schedule) -> None:
    """Refuse a schedule that adds leaves in another order than the model.

    Raises:
        ScheduleError: it does not keep the order.
    """
    if not sch.keeps_order:
        what = "it adds the trees in another order than the model, so results differ in the last"
        raise _error(sch, f"{what} bits; allow that with exact=False")


def check_device(sch: Schedule, target: Target) -> None:
    """Refuse a schedule that the target cannot run.

    Raises:
        ScheduleError: a loop for a GPU, and the target is a CPU; or the target is a GPU, and a loop
            is for CPU threads, none is mapped to the GPU, none around walks that teams share is, or
            a loop is simdized in a way that only CPUs have, such as "bits".
    """
    loops = sch.loops()
    on_gpu = [loop for loop in loops if loop.gpu or loop.cooperate or loop.cache == "shared"]
    if on_gpu and not target.on_gpu:
        what = f"'{on_gpu[0].name}' is for a GPU ({'; '.join(on_gpu[0].annotations())}), but the"
        advice = "use target 'cuda' or 'simt', or look at it with tvm_forest.lower"
        raise _error(sch, f"{what} target is a CPU; {advice}")
    if not target.on_gpu:
        return
    but = f"but the target is {target.kind!r}; use gpu_dimension"
    parallel = next((loop for loop in loops if loop.parallel), None)
    if parallel is not None:
        raise _error(sch, f"'{parallel.name}' is parallel, which is for CPU threads, {but}")
    if not any(loop.gpu for loop in loops):
        raise _error(sch, f"no loop is mapped to the threads of a GPU, {but}")
    for leaf in sch.leaves():
        path = sch.path(leaf.name)
        if any(x.cooperate for x in path) and not any(x.gpu for x in path):
            what = f"no loop around the walks of '{leaf.name}', which teams of threads share,"
            raise _error(sch, f"{what} is mapped to a GPU; use gpu_dimension on one of them")
    for_cpus = {*SIMDIZED.values(), *SIMDIZED_TREES.values()}
    if any(loop.simdize in for_cpus for loop in sch.leaves()):
        what = f"layout {sch.layout!r} is for CPUs only"
        raise _error(sch, f"{what}; choose another with represent_as")


def check_gaps(sch: Nest) -> None:
    """Refuse GPU blocks that gather sums, unless their rows, and their classes, are consecutive.

    Raises:
        ScheduleError: the rows or classes of a block have gaps, in which other blocks add too.
    """
    regions = [x for x in find_regions(sch.nest) if not is_atomic(x)]
    for region, kind in product(regions, OUTPUT_KINDS):
        if not has_no_gaps(region, sch.guards, kind):
            values = "rows" if kind == "batch" else "classes"
            what = f"the {values} of '{region.name}' have gaps, in which others add up as well"
            advice = "as they were tiled, by sizes that divide each other"
            raise _error(sch, f"{what}; order loops over {values} {advice}")


def check_tiles(layout: type[Layout], forest: Forest, sch: Schedule) -> None:
    """Refuse tiles of a size that the layout does not support.

    Raises:
        ScheduleError: the layout holds no tiles of `forest.tile_size` nodes; or where that is 1, it
            holds tiles only.
    """
    if forest.tile_size not in layout.tile_sizes:
        sizes = ", ".join(str(size) if size > 1 else "none" for size in layout.tile_sizes)
        tiles = f"tiles of {forest.tile_size} nodes" if forest.tile_size > 1 else "no tiles"
        raise ScheduleError(
            f"represent_as: argument 'name': {layout.name!r} cannot hold {tiles} (tiles it "
            f"can hold: {sizes}); choose another layout or size with tile_nodes\n{sch}"
        )


def _error(sch: Nest, what: str, where: str = "build") -> ScheduleError:
    return ScheduleError(f"{where}: argument 'schedule': {what}\n{sch}")


def rewrite(forest: Forest, sch: Schedule) -> Forest:
    """Apply the schedule's rewrites to a model.

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
