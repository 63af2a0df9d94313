"""Many numbers at once, as readers of models take them."""

import json

import numpy as np
import pytest

from tvm_forest.forest.structure.distinct_tests import _sort_floats
from tvm_forest.frontends.numbers import parse_numbers, to_array

EDGES = (0.0, -0.0, 5e-324, -5e-324, 1e-45, -1.5, 1.5, np.inf, -np.inf, 3.4e38, 1 / 3)


def test_a_list_of_numbers_becomes_an_array_of_the_same_bits():
    assert to_array([1, -(2**31), 2**31 - 1], int).tolist() == [1, -(2**31), 2**31 - 1]
    assert to_array([2**62, -1], int).tolist() == [2**62, -1]
    assert to_array(list(EDGES), float).tobytes() == np.array(EDGES).tobytes()
    assert to_array([1, 2.5], float, int).tolist() == [1.0, 2.5]
    assert to_array([], int).tolist() == to_array([], float).tolist() == []


@pytest.mark.parametrize("element", [True, None, "1", [1], {}, 2**63, object(), 1.0])
def test_a_list_with_anything_else_is_no_array_of_integers(element):
    assert to_array([1, element], int) is None


@pytest.mark.parametrize("element", [True, None, "1", [1.0], {}, 1])
def test_a_list_with_anything_else_is_no_array_of_floats(element):
    assert to_array([1.0, element], float) is None


def test_numbers_of_a_text_are_those_that_json_reads():
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=1000) * 10.0 ** rng.integers(-300, 19, 1000)
    texts = [
        f"{x:.{digits}g}" for x, digits in zip(numbers, rng.integers(1, 20, 1000), strict=True)
    ]
    expected = json.loads(f"[{','.join(texts)}]")
    found = parse_numbers(",".join(texts).encode(), 1000, float, int)
    assert found.tobytes() == np.array(expected, np.float64).tobytes()


@pytest.mark.parametrize(
    "text",
    ["1,", "1,,2", "1 2", "+1", "01", "1.,2", "NaN,1", "Infinity,1", "1e,2", "1,2,3", "0x1,2"],
)
def test_a_text_that_is_no_list_of_so_many_numbers_is_none(text):
    assert parse_numbers(text.encode(), 2, float, int) is None


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floats_are_sorted_as_numpy_does_and_equal_ones_stay_in_order(dtype):
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=500) * 10.0 ** rng.integers(-40, 30, 500)
    values = rng.permutation(np.concatenate([drawn, np.repeat(EDGES, 5)]).astype(dtype))
    assert np.array_equal(_sort_floats(values), np.argsort(values, kind="stable"))
