"""Reuses the schedules of earlier models for similar models.

takes: Workload, CodeCache; gives: Schedules by the smallest batch they serve.

A retrained model keeps its schedules, and so its compiled code, even if others would be slightly
better. The cost model then need not be evaluated again, in this process or in later ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..schedule_prims import Schedule
from ..schedule_prims.batches import arrange_by_batch
from ..search.space import Choice, Point, Space
from ..search.workload import Workload
from ..system.archive import Archive
from ..system.code_cache import CodeCache, digest, digest_sources
from ..system.late import import_late

if TYPE_CHECKING:
    from ..search import heuristic
else:
    heuristic = import_late("tvm_forest.search.heuristic")

LIKE = 1.1
"""Largest ratio of sizes between similar models."""

MAX_KEPT, MAX_KEYS = 8, 32
"""Choices kept per set of facts, and sets of facts that a process keeps."""


class KeptChoice(NamedTuple):
    """The schedules chosen for a model.

    Attributes:
        sizes: the model's numbers of nodes, of hops and of tests; those of a similar model are
            nearly the same.
        points: by the smallest batch that it serves, the point of each schedule, and what threads
            share in such a batch.
    """

    sizes: list[int]
    points: dict[int, tuple[Point, str]]

    def write(self, space: Space, sizes: list[int]) -> dict[int, Choice] | None:
        """Return the choices for another model; None if it is not similar, or they do not fit."""
        if any(max(x) > LIKE * min(x) for x in zip(self.sizes, sizes, strict=True)):
            return None
        written = {k: (x, space.schedule(x), shared) for k, (x, shared) in self.points.items()}
        choices = {k: Choice(x, sch, y) for k, (x, sch, y) in written.items() if sch is not None}
        return choices if len(choices) == len(written) else None


_known = dict[tuple[Path, str], list[KeptChoice]]()
"""Earlier choices, latest last, by cache folder and key of the facts.

The first similar one is used, since its code is the likeliest to be cached.
"""


def keep_or_choose(work: Workload, cache: CodeCache) -> dict[int, Schedule]:
    """Return the schedules of an earlier similar model, or else the default ones."""
    forest = work.forest
    if work.target.on_gpu or forest.derived:
        return heuristic.default_schedules_for(work)
    space, sizes = Space(work, work.start, 1, threads=False), [forest.n_nodes, work.hops]
    sizes.append(work.tests)
    key = digest("choices", digest_sources(), *_describe(space))
    known = _find(cache, key)
    choices = next(filter(None, (kept.write(space, sizes) for kept in tuple(known))), None)
    if choices is None:
        choices = heuristic.choose(work)
        known.append(KeptChoice(sizes, {k: (x.point, x.shared) for k, x in choices.items()}))
        del known[:-MAX_KEPT]
        # A failed write makes nothing compile again, so a read-only folder needs no warning.
        cache.write(key, Archive({"kept": known}, {}), warns=False)
    return arrange_by_batch({k: choice.write(work) for k, choice in choices.items()})


def _describe(space: Space) -> Iterator[str]:
    """Yield the facts that models with a common choice share."""
    work, forest = space.facts, space.facts.forest
    for entry in fields(work.target):
        fact = getattr(work.target, entry.name)
        yield f"{entry.name} {sorted(fact) if isinstance(fact, frozenset) else fact}"
    yield work.machine.text
    yield repr((space.key, work.deepest, work.all_oblivious, forest.has_vectors, forest.n_trees))
    yield repr((forest.n_outputs, forest.n_features, forest.row_dtype, forest.sum_dtype))
    yield str(forest.threshold.dtype)


def _find(cache: CodeCache, key: str) -> list[KeptChoice]:
    """Return the choices for models whose facts have this key; the caller may append to them."""
    place = (cache.folder, key)
    if place not in _known:
        entry = cache.read(key)
        while len(_known) >= MAX_KEYS:
            _known.pop(next(iter(_known)), None)
        found = list[KeptChoice]()
        with contextlib.suppress(LookupError, TypeError, ValueError):
            found += _read({} if entry is None else entry.manifest)
        _known[place] = found
    return _known[place]


def _read(manifest: dict[str, Any]) -> list[KeptChoice]:
    """Return the choices stored in a cache entry."""
    return [
        KeptChoice(
            sizes, {int(k): (Point(*point), shared) for k, (point, shared) in points.items()}
        )
        for sizes, points in manifest["kept"]
    ]
