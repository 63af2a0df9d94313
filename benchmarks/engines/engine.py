"""What every engine of the benchmark is.

takes: Model; gives: Engine, whose `predict` is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.models import Model

EVERY = ("xgboost", "lightgbm", "scikit-learn")
LIBRARY = "library"


class Engine:
    """One engine and one model.

    Attributes:
        packages: modules that it needs; they are imported before the clock runs. LIBRARY stands
            for the one that trained the model.
        takes: libraries whose models it reads.
        must_equal: whether a margin that differs in one bit ends the benchmark with status 1.
        dtype: of the rows that it reads; None for the dtype in which the library compares.
        predict: what is timed.
        margin: gives margins, or None if the engine does not tell them.
    """

    packages: tuple[str, ...] = ()
    takes: tuple[str, ...] = EVERY
    must_equal = False
    dtype: str | None = None
    predict: Callable[[Any], Any]
    margin: Callable[[Any], Any] | None = None

    def __init__(self, model: Model, argument: str) -> None:
        """Make a predictor; `argument` is what follows the colon behind the engine's name."""
        raise NotImplementedError

    @classmethod
    def modules(cls, model: Model) -> list[str]:
        """List the modules to import for a model; a pickle needs its library in any case."""
        pickled = model.library == "scikit-learn"
        library = "sklearn" if pickled else model.library
        packages = (*cls.packages, LIBRARY) if pickled else cls.packages
        return [library if name == LIBRARY else name for name in packages]

    def use_threads(self, count: int) -> None:
        """Use so many threads from now on, or fewer if the engine cannot."""

    def model_bytes(self) -> int | None:
        """Return the size of the model in memory, or of the file that holds it."""
        return None
