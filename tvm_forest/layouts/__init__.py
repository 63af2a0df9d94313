"""How a forest lies in memory: one file for each layout.

takes: Forest; gives: a layout, with the arrays that compiled code reads.

A layout is imported when it is first asked for. Whoever wants one for what it does asks for it here
by its role, or by a property, and `find(name).unfit(forest)` says whether it holds a model.
"""

from .protocol import FIELD_TYPES as FIELD_TYPES

PADDED = "array"
"""Complete trees, slot by slot."""

TRANSPOSED = "reorg"
"""Complete trees side by side, for neighbouring threads of a GPU."""

ANY_FOREST = "sparse"
"""Holds every model."""

WORD_NODES = "packed"
"""A node is a word, and a whole tree can be fetched in advance."""

CODED = "ranked"
"""A node is half a word, and rows are codes."""

BANKED = "banked"
"""Complete trees of words, and rows whose codes lie in banks of a GPU's shared memory."""

PERMUTED = "levels"
"""Rows walk through several trees at once, out of registers."""

OCTETS = "octets"
"""A row walks through 8 trees at once, in tiles of bytes."""

PIECES = "pieces"
"""A row walks through all trees at once, in lines of the cache."""

BIT_PLANES = "bitsliced"
"""Rows are planes of bits."""

BY_HOPS = (PADDED, WORD_NODES, CODED, TRANSPOSED, ANY_FOREST)
"""Layouts whose trees are walked hop by hop, and which need neither tiles nor a leaf profile."""

TILED = (PADDED, ANY_FOREST)
"""Those of them that hold tiles too."""

COPIED = (PADDED, WORD_NODES, CODED, ANY_FOREST, BANKED)
"""Those whose trees a GPU can copy into shared memory, without tiles."""

SIMDIZED = {BIT_PLANES: "bits", PERMUTED: "permute"}
"""Layouts whose trees are walked by blocks of rows only, and how `simdize` calls it."""

SIMDIZED_TREES = {OCTETS: "octets", PIECES: "pieces"}
"""The same where several trees are walked at once."""

REGISTER = 64
"""Bytes of a register of AVX-512, in which permutes look nodes up."""
