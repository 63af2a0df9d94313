"""Emits the code of walks: hop by hop, in vector lanes, by bit planes, permutes, octets or pieces.

A `Walker` implements one way of walking. The field `walks` of a layout and the directive `simdize`
select it.
"""

from __future__ import annotations

from ...errors import ScheduleError
from ...layouts.protocol import LAYOUTS, find
from ...schedule_prims import Schedule
from ...schedule_prims.walks import LANE_COUNTS
from .bits import BitWalker
from .hops import HopWalker
from .lanes import LaneWalker
from .octets import OctetWalker
from .permutes import PermuteWalker
from .pieces import PieceWalker
from .walker import Walker

WALKERS: dict[str | None, type[Walker]] = {
    None: HopWalker,
    "gather": LaneWalker,
    "bits": BitWalker,
    "permute": PermuteWalker,
    "octets": OctetWalker,
    "pieces": PieceWalker,
}
"""Walkers by the argument of `simdize` on a leaf loop; the key None is for loops without it."""

BY_LAYOUT = {
    "hops": (None, "gather"),
    "bits": ("bits",),
    "permute": ("permute",),
    "octets": ("octets",),
    "pieces": ("pieces",),
}
"""Arguments that `simdize` accepts, by the `walks` of the layout."""


def check_walks(sch: Schedule) -> None:
    """Check that every leaf loop walks in a way that the schedule's layout supports.

    Raises:
        ScheduleError: one does not, its walker refuses the nest, or the layout's name is unknown.
    """
    leaves, how = sch.leaves(), find(sch.layout).walks
    other = next((loop for loop in leaves if loop.simdize not in BY_LAYOUT[how]), None)
    if other is not None and how != "hops":
        advice = "put the trees innermost"
        if how in LANE_COUNTS:
            counts = ", ".join(map(str, LANE_COUNTS[how]))
            advice = f"tile the rows by one of {counts}, put the trees around that loop"
        raise ScheduleError(
            f"represent_as: argument 'name': {sch.layout!r} is walked by {how} only, not "
            f"as '{other.name}' is; {advice}, and use simdize('{other.name}', '{how}')\n"
            f"{sch.render(other.name)}"
        )
    if other is not None:
        layout = next(x.name for x in LAYOUTS.values() if x.walks == other.simdize)
        raise ScheduleError(
            f"simdize: argument 'how': {other.simdize!r} is for layout '{layout}', not for "
            f"{sch.layout!r}; use represent_as('{layout}')\n{sch.render(other.name)}"
        )
    WALKERS[BY_LAYOUT[how][0]].check(sch, leaves)
