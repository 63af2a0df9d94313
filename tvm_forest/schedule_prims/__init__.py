"""The scheduling language: directives, which are the methods of `Schedule`.

takes: Schedule; gives: Schedule; `rewrite`, which applies a schedule's rewrites to the model; and
`replay`, which repeats a trace on TVM's own schedule.

    loops.py        tile  reorder  parallel  unroll
    fission.py      split  specialize  split_by_depth
    walks.py        interleave  unroll_walk  peel_walk  simdize (also named vectorize)
    model.py        tile_nodes  pad_trees  sort_trees  know_depths
    memory.py       represent_as  cache
    reductions.py   atomic_reduce  vector_reduce  ordered_reduce  shared_reduce
    devices.py      gpu_dimension  cooperate

A new directive is a function in one of these files and a line in the body of `Schedule`
(`schedule.py`), which lists the whole language.
"""

from .directive import DIRECTIVES
from .fitting import rewrite
from .replay import replay
from .schedule import Schedule

__all__ = ["DIRECTIVES", "Schedule", "replay", "rewrite"]
