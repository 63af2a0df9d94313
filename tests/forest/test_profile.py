"""Leaf profiles: counting, adding, files, and the models that they belong to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tvm_forest
from forests import Split, drawn_forest, forest_of
from models import MODELS
from schedules import odd_forest
from shared_models import shared_model
from tvm_forest.cli import main
from tvm_forest.errors import InputError, ModelFormatError
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows, typical_rows
from tvm_forest.forest.profile import Profile
from tvm_forest.forest.rewrites.ordering import order_by_level

FOREST = drawn_forest(9, 5, seed=2)
REAL = {
    "abalone": (1000, 3342),
    "airline": (100, 92055214),
    "airline-ohe": (1000, 1000001),
    "covtype": (800, 464810),
    "epsilon": (100, 400001),
    "higgs": (100, 8800000),
    "letters": (26000, 16001),
    "year": (100, 463716),
}


def collected(forest: Forest, rows: Any) -> Profile:
    return Profile.of_leaves(forest, forest.predict_reference(rows, "apply"))


def assert_equal(one: Profile, other: Profile) -> None:
    assert np.array_equal(one.hits, other.hits)
    assert np.array_equal(one.depths, other.depths)
    assert np.array_equal(one.leaf_offset, other.leaf_offset)
    assert one.rows == other.rows


# -- counting -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_hits_are_the_rows_that_end_at_each_leaf(seed: int) -> None:
    forest = odd_forest(seed)
    rows = np.concatenate([hard_rows(forest, 200), typical_rows(forest, 100)])
    found = collected(forest, rows).onto(forest).hits
    ends = forest.reference_nodes(rows)
    assert np.array_equal(found, np.bincount(ends.ravel(), minlength=forest.n_nodes))


@pytest.mark.parametrize("name", ["deep", "dart", "some_single_leaves"])
def test_hits_come_from_a_trained_model_too(name: str) -> None:
    forest = tvm_forest.load(MODELS[name]())
    rows = typical_rows(forest, 300)
    found = collected(forest, rows).onto(forest).hits
    ends = forest.reference_nodes(rows)
    assert np.array_equal(found, np.bincount(ends.ravel(), minlength=forest.n_nodes))


def test_leaves_are_listed_in_level_order() -> None:
    forest = forest_of([Split(0, 0.0, Split(1, 0.0, 1.0, 2.0), 3.0)])
    profile = Profile.of_leaves(forest, np.array([[2], [2], [4], [2]]))
    assert profile.depths.tolist() == [1, 2, 2]
    assert profile.hits.tolist() == [3, 0, 1]


def test_parts_add_up_to_the_whole() -> None:
    rows = hard_rows(FOREST, 150)
    parts = [collected(FOREST, part) for part in np.array_split(rows, 4)]
    total = sum(parts[1:], parts[0])
    assert_equal(total, collected(FOREST, rows))
    assert total.signature == FOREST.signature
    assert_equal(parts[0] + collected(FOREST, rows[:0]), parts[0])


def test_profiles_of_two_models_do_not_add_up() -> None:
    one = collected(FOREST, hard_rows(FOREST, 5))
    deeper = drawn_forest(9, 6, seed=2)
    for other in (deeper, drawn_forest(8, 5, seed=2), replace(FOREST, base_score=np.ones(1))):
        with pytest.raises(InputError, match="Profile: argument 'other': it is of another model"):
            one + collected(other, hard_rows(FOREST, 5))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (
            np.zeros((4, 8), int),
            r"expected numbers of shape \(R, 9\), got int64 of shape \(4, 8\)",
        ),
        (np.zeros(9, int), "got int64 of shape"),
        (np.zeros((4, 9), bool), "got bool of shape"),
        (np.full((2, 9), 7.5), "row 0 has 7.5, which is no leaf of tree 0"),
        (np.full((2, 9), np.nan), "row 0 has nan, which is no leaf of tree 0"),
        (np.full((2, 9), np.inf), "row 0 has inf, which is no leaf of tree 0"),
        (np.full((1, 9), 999_999_999_999), "row 0 has 999999999999, which is no leaf of tree 0"),
        (np.full((1, 9), -1), "row 0 has -1, which is no leaf of tree 0"),
    ],
)
def test_what_are_no_leaves_is_refused(ids: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"of_leaves: argument 'ids': .*{message}"):
        Profile.of_leaves(FOREST, ids)


def test_an_inner_node_is_no_leaf() -> None:
    ids = FOREST.predict_reference(hard_rows(FOREST, 3), "apply")
    tree = int(np.argmax(FOREST.depths))
    ids[1, tree] = 0
    with pytest.raises(InputError, match=f"row 1 has 0, which is no leaf of tree {tree}"):
        Profile.of_leaves(FOREST, ids)


def test_a_profile_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        collected(FOREST, hard_rows(FOREST, 3)).hits[0] = 5


# -- models ---------------------------------------------------------------------------------------


def other_model(kind: str) -> Forest:
    if kind == "trees":
        return drawn_forest(8, 5, seed=2)
    if kind == "signature":
        return replace(FOREST, base_score=np.ones(1, np.float32))
    tree = Split(0, 0.0, Split(1, 0.0, 1.0, 2.0), Split(2, 0.0, 3.0, Split(1, 1.0, 4.0, 5.0)))
    return forest_of([0.5, tree])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("trees", "it has 9 trees, the model has 8"),
        ("signature", "all its trees have the model's shape, but their signatures differ"),
    ],
)
def test_a_profile_of_another_model_is_refused(kind: str, message: str) -> None:
    with pytest.raises(InputError, match=f"onto: argument 'profile': {message}; collect"):
        collected(FOREST, hard_rows(FOREST, 5)).onto(other_model(kind))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("9, 2, 0, -1, 0, 3, 1, 3", "its tree 1 has 4 leaves, in the model 5"),
        ("9, 2, 0, -1, 0, 2, 0, 3, 1, 2", "leaf 4 of its tree 1 has depth 2, in the model 3"),
    ],
)
def test_the_tree_that_differs_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "p.csv"
    path.write_text(f"2, 10\n10, 0\n{line}\n")
    with pytest.raises(InputError, match=message):
        Profile.load(path).onto(other_model("tree"))


# -- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["p.csv", "p.CSV", "p.json", "p"])
def test_a_file_gives_back_the_profile(tmp_path: Path, name: str) -> None:
    profile = collected(FOREST, hard_rows(FOREST, 99))
    profile.save(tmp_path / name)
    loaded = Profile.load(str(tmp_path / name))
    assert_equal(loaded, profile)
    assert loaded.signature == (None if name.lower().endswith(".csv") else FOREST.signature)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_csv_is_that_of_the_published_files(tmp_path: Path) -> None:
    published = shared_model("airline.profile.csv")
    Profile.load(published).save(tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_text() == published.read_text()


def test_a_failed_save_leaves_the_old_file_alone(tmp_path: Path) -> None:
    profile = collected(FOREST, hard_rows(FOREST, 9))
    profile.save(tmp_path / "p.json")
    before = (tmp_path / "p.json").read_bytes()
    with pytest.raises(TypeError):
        replace(profile, signature=b"no text").save(tmp_path / "p.json")  # type: ignore[arg-type]
    assert (tmp_path / "p.json").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected numbers with commas, got ''"),
        ("2, 10\n10, 0\n", "line 2: 1 trees follow, not 2"),
        ("1, 10\n10, 0\n10, 0\n", "line 3: 2 trees follow, not 1"),
        ("1\n10, 0\n", "line 1: expected 'trees, rows', got '1'"),
        ("-1, 10\n", "line 1: expected 'trees, rows'"),
        ("1, 10\n4, 1, 6\n", "line 2: 3 numbers are no pairs of hits and depth"),
        ("1, 10\n4, 1, six, 1\n", "line 2: expected numbers with commas, got '4, 1, six, 1'"),
        ("1, 10\n4, 1, 6, 1.0\n", "line 2: expected numbers"),
        ("2, 10\n\n10, 0\n", "line 2: expected numbers"),
        ("1, 10\n-4, 1, 14, 1\n", "line 2: a number of hits, or a depth, is negative"),
        ("1, 10\n4, -2, 6, 1\n", "line 2: a number of hits, or a depth, is negative"),
        ("1, 10\n4, -1, 6, 1\n", "line 2: a leaf with hits has no depth"),
        ("1, 10\n4, 1, 6, 3000000000\n", "line 2: 3000000000 is no depth of a tree"),
        ("2, 10\n10, 0\n4, 1, 5, 1\n", "line 3: the hits add up to 9, not to 10 rows"),
    ],
)
def test_a_damaged_csv_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.csv"
    path.write_text(text)
    with pytest.raises(ModelFormatError, match=f"profile .*p.csv: {message}.*; the file is dam"):
        Profile.load(path)


HEAD = '{"rows": 3, "signature": null, "trees": ['


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: it is no JSON"),
        (f'{HEAD}\n{{"hits": [3]', "line 2: it is no JSON"),
        ("[" * 100_000, "line 1: it is no JSON"),
        ("[]", "line 1: expected the fields rows, signature, trees"),
        ('{"rows": 3, "trees": []}', "line 1: expected the fields rows, signature, trees"),
        ('{"rows": "3", "signature": null, "trees": []}', "line 1: 'rows' must be a number"),
        ('{"rows": 3, "signature": 5, "trees": []}', "line 1: 'rows' must be a number and 'sig"),
        ('{"rows": 3, "signature": null, "trees": 5}', "line 1: 'trees' must be a list"),
        (f"{HEAD}\n5]}}", "line 2: expected as many whole 'hits' as 'depths'"),
        (f'{HEAD}\n{{"hits": [3], "depths": []}}]}}', "line 2: expected as many"),
        (f'{HEAD}\n{{"hits": [true, 2], "depths": [1, 1]}}]}}', "line 2: expected as many whole"),
        (f'{HEAD}\n{{"hits": [1.5, 1.5], "depths": [1, 1]}}]}}', "line 2: expected as many whole"),
        (f'{HEAD}\n{{"hits": [], "depths": []}}]}}', "line 2: a tree has no leaf"),
        (f'{HEAD}\n{{"hits": [2], "depths": [0]}}]}}', "line 2: the hits add up to 2, not to 3"),
    ],
)
def test_a_damaged_json_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(ModelFormatError, match=f"profile .*p.json: {message}.*; the file is dam"):
        Profile.load(path)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none.csv", tmp_path, tmp_path / "p.csv"):
        with pytest.raises(ModelFormatError, match=f"profile {path}: cannot be read"):
            Profile.load(path)


def test_every_truncation_of_a_file_is_noticed(tmp_path: Path) -> None:
    profile = collected(FOREST, hard_rows(FOREST, 99))
    for name in ("p.csv", "p.json"):
        profile.save(tmp_path / name)
        text = (tmp_path / name).read_text().rstrip()
        for end in range(0, len(text) - 1, 7):
            (tmp_path / name).write_text(text[:end])
            with pytest.raises(ModelFormatError):
                Profile.load(tmp_path / name)


@pytest.mark.parametrize("name", REAL)
def test_the_published_profiles_can_be_read(name: str) -> None:
    profile = Profile.load(shared_model(f"{name}.profile.csv"))
    assert (profile.n_trees, profile.rows) == REAL[name]
    assert np.all(np.add.reduceat(profile.hits, profile.leaf_offset[:-1]) == profile.rows)


@pytest.mark.filterwarnings("ignore:.*Found JSON model saved before XGBoost 1.6")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["airline", "epsilon", "higgs", "year"])
def test_the_published_profiles_fit_their_models(name: str) -> None:
    forest = tvm_forest.load(shared_model(f"{name}.json"))
    profile = Profile.load(shared_model(f"{name}.profile.csv"))
    profiled = profile.onto(forest)
    assert np.array_equal(profiled.hits[profiled.hits > 0], profile.hits[profile.hits > 0])
    order, _ = order_by_level(forest)
    assert np.array_equal(order, np.arange(forest.n_nodes))
    assert np.sum(profile.depths == -1) == {"higgs": 667, "year": 1}.get(name, 0)


@pytest.mark.slow
def test_the_command_counts_rows_of_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(Path(__file__).parents[1] / "data" / "xgboost-1.0.2-logistic.json")
    forest, source = tvm_forest.load(model), tmp_path / "rows.parquet"
    rows = typical_rows(forest, 50)
    pd.DataFrame(rows, columns=[f"f{i}" for i in range(rows.shape[1])]).to_parquet(source)
    expected = collected(forest, rows)
    command = ["profile", model, str(source), "-o"]
    assert main([*command, str(tmp_path / "p.json")]) == 0
    assert f"p.json: {len(rows)} rows at {len(expected.hits)} leaves" in capsys.readouterr().out
    assert_equal(Profile.load(tmp_path / "p.json"), expected)
    assert main([*command, str(tmp_path / "none" / "p.json")]) == 2
    assert "profile: argument '--output': cannot write" in capsys.readouterr().err
