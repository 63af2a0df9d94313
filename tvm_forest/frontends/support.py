"""Makes rows of the table of accepted and refused features.

takes: names of features of a frontend; gives: Support rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..forest import Link
from ..forest.rules import LINK_ULPS


class Support(NamedTuple):
    """One row of the table of accepted and refused features.

    Attributes:
        library: "catboost", "xgboost", "lightgbm", "scikit-learn", "onnx", "treelite" or "ydf".
        part: the kind of feature, e.g. "objective", "estimator", "field".
        name: the feature, as the library spells it.
        how: "exact", to the bit; "within N ulp", for values that a link makes of exact margins; or
            "refused".
        note: further remarks; for a refused feature, the cases in which it is refused.
    """

    library: str
    part: str
    name: str
    how: str
    note: str = ""


def list_accepted(library: str, part: str, names: Iterable[str], note: str = "") -> list[Support]:
    """Return rows for features that are reproduced to the bit."""
    return [Support(library, part, name, "exact", note) for name in names]


def list_linked(library: str, part: str, links: Mapping[str, Link]) -> list[Support]:
    """Return rows for features that choose a link, given by name; values may differ by some ulp."""
    return [
        Support(library, part, name or "(the user's own)", *_describe(link))
        for name, link in links.items()
    ]


def list_refused(library: str, **cases: str) -> list[Support]:
    """Return rows for fields that an UnsupportedModel may name, each with its cases."""
    return [Support(library, "field", name, "refused", case) for name, case in cases.items()]


def _describe(link: Link) -> tuple[str, str]:
    """Return the fields `how` and `note` of a row for a link."""
    ulps = LINK_ULPS[link]
    return (f"within {ulps} ulp", f"margins are exact, values by {link}") if ulps else ("exact", "")
