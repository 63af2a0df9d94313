"""Makes the fitted forests of unmodified programs predict by compiled code.

takes: fitted estimators, when a program calls them; gives: what their own methods give, sooner.

    patch --> imports: classes of libraries, now or when they are imported
                |
              methods: stands for one method of a class; asks `records` for a predictor
                |
              records: what is known of one estimator; compiles when `pace` says that it pays
                |
              states: tells whether the estimator is still the one that was compiled

`families` says, for each kind of estimator, what it is made of and how its rows are taken.
"""

from __future__ import annotations

from types import TracebackType

from ..errors import InputError
from . import imports, records
from .records import AFTER_S
from .tally import Tally


class Patched:
    """What `patch` returns: a context at whose end `unpatch` is called.

    `print(patched)` shows what has run compiled since `patch`, and what has not, and why.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def __enter__(self) -> Patched:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        unpatch()

    def __str__(self) -> str:
        return str(self._tally)


_patched: Patched | None = None


def patch(*, after_s: float = AFTER_S) -> Patched:
    """Let estimators of this process predict by compiled code, wherever they are made and called.

    The forests of scikit-learn and the estimators of XGBoost, LightGBM and CatBoost are meant, of
    libraries that are imported already or later. An estimator is compiled once its predictions
    have taken `after_s` seconds, by another process while it goes on as it is. From then on its
    methods give what they gave before, to the bit; what compiled code cannot give so is left to
    the library, and the logger "tvm_forest" tells why (docs/sklearn.md).

    A second call changes `after_s` and nothing else.

    Args:
        after_s: seconds that predictions of one estimator must have taken.

    Returns:
        Patched: usable as a context, at whose end `unpatch` is called; printed, a summary.

    Raises:
        InputError: after_s is no number from 0 on.
    """
    global _patched
    if isinstance(after_s, bool) or not isinstance(after_s, int | float) or not after_s >= 0:
        raise InputError(f"patch: argument 'after_s': expected a number from 0 on, got {after_s!r}")
    records.RULE.after_s = after_s
    if _patched is None:
        records.RULE.tally = Tally()
        _patched = Patched(records.RULE.tally)
        imports.begin()
    return _patched


def unpatch() -> None:
    """Give estimators their own methods back, and forget what was compiled for them."""
    global _patched
    if _patched is not None:
        _patched = None
        imports.end()
        records.RECORDS.clear()
