"""Memory layouts of a forest, each in a file, or beside one that it is a kind of.

takes: Forest; gives: a layout, with the arrays that compiled code reads.

A layout is imported when it is first needed. Other code names layouts by the roles listed here;
`find(name).unfit(forest)` (`layouts.protocol`) returns why a layout cannot hold a model.
"""

from .protocol import FIELD_TYPES as FIELD_TYPES

PADDED = "array"
"""Layout of complete trees, slot by slot."""

TRANSPOSED = "reorg"
"""Layout of complete trees side by side, for neighbouring threads of a GPU."""

ANY_FOREST = "sparse"
"""Layout that can hold every model."""

WORD_NODES = "packed"
"""Layout with a word per node; a whole tree can be prefetched."""

CODED = "ranked"
"""Layout with half a word per node, for coded rows."""

BANKED = "banked"
"""Layout of complete trees of words, for rows coded into banks of a GPU's shared memory."""

PERMUTED = "levels"
"""Layout for blocks of rows that walk through several trees at once, with nodes in registers."""

OCTETS = "octets"
"""Layout for a row that walks through 8 trees at once, in tiles of bytes."""

PIECES = "pieces"
"""Layout for a row that walks through all trees at once, a cache line at each step."""

BIT_PLANES = "bitsliced"
"""Layout for blocks of rows as bit planes: a bit for each row and test."""

BY_HOPS = (PADDED, WORD_NODES, CODED, TRANSPOSED, ANY_FOREST)
"""Layouts for walks hop by hop, which need neither tiles nor a leaf profile."""

TILED = (PADDED, ANY_FOREST)
"""Layouts of `BY_HOPS` that support tiles too."""

COPIED = (PADDED, WORD_NODES, CODED, ANY_FOREST, BANKED)
"""Layouts whose trees a GPU can copy into shared memory, without tiles."""

SIMDIZED = {BIT_PLANES: "bits", PERMUTED: "permute"}
"""Layouts in which only blocks of rows walk, each with its argument of `simdize`."""

SIMDIZED_TREES = {OCTETS: "octets", PIECES: "pieces"}
"""Layouts in which a row walks several trees at once, each with its argument of `simdize`."""

REGISTER = 64
"""Bytes of an AVX-512 register, in which permutes look up nodes."""
