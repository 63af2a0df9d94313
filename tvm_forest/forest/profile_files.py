"""Formats and parses leaf profiles: the CSV that Treebeard's authors publish, and JSON.

takes: hits and depths of the leaves of each tree; gives: the text of a file, and back.

    trees, rows                      {"rows": 3342, "signature": "5f0c...", "trees": [
    hits, depth, hits, depth, ...     {"hits": [90, 77, ...], "depths": [4, 4, ...]},
    ...one line a tree                ...one line a tree]}

The CSV has no signature. In both, tree t, counted from 0, is on line t + 2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import ModelFormatError

UNKNOWN = -1
"""Depth of some leaves that no row came to, in the CSV."""

_NUMBERS = re.compile(r"\s*-?\d{1,18}\s*(,\s*-?\d{1,18}\s*)*", re.ASCII)


class ProfileText(NamedTuple):
    """The contents of a profile file.

    Attributes:
        rows: number of rows of the profile.
        signature: `Forest.signature` of the model, or None.
        trees: for each tree, the hits of its leaves and their depths.
    """

    rows: int
    signature: str | None
    trees: list[tuple[list[int], list[int]]]


class _DamagedLineError(Exception):
    """A damaged line; the arguments are its number and a text about the damage."""


def format_profile(profile: ProfileText, path: Path) -> str:
    """Return a profile as the text of a file: CSV if its name ends in .csv, JSON otherwise."""
    if _is_csv(path):
        pairs = ([str(x) for pair in zip(*t, strict=True) for x in pair] for t in profile.trees)
        lines = [f"{len(profile.trees)}, {profile.rows}", *map(", ".join, pairs), ""]
    else:
        head = json.dumps({"rows": profile.rows, "signature": profile.signature})
        body = ",\n".join(json.dumps({"hits": h, "depths": d}) for h, d in profile.trees)
        lines = [head[:-1] + ', "trees": [', body, "]}", ""]
    return "\n".join(lines)


def parse_profile(text: str, path: Path) -> ProfileText:
    """Read a profile from the text of a file: CSV if its name ends in .csv, JSON otherwise.

    Raises:
        ModelFormatError: the text is damaged; the message names the line.
    """
    parse: Callable[[str], ProfileText] = _parse_csv if _is_csv(path) else _parse_json
    try:
        profile = parse(text)
        for line, tree in enumerate(profile.trees, 2):
            _check_tree(line, profile.rows, *tree)
    except _DamagedLineError as error:
        line, what = error.args
        where = f"profile {path}: line {line}"
        raise ModelFormatError(f"{where}: {what}; the file is damaged") from None
    return profile


def _is_csv(path: Path) -> bool:
    return path.suffix.lower() == ".csv"


def _parse_csv(text: str) -> ProfileText:
    lines = text.rstrip().split("\n")
    for number, line in enumerate(lines, 1):
        if not _NUMBERS.fullmatch(line):
            raise _DamagedLineError(number, f"expected numbers with commas, got {line[:40]!r}")
    head, *trees = ([int(word) for word in line.split(",")] for line in lines)
    if len(head) != 2 or min(head) < 0:
        raise _DamagedLineError(1, f"expected 'trees, rows', got {lines[0][:40]!r}")
    if len(trees) != head[0]:
        raise _DamagedLineError(len(lines), f"{len(trees)} trees follow, not {head[0]}")
    for number, tree in enumerate(trees, 2):
        if len(tree) % 2:
            raise _DamagedLineError(number, f"{len(tree)} numbers are no pairs of hits and depth")
    return ProfileText(head[1], None, [(tree[::2], tree[1::2]) for tree in trees])


def _parse_json(text: str) -> ProfileText:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise _DamagedLineError(line, f"it is no JSON ({error})") from None
    fields = {"rows", "signature", "trees"}
    if not isinstance(data, dict) or not fields <= set(data):
        raise _DamagedLineError(1, f"expected the fields {', '.join(sorted(fields))}")
    if not _are_counts([data["rows"]]) or not isinstance(data["signature"], str | None):
        raise _DamagedLineError(1, "'rows' must be a number and 'signature' a text or null")
    if not isinstance(data["trees"], list):
        raise _DamagedLineError(1, "'trees' must be a list")
    trees = []
    for number, tree in enumerate(data["trees"], 2):
        lists: dict[str, Any] = tree if isinstance(tree, dict) else {}
        hits, depths = lists.get("hits", 0), lists.get("depths", 0)
        if not _are_counts(hits) or not _are_counts(depths, UNKNOWN) or len(hits) != len(depths):
            raise _DamagedLineError(number, "expected as many whole 'hits' as 'depths'")
        trees.append((hits, depths))
    return ProfileText(data["rows"], data["signature"], trees)


def _are_counts(values: Any, least: int = 0) -> bool:
    return isinstance(values, list) and all(
        type(value) is int and least <= value < 1 << 62 for value in values
    )


def _check_tree(line: int, rows: int, hits: list[int], depths: list[int]) -> None:
    if not hits:
        raise _DamagedLineError(line, "a tree has no leaf")
    if min(hits) < 0 or min(depths) < UNKNOWN:
        raise _DamagedLineError(line, "a number of hits, or a depth, is negative")
    if max(depths) > np.iinfo(np.int32).max:
        raise _DamagedLineError(line, f"{max(depths)} is no depth of a tree")
    if any(hit and depth == UNKNOWN for hit, depth in zip(hits, depths, strict=True)):
        raise _DamagedLineError(line, "a leaf with hits has no depth")
    if sum(hits) != rows:
        raise _DamagedLineError(line, f"the hits add up to {sum(hits)}, not to {rows} rows")
