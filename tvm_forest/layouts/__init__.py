"""Memory layouts of a forest, one file for each.

takes: Forest; gives: a layout, with the arrays that compiled code reads.

A layout is imported when it is first needed. Code that needs a layout with some property finds it
here by its role; `find(name).unfit(forest)` returns why it cannot hold a model.
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
"""Layout with which rows walk through several trees at once, in registers."""

OCTETS = "octets"
"""Layout with which a row walks through 8 trees at once, in tiles of bytes."""

PIECES = "pieces"
"""Layout with which a row walks through all trees at once, in cache lines."""

BIT_PLANES = "bitsliced"
"""Layout for rows as bit planes."""

BY_HOPS = (PADDED, WORD_NODES, CODED, TRANSPOSED, ANY_FOREST)
"""Layouts for walks hop by hop, which need neither tiles nor a leaf profile."""

TILED = (PADDED, ANY_FOREST)
"""Layouts of `BY_HOPS` that support tiles too."""

COPIED = (PADDED, WORD_NODES, CODED, ANY_FOREST, BANKED)
"""Layouts whose trees a GPU can copy into shared memory, without tiles."""

SIMDIZED = {BIT_PLANES: "bits", PERMUTED: "permute"}
"""Layouts that are walked by blocks of rows only, each with its argument of `simdize`."""

SIMDIZED_TREES = {OCTETS: "octets", PIECES: "pieces"}
"""Layouts of which several trees are walked at once, with their argument of `simdize`."""

REGISTER = 64
"""Bytes of an AVX-512 register, in which permutes look up nodes."""
