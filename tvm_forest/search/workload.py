"""A forest and the machine that is to evaluate it, with the counts that decide about schedules.

takes: Forest, Target; gives: Workload.

Spaces and the cost model ask a Workload. A count is made when it is first
asked for, and once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
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
from ..process.locks import cached_property
from ..schedule import Schedule
from ..target import Target
from ..values import dataclass
from .machines import Machine, machine_of

MAX_SMALL_TREE_NODES = 4096
"""Nodes of a tree, on average, that stay in the first-level cache while a block of rows walks."""

LINE_BYTES, LINES_AHEAD = 64, 4
"""Bytes of a line of the cache, and lines of a row that the CPU fetches by itself."""


def new_schedule(forest: Forest) -> Schedule:
    """Return the schedule without directives for a model: one row at a time, tree by tree."""
    return _start_of(canonicalize(forest))


def _start_of(forest: Forest) -> Schedule:
    """Return the schedule without directives for a model in canonical form."""
    rounds = forest.depths.reshape(-1, forest.round_size).max(axis=1)
    depths = tuple(int(depth) for depth in rounds)
    return Schedule(forest.n_trees, forest.n_outputs, depths=depths, vectors=forest.has_vectors)


@dataclass(frozen=True, eq=False)
class Workload:
    """What spaces and the cost model know of a model and a machine.

    Attributes:
        forest: the model in canonical form.
        target: what code is made for.
        own_machine: whose times serve; by default those that `machine_of` finds for the target.
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
        """The machine whose times serve."""
        return self.own_machine or machine_of(self.target)

    @cached_property
    def known(self) -> dict[Hashable, Any]:
        """Answers that `ask_once` keeps, by question."""
        return {}

    def ask_once(self, answer: Callable[..., Any], *question: Hashable) -> Any:
        """Return `answer(self, *question)`, or what it was before."""
        key = (answer, *question)
        if key not in self.known:
            self.known[key] = answer(self, *question)
        return self.known[key]

    def unfit(self, layout: str) -> str | None:
        """Say of a layout, by name, why it cannot hold the forest; None if it can."""
        return self.ask_once(_find_unfit, layout)

    # -- trees

    @cached_property
    def hops(self) -> int:
        """Hops of a row through all trees, at most."""
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
        """Nodes of a tree, on average."""
        return self.forest.n_nodes // self.forest.n_trees

    @property
    def threshold_bytes(self) -> int:
        """Bytes of a threshold."""
        return self.forest.threshold.dtype.itemsize

    @property
    def has_small_trees(self) -> bool:
        """Whether a tree stays in the first-level cache while a block of rows walks."""
        return self.forest.n_nodes <= MAX_SMALL_TREE_NODES * self.forest.n_trees

    @cached_property
    def slots_per_node(self) -> float:
        """Slots of complete trees for each node."""
        return float(np.sum(2.0 ** (self.forest.depths + 1.0) - 1.0)) / self.forest.n_nodes

    @property
    def leaves(self) -> int:
        """Leaves of all trees."""
        return len(self.leaf_depths)

    @cached_property
    def vectors(self) -> Array:
        """The distinct vectors of all leaves; none if leaves hold numbers."""
        return self.forest.leaf_table.values if self.forest.has_vectors else np.zeros((0, 1))

    def count_ends(self, ways: int, levels: float) -> float:
        """Return the leaves of complete trees of tiles.

        Args:
            ways: children of a tile.
            levels: levels of a tree that a tile decides.
        """
        return float((float(ways) ** np.ceil(self.forest.depths / levels)).sum())

    # -- walks

    @cached_property
    def _leaf_share(self) -> Array:
        """Float64 (leaves,), the share of rows that end at each: as many at any leaf of a tree."""
        forest = self.forest
        return 1 / self.forest.leaf_counts[forest.node_tree[forest.is_leaf]]

    @cached_property
    def _reach(self) -> tuple[Array, Array]:
        """Nodes on each level, int64 (D,), and the share of rows that each of them meets."""
        nodes = np.bincount(self.forest.hop_depth)
        ends = np.bincount(self.leaf_depths, self._leaf_share, len(nodes))
        return nodes, ends[::-1].cumsum()[::-1] / nodes

    @cached_property
    def _ended(self) -> Array:
        """Float64 (T, D), the share of rows that are at a leaf of a tree after so many hops."""
        forest, levels = self.forest, int(self.forest.depths.max(initial=0)) + 1
        place = forest.node_tree[forest.is_leaf] * levels + self.leaf_depths
        shares = np.bincount(place, self._leaf_share, forest.n_trees * levels)
        return np.minimum(1.0, np.cumsum(shares.reshape(-1, levels), axis=1))

    def count_hops(self, together: int, levels: float) -> float:
        """Return the hops of a row through all trees, if walks test whether they have ended.

        Args:
            together: walks that end together, with the last of them.
            levels: levels of a tree that a hop decides.
        """
        going = self.ask_once(Workload._count_going, together)
        ends = np.arange(0, len(going), levels).astype(int)
        return float(going[ends[ends < len(going)]].sum())  # a sum of fractions may reach the bound

    def _count_going(self, together: int) -> Array:
        """Return float64 (D,), in how many trees some of the walks go on after so many hops."""
        return (1 - self._ended**together).sum(axis=0)

    def count_unasked_hops(self, levels: float) -> float:
        """Return the hops of a row, if walks go on to the depth of each tree.

        There are more beside a deeper tree, but a walk at its leaf waits for no load.
        """
        return float(np.ceil(self.forest.depths / levels).sum())

    def count_far_nodes(self, capacity: int, rows: Any, node_bytes: Any, near: Any) -> Array:
        """Return the nodes that a row meets which a cache does not hold.

        Blocks of rows go through one tree after the other. What a block meets first of a tree was
        met last by the block before it; what it meets again it has met a moment ago.

        Args:
            capacity: bytes of the cache.
            rows: rows of a block; like the next two, a number or an array of K.
            node_bytes: bytes of a node.
            near: bytes of the rows of a block, which the cache holds as well.

        Returns:
            float64, a number or an array of K.
        """
        nodes, share = self._reach
        size = nodes * np.asarray(node_bytes)[..., None]
        return _count_far(capacity, rows, near, nodes, share, size, self.forest.n_trees)

    def count_far_ends(
        self, capacity: int, rows: Any, node_bytes: Any, near: Any, ends: Any
    ) -> Array:
        """Return how many ends of walks a cache does not hold, as for `count_far_nodes`.

        Args:
            capacity, rows, node_bytes, near: see there.
            ends: entries of the tables where walks end, for all leaves.
        """
        entries, share = np.asarray(ends)[..., None], np.array([self.forest.n_trees / self.leaves])
        size = self.forest.n_nodes * np.asarray(node_bytes)[..., None]
        return _count_far(capacity, rows, near, entries, share, size, self.forest.n_trees)

    # -- rows

    @cached_property
    def picks_from_registers(self) -> bool:
        """Whether registers hold a row, out of which one instruction picks the values of a tile."""
        has, floats = self.target.has, self.forest.row_dtype == "float32"
        most = 32 if has("avx512f") else 8 if has("avx2") else 0
        return floats and self.forest.n_features <= most

    @cached_property
    def columns_by_steps(self) -> dict[int, int]:
        """Searches that code a row, by their steps."""
        steps = np.concatenate([np.full(1, 0), self._search_steps])
        return {k: int(n) for k, n in enumerate(np.bincount(steps)) if k and n}

    @property
    def cut_bytes(self) -> int:
        """Bytes of the cuts that searches read: those of one step of each, at least."""
        item = np.dtype(self.forest.row_dtype).itemsize
        return 16 * item * sum(steps * n for steps, n in self.columns_by_steps.items())

    @cached_property
    def _compared(self) -> tuple[Array, Array]:
        """Int (C,) each: the features that are compared with cuts, and with how many."""
        keys, cuts = self.forest.distinct_tests.keys, self.forest.cuts_per_column
        compared = self.forest.searches - len(self.forest.set_counts)
        return keys[:compared] // 2, cuts[:compared]

    @cached_property
    def _search_steps(self) -> Array:
        categories = [question.categories for question in self.forest.set_counts]
        return _count_steps(np.append(self._compared[1], categories))

    @cached_property
    def wide_hops(self) -> int:
        """Levels of all trees that have more inner nodes than a register has bytes."""
        return int((self.forest.level_sizes > REGISTER).sum())

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of a row, membership columns included."""
        return self.forest.n_features * np.dtype(self.forest.row_dtype).itemsize

    def count_lines(self, loads: Any) -> Any:
        """Return how many lines of the cache so many loads touch in a row, but for the first ones.

        Those are fetched with the end of the row before.

        Args:
            loads: a number or an array, which decides what is returned.
        """
        lines = self.row_bytes / LINE_BYTES
        if lines <= LINES_AHEAD:
            return 0.0 * loads
        return np.maximum(0.0, lines * (1 - (1 - 1 / lines) ** loads) - LINES_AHEAD)

    @cached_property
    def code_bytes(self) -> int:
        """Bytes of the codes of a row."""
        return len(self.forest.cuts_per_column) * np.dtype(choose_code_dtype(self.forest)).itemsize

    @cached_property
    def membership_columns(self) -> int:
        """Columns of memberships in sets of categories."""
        return sum(question.sets for question in self.forest.set_counts)

    @property
    def most_categories(self) -> int:
        """Most categories that the tests of one feature name."""
        return max((question.categories for question in self.forest.set_counts), default=0)

    # -- bit planes

    @cached_property
    def units(self) -> int:
        """Units of features that are turned into columns, see `layouts.row_codes.panels`."""
        return int(np.count_nonzero(np.bincount(self._compared[0] // UNIT_FEATURES)))

    @cached_property
    def compared_tests(self) -> int:
        """Tests of the columns that are compared with each of their cuts."""
        cuts = self._compared[1]
        return int(cuts[_count_steps(cuts) == 1].sum())

    @cached_property
    def searched_columns(self) -> dict[tuple[int, int], int]:
        """Columns that are searched, by steps and levels of their searches."""
        cuts = self._compared[1]
        kinds = zip(_count_steps(cuts).tolist(), count_levels(cuts).tolist(), strict=True)
        return dict(Counter(kind for kind in kinds if kind[0] > 1))

    @cached_property
    def tests(self) -> int:
        """Distinct tests."""
        return int(self.forest.cuts_per_column.sum())

    @cached_property
    def _is_listed(self) -> Array:
        return is_listed(self.forest)

    @cached_property
    def slots(self) -> int:
        """Slots of the trees that bit planes take as complete ones, or level by level."""
        depths = self.forest.depths[~self._is_listed & ~self._has_levels].astype(np.int64)
        return int((1 << depths).sum() + self.forest.depths[self._has_levels].sum())

    @cached_property
    def _has_levels(self) -> Array:
        return has_levels(self.forest)

    @property
    def all_oblivious(self) -> bool:
        """Whether bit planes select nothing: the tests of levels are the bits of leaves."""
        return bool(self._has_levels.all())

    @cached_property
    def selections(self) -> int:
        """Selections of the other trees."""
        return count_selections(self.forest, self._is_listed)

    @cached_property
    def leaf_table(self) -> int:
        """Entries of the tables that permutes look leaves up in; 0 if registers hold none."""
        return self._fit_table() if self.forest.leaf_value.dtype == np.float32 else 0

    @cached_property
    def leaf_look_up(self) -> str:
        """How bit planes look leaves up: in tables of so many entries in registers, or "far"."""
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
    """Return how many nodes a row meets that a cache does not hold, see `count_far_nodes`.

    Args:
        capacity, rows, near: see there.
        nodes, share, size: of each level, on the last axis: its nodes in all trees, the share of
            rows that each of them meets, bytes of all.
        trees: of the forest.
    """
    rows, near = (np.asarray(x)[..., None] for x in (rows, near))
    left = np.maximum(capacity - near, capacity / 4)
    first = (1 - (1 - share) ** rows) / rows
    whole = np.clip((np.cumsum(size, axis=-1) - left) / size, 0, 1)
    again = np.clip((np.cumsum(size / trees, axis=-1) - left) / (size / trees), 0, 1)
    return np.sum(nodes * (whole * first + again * (share - first)), axis=-1)


def _count_steps(cuts: Array) -> Array:
    """Return in how many steps columns with so many cuts are searched, 16 of these at a time."""
    return 1 + (cuts >= 16).astype(int) + (cuts >= 256)
