"""Count the tiles that a row visits under each way of tiling; nothing is timed or compiled.

    python -m benchmarks rewrites.tiling [--out FILE]        # or: make bench-tiling

Prints a Markdown table: the mean number of tiles a row and tree for tiles of 2, 3, 4 and 8 nodes,
the shapes that occur and the bytes of their look-up table; then how many trees are skewed. Rows are
those of the published profiles. The structure of airline, epsilon, higgs and year is that of the
published models. Of abalone, airline-ohe, covtype and letters only the depths of the leaves are at
hand, in level order: their trees are drawn with exactly these leaves, the inner nodes of each level
being placed at random, so their figures are estimates. A leaf that no row came to has no depth in
the profile; it gets the smallest that makes a tree. The random models are some of Treebeard's
synthetic set: 100 trees, 8,192 uniform rows. All trees are tiled as asked, without a gate; the
column "default" is optimal tiling behind the default gate. Asserts for every tree that optimal
tiles are visited no more often than others.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models.published import MODELS, published
from tvm_forest import Forest
from tvm_forest.forest import LEAF
from tvm_forest.forest.hits import count_mean_hops, find_skewed_trees
from tvm_forest.forest.profile import UNKNOWN, Profile
from tvm_forest.forest.rewrites.padding import fill_tiles
from tvm_forest.forest.rewrites.tile_table import make_tile_table
from tvm_forest.forest.rewrites.tiling import WAYS, tile_nodes

AT_HAND = ("airline", "epsilon", "higgs", "year")
REBUILT = ("abalone", "airline-ohe", "covtype", "letters")
SIZES = (2, 3, 4, 8)
SHARES = (0.10, 0.05)
NO_GATE = (1.0, 0.0)
SYNTHETIC_ROWS = 8192


CAPTION = f"""\
Tiles that a row visits in a tree, by nodes of a tile; shapes and table bytes in the order of the
columns. Trees of {", ".join(REBUILT)} are drawn with the published leaf depths and hits.
"""


def forest_by_level(
    n_trees: int, is_leaf: Callable[[int, Any], Any], rng: np.random.Generator, features: int = 1
) -> Forest:
    """Draw trees whose nodes lie in level order; `is_leaf(depth, tree of each node)` stops them."""
    tree, nodes, end, depth = np.arange(n_trees), [], np.ones(n_trees, np.int64), 0
    while tree.size:
        leaf = is_leaf(depth, tree)
        rank = np.cumsum(~leaf) - 1
        begin = np.concatenate([[0], np.cumsum(np.bincount(tree[~leaf], minlength=n_trees))])
        left = np.where(leaf, LEAF, end[tree] + 2 * (rank - begin[tree]))
        nodes.append(np.stack([tree, left]))
        end += 2 * np.diff(begin)
        tree, depth = np.repeat(tree[~leaf], 2), depth + 1
    table = np.concatenate(nodes, axis=1)
    of_tree, left = table[:, np.argsort(table[0], kind="stable")]
    inner, number = left != LEAF, np.arange(len(left))
    offset = np.concatenate([[0], np.cumsum(end)])
    return Forest(
        tree_offset=offset,
        feature=np.where(inner, rng.integers(0, features, len(left)), LEAF).astype(np.int32),
        threshold=np.where(inner, rng.uniform(-10, 10, len(left)), 0).astype(np.float32),
        left=left.astype(np.int32),
        right=np.where(inner, left + 1, LEAF).astype(np.int32),
        default_left=np.zeros(len(left), bool),
        leaf_value=np.zeros((len(left), 1), np.float32),
        node_id=(number - offset[of_tree]).astype(np.int32),
        tree_class=np.zeros(n_trees, np.int32),
        tree_id=np.arange(n_trees, dtype=np.int32),
        base_score=np.zeros(1, np.float32),
        n_features=features,
    )


def known_depths(depths: list[int], deepest: int) -> list[int]:
    """Replace UNKNOWN so that depths never fall and the leaves make a whole tree."""

    @cache
    def rest(leaf: int, least: int, room: int) -> tuple[int, ...] | None:
        if leaf == len(depths):
            return () if room == 0 else None
        choices = range(least, deepest + 1) if depths[leaf] == UNKNOWN else [depths[leaf]]
        for depth in choices:
            left = room - (1 << (deepest - depth))
            if depth >= least and left >= 0:
                found = rest(leaf + 1, depth, left)
                if found is not None:
                    return (depth, *found)
        return None

    found = rest(0, 0, 1 << deepest)
    assert found is not None, "no tree has these leaves"
    return list(found)


def rebuilt(profile: Profile) -> Forest:
    """Draw trees that have the leaves of a profile, level by level."""
    rng, deepest = np.random.default_rng(0), int(profile.depths.max())
    ends = zip(profile.leaf_offset[:-1], profile.leaf_offset[1:], strict=True)
    depths = [profile.depths[begin:end].tolist() for begin, end in ends]
    whole = [known_depths(d, deepest) if UNKNOWN in d else d for d in depths]
    leaves = np.array([np.bincount(d, minlength=deepest + 1) for d in whole])

    def is_leaf(depth: int, tree: Any) -> Any:
        order = np.lexsort((rng.random(len(tree)), tree))
        drawn = np.empty(len(tree), np.int64)
        drawn[order] = np.arange(len(tree)) - np.searchsorted(tree, tree)
        return drawn < leaves[tree, depth]

    return profile.onto(forest_by_level(profile.n_trees, is_leaf, rng))


def synthetic(features: int, deepest: int, seed: int) -> Forest:
    """Draw a model of the synthetic set with the hits of its rows."""
    rng = np.random.default_rng(seed)

    def is_leaf(depth: int, tree: Any) -> Any:
        share = 0.1 * depth / deepest if depth > 1 else 0.0
        return rng.random(len(tree)) < (1.0 if depth == deepest else share)

    forest = forest_by_level(100, is_leaf, rng, features)
    rows = rng.uniform(-10, 10, (SYNTHETIC_ROWS, features))
    return Profile.of_leaves(forest, forest.predict_reference(rows, "apply")).onto(forest)


def models() -> dict[str, Callable[[], Forest]]:
    """Name everything that is measured."""

    def read(name: str) -> Forest:
        profile = Profile.load(MODELS / f"{name}.profile.csv")
        return profile.onto(published(name)) if name in AT_HAND else rebuilt(profile)

    found: dict[str, Callable[[], Forest]] = {
        name: (lambda name=name: read(name)) for name in sorted(AT_HAND + REBUILT)
    }
    for features in (8, 128):
        for deepest in (6, 7, 8):
            name = f"random, depth {deepest}, {features} features"
            found[name] = lambda f=features, d=deepest: synthetic(f, d, seed=0)
    return found


def cost(forest: Forest) -> Any:
    """Return rows times tiles of each tree."""
    return np.add.reduceat(forest.hits * forest.hop_depth, forest.tree_offset[:-1])


def measure(forest: Forest, size: int) -> dict[str, Any]:
    """Tile a model in every way."""
    gates = {how: None if how == "uniform" else NO_GATE for how in WAYS}
    tiled = {how: tile_nodes(forest, size, how, gate) for how, gate in gates.items()}
    for how in WAYS:
        assert np.all(cost(tiled["optimal"]) <= cost(tiled[how])), f"{how} beats optimal"
    tiled["default"] = tile_nodes(forest, size, "optimal")
    tables = {how: make_tile_table(fill_tiles(one)).lut for how, one in tiled.items()}
    return {
        "size": size,
        "tiles": {how: count_mean_hops(one) for how, one in tiled.items()},
        "shapes": {how: len(lut) for how, lut in tables.items()},
        "bytes": {how: lut.nbytes for how, lut in tables.items()},
    }


def table(results: list[dict[str, Any]]) -> str:
    """Return all results in Markdown."""
    columns = [*WAYS, "default"]
    lines = [
        f"| model | nodes | {' | '.join(columns)} | shapes | table bytes |",
        "|---|---|" + "---|" * (len(columns) + 2),
    ]
    for r in results:
        tiles = [f"{r['tiles'][how]:.3f}" for how in columns]
        counts = [" / ".join(str(r[what][how]) for how in columns) for what in ("shapes", "bytes")]
        lines.append("| " + " | ".join([r["model"], str(r["size"]), *tiles, *counts]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="JSON file for all figures")
    options = parser.parse_args()
    results, gates = [], []
    for name, make in models().items():
        forest = make()
        plain = count_mean_hops(forest)
        counts = [int(find_skewed_trees(forest, share, 0.9).sum()) for share in SHARES]
        gates.append({"model": name, "trees": forest.n_trees, "skewed": counts, "nodes": plain})
        results += [{"model": name, **measure(replace(forest), size)} for size in SIZES]
    print(CAPTION)
    print(table(results))
    print("\n| model | trees | nodes visited | skewed, 10 % of leaves | skewed, 5 % |")
    print("|---" * 5 + "|")
    for g in gates:
        cells = [g["model"], g["trees"], f"{g['nodes']:.3f}", *g["skewed"]]
        print("| " + " | ".join(map(str, cells)) + " |")
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"gates": gates, "results": results}, indent=1)
        options.out.write_text(text, encoding="utf-8")
