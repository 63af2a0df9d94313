"""Whether a compiled model says what its training library says.

takes: model, Forest, Predictor, rows; gives: Report.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .forest import Array, Forest, Link, apply_link, labelled
from .forest.rules import LINK_ULPS
from .frontends.oracle import Answers, ask
from .inputs import to_rows
from .probe_rows import hard_rows, typical_rows

if TYPE_CHECKING:
    from .predictor.predictor import Predictor

_REFERENCE = "reference walk"
_MOST_ENDS = 1 << 23  # leaves that the reference walk holds at a time


@dataclass(frozen=True)
class Comparison:
    """A compiled model beside one other that should say the same.

    Attributes:
        against: "reference walk", or name and version of the training library.
        n_rows: rows compared.
        rows_equal: rows whose margins are equal to the bit; None if the other tells no margins.
        margin_ulp, value_ulp: largest difference, in units of the last place; None as above.
        value_bound: how large `value_ulp` may be, because of the link.
        labels_equal: rows whose labels are equal; None if there are no labels.
        first_row: number of the first row that differs, given rows being first; None if none does.
        first_tree: first tree in which that row reaches another leaf; None if none is known.
        left_out: rows not compared, and why.
    """

    against: str
    n_rows: int
    rows_equal: int | None
    margin_ulp: int | None
    value_ulp: int | None
    value_bound: int
    labels_equal: int | None
    first_row: int | None
    first_tree: int | None
    left_out: tuple[int, str]

    @property
    def ok(self) -> bool:
        """Whether margins and labels are equal, and values within the bound."""
        return self.first_row is None

    def __str__(self) -> str:
        parts = []
        if self.rows_equal is not None:
            parts.append(f"margins equal on {self.rows_equal} of {self.n_rows} rows")
        if self.margin_ulp:
            parts.append(f"at most {self.margin_ulp} ulp apart")
        if self.value_ulp is not None:
            parts.append(f"values within {self.value_ulp} ulp (bound {self.value_bound})")
        if self.labels_equal is not None:
            parts.append(f"labels equal on {self.labels_equal}")
        text = f"{self.against}: {', '.join(parts)}"
        if self.left_out[0]:
            text += f"; {self.left_out[0]} rows left out, for {self.left_out[1]}"
        if self.first_row is None:
            return text
        tree = (
            "no tree tells why" if self.first_tree is None else f"first in tree {self.first_tree}"
        )
        return f"{text}\n  first differing row: {self.first_row}, {tree}"


@dataclass(frozen=True)
class Report:
    """What `verify` has found; as a text, it says so in a few lines.

    Attributes:
        model: library and objective.
        rows: number of rows by kind: "given", "typical", "hard", "hard, finite".
        refused: rows among them that the model refuses, and that were left out.
        reference: beside the reference walk.
        library: beside the training library; a text says why not.
    """

    model: str
    rows: dict[str, int]
    refused: int
    reference: Comparison
    library: Comparison | str

    @property
    def ok(self) -> bool:
        """Whether every comparison that could be made is."""
        return self.reference.ok and (isinstance(self.library, str) or self.library.ok)

    def __str__(self) -> str:
        rows = ", ".join(f"{count} {kind}" for kind, count in self.rows.items())
        refused = f"; {self.refused} left out, for the model refuses them" if self.refused else ""
        library = self.library
        if isinstance(library, str):
            library = f"training library: not compared, {library}"
        verdict = "equal" if self.ok else "DIFFERENT"
        return f"{self.model}: {verdict}\nrows: {rows}{refused}\n{self.reference}\n{library}"


class _Results(NamedTuple):
    margin: Array | None
    value: Array | None
    labels: Array | None


def verify(model: Any, forest: Forest, predictor: Predictor, rows: Any, n_rows: int) -> Report:
    """Compare a compiled model with the reference walk and the training library; see `api.verify`.

    Args:
        model: what the forest was loaded from.
        forest: the model.
        predictor: compiled from it.
        rows: (R, F) as `predict` takes them, or None.
        n_rows: rows to make of the model's own thresholds.
    """
    kinds = _probes(forest, n_rows)
    if rows is not None:  # first, so that their numbers are those of the caller
        lenient = replace(forest, refuses=tuple({"category"}.intersection(forest.refuses)))
        kinds = {"given": to_rows(rows, lenient), **kinds}
    every = np.concatenate(list(kinds.values()))
    taken: Array = np.ones(len(every), bool)
    for word, find in (("nan", np.isnan), ("inf", np.isinf)):
        if word in forest.refuses:
            taken &= ~find(every).any(axis=1)
    chosen, number = every[taken], np.flatnonzero(taken)
    margin, value = predictor._sums(chosen, None)  # labels hide the values of public methods
    has_labels = forest.labels is not None and forest.label_rule != "none"
    ours = _Results(margin, value, predictor.predict(chosen) if has_labels else None)

    def compared(answers: Answers) -> Comparison:
        return _compared(ours, answers, number, chosen, forest, predictor)

    theirs = ask(model, forest, chosen)
    return Report(
        model=forest.source,
        rows={kind: len(part) for kind, part in kinds.items()},
        refused=int(len(every) - taken.sum()),
        reference=compared(_walked(forest, chosen)),
        library=theirs if isinstance(theirs, str) else compared(theirs),
    )


def _probes(forest: Forest, n_rows: int) -> dict[str, Array]:
    """Rows of each kind; infinities and NaN are in the hard ones only."""
    quarter, largest = n_rows // 4, float(np.finfo(np.float32).max)
    finite = hard_rows(forest, quarter, seed=1)
    return {
        "typical": typical_rows(forest, quarter),
        "hard": hard_rows(forest, n_rows - 2 * quarter),
        "hard, finite": np.nan_to_num(finite, nan=0.5, posinf=largest, neginf=-largest),
    }


def _walked(forest: Forest, rows: Array) -> Answers:
    """The answers of the reference walk."""
    step = max(16, _MOST_ENDS // max(1, forest.n_trees * forest.leaf_value.shape[1]))
    parts = [forest.predict_reference(rows[at : at + step]) for at in range(0, len(rows), step)]
    margin = np.concatenate([np.zeros((0, forest.n_outputs), forest.sum_dtype), *parts])
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        final = margin.astype(forest.value_dtype or forest.sum_dtype)
        value = apply_link(forest.link, final, forest.link_scale, forest.targets)
    has_labels = forest.labels is not None and forest.label_rule != "none"
    labels = labelled(forest, margin, value) if has_labels else None
    everything = np.ones(len(rows), bool)

    def leaves(row: Array) -> Array:
        return forest.predict_reference(row[None, :], "apply")[0]

    return Answers(_REFERENCE, everything, margin, value, labels, leaves)


def _compared(
    ours: _Results,
    theirs: Answers,
    number: Array,
    rows: Array,
    forest: Forest,
    predictor: Predictor,
) -> Comparison:
    asked, bound = theirs.asked, LINK_ULPS[forest.link]
    if theirs.library == _REFERENCE:
        bound *= 2  # numpy's `exp` is less exact than that of the C library
    margin = _farthest(ours.margin, theirs.margin, asked)
    value = _farthest(ours.value, theirs.value, asked, forest.link)
    faults: list[Any] = [np.zeros(int(asked.sum()), bool)]
    labels_equal = None
    if ours.labels is not None and theirs.labels is not None:
        same = _columns(ours.labels[asked] == theirs.labels).all(axis=1)
        faults, labels_equal = [~same], int(np.count_nonzero(same))
    if margin is not None:
        faults.append(np.greater(margin, 0))
    if value is not None:
        faults.append(np.greater(value, bound))
    wrong = np.any(faults, axis=0)
    first = int(np.flatnonzero(asked)[np.argmax(wrong)]) if wrong.any() else None
    return Comparison(
        against=theirs.library,
        n_rows=len(wrong),
        rows_equal=None if margin is None else int(np.count_nonzero(margin == 0)),
        margin_ulp=None if margin is None else int(margin.max(initial=0)),
        value_ulp=None if value is None else int(value.max(initial=0)),
        value_bound=bound,
        labels_equal=labels_equal,
        first_row=None if first is None else int(number[first]),
        first_tree=None if first is None else _tree(forest, predictor, theirs.leaves, rows[first]),
        left_out=(int(np.count_nonzero(~asked)), theirs.note),
    )


def _farthest(
    ours: Array | None, theirs: Array | None, asked: Array, link: Link = "identity"
) -> Array | None:
    """Largest distance in each row, uint64 (N,), in the units of `LINK_ULPS`."""
    if ours is None or theirs is None:
        return None
    found, expected = ours[asked], np.asarray(theirs, ours.dtype)
    if link == "rounded_softmax":
        found, expected = found.astype(np.float32), expected.astype(np.float32)
    if link == "logistic":
        found, expected = found + found.dtype.type(1), expected + found.dtype.type(1)
    return ulps(found, expected).max(axis=1, initial=0)


def ulps(found: Array, expected: Array) -> Array:
    """Return how many floats lie between two, uint64; -0.0 and 0.0 are neighbours, NaN is NaN.

    Args:
        found, expected: of the same shape and dtype, float32 or float64.
    """
    one, other = _places(found), _places(expected)
    distance = np.maximum(one, other) - np.minimum(one, other)
    return np.where(np.isnan(found) & np.isnan(expected), np.uint64(0), distance)


def _places(values: Array) -> Array:
    """Numbers, uint64, in the order of floats: the bits, turned round below zero."""
    bits = np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")
    top = bits.dtype.type(1 << (8 * values.dtype.itemsize - 1))
    return np.where(bits & top, ~bits, bits | top).astype(np.uint64)


def _tree(
    forest: Forest,
    predictor: Predictor,
    leaves: Callable[[Array], Array | None],
    row: Array,
) -> int | None:
    """First tree in which the row reaches another leaf, or else a leaf of another value."""
    row = row[None, :]
    try:
        expected = leaves(row[0])
    except Exception:  # a library that refuses the row here; it is only to explain a difference
        expected = None
    found = predictor.apply(row)[0]
    other: Any = np.zeros(len(found), bool)
    if expected is not None and expected.shape == found.shape:
        other = found != expected
    if not other.any():
        values = predictor.predict_per_tree(row), forest.predict_reference(row, "per_tree")
        other = _columns(ulps(*values)[0] > 0).any(axis=1)
    return int(np.argmax(other)) if other.any() else None


def _columns(array: Array) -> Array:
    return array.reshape(len(array), -1)
