"""Makes the errors by which frontends refuse damaged and unsupported models.

takes: field, reason, remedy and the name of the model; gives: exceptions to raise.

A reader raises errors that name the field. `name_in_errors`, around all of the reading, puts the
name of the model before their messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from ..errors import ModelFormatError, UnsupportedModel
from ..forest import Array

TRUNCATED = "the file is truncated or damaged: save the model again"


def damaged(
    field: str, what: str, remedy: str = "the model is damaged: save it again"
) -> ModelFormatError:
    """Return the error for a model that is truncated or damaged, or for a file without a model.

    Args:
        field: name of the field that is wrong.
        what: what is wrong with it.
        remedy: what the user can do.
    """
    return ModelFormatError(_describe(field, what, remedy))


def unsupported(field: str, what: str, remedy: str) -> UnsupportedModel:
    """Return the error for a sound model with a part that is not supported.

    Args:
        field, what, remedy: see `damaged`.
    """
    return UnsupportedModel(_describe(field, what, remedy))


def refuse_damaged(wrong: Array, field: str, describe: Callable[[int], str]) -> None:
    """Refuse a model as damaged if an entry of an array is wrong.

    Args:
        wrong: bool (N,), which entries are wrong.
        field: name of the array.
        describe: returns the reason for the message, given the index of the first wrong entry.
    """
    if wrong.any():
        raise damaged(field, describe(int(np.argmax(wrong))))


def refuse_unsupported(
    wrong: Array, field: str, describe: Callable[[int], str], remedy: str
) -> None:
    """Like `refuse_damaged`, but refuse a sound model as unsupported; `remedy` as in `damaged`."""
    if wrong.any():
        raise unsupported(field, describe(int(np.argmax(wrong))), remedy)


@contextmanager
def name_in_errors(model: str) -> Iterator[None]:
    """Put the name of a model before the messages of the errors that are raised inside."""
    try:
        yield
    except (ModelFormatError, UnsupportedModel) as error:
        error.args = type(error)(f"{as_line(model, 300)}: {error}").args
        raise


def _describe(field: str, what: str, remedy: str) -> str:
    """Return the message of an error as one line, even if parts come from a damaged file."""
    return f"field '{as_line(field, 60)}': {as_line(what, 400)}; {remedy}"


def as_line(text: str, width: int) -> str:
    """Return a text as one printable line of at most `width` characters."""
    text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return text if len(text) <= width else text[: width - 3] + "..."
