"""The table of what is accepted and what is refused, a row at a time.

takes: the tables of a frontend; gives: Support rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..forest import Link
from ..forest.rules import LINK_ULPS


class Support(NamedTuple):
    """One row of the table.

    Attributes:
        library: "catboost", "xgboost", "lightgbm", "scikit-learn", "onnx", "treelite" or "ydf".
        part: what the row is about, e.g. "objective", "estimator", "field".
        name: of the part, as the library spells it.
        how: "exact", to the bit; "within N ulp", for values that a link makes of exact margins; or
            "refused".
        note: what else to know; for what is refused, in which case.
    """

    library: str
    part: str
    name: str
    how: str
    note: str = ""


def list_accepted(library: str, part: str, names: Iterable[str], note: str = "") -> list[Support]:
    """Return rows of parts that change no bit."""
    return [Support(library, part, name, "exact", note) for name in names]


def list_linked(library: str, part: str, links: Mapping[str, Link]) -> list[Support]:
    """Return rows of parts that choose a link, by which values may differ in the last places."""
    return [
        Support(library, part, name or "(the user's own)", *_describe(link))
        for name, link in links.items()
    ]


def list_refused(library: str, **cases: str) -> list[Support]:
    """Return rows of the fields that UnsupportedModel names, with the cases in which it does."""
    return [Support(library, "field", name, "refused", case) for name, case in cases.items()]


def _describe(link: Link) -> tuple[str, str]:
    """Return how exact a link is, and its note."""
    ulps = LINK_ULPS[link]
    return (f"within {ulps} ulp", f"margins are exact, values by {link}") if ulps else ("exact", "")
