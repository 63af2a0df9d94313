"""Keeps a record of each estimator that has predicted, with its predictor.

takes: estimators; gives: a predictor of their current state, or the reason why there is none.

Nothing here waits. An estimator is read on a separate thread, or at once if its library must not be
used meanwhile, and `build(wait=False)` compiles it in another process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import api
from ..errors import ForestError
from ..system.process.locks import make_lock
from .pace import Pace
from .states import WeakTable
from .tally import LOG, Tally

if TYPE_CHECKING:
    from ..forest import Forest
    from ..predictor.predictor import Predictor
    from .families import Family

AFTER_S = 0.5
"""By default, an estimator is compiled after its predictions have taken so many seconds: about as
long as another process takes to compile it."""

PATIENCE = 10
"""Factor of prediction time after which a refused estimator is examined again."""


@dataclass
class Rule:
    """Settings for all estimators.

    Attributes:
        after_s: see `patch`.
        build: the function that compiles a forest.
        tally: counts of calls.
    """

    after_s: float = AFTER_S
    build: Callable[[Forest], Predictor] = lambda forest: api.build(forest, wait=False)
    tally: Tally = field(default_factory=Tally)


RULE = Rule()


@dataclass(frozen=True)
class Ready:
    """A predictor, and the state of the estimator from which it was made."""

    state: Any
    forest: Forest
    predictor: Predictor


class Record:
    """The record of one estimator.

    Attributes:
        pace: the durations of its calls.
        reason: why its own methods are called, as text.
    """

    def __init__(self) -> None:
        self.pace = Pace()
        self.reason = "it has not predicted for long enough to be compiled"
        self._ready: Ready | None = None
        self._reads, self._lock = False, make_lock()
        self._wanted_s = 0.0

    def find(self) -> Ready | None:
        """Return the predictor if it is compiled; the estimator may have changed. Else None."""
        ready = self._ready
        if ready is None or ready.predictor.ready:
            return ready
        try:
            ready.predictor.wait(0)
        except ForestError as error:
            self._refuse(error)
        return None

    def forget(self) -> None:
        """Reset the record, because the estimator has changed."""
        self._ready, self.pace, self._wanted_s = None, Pace(), 0.0
        self.reason = "it has changed since it was compiled"

    def note(self, estimator: Any, family: Family, n_rows: int, seconds: float) -> None:
        """Record a call of the library's own method; compile once calls have taken `after_s`."""
        self.pace.note_theirs(n_rows, seconds)
        if self._ready is not None or self.pace.seconds < max(RULE.after_s, self._wanted_s):
            return
        with self._lock:
            if self._reads or self._ready is not None:
                return
            self._reads, self.reason = True, "its code is not there yet"
        if family.is_read_at_once:
            self._read(estimator, family)
        else:
            name = f"tvm_forest reads {type(estimator).__name__}"
            threading.Thread(target=self._read, args=(estimator, family), name=name).start()

    def _read(self, estimator: Any, family: Family) -> None:
        try:
            state = family.state(estimator)
            family.refuse(estimator)
            forest = api.load(estimator)
            if family.state(estimator) == state:  # else it was trained meanwhile
                self._ready = Ready(state, forest, RULE.build(forest))
        except Exception as error:  # any error of a library; its own methods go on
            self._refuse(error)
        finally:
            self._reads = False

    def _refuse(self, error: Exception) -> None:
        """Record why an estimator is refused, and ignore it for a time."""
        self._ready = None
        self._wanted_s = PATIENCE * max(self.pace.seconds, 1.0)
        line = (str(error).splitlines() or [type(error).__name__])[0]
        self.reason = line if isinstance(error, ForestError) else f"{type(error).__name__}: {line}"
        LOG.debug("not compiled: %s", self.reason, exc_info=not isinstance(error, ForestError))


RECORDS = WeakTable[Record]()
