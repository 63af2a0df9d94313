"""Replaces a predictor's model by a retrained one.

takes: Predictor, a model in any form; gives: the Predictor of that model, or an error that names
the difference in the interface.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ...errors import InputError, UnsupportedModel
from ...forest import Forest, unseen
from ...forest.model import SIGNED
from ...forest.rewrites.canonical_form import canonicalize
from ...frontends import load
from .. import building
from ..parts import rounds
from ..predictor import Predictor


class Common(NamedTuple):
    """A property of a model on which callers rely.

    Attributes:
        name: its name in messages.
        read: a function that returns the property of a forest.
    """

    name: str
    read: Callable[[Forest], Any]


def _list_labels(forest: Forest) -> Any:
    return None if forest.labels is None else (forest.labels.dtype.str, forest.labels.tolist())


def _list_categorical(forest: Forest) -> list[int]:
    """Return the columns of the users' rows that hold categories by their labels."""
    encoder = forest.encoder
    return sorted(forest.category_names if encoder is None else encoder.categories.tolist())


INTERFACE = (
    Common("number of columns", lambda forest: forest.given_width),
    Common("names of columns", lambda forest: forest.given_names),
    Common("columns of categories", _list_categorical),
    Common("dtype of rows", lambda forest: forest.row_dtype),
    Common("number that means missing", lambda forest: repr(forest.missing)),
    Common("number of outputs", lambda forest: forest.n_outputs),
    Common("targets", lambda forest: forest.targets),
    Common("link from margins to values", lambda forest: forest.link),
    Common("dtype of margins", lambda forest: forest.sum_dtype),
    Common("dtype of values", lambda forest: forest.value_dtype),
    Common("labels", _list_labels),
    Common("rule by which labels are chosen", lambda forest: forest.label_rule),
    Common("dtype of leaf numbers", lambda forest: forest.leaf_id_dtype),
)
"""Properties that must be equal in both models."""

OF_STRUCTURE = [name for name in SIGNED if name != "leaf_value"]
"""Fields of a forest that stay equal if only its leaf values are refitted."""


def make_successor(present: Any, model: Any) -> Predictor:
    """Return a predictor of another model, built with the options of the present one.

    Args:
        present: a Predictor.
        model: see `tvm_forest.load`.

    Raises:
        InputError: the models' interfaces differ.
        ModelFormatError, UnsupportedModel, ScheduleError, BuildError: see `tvm_forest.build`.
    """
    forest = load_alike(present.forest, model, "update")
    made = _with_other_leaves(present, forest) if present.ready else None
    return build_alike(present, forest) if made is None else made


def load_alike(known: Forest, model: Any, where: str) -> Forest:
    """Load a model whose inputs and outputs are those of a known one, and refuse what that refuses.

    Raises:
        InputError: the models' interfaces differ; the message begins with `where`.
        ModelFormatError, UnsupportedModel: see `tvm_forest.load`.
    """
    forest = load(model)
    _refuse_other_interface(known, forest, where)
    if known.refuses_unseen and not forest.refuses_unseen:
        forest = forest.refuse_unseen(_list_refusing(known))
    return forest


def build_alike(present: Any, forest: Forest) -> Predictor:
    """Compile another model with the options of a predictor.

    Raises:
        UnsupportedModel, ScheduleError, BuildError: see `tvm_forest.build`.
    """
    request = present.request
    keeps_order = all(sch.keeps_order for sch in request.schedules.values())
    return building.build(building.plan(forest, request.given, request.target, exact=keeps_order))


def _with_other_leaves(present: Predictor, forest: Forest) -> Predictor | None:
    """Return a predictor that shares the present code.

    None unless only leaf values differ, and the code can read the new arrays.
    """
    if canonicalize(forest).digest(OF_STRUCTURE) != present.forest.digest(OF_STRUCTURE):
        return None
    return rounds.share_code(present, forest)


def _refuse_other_interface(known: Forest, forest: Forest, where: str) -> None:
    """Refuse a model whose inputs or outputs differ from those of the model in use."""
    for part in INTERFACE:
        was, now = part.read(known), part.read(forest)
        if was != now:
            raise _error(where, f"its {part.name}", was, now)
    if known.other_label is not None:  # rows never hold codes
        return
    for what, before, after in (
        *((f"the categories of column {x}", known.category_names[x], forest.category_names[x])
          for x in known.category_names),
        *((f"the categories of the column of categories {i}", *both) for i, both in enumerate(
            zip(known.pandas_categories, forest.pandas_categories, strict=False)
        )),
    ):  # fmt: skip
        if after[: len(before)] != before:
            raise _error(where, what, before, after)
    if len(known.pandas_categories) != len(forest.pandas_categories):
        counts = (len(x.pandas_categories) for x in (known, forest))
        raise _error(where, "its number of columns of categories", *counts)


def _error(where: str, what: str, was: Any, now: Any) -> InputError:
    return InputError(
        f"{where}: argument 'model': {what}: {now!r:.200}, and the model in use has {was!r:.200}; "
        "train it as that one, or build a predictor of its own"
    )


def _list_refusing(known: Forest) -> bool | list[int]:
    """Return the indices of the columns whose unseen categories are refused.

    True if these are all columns of categories, so that those of a new model are refused, too.
    """
    try:
        every = unseen.choose_columns(known, True)
    except UnsupportedModel:  # the model lists no categories for some columns
        every = ()
    return True if every == known.refuses_unseen else list(known.refuses_unseen)
