"""Numbers of classes: places of labels, in one byte or four."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import drawn_forest, forest_of
from tvm_forest.errors import InputError, UnsupportedModel
from tvm_forest.forest import Forest, choose_classes
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.predictor.class_numbers import DTYPES
from tvm_forest.predictor.predictor import Predictor


def classifier(classes: int, **fields: Any) -> Forest:
    """Trees of some classes with a softmax."""
    base = tuple(0.1 * c for c in range(classes))
    return drawn_forest(2 * classes, 3, base=base, link="softmax", **fields)


LABELS = np.array(["apple", "pear", "fig"])


def build(forest: Forest) -> Predictor:
    """Compile by the schedule that is compiled fastest."""
    return tvm_forest.build(forest, schedule=tvm_forest.new_schedule(forest))


MODELS: dict[str, Forest] = {
    "labels of softmax": classifier(3, labels=LABELS, label_rule="argmax_probability"),
    "labels of margins": classifier(3, labels=LABELS[::-1], label_rule="argmax_margin"),
    "labels of C++": classifier(3, labels=LABELS, label_rule="top_margin"),
    "no labels": classifier(3),
    "a sigmoid": drawn_forest(5, 3, link="sigmoid"),
    "a cut": drawn_forest(
        5, 3, labels=np.array([7, 9]), label_rule="cut", label_cut=0.25, link="sigmoid"
    ),
    "two targets": classifier(
        5, labels=np.array([4, 5, 1, 2, 3]), label_rule="argmax_probability", targets=(2, 3)
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_class_numbers_are_the_places_of_labels(name: str) -> None:
    forest = MODELS[name]
    predictor = build(forest)
    for n in (0, 1, 33):
        rows = hard_rows(forest, n, seed=n)
        for dtype in DTYPES:
            found = predictor.predict_class(rows, dtype=dtype)
            assert found.dtype == dtype
            assert found.shape == ((n, 2) if forest.targets else (n,))
        margin = forest.predict_reference(rows)
        assert np.array_equal(found, choose_classes(forest, margin, forest.values_of(margin)))
        if forest.labels is not None:
            tables = np.split(forest.labels, np.cumsum(forest.targets)[:-1])
            columns = found.T if forest.targets else [found]
            words = [own[at] for own, at in zip(tables, columns, strict=True)]
            expected = np.stack(words, axis=1) if forest.targets else words[0]
            assert np.array_equal(expected, predictor.predict(rows))
        elif forest.n_outputs > 1:
            assert np.array_equal(found, margin.argmax(axis=1))
        else:
            assert np.array_equal(found, predictor.predict(rows) > 0.5)


def test_of_equal_classes_the_lowest_is_chosen() -> None:
    forest = forest_of([1.0, 2.0, 2.0], base=(0.0,) * 3, link="softmax")
    assert build(forest).predict_class(np.zeros((2, 3))).tolist() == [1, 1]


def test_a_range_of_rounds_has_its_own_classes() -> None:
    forest = MODELS["no labels"]
    rows = hard_rows(forest, 33)
    predictor = build(forest)
    found = predictor.predict_class(rows, iteration_range=(1, 2))
    margin = predictor.predict_margin(rows, iteration_range=(1, 2))
    assert np.array_equal(found, margin.argmax(axis=1))
    assert not np.array_equal(found, predictor.predict_class(rows))


def test_classes_that_a_byte_does_not_count_are_refused() -> None:
    assert build(classifier(128)).predict_class(np.zeros((1, 4)), dtype="int8") >= 0
    many = build(classifier(129))
    message = "predict_class: argument 'dtype': class 128 does not fit 'int8'; use 'int32'"
    with pytest.raises(InputError) as caught:
        many.predict_class(np.zeros((1, 4)), dtype="int8")
    assert str(caught.value) == message
    assert many.predict_class(np.zeros((1, 4))).dtype == np.int32


def test_what_has_no_classes_and_other_dtypes_are_refused() -> None:
    plain = build(drawn_forest(3, 2))
    with pytest.raises(UnsupportedModel, match="'by hand' tells no classes apart; use predict"):
        plain.predict_class(np.zeros((1, 4)))
    with pytest.raises(InputError, match="argument 'dtype': 'int64' is unknown; use int8 or int32"):
        plain.predict_class(np.zeros((1, 4)), dtype="int64")


def test_labels_keep_their_rule() -> None:
    """Numbers of a forest with labels follow these, and not its link."""
    forest = replace(MODELS["a cut"], label_cut=-10.0)
    rows = hard_rows(forest, 20)
    assert np.all(build(forest).predict_class(rows) == 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.cases(2)
def test_values_are_to_be_had_where_predict_gives_labels(name: str) -> None:
    forest = MODELS[name]
    predictor, plain = build(forest), build(replace(forest, labels=None, label_rule="none"))
    for n in (0, 1, 65):
        rows = hard_rows(forest, n, seed=n)
        found, expected = predictor.predict_value(rows), plain.predict(rows)
        assert found.tobytes() == expected.tobytes() and found.shape == expected.shape
    part = predictor.predict_value(rows, iteration_range=(0, 1))
    assert part.tobytes() == predictor.rounds(0, 1).predict_value(rows).tobytes()
