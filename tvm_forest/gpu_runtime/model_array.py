"""Arrays of the model, as functions of a GPU take them.

takes: an array; gives: ModelArray.
"""

from __future__ import annotations

from typing import NamedTuple

from ..forest import Array


class ModelArray(NamedTuple):
    """An array of the model, on the host; executors copy it to the GPU once."""

    array: Array

    def numpy(self) -> Array:
        """Return the array."""
        return self.array
