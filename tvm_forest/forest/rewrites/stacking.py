"""Joins several models of the same columns into one forest with an output for each model.

takes: Forests of one output; gives: Forest whose output k is the margin of the k-th of them.

    model 0: trees a b c           trees   a b c d e
    model 1: trees d e     -->     outputs 0 0 0 1 1

The trees of a model keep their order, so every margin keeps its bits. A row is then read and
checked only once for all models, and coded only once if the layout has a row code; bit planes also
evaluate tests that models share only once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import UnsupportedModel
from .. import Forest
from ..model import ROLES

LEFT_OUT_UNLESS_ALL = ("hits", "cover")
"""Fields that decide no prediction, and are dropped unless all models have them."""

_OWN = {
    *("source", "base_score", "categories", "tree_offset", "tree_class", "tree_id", "n_rounds"),
    *("rounds_left_out", "with_all_rounds", "tile", "tile_size", "listed_categories"),
    *("term_feature", "term_coefficient", *LEFT_OUT_UNLESS_ALL),
}
"""Fields of the whole model that may differ from model to model; others must be equal."""


def stack_forests(forests: Sequence[Forest]) -> Forest:
    """Return one forest with the margins of several models as outputs.

    Args:
        forests: one or more, each of one output, alike in all but their trees and base scores; they
            may have any number of trees.

    Raises:
        UnsupportedModel: one has several outputs, or differs from the first in a field that a
            forest has only once for all outputs, such as its link or the names of its columns.
    """
    first = forests[0]
    for number, forest in enumerate(forests):
        _check(number, forest, first)
    starts = np.cumsum([0, *(forest.n_nodes for forest in forests)])
    fields = {**_join_arrays(forests), **_join_terms(forests)}
    sets = zip(starts.tolist(), (forest.categories for forest in forests), strict=False)
    offsets = [x.tree_offset[:-1] + at for x, at in zip(forests, starts, strict=False)]
    classes = [np.full(forest.n_trees, k) for k, forest in enumerate(forests)]
    fields["tree_offset"] = np.append(np.concatenate(offsets), starts[-1]).astype(np.int64)
    fields["tree_class"] = np.concatenate(classes).astype(np.int32)
    fields["tree_id"] = np.arange(len(fields["tree_class"]), dtype=np.int32)
    return replace(
        first,
        **fields,
        source=f"{len(forests)} models of {first.source}",
        base_score=np.concatenate([forest.base_score for forest in forests]),
        categories={start + node: x for start, own in sets for node, x in own.items()},
        n_rounds=max(forest.n_rounds for forest in forests),
        rounds_left_out=0,
        with_all_rounds=None,
        listed_categories=(),
        tile=None,
        tile_size=1,
    )


def _check(number: int, forest: Forest, first: Forest) -> None:
    """Refuse a model that has several outputs, or differs from the first where it must not."""
    if forest.n_outputs > 1 or forest.has_vectors:
        raise UnsupportedModel(
            f"load: model {number} of the list, '{forest.source}', has {forest.n_outputs} outputs; "
            "only models of one output are joined; build the others one by one"
        )
    if forest.library != first.library:  # each library reads rows in its own way
        raise UnsupportedModel(
            f"load: model {number} of the list, '{forest.source}', is of another library than "
            f"model 0, '{first.source}'; build those that differ one by one"
        )
    for name, role in ROLES.items():
        mine, others = getattr(forest, name), getattr(first, name)
        if name in _OWN:
            differs = name == "base_score" and mine.dtype != others.dtype
        elif role.unit == "model":
            differs = forest.digest([name]) != first.digest([name])
        else:
            differs = getattr(mine, "dtype", None) != getattr(others, "dtype", None)
        if differs:
            raise UnsupportedModel(
                f"load: model {number} of the list, '{forest.source}': field '{name}' is "
                f"{_say(mine)}, and {_say(others)} in model 0; models of a list have it in common; "
                "build those that differ one by one"
            )


def _join_arrays(forests: Sequence[Forest]) -> dict[str, Any]:
    """Return the arrays of nodes and trees of all models, joined; None where a model has none."""
    fields = dict[str, Any]()
    for name, role in ROLES.items():
        arrays = [getattr(forest, name) for forest in forests]
        if role.unit != "model" and name != "tile":
            fields[name] = None if any(x is None for x in arrays) else np.concatenate(arrays)
    return fields


def _join_terms(forests: Sequence[Forest]) -> dict[str, Any]:
    """Return the fields of the linear leaves' terms, joined; {} if leaves are not linear."""
    if not forests[0].is_linear:
        return {}
    parts = [(x.leaf_terms, x.term_feature, x.term_coefficient) for x in forests]
    terms, features, coefficients = (list[Any](x) for x in zip(*parts, strict=True))
    starts = np.cumsum([0, *map(len, features)])
    return {
        "leaf_terms": np.concatenate([x + at for x, at in zip(terms, starts, strict=False)]),
        "term_feature": np.concatenate(features),
        "term_coefficient": np.concatenate(coefficients),
    }


def _say(value: Any) -> str:
    """Describe a field's value in a few words."""
    dtype = getattr(value, "dtype", None)
    text = repr(value) if dtype is None else f"an array of {dtype}"
    return text if len(text) <= 60 else f"{text[:57]}..."
