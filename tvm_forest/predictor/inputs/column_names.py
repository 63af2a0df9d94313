"""Selects the columns of a frame that the model uses.

takes: frames; gives: frames of the model's columns, in its order.

Libraries differ in this: see `InputMeaning.spell`, `takes_by_name`, `ignored_columns` and
`spares_columns`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from ...errors import InputError
from ...forest import Forest
from .checks import refusal
from .spare_columns import add_unread
from .values import list_some

Kind = Literal["pandas", "polars", "pyarrow", "named"]

_SPELLED = {
    "pandas": "rows.set_axis(predictor.forest.spell(rows.columns), axis=1)",
    "polars": "rows.rename(dict(zip(rows.columns, predictor.forest.spell(rows.columns))))",
    "pyarrow": "rows.rename_columns(predictor.forest.spell(rows.schema.names))",
}
"""For each frame library, code for messages: it renames columns to the model's spelling."""


def names_of(frame: Any, kind: Kind) -> list[str]:
    """Return the names of a frame's columns, all as strings."""
    return [str(name) for name in _list_names(frame, kind)]


def _list_names(frame: Any, kind: Kind) -> list[Any]:
    return list(frame.schema.names if kind == "pyarrow" else frame.columns)


def fits(frame: Any, kind: Kind, forest: Forest) -> bool:
    """Return whether `take_columns` finds the model's columns in a frame."""
    try:
        frame = add_unread(frame, names_of(frame, kind), kind, forest)
        _find_places(_list_names(frame, kind), kind, forest)
    except InputError:
        return False
    return True


def take_columns(frame: Any, kind: Kind, forest: Forest) -> Any:
    """Return a frame of the model's columns, in the model's order.

    Raises:
        InputError: columns are missing, repeated, too many, or in another order than the model's,
            as far as the training library refuses that.
    """
    frame = add_unread(frame, names_of(frame, kind), kind, forest)
    places = _find_places(_list_names(frame, kind), kind, forest)
    if places is None:
        return frame
    if kind == "pandas":
        return frame.iloc[:, places]
    return frame[:, places] if kind == "polars" else frame.select(places)


def _find_places(given: list[Any], kind: Kind, forest: Forest) -> list[int] | None:
    """Return the indices of the model's columns in a frame; None if the frame fits as it is.

    Raises:
        InputError: see `take_columns`.
    """
    known, names = forest.given_names, forest.spell(given)
    if tuple(names) == known:
        return None
    ignored = set(forest.ignored_columns).difference(known or ())
    kept = [place for place, name in enumerate(names) if name not in ignored]
    if known is None:
        kept = kept[: forest.given_width] if forest.spares_columns else kept
        if len(kept) != forest.given_width:
            raise refusal(f"expected {forest.given_width} columns, got {len(kept)}")
        return None if len(kept) == len(names) else kept
    if tuple(names[place] for place in kept) == known:
        return kept
    counts = Counter(names)
    if forest.takes_by_name and all(counts[name] == 1 for name in known):
        place_of = {name: place for place, name in enumerate(names)}
        return [place_of[name] for name in known]
    raise _explain(given, [names[place] for place in kept], known, kind)


def _explain(given: list[Any], names: list[str], known: Sequence[str], kind: Kind) -> Exception:
    """Return an error that lists missing, surplus, repeated or misplaced columns.

    Args:
        given: names of the frame's columns.
        names: these names in the model's spelling, without ignored columns.
        known: names of the model's columns.
        kind: the library of the frame.
    """
    counts, own = Counter(names), set(known)
    missing = [name for name in known if name not in counts]
    others = [name for name in names if name not in own]
    twice = [name for name in known if counts[name] > 1]
    rows = "rows" if own <= set(given) else _SPELLED[kind]
    pick = "[list(predictor.forest.given_names)]"
    remedy = "use " + rows + (pick if kind == "pandas" else f".select({pick[1:-1]})")
    if missing:
        what = f"the frame has no column {list_some(missing)}"
        what += f", and the model has no {list_some(others)}" if others else ""
        remedy = "rename or add columns, with missing values where there are no others"
    elif twice:
        what, remedy = f"column {list_some(twice)} occurs twice", "rename or drop one of them"
    elif others:
        what = f"the model has no column {list_some(others)}"
    else:
        at = next(i for i, name in enumerate(names) if name != known[i])
        what = f"column {at} is '{names[at]}', the model has '{known[at]}' there"
    count = f"expected {len(known)} columns, got {len(names)}: " if len(names) != len(known) else ""
    return refusal(f"{count}{what}; {remedy}")
