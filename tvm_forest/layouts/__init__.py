"""How a forest lies in memory: one file for each layout.

takes: Forest; gives: a layout, with the arrays that compiled code reads.
"""

from . import array, bitsliced, levels, packed, ranked, reorg, sparse, sparse_peeled

__all__ = ["array", "bitsliced", "levels", "packed", "ranked", "reorg", "sparse", "sparse_peeled"]
