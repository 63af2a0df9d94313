"""Makes the fitted forests of unmodified programs predict by compiled code.

takes: calls of fitted estimators by a program; gives: the results of their own methods, sooner.

    patch --> imports: patches classes of libraries, now or when they are imported
                |
              methods: replaces one method of a class; gets a predictor from `records`
                |
              records: the record of one estimator; compiles it when `pace` expects that to pay
                |
              states: detects whether the estimator has changed since it was compiled

`families` defines, for each kind of estimator, its state, its rows and its patched methods.
"""

from __future__ import annotations

from types import TracebackType

from ..errors import InputError
from . import imports, records
from .records import AFTER_S
from .tally import Tally


class Patched:
    """The result of `patch`: a context manager that calls `unpatch` at its end.

    `print(patched)` shows which calls have run compiled since `patch`, and which have not, and why.
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

    This patches the forests of scikit-learn and the estimators of XGBoost, LightGBM and CatBoost,
    whether the libraries are imported already or later. An estimator is compiled once its
    predictions have taken `after_s` seconds, by another process while the estimator goes on as it
    is. After that its methods return the same as before, to the bit. Calls that compiled code
    cannot answer to the bit are left to the library; the logger "tvm_forest" names the reason
    (docs/sklearn.md).

    A second call only changes `after_s`.

    Args:
        after_s: seconds that predictions of one estimator must have taken.

    Returns:
        Patched: a context manager that calls `unpatch` at its end; `print` shows a summary.

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
    """Restore the estimators' own methods, and drop the code that was compiled for them."""
    global _patched
    if _patched is not None:
        _patched = None
        imports.end()
        records.RECORDS.clear()
