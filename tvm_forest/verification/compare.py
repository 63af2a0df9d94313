"""Compare a compiled model with the reference walk and with its training library.

takes: model, Forest, Predictor, rows; gives: Report.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..forest import Array, Forest, choose_labels
from ..forest.coarse_powers import COARSE_LINKS, ULPS_ELSEWHERE
from ..forest.probe_rows import given_rows, hard_rows, typical_rows
from ..forest.rules import LINK_ULPS
from ..frontends.library_predictions import LibraryPredictions, predict_by_library
from ..predictor.inputs import to_rows
from ..predictor.inputs.encoding import to_objects
from ..predictor.inputs.values import UNWANTED
from .distances import row_ulps, ulps
from .report import Agreement, Report

if TYPE_CHECKING:
    from ..predictor.predictor import Predictor

_REFERENCE = "reference walk"
_ON_X86 = platform.machine().lower() in ("x86_64", "amd64", "i386", "i686")
_MAX_LEAVES = 1 << 23
"""Largest number of leaf values that the reference walk computes at a time."""


class _Compiled(NamedTuple):
    """The predictions of a compiled model for rows that it accepts.

    Attributes:
        forest: the model.
        predictor: the compiled model.
        rows: (R, given_width), the rows; those of the caller come first.
        number: int64 (R,), the index of each row among all rows, including refused ones.
        margin, value: (R, C), its margins and values.
        labels: (R,), or (R, targets) if there are several; None if the model has no labels.
    """

    forest: Forest
    predictor: Predictor
    rows: Array
    number: Array
    margin: Array
    value: Array
    labels: Array | None


def verify(model: Any, forest: Forest, predictor: Predictor, rows: Any, n_rows: int) -> Report:
    """Compare a compiled model with the reference walk and the training library; see `api.verify`.

    Args:
        model: the file or object from which the forest was loaded.
        forest: the model.
        predictor: the compiled model.
        rows: (R, F) as `predict` takes them, or None.
        n_rows: number of rows to generate from the model's own thresholds.

    Raises:
        InputError: rows of the wrong kind.
    """
    kinds = _make_rows(forest, n_rows)
    if forest.encoder is not None:
        kinds = {kind: given_rows(forest, part, len(kind)) for kind, part in kinds.items()}
        kinds = {"given": to_objects(rows, forest), **kinds} if rows is not None else kinds
    elif rows is not None:  # first, so that their numbers are those of the caller
        lenient = replace(forest, refuses=tuple({"category"}.intersection(forest.refuses)))
        kinds = {"given": to_rows(rows, lenient), **kinds}
    every = np.concatenate(list(kinds.values()))
    accepted = np.ones(len(every), bool)
    for word in UNWANTED.keys() & set(forest.refuses):
        accepted &= ~UNWANTED[word](every).any(axis=1)
    finite = every[:, list(forest.finite_columns)]  # objects, if categories have labels
    accepted &= ~((finite == np.inf) | (finite == -np.inf)).any(axis=1)
    chosen = every[accepted]
    sums = predictor.predict_margin(chosen), predictor.predict_value(chosen)
    margin, value = (array.reshape(-1, forest.n_outputs) for array in sums)
    labels = predictor.predict(chosen) if forest.gives_labels else None
    number = np.flatnonzero(accepted)
    compiled = _Compiled(forest, predictor, chosen, number, margin, value, labels)
    library = predict_by_library(model, forest, chosen)
    encoded = to_rows(chosen, forest)
    return Report(
        model=forest.source,
        rows={kind: len(part) for kind, part in kinds.items()},
        refused=len(every) - len(chosen),
        reference=_compare(compiled, _ask_reference(forest, encoded)),
        library=library if isinstance(library, str) else _compare(compiled, library),
    )


def _make_rows(forest: Forest, n_rows: int) -> dict[str, Array]:
    """Return rows by kind; infinities and NaN are in "hard" only."""
    quarter, largest = n_rows // 4, float(np.finfo(np.float32).max)
    finite = hard_rows(forest, quarter, seed=1)
    return {
        "typical": typical_rows(forest, quarter),
        "hard": hard_rows(forest, n_rows - 2 * quarter),
        "hard, finite": np.nan_to_num(finite, nan=0.5, posinf=largest, neginf=-largest),
    }


def _ask_reference(forest: Forest, rows: Array) -> LibraryPredictions:
    """Return the predictions of the reference walk."""
    step = max(16, _MAX_LEAVES // max(1, forest.n_trees * forest.leaf_value.shape[1]))
    parts = [forest.predict_reference(rows[at : at + step]) for at in range(0, len(rows), step)]
    margin = np.concatenate([np.zeros((0, forest.n_outputs), forest.sum_dtype), *parts])
    value = forest.values_of(margin)
    labels = choose_labels(forest, margin, value) if forest.gives_labels else None

    def leaves(row: Array) -> Array:
        return forest.predict_reference(to_rows(row[None, :], forest), "apply")[0]

    return LibraryPredictions(_REFERENCE, np.ones(len(rows), bool), margin, value, labels, leaves)


def _compare(ours: _Compiled, theirs: LibraryPredictions) -> Agreement:
    """Return how far a compiled model's predictions agree with those of another model."""
    compared, bound = theirs.row_mask, LINK_ULPS[ours.forest.link]
    if ours.forest.link in COARSE_LINKS and theirs.library != _REFERENCE and not _ON_X86:
        bound = ULPS_ELSEWHERE
    if theirs.library == _REFERENCE:
        bound *= 2  # numpy's `exp` is less exact than that of the C library
    margin = row_ulps(ours.margin, theirs.margin, compared)
    value = row_ulps(ours.value, theirs.value, compared, ours.forest.link)
    faults: list[Any] = [np.zeros(int(compared.sum()), bool)]
    labels_equal = None
    if ours.labels is not None and theirs.labels is not None:
        same = _with_columns(ours.labels[compared] == theirs.labels).all(axis=1)
        faults, labels_equal = [~same], int(np.count_nonzero(same))
    if margin is not None:
        faults.append(np.greater(margin, 0))
    if value is not None:
        faults.append(np.greater(value, bound))
    wrong = np.any(faults, axis=0)
    first = int(np.flatnonzero(compared)[np.argmax(wrong)]) if wrong.any() else None
    return Agreement(
        against=theirs.library,
        n_rows=len(wrong),
        rows_equal=None if margin is None else int(np.count_nonzero(margin == 0)),
        margin_ulp=None if margin is None else int(margin.max(initial=0)),
        value_ulp=None if value is None else int(value.max(initial=0)),
        value_bound=bound,
        labels_equal=labels_equal,
        first_row=None if first is None else int(ours.number[first]),
        first_tree=None if first is None else _find_tree(ours, theirs.leaves, ours.rows[first]),
        left_out=(int(np.count_nonzero(~compared)), theirs.note),
    )


def _find_tree(ours: _Compiled, leaves: Callable[[Array], Array | None], row: Array) -> int | None:
    """Return the first tree that explains a different prediction for a row; None if none does.

    That is a tree in which the row reaches another leaf than `leaves` returns. If there is none, it
    is a tree whose leaf value differs from that of the reference walk.
    """
    row = row[None, :]
    try:
        expected = leaves(row[0])
    except Exception:  # the library refuses a single row; only the explanation is lost
        expected = None
    reached = ours.predictor.apply(row)[0]
    other: Any = np.zeros(len(reached), bool)
    if expected is not None and expected.shape == reached.shape:
        other = reached != expected
    if not other.any():
        encoded = to_rows(row, ours.forest)
        reference = ours.forest.predict_reference(encoded, "per_tree")
        distance = ulps(ours.predictor.predict_per_tree(row), reference)
        other = _with_columns(distance[0] > 0).any(axis=1)
    return int(np.argmax(other)) if other.any() else None


def _with_columns(array: Array) -> Array:
    return array.reshape(len(array), -1)
