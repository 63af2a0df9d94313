"""Code for models that are to come, compiled before the first of them is there.

takes: a model like them; gives: what the cache of code then has.

Models of one kind share their code, see `laying_out/kinds.py`. So trees of usual shapes are drawn,
with the features, the outputs and the dtypes of the model at hand, and the functions of their
default schedules are compiled. What the trees say does not matter, and they are thrown away.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ...cores import available_cores
from ...errors import InputError
from ...forest import Array, Forest
from ...forest.rewrites.canonical_form import canonicalize
from ...forest.rules import LEAF
from ...frontends import load
from ...laying_out.request import BuildRequest
from ...target import Target, parse_target
from ...targets.stored_code import find_code_cache
from ..compiling import find_known
from .child import Compiling

DEPTHS = (3, 4, 5, 6, 7, 8)
"""Levels of complete trees, as XGBoost and CatBoost grow them."""

LEAVES = (7, 15, 31, 63, 127)
"""Leaves of trees that grow where it pays, as LightGBM does it."""

ROUNDS = (30, 100, 300, 1000)
"""Numbers of rounds, by which schedules are chosen."""

SHAPES, CUTS = 8, 240
"""Trees of different shape in a model, and thresholds of a feature: a byte tells these apart."""


@dataclass(frozen=True)
class Warmed:
    """What was found and done.

    Attributes:
        models: how many were drawn.
        compiled: for how many of them something was compiled; the cache had the code of the rest.
    """

    models: int
    compiled: int


def warm(
    model: Any,
    target: str | dict[str, Any] | Target = "llvm",
    *,
    processes: int | None = None,
    done: Callable[[int, int], object] = lambda done, models: None,
) -> Warmed:
    """Compile what models like one will need, before they are there.

    Models share their code if they differ in what their trees say alone, such as those that are
    trained again. This draws models with the columns, outputs and dtypes of one, with trees of
    usual shapes, and compiles the functions of their default schedules into the cache of code.
    The cache is a folder that can be copied to machines with the same kind of processor.

    Args:
        model: see `load`; a trained one of the library, objective and columns that are to come.
        target: see `build`; for the processor at hand.
        processes: how many compile at the same time; None for all cores.
        done: called with how many models of how many are ready.

    Returns:
        how many models were drawn, and for how many of them something was compiled.

    Raises:
        InputError: leaves are linear, features are compared with sets of categories, or the cache
            is off, or keeps no code for the target; or `processes` is no number of these.
        BuildError: a process that compiles fails.

    Example:
        >>> tvm_forest.warm("model.json")  # doctest: +SKIP
        Warmed(models=44, compiled=30)
    """
    like, target = canonicalize(load(model)), parse_target(target)
    refused = "linear leaves" if like.is_linear else "sets of categories" if like.derived else ""
    if refused:
        raise InputError(
            f"warm: argument 'model': it has {refused}, and such trees are not drawn; build the "
            "model itself, whose code serves those of its kind"
        )
    if processes is not None and (type(processes) is not int or processes < 1):
        raise InputError(f"warm: argument 'processes': {processes!r}; use 1 or more, or None")
    if target.kind != "llvm" or target.is_elsewhere:
        raise InputError(
            f"warm: argument 'target': code for {target.to_dict()} is not kept; give 'llvm', for "
            "the processor at hand"
        )
    if find_code_cache(target) is None:
        raise InputError(
            "warm: the cache of code is off; let TVM_FOREST_CACHE name a folder of yours"
        )
    ready = list[bool]()
    shapes = [*map(partial(_grow_levels, 1), DEPTHS), *map(_grow_leaves, LEAVES)]
    models = len(shapes) * len(ROUNDS)

    def warm_shape(trees: list[Array]) -> None:
        for rounds in ROUNDS:
            request = BuildRequest.of(_draw(like, trees, rounds), None, target)
            is_known = find_known(request) is not None
            if not is_known:
                Compiling().compile(request)
            ready.append(is_known)
            done(len(ready), models)

    with ThreadPoolExecutor(processes or available_cores()) as pool:
        list(pool.map(warm_shape, shapes))
    return Warmed(models, models - sum(ready))


def _grow_levels(count: int, depth: int) -> list[Array]:
    """Return the left children of complete trees, -1 at leaves; the right ones follow them."""
    inner = np.arange((1 << depth) - 1)
    return [np.append(2 * inner + 1, np.full(1 << depth, LEAF))] * count


def _grow_leaves(leaves: int) -> list[Array]:
    """Return the left children of trees in which leaves are split that were drawn."""
    return list(map(partial(_grow_one, leaves), range(SHAPES)))


def _grow_one(leaves: int, seed: int) -> Array:
    rng, left = np.random.default_rng(seed), np.full(2 * leaves - 1, LEAF)
    ends = [0]
    for split in range(leaves - 1):
        # later leaves are deeper: some trees of a model are, and others are not
        at = ends.pop(int(len(ends) * rng.random() ** (1 / (1 + seed / 4))))
        left[at] = 2 * split + 1
        ends += [2 * split + 1, 2 * split + 2]
    return left


def _number_tests(left: Array, by_level: bool) -> Array:
    """Number the tests of a tree: one for each node, or for each level."""
    node = np.arange(len(left))
    return np.frexp(node + 1)[1] if by_level else node


def _find_shares(like: Forest) -> Array:
    """Return for each feature at which share of its tests missing values go left."""
    inner = ~like.is_leaf
    tests, lefts = (
        np.bincount(like.feature[inner], like.default_left[inner] >= least, like.n_features)
        for least in (0, 1)
    )
    return np.where(tests > 0, lefts / np.maximum(tests, 1), like.default_left[inner].mean() > 0.5)


def _draw(like: Forest, trees: list[Array], rounds: int) -> Forest:
    """Return a model with trees of some shapes, with drawn tests and leaves."""
    rng, count = np.random.default_rng(rounds), rounds * like.round_size
    lefts = [trees[t % len(trees)] for t in range(count)]
    left, sizes = np.concatenate(lefts).astype(np.int32), [len(x) for x in lefts]
    is_leaf, width = left == LEAF, like.leaf_value.shape[1]
    places = np.concatenate([_number_tests(x, bool(like.is_oblivious.all())) for x in lefts])
    tests = places + np.repeat(np.arange(count), sizes) * max(sizes)
    feature = rng.integers(like.n_features, size=tests.max() + 1)[tests]
    cuts = rng.normal(size=(like.n_features, CUTS)).astype(like.threshold.dtype)
    cut = cuts[feature, rng.integers(CUTS, size=tests.max() + 1)[tests]]
    missing_left = rng.random(len(left)) < _find_shares(like)[feature]
    values = rng.normal(size=(len(left), width)).astype(like.leaf_value.dtype)
    fields: dict[str, Any] = {
        "tree_offset": np.append(0, np.cumsum(sizes)).astype(np.int64),
        "feature": np.where(is_leaf, LEAF, feature).astype(np.int32),
        "threshold": np.where(is_leaf, 0, cut).astype(cut.dtype),
        "left": left,
        "right": np.where(is_leaf, LEAF, left + 1).astype(np.int32),
        "default_left": missing_left & ~is_leaf,
        "leaf_value": np.where(is_leaf[:, None], values, 0).astype(values.dtype),
        "node_id": np.concatenate([np.arange(size) for size in sizes]).astype(np.int32),
        "tree_class": np.resize(like.tree_class[: like.round_size], count).astype(np.int32),
        "tree_id": np.arange(count, dtype=np.int32),
        "n_rounds": rounds,
    }
    told = ("copied_value", "bare_value", "tree_weight", "tree_round", "hits", "cover", "tile")
    fields |= dict.fromkeys((*told, "with_all_rounds")) | {"tile_size": 1}
    return replace(like, **fields)
