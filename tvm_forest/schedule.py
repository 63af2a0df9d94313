"""Where `Schedule` and its trace are found by name, also by schedules that were pickled earlier.

takes: nothing; gives: names of `schedule_prims`.
"""

from .schedule_prims.directive import DIRECTIVES, TraceStep
from .schedule_prims.schedule import Schedule

Step = TraceStep
"""What pickles of version 0.1.0 call a step of the trace."""

__all__ = ["DIRECTIVES", "Schedule", "Step", "TraceStep"]
