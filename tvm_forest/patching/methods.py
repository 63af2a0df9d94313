"""What stands for a method of a class of estimators.

takes: a call; gives: what the method gives, from compiled code where that is equal to the bit.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .records import RECORDS, RULE, Record

if TYPE_CHECKING:
    from .families import Family

_WITHIN = threading.local()
"""`estimators`: the identities of those whose own methods this thread is in."""


class _Left(Exception):
    """A call is left to the library, for the reason that is its text."""


def stand_for(cls: type, name: str, family: Family, own: Callable[..., Any]) -> Any:
    """Return a method that runs compiled code where it can.

    Args:
        cls: the class; those that derive from it keep its own method, for they may predict in
            another way.
        name: of the method.
        family: what the estimator is made of.
        own: the method of the library.
    """

    @functools.wraps(own)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self) in _within() or family.is_in_training(self):
            return own(self, *args, **kwargs)
        return _call(self, args, kwargs)

    def _call(self: Any, args: Any, kwargs: Any) -> Any:
        record = RECORDS.find(self, Record)
        n_rows = _count_rows(args, kwargs)
        try:
            return _run_compiled(self, record, n_rows, args, kwargs)
        except _Left as left:
            reason = str(left)
        within, begin = _within(), time.perf_counter()
        within.add(id(self))
        try:
            answer = own(self, *args, **kwargs)
        finally:
            within.discard(id(self))
        RULE.tally.add(type(self).__name__, reason, n_rows)
        if type(self) is cls:
            record.note(self, family, n_rows, time.perf_counter() - begin)
        return answer

    def _run_compiled(self: Any, record: Record, n_rows: int, args: Any, kwargs: Any) -> Any:
        if type(self) is not cls:
            raise _Left(f"it derives from {cls.__name__}")
        if not family.takes(args, kwargs):
            raise _Left(f"{name} is called with options")
        ready = record.find()
        if ready is None:
            raise _Left(record.reason)
        why_not = family.why_not(name, ready.forest)
        if why_not is not None:
            raise _Left(why_not)
        if n_rows == 0 or not record.pace.prefers_ours(n_rows):
            raise _Left("its library is as fast for so few rows")
        begin = time.perf_counter()
        try:
            if family.state(self) != ready.state:
                record.forget()
                raise _Left(record.reason)
            rows = family.rows(self, args[0] if args else kwargs["X"], ready.forest)
            answer = family.answers[name](self, ready.predictor, rows)
        except _Left:
            raise
        except Exception as error:  # the library's own method says what is wrong with the rows
            line = (str(error).splitlines() or [""])[0]
            raise _Left(line or type(error).__name__) from None
        record.pace.note_ours(n_rows, time.perf_counter() - begin)
        RULE.tally.add(type(self).__name__, None, n_rows)
        return answer

    return method


def _within() -> set[int]:
    found: set[int] | None = getattr(_WITHIN, "estimators", None)
    if found is None:
        found = _WITHIN.estimators = set()
    return found


def _count_rows(args: Any, kwargs: Any) -> int:
    rows = args[0] if args else kwargs.get("X", kwargs.get("data"))
    shape = getattr(rows, "shape", None)
    try:
        return int(shape[0]) if shape else len(rows)
    except (TypeError, ValueError):
        return 0
