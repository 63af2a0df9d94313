"""The scheduling language: importing this module gives `Schedule` its directives.

takes: Schedule; gives: Schedule, and `replay`, which repeats a trace on TVM's own schedule.

    loops.py   tile  reorder  parallel
    walks.py   interleave
"""

from __future__ import annotations

from ..schedule import DIRECTIVES, Schedule
from . import loops, walks
from .replay import replay

__all__ = ["DIRECTIVES", "Schedule", "loops", "replay", "walks"]
