"""Describes a model's inputs and labels in C macros, for `rows.c` and `names.c`.

takes: Forest; gives: macros, and arrays in the data of the library.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ...forest import Forest
from .data import Data

LABEL_RULES = {
    "none": "NO_LABELS",
    "half": "HALF",
    "cut": "CUT",
    "argmax_margin": "LARGEST_MARGIN",
    "top_margin": "TOP_MARGIN",
    "argmax_probability": "LARGEST_VALUE",
}


def describe_rows(forest: Forest, data: Data) -> dict[str, Any]:
    """Return the macros of `rows.c`, on missing values and categories; append tables to `data`."""
    zeros = np.array(forest.zero_missing, np.int32)
    known, tables = list[str](), list[str]()
    for feature, codes in forest.known_categories.items():
        at = data.place(np.sort(np.array(codes, np.int64)).tobytes())
        is_compared = int(feature in forest.compared_categories)
        known.append(f"K({feature}, {is_compared}, {len(codes)}, {at})")
    for table in forest.membership_tables if forest.derived else ():
        at, right_at = (data.place(x.tobytes()) for x in (table.known, table.goes_right))
        columns = table.goes_right.shape[1]
        tables.append(f"M({table.feature}, {columns}, {len(table.known)}, {at}, {right_at})")
    return {
        "WIDE": forest.n_features,
        "MARKS": int(forest.needs_cleaning),
        "IS_MISSING(x)": _test_for_missing(forest),
        "ZEROS": len(zeros),
        "ZEROS_AT": data.place(zeros.tobytes()),
        "KNOWN(K)": " ".join(known),
        "MEMBERSHIPS(M)": " ".join(tables),
        "IS_NO_CATEGORY(x)": _test_for_no_category(forest),
    }


def describe_names(forest: Forest) -> dict[str, Any]:
    """Return the macros of `names.c`: feature, class and category names, and the label rule."""
    rule = forest.label_rule if forest.gives_labels else "none"
    is_single = rule in ("half", "cut")  # two classes for each output
    targets = forest.targets or (forest.n_outputs,)
    labels = [] if forest.labels is None or rule == "none" else forest.labels.tolist()
    categories = [
        f"C({feature}, {_join(x for x in names if x is not None).rstrip(', ')})"
        for feature, names in forest.category_names.items()
        if names
    ]
    return {
        "FEATURE_NAMES": _join(forest.feature_names or ()),
        "CLASS_NAMES": _join(labels),
        "CATEGORY_NAMES(C)": " ".join(categories),
        "LABEL_RULE": LABEL_RULES[rule],
        "LABEL_CUT": float(forest.label_cut).hex(),
        "LABELS": 0 if rule == "none" else forest.n_outputs if is_single else len(targets),
        "TARGETS": "".join(f"{count}, " for count in targets),
    }


def _test_for_missing(forest: Forest) -> str:
    if forest.missing is None or np.isnan(forest.missing):
        return "0"
    with np.errstate(over="ignore"):
        missing = float(np.dtype(forest.row_dtype).type(forest.missing))
    if np.isinf(missing):
        return f"((x) == {'-' if missing < 0 else ''}(ROW)INFINITY)"
    return f"((x) == (ROW){missing.hex()})"


def _test_for_no_category(forest: Forest) -> str:
    rule = forest.category_rule
    if rule is None:
        return "((x) != (x))"
    least = "(x) > -1" if rule.negative_fractions else "(x) >= 0"
    whole = " || (x) != trunc(x)" if rule.fractions_none else ""
    return f"(!({least}) || !((x) < (ROW){rule.highest}){whole})"


def _join(names: Iterable[Any]) -> str:
    """Return names as C string literals, each followed by a comma."""
    return "".join(f"{to_literal(str(name))}, " for name in names)


def to_literal(text: str) -> str:
    """Return a text as a C string literal in UTF-8."""
    shown = (
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"
        for byte in text.encode("utf-8", "surrogatepass")
    )
    return f'"{"".join(shown)}"'
