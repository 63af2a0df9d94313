"""Tables of what small subtrees contribute, indexed by the outcomes of their tests.

takes: a forest with covers, or rows of a background; gives: SubtreeTables.

What a leaf adds to the features on its path depends only on the outcomes of the tests on that path.
A unit is a subtree of up to `MOST_TESTS` tests, together with all tests above it. The outcomes of
these tests, a bit each, form a pattern. The table of the unit holds, for each pattern, what the
leaves of the unit add to the features of its tests. (Leaves that hang directly from a test above
belong to one of the units below it.) So a row needs one entry of each unit instead of a walk: 16
entries for a tree of depth 6.

A leaf with d different features on its path has d values for each of 2^d combinations of features
that let the row go on. With o_j = 1 if feature j lets the row go on, else 0, and z_j, the share of
the training rows that it lets go on, the values are the integral in the docstring of
`contributions`. With a background, z_j is 1 or 0 for one of its rows, b, and values are averages
over all b. Let A be the features that let only the row go on, and B those that let only b go on. If
every other feature lets both go on, the leaf adds (|A| - 1)! |B|! / (|A| + |B|)! to each feature of
A, and subtracts |A|! (|B| - 1)! / (|A| + |B|)! from each of B; otherwise it adds nothing. So only
the number of background rows with each pattern matters.
"""

from __future__ import annotations

from math import factorial
from typing import Any, NamedTuple

import numpy as np

from ...errors import UnsupportedModel
from ...system.process.locks import cached_property
from .. import Array, Forest
from ..reference import goes_left

MOST_TESTS = 3
"""Largest number of tests in the subtree of a unit."""

MOST_ANSWERS = 9
"""Largest number of bits of a unit's pattern: tests of the subtree and above it."""

MOST_BYTES = 1 << 26
"""Largest size of all tables together; walks are as fast as larger ones."""

MOST_BYTES_OF_BACKGROUND = 1 << 30
"""The same with a background, for which there are no walks."""

QUAD = 4
"""Number of values in an entry of a table; a unit with more tests has several tables."""


class Unit(NamedTuple):
    """A subtree and the tests above it.

    Attributes:
        above: the inner nodes on the path from the root to the subtree.
        own: the inner nodes of the subtree, parents before children.
        leaves: the leaves of the subtree, and those from above that this unit counts.
    """

    above: tuple[int, ...]
    own: tuple[int, ...]
    leaves: list[int]


class _Leaf(NamedTuple):
    """A leaf in a unit.

    Attributes:
        node: number of the leaf.
        unit: number of its unit.
        players: the d players that are tested on its path.
        places: for each player, the place of its first test among the tests of the unit.
        shares: for each player, the share of the rows that it lets go on.
        patterns: int64 (2^tests,), for each pattern of the unit a bit mask of the players that let
            the row go on; bit 0 is the first player's.
    """

    node: int
    unit: int
    players: tuple[int, ...]
    places: list[int]
    shares: list[float]
    patterns: Array


class SubtreeTables:
    """The tables of all units, tree by tree.

    Attributes:
        fits: whether paths and tables are small enough; if not, the other attributes are unset.
        n_entries: E, the number of entries of all tables.
        n_places: the number of places in which compiled code keeps patterns.
        arrays: what compiled code reads, by name:
            tests: int32 (A, 4), the tests of all units, without those that the unit before has too:
                column, whether missing values go left, the place of the pattern before the test,
                and the place of the pattern with its outcome appended.
            thresholds: float64 (A,), of these tests.
            quads: int32 (Q, 7): the place of the unit's pattern, the first entry of a table and
                the one after its last, the players of an entry's 4 values (`n_players`: none).
            units: int32 (U, 4), for each unit, its first test, their number, its first quad, their
                number.
            tasks: int32 (tasks, 2), begin and end of the units of a tree.
            begins: int32 (C + 1,), where the tasks of each output begin.
            table: float64 (W, E, 4), the entries, for each value of a leaf vector.
    """

    def __init__(
        self, forest: Forest, paths: Any, values: Array, n_players: int, background: Array | None
    ) -> None:
        """Make the tables.

        Args:
            forest: the model in canonical form.
            paths: its `_Paths`.
            values: float64 (N, W), what leaves add to margins.
            n_players: the number of players.
            background: rows (B, F) of the background; None stands for the training rows.

        Raises:
            UnsupportedModel: paths are too long or tables too large, and there is a background.
        """
        self.forest, self._paths, self._values = forest, paths, values
        self.n_players = n_players
        self._units, self._tree_units = list[Unit](), list[tuple[int, int]]()
        limit = MOST_BYTES if background is None else MOST_BYTES_OF_BACKGROUND
        self.fits = bool(self._cut_trees()) and self._count_bytes() <= limit
        self._background = background
        if background is not None and not self.fits:
            raise UnsupportedModel(
                f"contributions: argument 'background': the model '{forest.source}' has paths of "
                f"more than {MOST_ANSWERS} tests or tables of more than {limit >> 20} MiB; leave "
                "it out, so that rows of training stand in for what is not known"
            )
        if self.fits:
            self.n_entries = self._count_bytes() // (QUAD * 8 * values.shape[1])
            self.n_places = 2 + max((len(unit.above) for unit in self._units), default=0)

    # -- units ------------------------------------------------------------------------------------

    def _cut_trees(self) -> bool:
        """Cut all trees into units; return whether paths are short enough."""
        for root in self.forest.tree_offset[:-1].tolist():
            first = len(self._units)
            if not self.forest.is_leaf[root] and not self._cut(root):
                return False
            self._tree_units.append((first, len(self._units)))
        return True

    def _cut(self, root: int) -> bool:
        left, right, below = self._paths.left, self._paths.right, self._paths.below
        rest: list[tuple[int, tuple[int, ...], list[int]]] = [(root, (), [])]
        while rest:
            node, above, pending = rest.pop()
            if below[node] <= MOST_TESTS:
                own, leaves = self._list_below(node)
                self._units.append(Unit(above, own, pending + leaves))
                if len(above) + len(own) > MOST_ANSWERS:
                    return False
                continue
            children = [int(left[node]), int(right[node])]
            pending = pending + [child for child in children if self.forest.is_leaf[child]]
            for child in children:
                if not self.forest.is_leaf[child]:
                    rest.append((child, (*above, node), pending))
                    pending = []
            if len(above) >= MOST_ANSWERS:
                return False
        return True

    def _list_below(self, node: int) -> tuple[tuple[int, ...], list[int]]:
        inner, leaves, rest = list[int](), list[int](), [node]
        while rest:
            at = rest.pop()
            if self.forest.is_leaf[at]:
                leaves.append(at)
                continue
            inner.append(at)
            rest += [int(self._paths.right[at]), int(self._paths.left[at])]
        return tuple(inner), leaves

    def _count_bytes(self) -> int:
        counts = (len(unit.above) + len(unit.own) for unit in self._units)
        entries = sum(-(-count // QUAD) << count for count in counts)
        return entries * QUAD * 8 * self._values.shape[1]

    # -- what code reads --------------------------------------------------------------------------

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """The arrays that compiled code reads, by name; see the class."""
        forest, order = self.forest, [list[Any]() for _ in range(3)]
        tests, quads, units = order
        entry = 0
        came: tuple[int, ...] = ()
        for unit in self._units:
            asked, new = len(tests), len(unit.above)
            same = sum(x == y for x, y in zip(came, unit.above, strict=False))
            tests += [(node, k, k + 1) for k, node in enumerate(unit.above) if k >= same]
            tests += [(node, new + (k > 0), new + 1) for k, node in enumerate(unit.own)]
            came, answers, count = unit.above, new + len(unit.own), len(quads)
            sources = [int(self._paths.feature[node]) for node in unit.above + unit.own]
            sources += [self.n_players] * (-answers % QUAD)
            for at in range(0, answers, QUAD):
                following = entry + (1 << answers)
                quads.append((new + 1, entry, following, *sources[at : at + QUAD]))
                entry = following
            units.append((asked, len(tests) - asked, count, len(quads) - count))
        nodes = np.array([node for node, *_ in tests], np.int64)
        asks = np.array([places for _, *places in tests], np.int32).reshape(-1, 2)
        columns = [forest.feature[nodes], forest.default_left[nodes], asks[:, 0], asks[:, 1]]
        trees = [self._trees_of(output) for output in range(forest.n_outputs)]
        return {
            "tests": np.stack(columns, axis=1).astype(np.int32),
            "thresholds": forest.threshold[nodes].astype(np.float64),
            "quads": np.array(quads, np.int32),
            "units": np.array(units, np.int32),
            "tasks": np.array([self._tree_units[t] for own in trees for t in own], np.int32),
            "begins": np.append(0, np.cumsum([len(own) for own in trees])).astype(np.int32),
            "table": self._fill(),
        }

    def average(self) -> Array:
        """Return each output's sum of leaf values, averaged over the background, float64 (C,)."""
        total = np.zeros(self.forest.n_outputs)
        for root in self.forest.tree_offset[:-1][self.forest.is_leaf[self.forest.tree_offset[:-1]]]:
            self._put(total, int(root), 1.0)
        leaves = self._leaves
        for leaf, counts in zip(leaves, self._count_background(leaves), strict=True):
            self._put(total, leaf.node, float(counts[-1]))
        return total

    def _put(self, total: Array, leaf: int, weight: float) -> None:
        target = int(self.forest.tree_class[self.forest.node_tree[leaf]])
        total[slice(None) if target < 0 else slice(target, target + 1)] += (
            weight * self._values[leaf]
        )

    def _trees_of(self, output: int) -> list[int]:
        tree_class = self.forest.tree_class
        return np.flatnonzero((tree_class == output) | (tree_class < 0)).tolist()

    # -- values -----------------------------------------------------------------------------------

    def _fill(self) -> Array:
        """Return the array `table`, float64 (W, E, 4), which holds what each entry adds."""
        leaves = self._leaves
        worth = self._explain(leaves)
        entries = [
            -(-(len(u.above) + len(u.own)) // QUAD) << len(u.above) + len(u.own)
            for u in self._units
        ]
        begins = np.append(0, np.cumsum(entries)).astype(np.int64)
        table = np.zeros((self._values.shape[1], begins[-1], QUAD))
        own: Array = np.zeros(0)
        for at, leaf in enumerate(leaves):
            unit = self._units[leaf.unit]
            answers = len(unit.above) + len(unit.own)
            if at == 0 or leaf.unit != leaves[at - 1].unit:
                own = np.zeros((len(table), 1 << answers, -(-answers // QUAD) * QUAD))
            own[:, :, leaf.places] += (
                self._values[leaf.node][:, None, None] * worth[at][leaf.patterns]
            )
            if at + 1 == len(leaves) or leaf.unit != leaves[at + 1].unit:
                parts = own.reshape(len(table), 1 << answers, -1, QUAD).swapaxes(1, 2)
                table[:, begins[leaf.unit] : begins[leaf.unit + 1]] = parts.reshape(
                    len(table), -1, QUAD
                )
        return table

    @cached_property
    def _leaves(self) -> list[_Leaf]:
        """The leaves of all units, unit by unit."""
        paths, found, known = self._paths, list[_Leaf](), dict[Any, Array]()
        for number, unit in enumerate(self._units):
            asked = unit.above + unit.own
            place_of = {node: place for place, node in enumerate(asked)}
            for leaf in unit.leaves:
                way, node = list[tuple[int, int, int]](), leaf
                shares: dict[int, float] = {}
                while paths.parent[node] >= 0:
                    parent = int(paths.parent[node])
                    player = int(paths.feature[parent])
                    way.append((place_of[parent], int(not paths.is_right[node]), player))
                    shares[player] = shares.get(player, 1.0) * float(paths.share[node])
                    node = parent
                players = tuple(dict.fromkeys(player for *_, player in reversed(way)))
                first = {player: place for place, _, player in way}  # the last one written is first
                steps = tuple((place, side, players.index(i)) for place, side, i in way)
                key = len(asked), steps
                if key not in known:
                    known[key] = _map_patterns(*key)
                places = [first[player] for player in players]
                found.append(
                    _Leaf(leaf, number, players, places, [shares[i] for i in players], known[key])
                )
        return found

    def _explain(self, leaves: list[_Leaf]) -> list[Array]:
        """Return what each leaf would add to its players if its value were 1: (2^d, d) each."""
        worth: list[Array] = [np.zeros(0)] * len(leaves)
        counts = None if self._background is None else self._count_background(leaves)
        by_size: dict[int, list[int]] = {}
        for at, leaf in enumerate(leaves):
            by_size.setdefault(len(leaf.players), []).append(at)
        for size, members in by_size.items():
            if counts is None:
                found = explain_shares(np.array([leaves[at].shares for at in members]))
            else:
                found = explain_counts(np.array([counts[at] for at in members]), size)
            for at, values in zip(members, found, strict=True):
                worth[at] = values
        return worth

    def _count_background(self, leaves: list[_Leaf]) -> list[Array]:
        """Return for each leaf the share of background rows by bit mask of players, (2^d,)."""
        rows = self._background
        assert rows is not None, "asked only where it is there"
        forest, counts, patterns = self.forest, list[Array](), np.zeros(0)
        for at, leaf in enumerate(leaves):
            if at == 0 or leaf.unit != leaves[at - 1].unit:
                unit, index = self._units[leaf.unit], np.zeros(len(rows), np.int64)
                for node in unit.above + unit.own:
                    column = rows[:, forest.feature[node]]
                    index = 2 * index + goes_left(forest, column, np.full(len(rows), node))
                patterns = np.bincount(index, minlength=len(leaf.patterns)) / len(rows)
            size = 1 << len(leaf.players)
            counts.append(np.bincount(leaf.patterns, patterns, minlength=size))
        return counts


def _map_patterns(answers: int, way: tuple[tuple[int, int, int], ...]) -> Array:
    """Return `_Leaf.patterns` of a leaf.

    Args:
        answers: number of tests of the unit.
        way: for each test on the path, its place in the unit, the outcome that leads to the leaf,
            and the number of its player.
    """
    pattern = np.arange(1 << answers)
    players = 1 + max(player for *_, player in way)
    goes_on = np.ones((players, len(pattern)), bool)
    for place, side, player in way:
        goes_on[player] &= (pattern >> (answers - 1 - place) & 1) == side
    return (goes_on << np.arange(players)[:, None]).sum(axis=0)


def explain_shares(shares: Array) -> Array:
    """Return what leaves of value 1 add to their players, given the shares of training rows.

    Args:
        shares: float64 (L, d), the share of the rows that each of d players lets go on to a leaf.

    Returns:
        float64 (L, 2^d, d), indexed by the bit mask of players that let the row go on.
    """
    leaves, size = shares.shape
    t, weights = np.polynomial.legendre.leggauss(max(1, (size + 1) // 2))
    t, weights = (t + 1) / 2, weights / 2
    not_on = (1 - t) * shares[:, :, None]
    factors = np.stack([not_on, not_on + t], axis=2)  # (L, d, 2, n)
    pattern, found = np.arange(1 << size), np.empty((leaves, 1 << size, size))
    for player in range(size):
        product = weights + np.zeros((leaves, 1, 1))
        for other in range(size):
            if other == player:
                product = np.concatenate([product, product], axis=1)
            else:
                joined = factors[:, other, :, None] * product[:, None]
                product = joined.reshape(leaves, -1, len(t))
        is_on = pattern >> player & 1
        found[:, :, player] = (is_on - shares[:, player, None]) * product.sum(axis=2)
    return found


def explain_counts(counts: Array, size: int) -> Array:
    """Return what leaves of value 1 add to their players, given the rows of a background.

    Args:
        counts: float64 (L, 2^d), the share of these rows with each pattern of players.
        size: d, the number of players.

    Returns:
        See `explain_shares`.
    """
    row, other = np.meshgrid(np.arange(1 << size), np.arange(1 << size), indexing="ij")
    bits = np.arange(size)
    alone, without = row & ~other, other & ~row
    more = (alone[..., None] >> bits & 1).sum(axis=-1)
    less = (without[..., None] >> bits & 1).sum(axis=-1)
    shapley = np.array([[_weigh(a, b) for b in range(size + 1)] for a in range(size + 1)])
    known = (row | other) == (1 << size) - 1
    gains = np.where(known, shapley[more, less], 0.0)[..., None] * (alone[..., None] >> bits & 1)
    losses = np.where(known, shapley[less, more], 0.0)[..., None] * (without[..., None] >> bits & 1)
    weights = (gains - losses).swapaxes(0, 1).reshape(1 << size, -1)  # (other, row * player)
    found = np.einsum("lq,qp->lp", counts, weights)
    return found.reshape(len(counts), 1 << size, size)


def _weigh(own: int, others: int) -> float:
    """Return Shapley's weight (`own` - 1)! `others`! / (`own` + `others`)!, or 0 if `own` is 0."""
    return factorial(own - 1) * factorial(others) / factorial(own + others) if own else 0.0
