"""The page of exactness has all cases, and counts what a run has found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from differential import CASES, LIBRARIES, SPARSE, beside, of_case
from exactness_page import ABOUT, page_text

NAMES = [
    *(f"{library}: {name}" for library, made in LIBRARIES.items() for name in made),
    *(f"sparse: {library} {name}" for library, names in SPARSE.items() for name in names),
]


def found(name: str, equal: int | None = 40, **more: Any) -> dict[str, Any]:
    """What a run says about a model."""
    entry = {"name": name, "ok": equal != 39, "reference": [40, 40], "library": [equal, 40]}
    return entry | {"ulp": 2, "labels": None, "left out": [0, ""]} | more


def run(*entries: dict[str, Any]) -> str:
    return page_text({"rows": 40, "versions": {"xgboost": "3.2"}, "models": list(entries)})


@pytest.mark.parametrize("case", CASES)
def test_every_case_is_told_and_has_models(case: str) -> None:
    assert ABOUT.keys() == CASES.keys()
    assert of_case(case, [found(name) for name in NAMES]) or case == "L9"


def test_the_page_adds_up_the_rows_of_a_case() -> None:
    text = run(
        found("xgboost: dart"),
        found("xgboost: dart_classes", 39, ulp=3),
        found("xgboost: estimator_dart", None, labels=[38, 40]),
    )
    row = next(line for line in text.splitlines() if line.startswith("| X10 |"))
    assert "| dart, dart_classes, estimator_dart |" in row
    assert "| 79 of 80; 38 of 40 labels; 1 models by values | 3 |" in row
    assert "| xgboost | 3 | 79 of 80; 38 of 40 labels; 1 models by values | 3 | 1 |" in text
    assert "| all | 3 |" in text and "xgboost 3.2" in text


def test_the_page_says_what_is_refused_and_left_out() -> None:
    refused = {"name": "old: XGBoost 1.0.2 raw.json", "ok": True, "not compared": "field 'x'"}
    text = run(refused, found("xgboost: dart", library=[33, 33], **{"left out": [7, "inf"]}))
    assert "| XGBoost 1.0.2 raw.json | refused: field 'x' |" in text
    assert "| old | 0, 1 refused |" in text
    assert "(7 rows in all)" in text and "| refused by name |" in text


def test_rows_are_equal_to_the_bit_or_not_at_all() -> None:
    some = np.array([[1.0, -0.0], [np.nan, 2.0], [3.0, 4.0]])
    other = np.array([[1.0, 0.0], [np.nan, 2.0], [3.0, np.nextafter(4.0, 5.0)]])
    assert beside("x", some, other)["library"] == [1, 3]
    assert beside("x", some, some)["ok"]
