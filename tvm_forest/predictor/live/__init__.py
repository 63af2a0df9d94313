"""Predictors that change while they predict: to code that comes later, and to other models.

takes: Predictor, a model in any form; gives: the same Predictor, of that model.

    predictor --_present--> copy of the old model, with which calls go on that have begun
              --_present--> copy of the new model, which later calls find

The copy of a predictor has its attributes, and keeps them. A call goes on with the copy that it has
found, so it is of one model, whatever the predictor becomes meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...late import import_late
from ...process.locks import make_lock

if TYPE_CHECKING:
    from . import updating
    from .pending import Job
else:
    updating = import_late("tvm_forest.predictor.live.updating")  # which imports Predictor

_becoming = make_lock()
"""Held while a predictor takes over what another one is."""


class OfCode:
    """An attribute that a predictor has once its code is there, for which the first to ask waits.

    Python would look up all other attributes slower in a class that has `__getattr__`.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Return what the object has in place of this, once it has."""
        if instance is None:
            return self
        instance.wait()
        return getattr(instance, self._name)


class LiveMethods:
    """The methods of a Predictor by which it gets another model, or waits for code."""

    __slots__ = ("_present",)  # beside the attributes, which the copy has as well
    _present: Any
    _job: Job | None  # until compiled code is there
    n_jobs: int | None
    arguments: Any = OfCode()
    libraries: Any = OfCode()
    library: Any = OfCode()
    model_bytes: Any = OfCode()
    schedule: Any = OfCode()
    schedules: Any = OfCode()

    def _begin(self) -> None:
        """Make the copy, before there are attributes."""
        copy = object.__new__(type(self))
        for each, its_copy in ((copy, None), (self, copy)):
            object.__setattr__(each, "_present", its_copy)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of both."""
        object.__setattr__(self, name, value)
        if self._present is not None:
            object.__setattr__(self._present, name, value)

    def _become(self, other: Any) -> None:
        """Take over all that another predictor of the same class is; calls in flight go on."""
        other.n_jobs = self.n_jobs
        object.__setattr__(self, "_present", other._present)
        for name, value in vars(other).items():
            object.__setattr__(self, name, value)

    def _adopt(self, job: Job, made: Any) -> None:
        """Go on with compiled code, unless this has another model by now."""
        with _becoming:
            if self._job is job:
                self._become(made)

    def update(self, model: Any) -> None:
        """Predict by another model from now on, such as one that was trained on newer rows.

        Calls that have begun end with the model that they began with, all others have the new one,
        and none waits: the new model is compiled before it takes the place of the old one, whose
        memory is freed with the last call that needs it. So is it where this fails. Schedules,
        target, threads and refusals are those of `build`; default schedules are chosen for the new
        model, and functions are called for it. Where all but the leaf values is the same, the code
        is, too. Predictors of `rounds` keep the old model.

        Args:
            model: see `tvm_forest.load`; it takes and gives what the present one does.

        Raises:
            InputError: it has other columns, labels or outputs, or another dtype of these.
            ModelFormatError, UnsupportedModel, ScheduleError, BuildError: see `tvm_forest.build`.

        Examples:
            >>> predictor.update(model)
        """
        made = updating.make_successor(self._present or self, model)
        with _becoming:
            self._become(made)

    @property
    def ready(self) -> bool:
        """Whether compiled code is there; until then rows go through the reference walk."""
        job = self._job
        return job is None or job.find() is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for compiled code, as all but predictions do that need it, such as `save`.

        Args:
            timeout: seconds; None for as long as it takes.

        Returns:
            bool: `ready`.

        Raises:
            InputError: timeout is no number of seconds.
            ForestError: the model cannot be compiled; see `tvm_forest.build`.

        Examples:
            >>> predictor.wait()
            True
        """
        is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        if timeout is not None and not (is_number and timeout >= 0):
            raise InputError(
                f"wait: argument 'timeout': {timeout!r:.80} is no number of seconds; give one from "
                "0 on, or None"
            )
        job = self._job
        made = None if job is None else job.wait(timeout)
        if job is not None and made is not None:
            self._adopt(job, made)
        return job is None or made is not None
