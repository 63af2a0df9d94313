"""Compiles code in advance for models that will be trained later.

takes: a similar model; gives: entries in the code cache.

Models of one kind share their code, see `layouts/laying_out/kinds.py`. So models with typical tree
shapes are generated, with the given model's features, outputs and dtypes, and the functions of
their default schedules are compiled. Their predictions do not matter, and they are thrown away.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import BuildError, InputError
from ...forest import Forest
from ...forest.rewrites.canonical_form import canonicalize
from ...frontends import load
from ...layouts import SIMDIZED, SIMDIZED_TREES
from ...layouts.laying_out.request import BuildRequest
from ...system.archive import check_place
from ...system.cores import available_cores
from ...system.late import import_late
from ...system.values import dataclass
from ...target import Target, parse_target
from ...targets.bundles import write_bundle
from ...targets.stored_code import find_code_cache
from ..compiling import find_kept, list_entries
from .child import Compiling
from .drawn_models import Drawn, TreeShape, draw_forest, list_drawn

if TYPE_CHECKING:
    from ...search import heuristic, workload
    from ...search.space import Point
else:
    heuristic = import_late("tvm_forest.search.heuristic")
    workload = import_late("tvm_forest.search.workload")


@dataclass(frozen=True)
class Warmed:
    """The result of `warm`: how many models it has generated, and for how many compiled code.

    Attributes:
        models: number of models generated, to choose schedules.
        compiled: number of them for which something was compiled that was not cached.
    """

    models: int
    compiled: int


def warm(
    model: Any,
    target: str | dict[str, Any] | Target = "llvm",
    *,
    processes: int | None = None,
    out: str | os.PathLike[str] | None = None,
    done: Callable[[int, int], object] = lambda done, models: None,
) -> Warmed:
    """Compile code in advance for models similar to a given one.

    Models share code if they differ only in tests and leaf values, for example after retraining.
    This generates models with the columns, outputs and dtypes of the given one and typical tree
    shapes, and compiles for each of them the default schedules of any of them, since the cheapest
    schedule changes with trainings. The code cache is a folder that can be copied to machines with
    the same kind of processor.

    Args:
        model: see `load`; a model with the library, objective and columns of future ones.
        target: see `build`; must be this machine's processor.
        processes: number of processes that compile; None for all cores.
        out: path of a bundle to write, a file with all of the code. Processes on the same kind of
            processor load code from it if the environment variable TVM_FOREST_KERNELS names it,
            even without TVM. None to fill the cache only.
        done: called with the number of finished steps, and that of all: the choice of a generated
            model's schedules is a step, and so is the compilation of its code.

    Returns:
        The number of generated models, and the number for which code was compiled.

    Raises:
        ModelFormatError, UnsupportedModel: see `load`.
        InputError: the model has linear leaves or tests sets of categories; the cache is off, or
            cannot be used for the target; `processes` is invalid; or `out` cannot be written.
        BuildError: a process that compiles fails or cannot be started; the cache stores nothing; or
            `out` is given but there is no C compiler, without which the code needs TVM.

    Example:
        >>> tvm_forest.warm("model.json")  # doctest: +SKIP
        Warmed(models=326, compiled=23)
    """
    like, target = canonicalize(load(model)), parse_target(target)
    _check_model(like)
    if processes is not None and (type(processes) is not int or processes < 1):
        raise InputError(f"warm: argument 'processes': {processes!r}; use 1 or more, or None")
    _check_cache(target)
    if out is not None:
        check_place(Path(out), "warm: argument 'out'")
    drawn = list_drawn(like)
    asked = [x for x in drawn if x.is_compiled]
    ended, known, requests = itertools.count(1), list[bool](), list[BuildRequest]()
    running = dict[Drawn, Compiling]()

    def choose(draw: Drawn) -> set[Point]:
        chosen = heuristic.choose_points(workload.Workload(draw_forest(like, draw), target))
        done(next(ended), len(drawn) + len(asked))
        return chosen

    def compile_missing(draw: Drawn) -> None:
        request = ask_for(draw_forest(like, draw), points[draw.shape, draw.cuts], target)
        is_known = not request.schedules or find_kept(request) is not None
        if not is_known:
            running[draw] = _start()
            running[draw].compile(request)
            if find_kept(request) is None:
                raise BuildError("warm: the cache keeps nothing; see that its disk has room")
        known.append(is_known)
        requests.append(request)
        done(next(ended), len(drawn) + len(asked))

    points = join_points({draw: choose(draw) for draw in drawn})
    with ThreadPoolExecutor(processes or available_cores()) as pool:
        try:
            list(pool.map(compile_missing, asked))
        except BaseException:  # such as Ctrl-C: end the other processes
            for child in running.values():
                child.end()
            raise
    if out is not None:
        wanted = (list_entries(request) for request in requests if request.schedules)
        write_bundle(Path(out), target, itertools.chain.from_iterable(wanted))
    return Warmed(len(drawn), len(known) - sum(known))


def _check_model(like: Forest) -> None:
    """Refuse models for which similar ones cannot be generated.

    Raises:
        InputError: leaves are linear, or categories are tested in sets.
    """
    refused = "linear leaves" if like.is_linear else "sets of categories" if like.derived else ""
    if refused:
        raise InputError(
            f"warm: argument 'model': it has {refused}, and such trees are not drawn; build the "
            "model itself, whose code serves those of its kind"
        )


def _check_cache(target: Target) -> None:
    """Refuse a target whose code is not cached, and a cache that is off.

    Raises:
        InputError: no code would be cached.
    """
    if target.kind != "llvm" or target.is_elsewhere:
        raise InputError(
            f"warm: argument 'target': code for {target.to_dict()} is not kept; give 'llvm', for "
            "the processor at hand"
        )
    cache = find_code_cache(target)
    fault = ("is off", "") if cache is None else cache.find_fault()
    if fault is not None:
        raise InputError(
            f"warm: the cache of code {fault[0]}; let TVM_FOREST_CACHE name a folder of yours"
        )


def _start() -> Compiling:
    """Start a process that compiles.

    Raises:
        BuildError: no process can be started.
    """
    try:
        return Compiling()
    except OSError as error:
        what = "run it by Python, with room for temporary files"
        raise BuildError(f"warm: no process can be started ({error}); {what}") from None


def join_points(chosen: dict[Drawn, set[Point]]) -> dict[tuple[TreeShape, int], set[Point]]:
    """Return the points to compile, for models of each shape and number of thresholds.

    These are the points chosen for one of them, and all vector walks chosen for any model: there
    are few of these, and the batch size where each is chosen changes with trainings.
    """
    vectors = {
        x for points in chosen.values() for x in points if x.layout in SIMDIZED | SIMDIZED_TREES
    }
    joined: dict[tuple[TreeShape, int], set[Point]] = {}
    for draw, points in chosen.items():
        joined.setdefault((draw.shape, draw.cuts), set(vectors)).update(points)
    return joined


def ask_for(forest: Forest, points: Iterable[Point], target: Target) -> BuildRequest:
    """Return a build request for the given points of the search space that fit the model."""
    request = BuildRequest.of(forest, None, target)
    work = workload.Workload(request.forest, target)
    written = heuristic.write_points(work, sorted(points, key=repr))
    return request.with_schedules(dict(enumerate(dict.fromkeys(written), 1)))
