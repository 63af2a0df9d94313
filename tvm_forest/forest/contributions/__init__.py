"""The tables from which compiled code computes the SHAP values of a forest.

takes: Forest with the cover of its nodes; gives: ContributionTables.

The SHAP value of feature i is, by path-dependent TreeSHAP, a sum over leaves. A path tests d
different features; feature j lets a share z_j of the training rows go on, and the row itself
(o_j = 1) or not (o_j = 0). Shapley's weights are an integral (Owen, 1972), and a polynomial of
degree d - 1 is integrated without error by ceil(d / 2) points t of Gauss and Legendre:

    value of i = sum over leaves v (o_i - z_i) * integral of product over j != i of A_j(t)
    A_j(t)     = t o_j + (1 - t) z_j

The factors of a feature's two children add up to its factor above them, so one walk through the
nodes of a tree, down with the products P and up with the sums S, gives all features at once. With
a = share of the left child + s g, where s = o_left - share of the left child,

    P_left = P a      P_right = P - P a      S = S_right + a (S_left - S_right)
    value of the node's feature += s * sum over t of w P m (S_left - S_right)

with g = t and m = 1, unless a node above tests the same feature: then s is 0 if the row was not
let through there, and otherwise g = t / A and m = z / A^2 for the A and z of that feature so far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from ...errors import UnsupportedModel
from ...system.late import import_late
from ...system.process.locks import cached_property
from ...system.values import replace
from .. import Array, Forest
from ..encoder import CATEGORY
from ..structure.edges import find_children, find_parents, list_levels

if TYPE_CHECKING:
    from . import subtrees
else:
    subtrees = import_late("tvm_forest.forest.contributions.subtrees")

CONTRIBUTIONS: Literal["contributions"] = "contributions"
INTERACTIONS: Literal["interactions"] = "interactions"
"""The names of the compiled functions; each takes a block of rows."""

COVER_TOLERANCE = 1e-3
"""Largest relative difference between a node's cover and its children's sum: libraries round it."""

NODE_NUMBERS = ("column", "factor", "bits")
"""Columns of `ContributionTables.numbers`."""

NODE_REALS = ("threshold", "left_share")
"""Columns of `ContributionTables.reals`."""

SLOT_BITS = 12
"""Number of bits that hold the number of a slot, see `ContributionTables`."""

BITS = {
    "slot": (0, SLOT_BITS),
    "above": (SLOT_BITS, SLOT_BITS),
    **{
        name: (2 * SLOT_BITS + place, 1)
        for place, name in enumerate(("left_is_leaf", "right_is_leaf", "default_left", "side"))
    },
}
"""The packed fields of a node: for each, its lowest bit and its number of bits."""


class Task(NamedTuple):
    """A tree to walk for contributions or interactions.

    Attributes:
        first, last: the tree's rows `first` to `last - 1` of `ContributionTables.terminals`.
        fixed: for interactions, the player that is taken as known, and then as unknown; else -1.
    """

    first: int
    last: int
    fixed: int


class ContributionTables:
    """The M inner nodes of a forest in the order in which a depth-first walk enters them.

    The walk goes left first. A slot is a node's place on the path from its root: 1 for the root. A
    terminal is a node of two leaves: the walk goes down to it, and from there up through all nodes
    whose children are both done.

    Attributes:
        forest: the model in canonical form.
        n_points: n, the number of integration points.
        n_slots: the largest slot plus one.
        numbers: int32 (M, 3), see `NODE_NUMBERS`: the column that a node tests; its row in
            `factors`; the fields of `BITS`: its slot; the slot of the node just below the last test
            of the same feature on the path, or 0; which children are leaves; whether missing values
            go left; 0 for a left child, 1 for a right child or a root.
        reals: float64 (M, 2), see `NODE_REALS`: threshold; the share of rows that go left.
        players: for each player of Shapley's game, the users' columns, see `find_players`.
        sources: int32 (columns,), the player of each column that walks read.
        has_default_left: whether missing values go left at some node.
        leaves: float64 (W, M, 2), values of the left and right child where these are leaves.
        factors: float64 (K, 2, n), the distinct pairs of g and m.
        points: float64 (n,), the integration weights.
        terminals: int32 (Q, 3), for each, the first node entered after the terminal before, how
            many more are entered down to this one, and how many other nodes it completes.
        expected: float64 (C,), the expected margin, from which contributions count.
        subtrees: the same contributions as look-up tables, if these are small.
    """

    def __init__(self, forest: Forest, background: Array | None = None) -> None:
        """Compute the tables of a forest in canonical form.

        Args:
            forest: the model.
            background: rows (B, columns) whose values replace unknown ones; None: training rows, by
                the cover of nodes. Arrays for walks are valid without a background only.

        Raises:
            UnsupportedModel: see `_check_forest`; with a background, see `SubtreeTables`.
        """
        _check_forest(forest, background is not None)
        if background is not None:
            forest = replace(forest, cover=np.zeros(forest.n_nodes))
        self.forest = forest
        order = np.argsort(forest.tree_class, kind="stable")
        paths = _Paths(forest, order)
        inner = np.flatnonzero(~forest.is_leaf)
        inner = inner[np.argsort(paths.place[inner])]
        self._tree_of_node = forest.node_tree[inner]
        self.n_slots = int(forest.node_depth.max(initial=0)) + 2
        self.n_points = max(1, (paths.most_features + 1) // 2)
        t, weights = np.polynomial.legendre.leggauss(self.n_points)
        t, self.points = (t + 1) / 2, weights / 2
        shares, factor = np.unique(paths.share_above[inner], return_inverse=True)
        above = t + shares[:, None] * (1 - t)
        self.factors = np.stack([t / above, shares[:, None] / above**2], axis=1)
        left, right = paths.left[inner], paths.right[inner]
        has_above = paths.above[inner] >= 0
        bits = {
            "slot": forest.node_depth[inner] + 1,
            "above": np.where(has_above, forest.node_depth[paths.above[inner]] + 1, 0),
            "left_is_leaf": forest.is_leaf[left],
            "right_is_leaf": forest.is_leaf[right],
            "default_left": forest.default_left[inner],
            "side": paths.is_right[inner],
        }
        packed = sum(bits[name].astype(np.int64) << BITS[name][0] for name in BITS)
        columns = [forest.feature[inner], factor, packed]
        self.numbers = np.stack(columns, axis=1).astype(np.int32)
        reals = [forest.threshold[inner].astype(np.float64), paths.share[left]]
        self.reals = np.stack(reals, axis=1)
        self.players, sources = find_players(forest)
        self.sources = sources.astype(np.int32)
        self.has_default_left = bool(forest.default_left.any())
        values = self._scale_leaves()
        ends = forest.is_leaf[:, None] * values
        self.leaves = np.ascontiguousarray(
            np.stack([ends[left], ends[right]], axis=1).transpose(2, 0, 1)
        )
        self.terminals = paths.list_terminals(inner)
        self.expected = self._expect(paths, values)
        self.subtrees = subtrees.SubtreeTables(forest, paths, values, len(self.players), background)
        if background is not None:
            self.expected = forest.base_score + self.subtrees.average()

    def _scale_leaves(self) -> Array:
        """Return what leaves add to margins, scaled or averaged as the forest does; (N, W)."""
        forest = self.forest
        values = forest.leaf_value.astype(np.float64) * forest.sum_scale
        if forest.aggregate != "average":
            return values
        trees = np.maximum(1, forest.trees_of_class)
        if forest.has_vectors:
            return values / trees
        return values / trees[forest.tree_class][forest.node_tree][:, None]

    def _expect(self, paths: _Paths, values: Array) -> Array:
        forest = self.forest
        tree = np.zeros((forest.n_trees, values.shape[1]))
        leaf = forest.is_leaf
        np.add.at(tree, forest.node_tree[leaf], paths.reach[leaf, None] * values[leaf])
        margin = forest.base_score.astype(np.float64)
        for number, target in enumerate(forest.tree_class):
            margin[slice(None) if target < 0 else slice(target, target + 1)] += tree[number]
        return margin

    def share_out(self, values: Array) -> Array:
        """Split values (..., players + 1) equally among a player's columns; the last one stays."""
        width = self.forest.given_width
        if self.players == [(at,) for at in range(width)]:
            return values
        shared = np.zeros((*values.shape[:-1], width + 1))
        shared[..., -1] = values[..., -1]
        for place, player in enumerate(self.players):
            for column in player:
                shared[..., column] += values[..., place] / len(player)
        return shared

    @cached_property
    def _spans(self) -> Array:
        """Int64 (T, 2), begin and end of each tree's terminals."""
        tree = self._tree_of_node[self.terminals[:, 0]]
        counts = np.bincount(tree, minlength=self.forest.n_trees)
        order = np.argsort(self.forest.tree_class, kind="stable")
        end = np.zeros(len(counts), np.int64)
        end[order] = np.cumsum(counts[order])
        return np.stack([end - counts, end], axis=1)

    def _trees_of(self, output: int) -> Array:
        """Return the trees that add to an output."""
        return np.flatnonzero((self.forest.tree_class == output) | (self.forest.tree_class < 0))

    def list_tasks(self) -> tuple[Array, Array]:
        """Return (begin, tasks): where each output's begin, int32 (C + 1,), and all as `Task`."""
        spans = [self._spans[self._trees_of(c)] for c in range(self.forest.n_outputs)]
        tasks = [Task(int(x), int(y), -1) for own in spans for x, y in own]
        begins = np.append(0, np.cumsum([len(own) for own in spans]))
        return begins.astype(np.int32), np.array(tasks, np.int32)

    def list_interaction_tasks(self) -> tuple[Array, Array]:
        """Do as `list_tasks` for each output and player, (C * players + 1,): trees that test it."""
        forest, tasks, begins = self.forest, list[Task](), [0]
        tested = np.zeros((forest.n_trees, len(self.players)), bool)
        tested[self._tree_of_node, self.sources[self.numbers[:, 0]]] = True
        for output in range(forest.n_outputs):
            trees = self._trees_of(output)
            for feature in range(len(self.players)):
                spans = self._spans[trees[tested[trees, feature]]]
                tasks += [Task(int(x), int(y), feature) for x, y in spans]
                begins.append(len(tasks))
        return np.array(begins, np.int32), np.array(tasks, np.int32).reshape(-1, 3)


class _Paths:
    """Facts about the path from the root to each node, arrays (N,).

    Attributes:
        left, right, parent: see `forest.structure.edges`.
        is_right: whether a node is a right child; true for roots.
        feature: the player (`find_players`) to which a node's test belongs.
        share: the share of its parent's rows that come to a node; 1 at roots.
        reach: the share of all rows that come to a node.
        above: the nearest node on the path, itself included, whose parent tests the node's own
            feature; -1 for none.
        share_above: the share of rows that earlier tests of the node's feature on the path let
            through; 1 for none.
        below: the number of inner nodes of the subtree.
        place: index of an inner node, from 0, in the order in which a walk enters nodes.
        most_features: the largest number of different features on a path.
    """

    def __init__(self, forest: Forest, tree_order: Array) -> None:
        self.forest = forest
        self.left, self.right = find_children(forest)
        self.parent, levels = find_parents(forest), list_levels(forest)
        self.feature = find_players(forest)[1][forest.feature]
        self._share_out(levels)
        self.above = self._find_above()
        self.share_above, self.reach = np.ones(forest.n_nodes), np.ones(forest.n_nodes)
        let_through, features = np.ones(forest.n_nodes), np.zeros(forest.n_nodes, np.int64)
        for node, left, right in levels:
            fresh = self.above[node] < 0
            self.share_above[node] = np.where(fresh, 1.0, let_through[self.above[node]])
            for child in (left, right):
                let_through[child] = self.share_above[node] * self.share[child]
                self.reach[child] = self.reach[node] * self.share[child]
                features[child] = features[node] + fresh
        self.most_features = int(features.max(initial=0))
        self._number_nodes(levels, tree_order)

    def _share_out(self, levels: list[tuple[Array, Array, Array]]) -> None:
        cover = self.forest.cover
        assert cover is not None, "checked before"
        self.share, self.is_right = np.ones(len(cover)), self.parent < 0
        for _, left, right in levels:
            total = cover[left] + cover[right]
            share = np.divide(cover[left], total, out=np.full(len(left), 0.5), where=total > 0)
            self.share[left], self.share[right] = share, 1 - share
            self.is_right[right] = True

    def _find_above(self) -> Array:
        above, edge = np.full(len(self.parent), -1), np.arange(len(self.parent))
        searching = np.flatnonzero(~self.forest.is_leaf)
        while searching.size:
            parent = self.parent[edge[searching]]
            searching, parent = searching[parent >= 0], parent[parent >= 0]
            same = self.feature[parent] == self.feature[searching]
            above[searching[same]] = edge[searching[same]]
            searching, parent = searching[~same], parent[~same]
            edge[searching] = parent
        return above

    def _number_nodes(self, levels: list[tuple[Array, Array, Array]], tree_order: Array) -> None:
        forest = self.forest
        self.below = (~forest.is_leaf).astype(np.int64)
        for node, left, right in reversed(levels):
            self.below[node] += self.below[left] + self.below[right]
        roots = forest.tree_offset[:-1][tree_order]
        self.place = np.zeros(forest.n_nodes, np.int64)
        self.place[roots] = np.cumsum(self.below[roots]) - self.below[roots]
        for node, left, right in levels:
            self.place[left] = self.place[node] + 1
            self.place[right] = self.place[left] + self.below[left]

    def list_terminals(self, inner: Array) -> Array:
        """Return `ContributionTables.terminals`, given the inner nodes in the order of a walk."""
        last = self.below[inner] == 1
        ends = np.flatnonzero(last)
        first = np.append(0, ends + 1)[: len(ends)]
        complete = np.bincount(
            np.arange(len(inner))[~last] + self.below[inner][~last] - 1, minlength=len(inner)
        )
        return np.stack([first, ends - first, complete[ends]], axis=1).astype(np.int32)


def contribution_arrays(tables: ContributionTables, name: str, looks_up: bool) -> dict[str, Array]:
    """Return the flat arrays of function `name`; contributions may look up those of subtrees."""
    if name == CONTRIBUTIONS and looks_up:
        found = tables.subtrees.arrays
        return {key: x.ravel() if x.size else np.zeros(1, x.dtype) for key, x in found.items()}
    lists_tasks = tables.list_interaction_tasks if name == INTERACTIONS else tables.list_tasks
    begins, tasks = lists_tasks()
    arrays: dict[str, Array] = {
        "numbers": tables.numbers,
        "reals": tables.reals,
        "sources": tables.sources,
        "leaves": tables.leaves,
        "factors": tables.factors,
        "points": tables.points,
        "terminals": tables.terminals,
        "begins": begins,
        "tasks": tasks,
    }
    return {name: x.ravel() if x.size else np.zeros(1, x.dtype) for name, x in arrays.items()}


def find_players(forest: Forest) -> tuple[list[tuple[int, ...]], Array]:
    """Return the players of Shapley's game, and the player's index for each column, int64 (F,).

    A player is a column of the user, or, as in CatBoost, all those of which one statistic is made.
    """
    encoder = forest.encoder
    made: list[tuple[int, ...]] = [(at,) for at in range(forest.row_width)]
    if encoder is not None:
        made = [(int(at),) for at in encoder.numbers]
        made += [(int(encoder.categories[place]),) for place in encoder.single[:, 0]]
        for kind in encoder.table_parts[encoder.table]:
            own = slice(encoder.part_begin[kind], encoder.part_begin[kind + 1])
            places = encoder.part_place[own][encoder.part_kind[own] == CATEGORY]
            made.append(tuple(sorted({int(encoder.categories[place]) for place in places})))
    players = sorted(set(made))
    number = {player: at for at, player in enumerate(players)}
    sources = [number[columns] for columns in made]
    sources += [sources[feature] for feature, _ in forest.derived]
    return players, np.array(sources, np.int64)


def can_explain(forest: Forest) -> bool:
    """Return whether SHAP values of a forest can be computed without a background."""
    try:
        _check_forest(forest, False)
    except UnsupportedModel:
        return False
    return True


def _check_forest(forest: Forest, has_background: bool) -> None:
    """Refuse forests whose SHAP values cannot be computed.

    Raises:
        UnsupportedModel: leaves are linear, margins are no sums, a tree is too deep, or covers that
            are needed are missing or do not add up.
    """
    where = f"contributions: the model '{forest.source}'"
    if forest.is_linear:
        raise UnsupportedModel(f"{where}: field 'leaf_terms': linear leaves have no SHAP values")
    if forest.aggregate in ("min", "max"):
        raise UnsupportedModel(f"{where}: field 'aggregate': '{forest.aggregate}' is no sum")
    if int(forest.depths.max(initial=0)) + 2 > 1 << SLOT_BITS:
        raise UnsupportedModel(f"{where}: a tree is deeper than {(1 << SLOT_BITS) - 2} hops")
    if has_background:
        return
    cover = forest.cover
    if cover is None:
        raise UnsupportedModel(
            f"{where}: field 'cover': the source does not tell how many training rows reached each "
            "node (sum_hessian, leaf_count, weighted_n_node_samples, leaf_weights); "
            "load the model from the library that trained it, or give a background"
        )
    inner = ~forest.is_leaf
    left, right = find_children(forest)
    total = cover[left] + cover[right]
    wrong = inner & ~(np.abs(total - cover) <= COVER_TOLERANCE * np.abs(cover))
    wrong |= ~np.isfinite(cover) | (cover < 0)
    if wrong.any():
        raise UnsupportedModel(
            f"{where}: field 'cover': {forest.name_first(wrong)} has {cover[np.argmax(wrong)]:g}, "
            f"its children {total[np.argmax(wrong)]:g}; train the model again"
        )
