"""Refuses to train compiled estimators.

takes: the name of a training method; gives: a callable that always raises an error.
"""

from __future__ import annotations

from typing import Any

from ..errors import InputError


class Untrainable:
    """A callable that replaces a training method of a compiled estimator, and refuses every call.

    Attributes:
        method: name of the method.
        kind: name of the estimator's class.
    """

    def __init__(self, method: str, kind: str) -> None:
        self.method, self.kind = method, kind

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Refuse to train.

        Raises:
            InputError: always.
        """
        raise InputError(
            f"{self.method}: {self.kind} holds compiled forests, which predict and do not train; "
            f"train the estimator from which it was made, and compile that anew; where another "
            "estimator is trained around it, give it as sklearn.frozen.FrozenEstimator(estimator), "
            "which stays as it is"
        )
