"""The scheduling language: importing this module gives `Schedule` its directives.

takes: Schedule; gives: Schedule; `rewrite`, which changes the model as a schedule asks; and
`replay`, which repeats a trace on TVM's own schedule.

    loops.py        tile  reorder  parallel  unroll
    fission.py      split  specialize  split_by_depth
    walks.py        interleave  unroll_walk  peel_walk  simdize (also named vectorize)
    model.py        tile_nodes  pad_trees  sort_trees  know_depths
    memory.py       represent_as  cache
    reductions.py   atomic_reduce  vector_reduce
    devices.py      gpu_dimension  shared_reduce
"""

from __future__ import annotations

from ..schedule import DIRECTIVES, Schedule
from . import devices, fission, loops, memory, model, reductions, walks
from .model import rewrite
from .replay import replay

setattr(Schedule, "vectorize", getattr(Schedule, "simdize"))  # noqa: B009, B010  # an alias

__all__ = [
    "DIRECTIVES",
    "Schedule",
    "devices",
    "fission",
    "loops",
    "memory",
    "model",
    "reductions",
    "replay",
    "rewrite",
    "walks",
]
