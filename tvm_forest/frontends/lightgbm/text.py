"""The text format of LightGBM, read whole or refused.

takes: bytes of a model file; gives: Text, its header and the arrays of its trees.

treelite reads this format too, but drops the missing type Zero and has its own rule for categories.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from ...forest import Array
from ..refusals import damaged, unsupported

VERSIONS = ("v2", "v3", "v4")
_HEADER_KEYS = set(
    "version num_class num_tree_per_iteration max_feature_idx feature_names tree_sizes".split()
)
_OPTIONAL_KEYS = set(
    "objective average_output label_index feature_infos monotone_constraints".split()
)
_UNUSED_KEYS = set(
    "split_gain leaf_weight leaf_count internal_value internal_weight internal_count "
    "shrinkage".split()
)
_INT32 = (-(2**31), 2**31)
_COUNT = (0, 2**31)
_NUMBERS: dict[str, tuple[int, int] | None] = {  # bounds of integers; None for float64
    "num_leaves": (1, 2**31),
    "num_cat": _COUNT,
    "split_feature": _INT32,
    "threshold": None,
    "decision_type": (0, 12),
    "left_child": _INT32,
    "right_child": _INT32,
    "leaf_value": None,
    "cat_boundaries": _COUNT,
    "cat_threshold": (0, 2**32),
    "is_linear": (0, 2),
    "leaf_const": None,
    "num_features": _COUNT,
    "leaf_features": _COUNT,
    "leaf_coeff": None,
}
_ABSENT = {"is_linear": "0"}  # older files do not say it
_INFINITE = ("threshold", "leaf_value")
_TREE_KEYS = _UNUSED_KEYS | _NUMBERS.keys()
_MOST_CLASSES = 2**16  # of a model without trees
_TRUNCATED = "the file is truncated or damaged: save the model again"


@dataclass(frozen=True)
class Text:
    """A model as its file tells it, with the counts checked.

    Attributes:
        where: place that error messages name.
        objective: name and options of the objective; empty for one of the user's own.
        n_outputs: trees per boosting round, C.
        n_features: F.
        averages: whether the sum is divided by the number of rounds.
        feature_names: names of the columns, or None if LightGBM made them up.
        pandas_categories: categories of each categorical column of the training frame.
        columns: the arrays of all trees, one after the other, by their names in the file.
    """

    where: str
    objective: tuple[str, ...]
    n_outputs: int
    n_features: int
    averages: bool
    feature_names: tuple[str, ...] | None
    pandas_categories: tuple[tuple[Any, ...], ...]
    columns: dict[str, Array]


def read_text(data: bytes, where: str) -> Text:
    """Read a model file.

    Raises:
        ModelFormatError: it is truncated or damaged.
        UnsupportedModel: it has a key that is not known.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise damaged(where, "document", f"not valid UTF-8: {error.reason}", _TRUNCATED) from None
    head, end, body = text.partition("\n\n")
    if not end:
        raise damaged(where, "tree_sizes", "the header has no end", _TRUNCATED)
    header = _header(head, where)
    n_outputs, n_classes, top_feature = (
        int(_numbers(where, key, [header[key]])[0])
        for key in ("num_tree_per_iteration", "num_class", "max_feature_idx")
    )
    if n_classes != n_outputs or not 0 < n_outputs <= _MOST_CLASSES:
        what = f"{n_classes} classes, but {n_outputs} trees per round"
        raise damaged(where, "num_class", what)
    names = tuple(header["feature_names"].split(" "))
    if len(names) != top_feature + 1:
        what = f"{len(names)} names for {top_feature + 1} features"
        raise damaged(where, "feature_names", what)
    sizes = _numbers(where, "tree_sizes", header["tree_sizes"].split()).tolist()
    if len(sizes) % n_outputs:
        raise damaged(where, "tree_sizes", f"{len(sizes)} trees for {n_outputs} classes")
    return Text(
        where=where,
        objective=tuple(header.get("objective", "").split()),
        n_outputs=n_outputs,
        n_features=len(names),
        averages="average_output" in header,
        feature_names=None if all(map(_is_made_up, names, range(len(names)))) else names,
        pandas_categories=_pandas_categories(body[sum(sizes) :], where),
        columns=_columns(body, sizes, where),
    )


def _header(head: str, where: str) -> dict[str, str]:
    lines = (line.partition("=") for line in head.split("\n")[1:])
    header = {key: value for key, _, value in lines}
    unknown = sorted(header.keys() - _HEADER_KEYS - _OPTIONAL_KEYS)
    if unknown:
        raise unsupported(where, unknown[0], "unknown in a header", "save it with LightGBM 4")
    missing = sorted(_HEADER_KEYS - header.keys())
    if missing:
        raise damaged(where, missing[0], "missing in the header", _TRUNCATED)
    if header["version"] not in VERSIONS:
        what = f"expected one of {', '.join(VERSIONS)}, got '{header['version']}'"
        raise unsupported(where, "version", what, "save the model with LightGBM 4")
    return header


def _is_made_up(name: str, column: int) -> bool:
    return name == f"Column_{column}"


def _pandas_categories(tail: str, where: str) -> tuple[tuple[Any, ...], ...]:
    """Read what follows the trees, in order to see that it is all there."""
    if not tail.startswith("end of trees\n"):
        raise damaged(where, "tree_sizes", "the trees do not end where they should", _TRUNCATED)
    key, _, value = tail.rstrip("\n").rpartition("\n")[2].partition(":")
    if "\nparameters:\n" in tail and "\nend of parameters\n" not in tail:
        raise damaged(where, "parameters", "they have no end", _TRUNCATED)
    if key in ("end of parameters", "end of parser"):  # not saved from Python
        return ()
    if key != "pandas_categorical":
        raise damaged(where, "pandas_categorical", "missing behind the trees", _TRUNCATED)
    try:
        return tuple(tuple(column) for column in json.loads(value) or ())
    except (ValueError, TypeError, RecursionError):
        what = f"expected lists of categories, got '{value:.80}'"
        raise damaged(where, "pandas_categorical", what) from None


def _columns(body: str, sizes: list[int], where: str) -> dict[str, Array]:
    """Each field over all trees, with as many numbers in each tree as there should be."""
    lines: dict[str, list[str]] = {key: [] for key in _NUMBERS}
    begin = 0
    for number, size in enumerate(sizes):
        tree = _tree(body[begin : begin + size], number, where)
        for key, column in lines.items():
            column.append(tree.get(key, _ABSENT.get(key, "")))
        begin += size
    columns: dict[str, Array] = {}
    for key in _NUMBERS:
        words = [line.split() for line in lines.pop(key)]
        columns[key] = _numbers(where, key, chain.from_iterable(words))
        got = np.array([len(part) for part in words], np.int64)
        expected = _expected(key, columns, len(sizes))
        if np.any(got != expected):
            tree_number = int(np.argmax(got != expected))
            what = f"tree {tree_number} has {got[tree_number]} numbers where "
            raise damaged(where, key, f"{what}{expected[tree_number]} are expected")
    return columns


def _expected(key: str, columns: dict[str, Array], n_trees: int) -> Array:
    """How many numbers of a field each tree should have, by the fields read before."""
    if key in ("num_leaves", "num_cat", "is_linear"):
        return np.ones(n_trees, np.int64)
    if key == "leaf_value":
        return columns["num_leaves"]
    if key in ("leaf_const", "num_features"):
        return columns["num_leaves"] * columns["is_linear"]
    if key in ("leaf_features", "leaf_coeff"):
        leaves = columns["num_leaves"] * columns["is_linear"]
        terms = np.append(0, np.cumsum(columns["num_features"]))
        ends = np.cumsum(leaves)
        return terms[ends] - terms[ends - leaves]
    sets = columns["num_cat"]
    entries = np.where(sets > 0, sets + 1, 0)
    if key == "cat_boundaries":
        return entries
    if key == "cat_threshold":
        last = np.append(columns["cat_boundaries"], 0)[np.cumsum(entries) - 1]
        return np.where(sets > 0, last, 0)
    return columns["num_leaves"] - 1


def _tree(block: str, number: int, where: str) -> dict[str, str]:
    """Lines of one tree, by key."""
    lines, _, rest = block.partition("\n\n")
    first, *others = lines.split("\n")
    if first != f"Tree={number}" or rest.strip("\n"):
        what = f"tree {number} does not begin and end where it should"
        raise damaged(where, "tree_sizes", what, _TRUNCATED)
    tree = {key: value for key, _, value in (line.partition("=") for line in others)}
    if not tree.keys() <= _TREE_KEYS:
        key = min(tree.keys() - _TREE_KEYS)
        raise unsupported(where, key, f"unknown in tree {number}", "save it with LightGBM 4")
    return tree


def _numbers(where: str, key: str, words: Iterable[str]) -> Array:
    """Parse integers within their bounds, int64, or finite numbers, float64.

    Thresholds may be infinite: LightGBM writes "inf" where a node asks whether a value is missing.
    """
    bounds = _NUMBERS.get(key, _COUNT)
    try:
        if bounds is None:
            values: Array = np.fromiter(map(float, words), np.float64)
            good = ~np.isnan(values) if key in _INFINITE else np.isfinite(values)
        else:
            values = np.fromiter(map(int, words), np.int64)
            good = (values >= bounds[0]) & (values < bounds[1])
    except (ValueError, OverflowError) as error:
        raise damaged(where, key, f"expected numbers ({error})") from None
    if not good.all():
        raise damaged(where, key, f"{values[np.argmin(good)]} is out of range")
    return values
