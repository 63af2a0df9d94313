"""The two ways in which a frontend says no.

takes: place, field and reason; gives: exceptions, to be raised.
"""

from __future__ import annotations

from ..errors import ModelFormatError, UnsupportedModel


def damaged(where: str, field: str, what: str, remedy: str = "") -> ModelFormatError:
    """Return the error for a model that is truncated, damaged or none at all."""
    return ModelFormatError(
        _message(where, field, what, remedy or "the model is damaged: save it again")
    )


def unsupported(where: str, field: str, what: str, remedy: str) -> UnsupportedModel:
    """Return the error for a sound model with a part that is not supported."""
    return UnsupportedModel(_message(where, field, what, remedy))


def _message(where: str, field: str, what: str, remedy: str) -> str:
    """One line, whatever a damaged file has put into the parts."""
    return f"{line(where, 300)}: field '{line(field, 60)}': {line(what, 400)}; {remedy}"


def line(text: str, width: int) -> str:
    """Return a text as one line of at most `width` characters."""
    text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return text if len(text) <= width else text[: width - 3] + "..."
