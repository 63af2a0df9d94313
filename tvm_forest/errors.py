"""The exceptions of the package.

takes: nothing; gives: exception classes.

    ForestError
    ├── ModelFormatError   (ValueError)           the file or object is damaged or is no forest
    ├── UnsupportedModel   (NotImplementedError)  a sound model with a part that is not supported
    ├── ScheduleError      (ValueError)           a directive or schedule that makes no sense
    ├── BuildError         (RuntimeError)         the compiler or the machine cannot build it
    ├── DeviceError        (RuntimeError)         a GPU, its driver or the machine is not at hand
    └── InputError         (ValueError)           rows or an argument of the wrong kind
        └── RowError                              one of the rows

Every message reads ``where: argument 'name': what is wrong, with the value; what to do``.
"""

from __future__ import annotations


class ForestError(Exception):
    """Root of all exceptions that the package raises on purpose; long messages are cut."""

    longest = 1000  # characters, for what a user passed may be a whole model

    def __init__(self, text: str) -> None:
        half = self.longest // 2 - 3
        super().__init__(text if len(text) <= 2 * half else f"{text[:half]} ... {text[-half:]}")


class ModelFormatError(ForestError, ValueError):
    """A model file or object is truncated, damaged or not a forest at all."""


class UnsupportedModel(ForestError, NotImplementedError):
    """A sound model uses something that cannot be reproduced exactly yet."""


class ScheduleError(ForestError, ValueError):
    """A directive cannot be applied, or a schedule does not fit the model."""

    longest = 100_000  # it may show the schedule


class BuildError(ForestError, RuntimeError):
    """The compiler, or a tool or device that it needs, cannot do the job."""

    longest = 100_000  # it may show the schedule and what a compiler says


class DeviceError(ForestError, RuntimeError):
    """A GPU, its driver, a tool for it or the machine is missing, too old, or refuses a call."""


class InputError(ForestError, ValueError):
    """Rows or another argument have the wrong shape, dtype, names or value."""


class RowError(InputError):
    """One of the rows cannot be predicted.

    Attributes:
        where: beginning of the message, such as the name of the method.
        row: its place among the rows of the call, from 0.
        what: the column, what is wrong, and what to do.
    """

    def __init__(self, where: str, row: int, what: str) -> None:
        super().__init__(f"{where}: row {row}, {what}")
        self.where, self.row, self.what = where, row, what

    def __reduce__(self) -> tuple[type[RowError], tuple[str, int, str]]:
        """Support pickle."""
        return type(self), (self.where, self.row, self.what)
