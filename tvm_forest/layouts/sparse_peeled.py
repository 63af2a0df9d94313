"""The peeled sparse layout: as `tiled_sparse`, with the likely leaves among the tiles.

takes: Forest with tiles and a leaf profile; gives: a TiledSparseRepresentation.
"""

from __future__ import annotations

from typing import ClassVar

from ..forest import Array, Forest
from .representation import Representation, register
from .tile_records import TILE_SIZES
from .tiled_sparse import TiledSparseRepresentation


@register
class SparsePeeledRepresentation(Representation):
    """Chooses how to pack; the code is that of `TiledSparseRepresentation`."""

    name: ClassVar[str] = "sparse_peeled"
    tile_sizes: ClassVar[tuple[int, ...]] = TILE_SIZES

    @classmethod
    def pack(cls, forest: Forest) -> tuple[Representation, dict[str, Array]]:
        """Lay the forest out; likely leaves are those that nine rows of ten reach.

        Raises:
            BuildError: the forest has no leaf profile, or there are too many tiles.
        """
        return TiledSparseRepresentation.pack_peeled(forest)
