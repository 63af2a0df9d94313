"""Replaces methods of estimators.

takes: a call; gives: the result of the method, from compiled code if that is equal to the bit.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .records import RECORDS, RULE, Ready, Record

if TYPE_CHECKING:
    from .families import Family

_WITHIN = threading.local()
"""Its attribute `estimators` has the ids of estimators whose own methods run on this thread."""


class _Left(Exception):
    """Raised to leave a call to the library, with the reason as its text."""


def stand_for(cls: type, name: str, family: Family, own: Callable[..., Any]) -> Any:
    """Return a replacement for a method, which runs compiled code where it can.

    Args:
        cls: the class; for derived classes the library's method is called, because they may predict
            differently.
        name: name of the method.
        family: the family of the class.
        own: the method of the library.
    """
    stand = _Stand(cls, name, family, own)

    @functools.wraps(own)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self) in _within() or family.is_in_training(self):
            return own(self, *args, **kwargs)
        return stand.call(self, args, kwargs)

    return method


@dataclass(frozen=True)
class _Stand:
    """A patched method of a class; see `stand_for`."""

    cls: type
    name: str
    family: Family
    own: Callable[..., Any]

    def call(self, model: Any, args: Any, kwargs: Any) -> Any:
        """Return the result of the method, from compiled code if possible, else the library's."""
        record, n_rows = RECORDS.find(model, Record), _count_rows(args, kwargs)
        begin = time.perf_counter()
        try:
            ready = self._find_ready(model, record, n_rows, args, kwargs)
            answer = self._run_compiled(model, record, ready, _first(args, kwargs))
        except _Left as left:
            reason = str(left)
        else:
            record.pace.note_ours(n_rows, time.perf_counter() - begin)
            RULE.tally.add(self.cls.__name__, None, n_rows)
            return answer
        return self._run_own(model, record, n_rows, reason, args, kwargs)

    def _run_own(
        self, model: Any, record: Record, n_rows: int, reason: str, args: Any, kwargs: Any
    ) -> Any:
        """Call the library's own method, record its duration, and return its result.

        Args:
            model: the estimator.
            record: its record.
            n_rows: number of rows of the call.
            reason: why compiled code does not run.
            args, kwargs: arguments of the call.
        """
        within, begin = _within(), time.perf_counter()
        within.add(id(model))
        try:
            answer = self.own(model, *args, **kwargs)
        finally:
            within.discard(id(model))
        RULE.tally.add(type(model).__name__, reason, n_rows)
        if type(model) is self.cls:
            record.note(model, self.family, n_rows, time.perf_counter() - begin)
        return answer

    def _find_ready(self, model: Any, record: Record, n_rows: int, args: Any, kwargs: Any) -> Ready:
        """Return the predictor for a call, or raise `_Left`.

        Raises:
            _Left: there is no predictor, or this call must or should not use it.
        """
        if type(model) is not self.cls:
            raise _Left(f"it derives from {self.cls.__name__}")
        if not self.family.takes(args, kwargs):
            raise _Left(f"{self.name} is called with options")
        ready = record.find()
        if ready is None:
            raise _Left(record.reason)
        inexact = self.family.inexact(self.name, ready.forest)
        if inexact is not None:
            raise _Left(inexact)
        if n_rows == 0 or not record.pace.prefers_ours(n_rows):
            raise _Left("its library is as fast for so few rows")
        return ready

    def _run_compiled(self, model: Any, record: Record, ready: Ready, rows: Any) -> Any:
        """Return the result of compiled code.

        Raises:
            _Left: the estimator has changed, or the rows are left to the library, which reports
                what is wrong with them.
        """
        try:
            if self.family.state(model) == ready.state:
                rows = self.family.rows(model, rows, ready.forest)
                return self.family.answers[self.name](model, ready.predictor, rows)
        except Exception as error:
            line = (str(error).splitlines() or [""])[0]
            raise _Left(line or type(error).__name__) from None
        record.forget()
        raise _Left(record.reason)


def _within() -> set[int]:
    found: set[int] | None = getattr(_WITHIN, "estimators", None)
    if found is None:
        found = _WITHIN.estimators = set()
    return found


def _first(args: Any, kwargs: Any) -> Any:
    """Return the rows, the first argument of a call."""
    return args[0] if args else kwargs.get("X", kwargs.get("data"))


def _count_rows(args: Any, kwargs: Any) -> int:
    rows = _first(args, kwargs)
    shape = getattr(rows, "shape", None)
    try:
        return int(shape[0]) if shape else len(rows)
    except (TypeError, ValueError):
        return 0
