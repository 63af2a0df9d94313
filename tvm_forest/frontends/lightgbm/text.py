"""Parses the text format of LightGBM.

takes: bytes of a model file; gives: ModelText, its header and the arrays of its trees.

A file is a header of lines `key=value`, then a block of such lines for each tree, then, in newer
files, parameters. The header has the sizes of the blocks in bytes, unless a tool has left them out;
they count the line ends, which may be those of Windows. Refused are unknown keys, truncated files,
and numbers that are too many, too few or out of range.
treelite reads this format too, but drops the missing type Zero and has its own rule for categories.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np

from ...forest import Array
from ...system.values import dataclass
from ..numbers import parse_numbers
from ..refusals import TRUNCATED, damaged, unsupported

VERSIONS = ("v2", "v3", "v4")
_REQUIRED = "num_class num_tree_per_iteration max_feature_idx feature_names"
_OPTIONAL = (
    "version tree_sizes objective average_output label_index feature_infos monotone_constraints "
    "boost_from_average"  # LightGBM 2.0, where the first tree holds that number
)
_UNUSED = "split_gain leaf_weight internal_value internal_weight shrinkage leaf_parent"
_COUNTS = ("leaf_count", "internal_count")
_INT32 = (-(2**31), 2**31)
_COUNT = (0, 2**31)
_BOUNDS: dict[str, tuple[int, int] | None] = {  # of integers; None for float64
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
_ABSENT = {"is_linear": "0"}  # older files lack it
_INFINITE, _ANY = ("threshold",), ("leaf_value",)
_TREE_KEYS = _BOUNDS.keys() | {*_UNUSED.split(), *_COUNTS}
_CATEGORIES = re.compile(r"(-1|\d{1,10})(:(-1|\d{1,10}))*")
_MAX_CLASSES = 2**16  # bounds the outputs of a model without trees
_BEHIND_TREES = ("end of trees", "feature importances:")  # LightGBM 2.2 and newer; older
_HEADS = re.compile(rf"(?<![^\r\n])(Tree=|({'|'.join(_BEHIND_TREES)})(?![^\r\n]))")
_NUMBER = re.compile(  # matches a prefix of a word
    r"[-+]?((\d+\.?\d*|\.\d+)(e[-+]?\d+)?|inf(inity)?|nan)",
    re.ASCII | re.IGNORECASE,
)
_SAVE_AGAIN = "save it with LightGBM 4"


@dataclass(frozen=True)
class ModelText:
    """The contents of a model file, with checked counts.

    Attributes:
        objective: name and options of the objective; empty for a user's own objective.
        n_outputs: C, the number of trees per boosting round.
        averages: whether the sum is divided by the number of rounds.
        names: names of the columns, which LightGBM may have made up.
        listed_categories: pairs of a categorical feature and its categories in training.
        pandas_categories: the labels of each categorical column of the training frame.
        columns: the arrays of all trees, one after the other, by their names in the file.
    """

    objective: tuple[str, ...]
    n_outputs: int
    averages: bool
    names: tuple[str, ...]
    listed_categories: tuple[tuple[int, tuple[int, ...]], ...]
    pandas_categories: tuple[tuple[Any, ...], ...]
    columns: dict[str, Array]

    @property
    def has_names(self) -> bool:
        """Whether the column names were given by the user."""
        return self.names != tuple(f"Column_{at}" for at in range(len(self.names)))


def read_text(data: bytes) -> ModelText:
    """Return the contents of a model file, given its bytes.

    Raises:
        ModelFormatError: the file is truncated or damaged.
        UnsupportedModel: the file has an unknown key, or is of an unknown version.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise damaged("document", f"not valid UTF-8: {error.reason}", TRUNCATED) from None
    begin = _HEADS.search(text)
    if begin is None:
        raise damaged("tree_sizes", "the header has no end", TRUNCATED)
    header, body = _read_header(_split_lines(text[: begin.start()])), text[begin.start() :]
    n_outputs, n_classes, top_feature = (
        int(_parse(key, [header[key]])[0])
        for key in ("num_tree_per_iteration", "num_class", "max_feature_idx")
    )
    if n_classes != n_outputs or not 0 < n_outputs <= _MAX_CLASSES:
        raise damaged("num_class", f"{n_classes} classes, but {n_outputs} trees per round")
    names = tuple(header["feature_names"].split(" "))
    if len(names) != top_feature + 1:
        raise damaged("feature_names", f"{len(names)} names for {top_feature + 1} features")
    words = header["tree_sizes"].split() if "tree_sizes" in header else _measure_trees(body)
    sizes = _parse("tree_sizes", words).tolist()
    if sum(sizes) > len(body):
        what = f"{sum(sizes)} bytes of trees, of which {len(body)} are there"
        raise damaged("tree_sizes", what, TRUNCATED)
    if len(sizes) % n_outputs:
        raise damaged("tree_sizes", f"{len(sizes)} trees for {n_outputs} classes")
    return ModelText(
        objective=tuple(header.get("objective", "").split()),
        n_outputs=n_outputs,
        averages="average_output" in header,
        names=names,
        listed_categories=_read_listed_categories(header.get("feature_infos", ""), len(names)),
        pandas_categories=_read_pandas_categories(_split_lines(body[sum(sizes) :])),
        columns=_read_columns(body, sizes),
    )


def _measure_trees(body: str) -> list[str]:
    """Return the length of each tree's block in decimal, for a header without these lengths.

    A block ends at the next match of `_HEADS`: the next tree, or what follows the trees.
    """
    begins = [match.start() for match in _HEADS.finditer(body)]
    return [str(after - begin) for begin, after in pairwise(begins)]


def _split_lines(text: str) -> list[str]:
    """Split a text into lines without their line breaks, whatever system wrote these."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _read_lines(lines: Iterable[str]) -> dict[str, str]:
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


def _read_header(lines: list[str]) -> dict[str, str]:
    header = _read_lines(filter(None, lines[1:]))
    unknown = sorted(header.keys() - set(f"{_REQUIRED} {_OPTIONAL}".split()))
    if unknown:
        raise unsupported(unknown[0], "unknown in a header", _SAVE_AGAIN)
    missing = sorted(set(_REQUIRED.split()) - header.keys())
    if missing:
        raise damaged(missing[0], "missing in the header", TRUNCATED)
    if header.get("version", VERSIONS[0]) not in VERSIONS:  # files of LightGBM 2.0 have none
        what = f"expected one of {', '.join(VERSIONS)}, got '{header['version']}'"
        raise unsupported("version", what, "save the model with LightGBM 4")
    return header


def _read_listed_categories(infos: str, n_features: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return pairs of a categorical feature and the categories that the header lists for it.

    A text such as "-1:3:0:7" lists them; -1 is a missing value, and left out. Headers in another
    form give (): no prediction depends on these lists.
    """
    words = infos.split(" ")
    if len(words) != n_features:
        return ()
    lists = {at: word.split(":") for at, word in enumerate(words) if _CATEGORIES.fullmatch(word)}
    return tuple((at, tuple(int(x) for x in codes if x != "-1")) for at, codes in lists.items())


def _read_pandas_categories(tail: list[str]) -> tuple[tuple[Any, ...], ...]:
    """Return `ModelText.pandas_categories`, from the lines after the trees.

    These also show that the file is complete, and truncated ones are refused. Old files, and those
    of other tools, may end after the trees.
    """
    lines = list(filter(None, tail))
    if lines and lines[0] not in _BEHIND_TREES:
        raise damaged("tree_sizes", "the trees do not end where they should", TRUNCATED)
    has_parameters = "parameters:" in lines
    if has_parameters and "end of parameters" not in lines:
        raise damaged("parameters", "they have no end", TRUNCATED)
    key, _, value = lines[-1].partition(":") if lines else ("", "", "")
    if key in ("end of parameters", "end of parser"):  # not saved from Python
        return ()
    if key != "pandas_categorical":
        if not has_parameters:
            return ()
        raise damaged("pandas_categorical", "missing behind the trees", TRUNCATED)
    try:
        return tuple(tuple(column) for column in json.loads(value) or ())
    except (ValueError, TypeError, RecursionError):
        what = f"expected lists of categories, got '{value:.80}'"
        raise damaged("pandas_categorical", what) from None


def _read_columns(body: str, sizes: list[int]) -> dict[str, Array]:
    """Read each field of all trees into one array, and check how many numbers each tree has."""
    blocks = (body[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True))
    trees = [_read_tree(block, number) for number, block in enumerate(blocks)]
    columns: dict[str, Array] = {}
    for key in _BOUNDS:
        texts = [tree.pop(key, _ABSENT.get(key, "")) for tree in trees]
        columns[key], counts = _parse_texts(key, texts)
        expected = expect_counts(key, columns, len(sizes))
        if np.any(counts != expected):
            tree = int(np.argmax(counts != expected))
            what = f"tree {tree} has {counts[tree]} numbers where {expected[tree]} are expected"
            raise damaged(key, what)
    return columns | _read_counts(trees, columns["num_leaves"])


def _read_counts(trees: list[dict[str, str]], n_leaves: Array) -> dict[str, Array]:
    """Return how many training rows reached each leaf and each inner node, by the field's name.

    The result is {} if a tree of several leaves lacks these counts.
    """
    columns: dict[str, Array] = {}
    for key, expected in zip(_COUNTS, (n_leaves, n_leaves - 1), strict=True):
        alone = "1" if key == "leaf_count" else ""
        texts = [
            tree.get(key, "") if count > 1 else alone
            for tree, count in zip(trees, n_leaves.tolist(), strict=True)
        ]
        if [len(text.split()) for text in texts] != expected.tolist():
            return {}
        columns[key], _ = _parse_texts(key, texts)
    return columns


def expect_counts(key: str, columns: dict[str, Array], n_trees: int) -> Array:
    """Return the expected length of the field `key` in each tree, int64 (T,).

    Args:
        key: name of the field.
        columns: the fields read before, by name, which determine it.
        n_trees: T.
    """
    if key in ("num_leaves", "num_cat", "is_linear"):
        return np.ones(n_trees, np.int64)
    if key == "leaf_value":
        return columns["num_leaves"]
    if key in ("leaf_const", "num_features", "leaf_features", "leaf_coeff"):
        leaves = columns["num_leaves"] * columns["is_linear"]
        if key in ("leaf_const", "num_features"):
            return leaves
        terms, ends = np.append(0, np.cumsum(columns["num_features"])), np.cumsum(leaves)
        return terms[ends] - terms[ends - leaves]
    if key not in ("cat_boundaries", "cat_threshold"):
        return columns["num_leaves"] - 1
    sets = columns["num_cat"]
    entries = np.where(sets > 0, sets + 1, 0)
    if key == "cat_boundaries":
        return entries
    return np.where(sets > 0, np.append(columns["cat_boundaries"], 0)[np.cumsum(entries) - 1], 0)


def _read_tree(block: str, number: int) -> dict[str, str]:
    """Return the texts of one tree's fields, by key, without those that decide nothing.

    Args:
        block: the lines of the tree.
        number: its index in the file, from 0, which the first line must state.

    Raises:
        ModelFormatError: the tree does not begin and end where it should.
        UnsupportedModel: a key is unknown.
    """
    first, *others = _split_lines(block)
    end = others.index("") if "" in others else len(others)
    if first != f"Tree={number}" or any(others[end:]):
        what = f"tree {number} does not begin and end where it should"
        raise damaged("tree_sizes", what, TRUNCATED)
    tree = _read_lines(others[:end])
    if not tree.keys() <= _TREE_KEYS:
        key = min(tree.keys() - _TREE_KEYS)
        raise unsupported(key, f"unknown in tree {number}", _SAVE_AGAIN)
    return {key: tree[key] for key in tree.keys() & {*_BOUNDS, *_COUNTS}}


def _read_number(word: str) -> float:
    """Parse a number as LightGBM does, which reads a valid prefix: "1.#INF" is 1.

    Raises:
        ValueError: no prefix of the word is a number.
    """
    try:
        if "_" not in word and word.isascii():
            return float(word)
    except ValueError:
        pass
    match = _NUMBER.match(word)
    if match is None:
        raise ValueError(f"{word!r:.40} is none")
    return float(match[0])


def _parse_texts(key: str, texts: list[str]) -> tuple[Array, Array]:
    """Return the numbers of a field in all trees, and how many each tree has."""
    kinds = (float, int) if _BOUNDS.get(key, _COUNT) is None else (int,)
    counts = np.array([text.count(" ") + 1 if text else 0 for text in texts], np.int64)
    joined = ",".join(filter(None, texts)).replace(" ", ",").encode()
    values = parse_numbers(joined, int(counts.sum()), *kinds)
    if values is None:  # not in LightGBM's usual form
        words = [text.split() for text in texts]
        counts = np.array([len(own) for own in words], np.int64)
        return _parse(key, chain.from_iterable(words)), counts
    return _check_bounds(key, values), counts


def _parse(key: str, words: Iterable[str]) -> Array:
    """Parse and check words one by one, as int64 or float64, whichever the field has."""
    is_integer = _BOUNDS.get(key, _COUNT) is not None
    try:
        if is_integer:
            values: Array = np.fromiter(map(int, words), np.int64)
        else:
            values = np.fromiter(map(_read_number, words), np.float64)
    except (ValueError, OverflowError) as error:
        raise damaged(key, f"expected numbers ({error})") from None
    return _check_bounds(key, values)


def _check_bounds(key: str, values: Array) -> Array:
    """Return the values of a field; refuse integers out of bounds, and numbers not finite.

    Thresholds may be infinite: LightGBM writes "inf" if a node tests whether a value is missing.
    Leaf values may also be NaN, if training divided zero by zero.
    """
    bounds = _BOUNDS.get(key, _COUNT)
    if bounds is not None:
        good = (values >= bounds[0]) & (values < bounds[1])
    elif key in _ANY:
        return values
    else:
        good = ~np.isnan(values) if key in _INFINITE else np.isfinite(values)
    if not good.all():
        raise damaged(key, f"{values[np.argmin(good)]} is out of range")
    return values
