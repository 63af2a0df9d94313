"""How a forest lies in memory: one file for each layout.

takes: Forest; gives: a layout, with the arrays that compiled code reads.

A layout is named in its own file. Whoever wants one for what it does asks for it here by its role,
or by a property, and `find(name).unfit(forest)` says whether it holds a model.
"""

from .array import ArrayLayout
from .banked import BankedLayout
from .bitsliced import BitslicedLayout
from .levels import LevelsLayout
from .octets import OctetsLayout
from .packed import PackedLayout
from .pieces import PiecesLayout
from .protocol import FIELD_TYPES as FIELD_TYPES
from .protocol import find
from .ranked import RankedLayout
from .reorg import ReorgLayout
from .sparse import SparseLayout

PADDED = ArrayLayout.name
"""Complete trees, slot by slot."""

TRANSPOSED = ReorgLayout.name
"""Complete trees side by side, for neighbouring threads of a GPU."""

ANY_FOREST = SparseLayout.name
"""Holds every model."""

WORD_NODES = PackedLayout.name
"""A node is a word, of which a whole tree can be asked for in advance."""

CODED = RankedLayout.name
"""A node is half a word, and rows are codes."""

BANKED = BankedLayout.name
"""Complete trees of words, and rows whose codes lie in banks of a GPU's shared memory."""

PERMUTED = LevelsLayout.name
"""Rows walk through several trees at once, out of registers."""

OCTETS = OctetsLayout.name
"""A row walks through 8 trees at once, in tiles of bytes."""

PIECES = PiecesLayout.name
"""A row walks through all trees at once, in lines of the cache."""

BIT_PLANES = BitslicedLayout.name
"""Rows are planes of bits."""

BY_HOPS = (PADDED, WORD_NODES, CODED, TRANSPOSED, ANY_FOREST)
"""Layouts whose trees are walked hop by hop, and which need neither tiles nor a leaf profile."""

TILED = tuple(name for name in BY_HOPS if len(find(name).tile_sizes) > 1)
"""Those of them that hold tiles too."""

COPIED = tuple(name for name in (*BY_HOPS, BANKED) if find(name).copied)
"""Those whose trees a GPU can copy into shared memory, without tiles."""

SIMDIZED = {name: find(name).walks for name in (BIT_PLANES, PERMUTED)}
"""Layouts whose trees are walked by blocks of rows only, and how `simdize` calls it."""

SIMDIZED_TREES = {name: find(name).walks for name in (OCTETS, PIECES)}
"""The same where several trees are walked at once."""
