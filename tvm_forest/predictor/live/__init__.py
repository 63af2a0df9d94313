"""Lets a predictor switch to compiled code, or to another model, while it is used.

takes: Predictor, a model in any form; gives: the same Predictor, now of that model.

    predictor --_present--> copy of the old model, which running calls use
              --_present--> copy of the new model, which later calls use

The copy of a predictor has the same attributes, and never changes. A call uses the copy that it
started with, so it is of one model even if the predictor changes meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...system.late import import_late
from ...system.process.locks import make_lock

if TYPE_CHECKING:
    from . import refreshing, updating
    from .pending import Job
else:
    refreshing = import_late("tvm_forest.predictor.live.refreshing")
    updating = import_late("tvm_forest.predictor.live.updating")  # which imports Predictor

_becoming = make_lock()
"""Held while a predictor takes over the attributes of another one."""


class OfCode:
    """A descriptor for an attribute that exists once code is compiled; access waits for it.

    A `__getattr__` would slow down Python's look-up of all other attributes.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Wait for the code, and return the attribute that then replaces this descriptor."""
        if instance is None:
            return self
        instance.wait()
        return getattr(instance, self._name)


class LiveMethods:
    """The methods by which a Predictor changes its model, or waits for code."""

    __slots__ = ("_present",)  # not in `__dict__`, whose attributes the copy has as well
    _present: Any
    request: Any
    _job: Job | None  # until compiled code is there
    _leaf_places: Any = None  # see `refreshing`; found when leaves are first refreshed
    _is_part = False  # of another predictor, which gives it for `rounds` again
    n_jobs: int | None
    arguments: Any = OfCode()
    libraries: Any = OfCode()
    library: Any = OfCode()
    model_bytes: Any = OfCode()
    schedule: Any = OfCode()
    schedules: Any = OfCode()

    def _begin(self) -> None:
        """Create the copy of the predictor that calls will use; no attribute may be set before."""
        copy = object.__new__(type(self))
        for each, its_copy in ((copy, None), (self, copy)):
            object.__setattr__(each, "_present", its_copy)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the predictor and of its copy."""
        object.__setattr__(self, name, value)
        if self._present is not None:
            object.__setattr__(self._present, name, value)

    def _become(self, other: Any) -> None:
        """Take over all attributes of another predictor but `n_jobs`; running calls go on."""
        other.n_jobs = self.n_jobs
        object.__setattr__(self, "_present", other._present)
        for name, value in vars(other).items():
            object.__setattr__(self, name, value)

    def _adopt(self, job: Job, made: Any) -> None:
        """Switch to compiled code, unless the predictor has another model by now."""
        with _becoming:
            if self._job is job:
                self._become(made)

    def update(self, model: Any) -> None:
        """Switch to another model, for example one that was trained on newer rows.

        Running calls finish with the old model, later calls use the new one, and none waits: the
        new model is compiled before it replaces the old one, whose memory is freed with the last
        call that uses it. If that fails, nothing changes. Schedules, target, threads and refusals
        are those of `build`; default schedules are chosen, and schedule functions called, for the
        new model. If only leaf values differ, the code is reused. Predictors of `rounds` keep the
        old model.

        Args:
            model: see `tvm_forest.load`; with the inputs and outputs of the present model.

        Raises:
            InputError: columns, labels, outputs, dtypes or the link differ from the present ones,
                or this predictor comes from `rounds`.
            ModelFormatError, UnsupportedModel, ScheduleError, BuildError: see `tvm_forest.build`.

        Examples:
            >>> predictor.update(model)
        """
        self._refuse_part("update")
        made = updating.make_successor(self._present or self, model)
        with _becoming:
            self._become(made)

    def update_leaves(self, model: Any) -> None:
        """Switch to the same trees with other leaf values, in a fraction of the time of `update`.

        For example after `Booster.refit` of LightGBM, or `process_type="update"` with the updater
        "refresh" of XGBoost. As with `update`, no call waits, and each is of one model.

        Args:
            model: see `tvm_forest.load`, a Forest is the fastest; or an array of leaf values, (L,)
                or (L, C) where leaves hold vectors, tree by tree in the order of the source model,
                the leaves of each in that of the numbers that `apply` returns. They are rounded to
                the dtype of the model's.

        Raises:
            InputError: more than leaf values differs, the message names the first tree and field;
                or an array of another shape, with values that are not finite, or for a model whose
                leaves are not plain numbers.
            ModelFormatError, UnsupportedModel, ScheduleError, BuildError: see `tvm_forest.build`.

        Examples:
            >>> predictor.update_leaves(predictor.forest)
        """
        self._refuse_part("update_leaves")
        self.wait()
        made = refreshing.make_refreshed(self._present or self, model)
        with _becoming:
            self._become(made)

    def _refuse_part(self, method: str) -> None:
        if self._is_part:
            raise InputError(
                f"{method}: this predictor has some rounds of another one; update that one, and "
                "take its rounds"
            )

    @property
    def signature(self) -> str:
        """`Forest.signature` of the source model; computing it takes long for a large model."""
        signature: str = (self._present or self).request.signature
        return signature

    @property
    def ready(self) -> bool:
        """Whether compiled code is there; until then the reference walk predicts."""
        job = self._job
        return job is None or job.find() is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for compiled code; `save` and other methods that need it do this too.

        Args:
            timeout: seconds; None for as long as it takes.

        Returns:
            bool: `ready`.

        Raises:
            InputError: timeout is not a number of seconds.
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
