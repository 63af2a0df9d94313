"""A forest and its target machine, with the counts on which schedules depend.

takes: Forest, Target; gives: Workload.

Spaces and the cost model read counts from a Workload, which computes each one once, on first use.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from ..forest import Array, Forest
from ..forest.rewrites.canonical_form import canonicalize
from ..layouts import REGISTER
from ..layouts.bitsliced import TABLE_SIZES
from ..layouts.protocol import find
from ..layouts.row_codes.panels import UNIT_FEATURES
from ..layouts.row_codes.ranks import choose_code_dtype, count_levels
from ..layouts.row_codes.selections import count_selections, has_levels, is_listed
from ..schedule_prims import Schedule
from ..system.process.locks import cached_property
from ..system.values import AsksOnce, dataclass
from ..target import Target
from .machines import Machine, machine_of

MAX_SMALL_TREE_NODES = 4096
"""Largest average number of nodes of trees that stay in the first cache while a block walks."""

LINE_BYTES, LINES_AHEAD = 64, 4
"""Bytes of a cache line, and number of lines of a row that hardware prefetches."""


def new_schedule(forest: Forest) -> Schedule:
    """Return the schedule without directives for a model: one row at a time, tree by tree."""
    return _start_of(canonicalize(forest))


def _start_of(forest: Forest) -> Schedule:
    """Return the schedule without directives for a model in canonical form."""
    rounds = forest.depths.reshape(-1, forest.round_size).max(axis=1)
    depths = tuple(int(depth) for depth in rounds)
    return Schedule(forest.n_trees, forest.n_outputs, depths=depths, vectors=forest.has_vectors)


@dataclass(frozen=True, eq=False)
class Workload(AsksOnce):
    """A model and a machine, with counts for spaces and the cost model.

    Attributes:
        forest: the model in canonical form.
        target: the compilation target.
        own_machine: machine whose durations are used; by default that of `machine_of`.
    """

    forest: Forest
    target: Target
    own_machine: Machine | None = None

    @classmethod
    def of(cls, forest: Forest, target: Target) -> Workload:
        """Return the workload of a forest in any form."""
        return cls(canonicalize(forest), target)

    @cached_property
    def start(self) -> Schedule:
        """The schedule without directives."""
        return _start_of(self.forest)

    @cached_property
    def machine(self) -> Machine:
        """The machine whose durations are used."""
        return self.own_machine or machine_of(self.target)

    def unfit(self, layout: str) -> str | None:
        """Return why a layout cannot hold the forest; None if it can."""
        return self.ask_once(_find_unfit, layout)

    # -- trees

    @cached_property
    def hops(self) -> int:
        """Largest number of hops of a row through all trees: the sum of their depths."""
        return int(self.forest.depths.sum())

    @cached_property
    def deepest(self) -> int:
        """Hops to the deepest leaf of any tree."""
        return int(self.forest.depths.max(initial=0))

    @cached_property
    def leaf_depths(self) -> Array:
        """Int (leaves,), hops to each leaf."""
        return self.forest.hop_depth[self.forest.is_leaf]

    @cached_property
    def shallowest(self) -> int:
        """Hops to the nearest leaf of any tree."""
        return int(self.leaf_depths.min())

    @property
    def mean_nodes(self) -> int:
        """Average number of nodes of a tree, rounded down."""
        return self.forest.n_nodes // self.forest.n_trees

    @property
    def threshold_bytes(self) -> int:
        """Bytes of a threshold."""
        return self.forest.threshold.dtype.itemsize

    @property
    def has_small_trees(self) -> bool:
        """Whether trees are so small on average that the first-level cache holds one."""
        return self.forest.n_nodes <= MAX_SMALL_TREE_NODES * self.forest.n_trees

    @cached_property
    def slots_per_node(self) -> float:
        """Number of slots that the trees would have if they were complete, per node they have."""
        return float(np.sum(2.0 ** (self.forest.depths + 1.0) - 1.0)) / self.forest.n_nodes

    @property
    def leaves(self) -> int:
        """Number of leaves of all trees."""
        return len(self.leaf_depths)

    @cached_property
    def vectors(self) -> Array:
        """The distinct leaf vectors; none if leaves hold numbers."""
        return self.forest.leaf_table.values if self.forest.has_vectors else np.zeros((0, 1))

    def count_ends(self, ways: int, levels: float) -> float:
        """Return the number of leaves if all trees were complete trees of tiles.

        Args:
            ways: number of children of a tile.
            levels: levels of a tree that a tile decides.
        """
        return float((float(ways) ** np.ceil(self.forest.depths / levels)).sum())

    # -- walks

    @cached_property
    def _leaf_share(self) -> Array:
        """Float64 (leaves,), share of rows that end at each leaf, assumed equal within a tree."""
        forest = self.forest
        return 1 / self.forest.leaf_counts[forest.node_tree[forest.is_leaf]]

    @cached_property
    def _reach(self) -> tuple[Array, Array]:
        """Nodes per level, int64 (D,), and the mean share of rows that reach one, float64 (D,)."""
        nodes = np.bincount(self.forest.hop_depth)
        ends = np.bincount(self.leaf_depths, self._leaf_share, len(nodes))
        return nodes, ends[::-1].cumsum()[::-1] / nodes

    @cached_property
    def _ended(self) -> Array:
        """Float64 (T, D), share of rows that are at a leaf of a tree after 0, 1, 2, ... hops."""
        forest, levels = self.forest, int(self.forest.depths.max(initial=0)) + 1
        place = forest.node_tree[forest.is_leaf] * levels + self.leaf_depths
        shares = np.bincount(place, self._leaf_share, forest.n_trees * levels)
        return np.minimum(1.0, np.cumsum(shares.reshape(-1, levels), axis=1))

    def count_hops(self, together: int, levels: float) -> float:
        """Return a row's mean hops through all trees, if walks test whether they have ended.

        Args:
            together: number of interleaved walks, which go on until the last of them ends.
            levels: levels of a tree that a hop decides.
        """
        going = self.ask_once(Workload._count_going, together)
        ends = np.arange(0, len(going), levels).astype(int)
        return float(going[ends[ends < len(going)]].sum())  # a sum of fractions may reach the bound

    def _count_going(self, together: int) -> Array:
        """Return float64 (D,): mean number of trees where one of `together` walks still goes on.

        An entry is after 0, 1, 2, ... hops.
        """
        return (1 - self._ended**together).sum(axis=0)

    def count_unasked_hops(self, levels: float) -> float:
        """Return the hops of a row through all trees, if walks go to the full depth of each.

        Interleaved with a deeper tree there are more, but a walk at its leaf waits for no load.

        Args:
            levels: see `count_hops`.
        """
        return float(np.ceil(self.forest.depths / levels).sum())

    def count_far_nodes(self, capacity: int, rows: Any, node_bytes: Any, near: Any) -> Array:
        """Return how many of the nodes that a row visits miss a cache.

        Blocks of rows go through one tree after the other. A node's first visit by a block misses
        if much was visited since the block before; further visits follow soon after.

        Args:
            capacity: bytes of the cache.
            rows: rows of a block; like the next two, a number or an array of K.
            node_bytes: bytes of a node.
            near: bytes of the block's rows, which are cached too.

        Returns:
            float64, a number or an array of K.
        """
        nodes, share = self._reach
        size = nodes * np.asarray(node_bytes)[..., None]
        return _count_far(capacity, rows, near, nodes, share, size, self.forest.n_trees)

    def count_far_ends(
        self, capacity: int, rows: Any, node_bytes: Any, near: Any, ends: Any
    ) -> Array:
        """Return how many ends of walks miss a cache, as `count_far_nodes` does for nodes.

        Args:
            capacity, rows, node_bytes, near: see there.
            ends: number of table entries where walks end, for all leaves.
        """
        entries, share = np.asarray(ends)[..., None], np.array([self.forest.n_trees / self.leaves])
        size = self.forest.n_nodes * np.asarray(node_bytes)[..., None]
        return _count_far(capacity, rows, near, entries, share, size, self.forest.n_trees)

    # -- rows

    @cached_property
    def picks_from_registers(self) -> bool:
        """Whether registers hold a row, so that one instruction picks a tile's values."""
        has, floats = self.target.has, self.forest.row_dtype == "float32"
        most = 32 if has("avx512f") else 8 if has("avx2") else 0
        return floats and self.forest.n_features <= most

    @cached_property
    def columns_by_steps(self) -> dict[int, int]:
        """Number of searches that code a row, by the number of steps of a search."""
        steps = np.concatenate([np.full(1, 0), self._search_steps])
        return {k: int(n) for k, n in enumerate(np.bincount(steps)) if k and n}

    @property
    def cut_bytes(self) -> int:
        """Bytes of the cuts that the searches of a row read: 16 cuts in each step."""
        item = np.dtype(self.forest.row_dtype).itemsize
        return 16 * item * sum(steps * n for steps, n in self.columns_by_steps.items())

    @cached_property
    def _compared(self) -> tuple[Array, Array]:
        """Feature and number of cuts of each column that is compared with cuts, int arrays."""
        keys, cuts = self.forest.distinct_tests.keys, self.forest.cuts_per_column
        compared = self.forest.searches - len(self.forest.set_counts)
        return keys[:compared] // 2, cuts[:compared]

    @cached_property
    def _search_steps(self) -> Array:
        categories = [question.categories for question in self.forest.set_counts]
        return _count_steps(np.append(self._compared[1], categories))

    @cached_property
    def wide_hops(self) -> int:
        """Number of levels, over all trees, with more inner nodes than a register has bytes."""
        return int((self.forest.level_sizes > REGISTER).sum())

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of a row, membership columns included."""
        return self.forest.n_features * np.dtype(self.forest.row_dtype).itemsize

    def count_lines(self, loads: Any) -> Any:
        """Return how many cache lines of a row so many loads touch, except the first ones.

        Those are prefetched with the end of the row before.

        Args:
            loads: a number or an array; the result has the same form.
        """
        lines = self.row_bytes / LINE_BYTES
        if lines <= LINES_AHEAD:
            return 0.0 * loads
        return np.maximum(0.0, lines * (1 - (1 - 1 / lines) ** loads) - LINES_AHEAD)

    @cached_property
    def code_bytes(self) -> int:
        """Size of the codes of a row, in bytes."""
        return len(self.forest.cuts_per_column) * np.dtype(choose_code_dtype(self.forest)).itemsize

    @cached_property
    def membership_columns(self) -> int:
        """Number of membership columns."""
        return sum(question.sets for question in self.forest.set_counts)

    @property
    def most_categories(self) -> int:
        """Largest number of categories that a feature is tested for."""
        return max((question.categories for question in self.forest.set_counts), default=0)

    # -- bit planes

    @cached_property
    def units(self) -> int:
        """Number of units of features that are transposed, see `layouts.row_codes.panels`."""
        return int(np.count_nonzero(np.bincount(self._compared[0] // UNIT_FEATURES)))

    @cached_property
    def compared_tests(self) -> int:
        """Number of tests in the columns that are compared with each of their cuts."""
        cuts = self._compared[1]
        return int(cuts[_count_steps(cuts) == 1].sum())

    @cached_property
    def searched_columns(self) -> dict[tuple[int, int], int]:
        """Number of searched columns, by steps and levels of their searches."""
        cuts = self._compared[1]
        kinds = zip(_count_steps(cuts).tolist(), count_levels(cuts).tolist(), strict=True)
        return dict(Counter(kind for kind in kinds if kind[0] > 1))

    @cached_property
    def tests(self) -> int:
        """Number of distinct tests."""
        return int(self.forest.cuts_per_column.sum())

    @cached_property
    def _is_listed(self) -> Array:
        return is_listed(self.forest)

    @cached_property
    def slots(self) -> int:
        """Number of slots of trees that bit planes store as complete or oblivious trees."""
        depths = self.forest.depths[~self._is_listed & ~self._has_levels].astype(np.int64)
        return int((1 << depths).sum() + self.forest.depths[self._has_levels].sum())

    @cached_property
    def _has_levels(self) -> Array:
        return has_levels(self.forest)

    @property
    def all_oblivious(self) -> bool:
        """Whether bit planes store all trees as one test per level, and need no selections."""
        return bool(self._has_levels.all())

    @cached_property
    def selections(self) -> int:
        """Number of selections of trees that bit planes do not store as complete trees."""
        return count_selections(self.forest, self._is_listed)

    @cached_property
    def leaf_table(self) -> int:
        """Entries of the leaf tables that permutes use; 0 if registers cannot hold them."""
        return self._fit_table() if self.forest.leaf_value.dtype == np.float32 else 0

    @cached_property
    def leaf_look_up(self) -> str:
        """Where bit planes look up leaves: "far" is memory, else the size of a register table."""
        dtype = self.forest.leaf_value.dtype
        if dtype == np.float32:
            return str(self._fit_table() or "far")
        held = self.target.has("avx512f") and not self.forest.has_vectors
        size = self._fit_table() if held else 0
        return f"{size} {dtype}" if size else "far"

    def _fit_table(self) -> int:
        leaves = int(self.forest.leaf_counts.max(initial=1))
        sizes = TABLE_SIZES.get(str(self.forest.leaf_value.dtype), ())
        return next((x for x in sizes if leaves <= x), 0)


def _find_unfit(work: Workload, layout: str) -> str | None:
    return find(layout).unfit(work.forest)


def _count_far(
    capacity: int, rows: Any, near: Any, nodes: Array, share: Array, size: Array, trees: int
) -> Array:
    """Return how many nodes that a row visits miss a cache, see `count_far_nodes`.

    Args:
        capacity, rows, near: see there.
        nodes, share, size: for each level, on the last axis: number of nodes in all trees, share of
            rows that reaches each, bytes of all nodes.
        trees: number of trees.
    """
    rows, near = (np.asarray(x)[..., None] for x in (rows, near))
    left = np.maximum(capacity - near, capacity / 4)
    first = (1 - (1 - share) ** rows) / rows
    whole = np.clip((np.cumsum(size, axis=-1) - left) / size, 0, 1)
    again = np.clip((np.cumsum(size / trees, axis=-1) - left) / (size / trees), 0, 1)
    return np.sum(nodes * (whole * first + again * (share - first)), axis=-1)


def _count_steps(cuts: Array) -> Array:
    """Return the number of search steps for so many cuts; a step searches 16 cuts."""
    return 1 + (cuts >= 16).astype(int) + (cuts >= 256)
