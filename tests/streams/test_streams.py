"""Files of rows become files of predictions, with the bits of `predict`, whole or not at all."""

from __future__ import annotations

import gzip
import io
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from decimal import Decimal
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xgboost
from pyarrow import parquet

import tvm_forest
from tvm_forest import predict_file
from tvm_forest.cli import main
from tvm_forest.errors import InputError
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.streams.batches import Columns
from tvm_forest.streams.formats import KINDS, Predicted, Reading
from tvm_forest.streams.headers import names_columns
from tvm_forest.streams.reading import DEPTH, read_ahead
from tvm_forest.streams.separated_rows import SeparatedRows

FORMATS = ("parquet", "arrow", "arrows", "csv", "tsv", "jsonl", "npy")
NAMES = ["a", "b", "c"]


def train(names: list[str] | None = NAMES, **options: Any) -> Any:
    rows = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    data = xgboost.DMatrix(rows, rows[:, 0] > rows[:, 1], feature_names=names)
    parameters = {"objective": "binary:logistic", "max_depth": 3, "nthread": 1, **options}
    return xgboost.train(parameters, data, 4)


@pytest.fixture(scope="module")
def named() -> Any:
    return tvm_forest.build(train(), schedule=lambda start: start)


@pytest.fixture(scope="module")
def unnamed() -> Any:
    return tvm_forest.build(train(None), schedule=lambda start: start)


@pytest.fixture(scope="module")
def rows(named: Any) -> Any:
    """Hard rows without infinities, which JSON lacks."""
    found = hard_rows(named.forest, 150, 1)
    return np.where(np.isinf(found), np.float32(0.5), found).astype(np.float32)


def to_table(rows: Any) -> pa.Table:
    """Columns in another order than the model's, among others; NaN is null."""
    columns = {name: pa.array(rows[:, i], from_pandas=True) for i, name in enumerate(NAMES)}
    ids = pa.array(np.arange(len(rows)))
    return pa.table({"id": ids, "c": columns["c"], "z": ["ü,\t"] * len(rows), **columns})


def write(table: pa.Table, path: Path) -> Path:
    """Write rows in the format of a suffix."""
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=100)
    elif path.suffix == ".arrow":
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table, 100)
    elif path.suffix == ".arrows":
        with pa.ipc.new_stream(path, table.schema) as file:
            file.write_table(table, 100)
    elif path.suffix == ".npy":
        rows = table.select(NAMES).to_pandas().to_numpy(np.float32)
        np.save(path, np.ascontiguousarray(rows))
    elif path.suffix == ".jsonl":
        lines = (
            json.dumps({k: v for k, v in x.items() if v is not None}) for x in table.to_pylist()
        )
        path.write_text("".join(f"{line}\n" for line in lines))
    else:
        table.to_pandas().astype(
            {name: np.float64 for name in NAMES if name in table.schema.names}
        ).to_csv(path, index=False, sep="," if path.suffix == ".csv" else "\t")
    return path


def read(path: Path) -> dict[str, list[Any]]:
    """Read what was written, with other libraries where there are some."""
    if path.suffix == ".parquet":
        return parquet.read_table(path).to_pydict()
    if path.suffix in (".arrow", ".arrows"):
        opened = pa.ipc.open_file if path.suffix == ".arrow" else pa.ipc.open_stream
        with pa.OSFile(str(path)) as file:
            return opened(file).read_all().to_pydict()
    if path.suffix == ".npy":
        return {"prediction": np.load(path).tolist()}
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return {name: [line[name] for line in lines] for name in lines[0]}
    frame = pd.read_csv(path, sep="," if path.suffix == ".csv" else "\t")
    return frame.to_dict("list")


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_gives_the_bits_of_predict(
    named: Any, rows: Any, tmp_path: Path, suffix: str
) -> None:
    source = write(to_table(rows), tmp_path / f"rows.{suffix}")
    for other in FORMATS:
        target = tmp_path / f"out.{other}"
        keep = [] if "npy" in (suffix, other) else ["z", "id"]
        assert predict_file(named, source, target, keep, batch_rows=37) == len(rows)
        if suffix == "npy" and other in ("csv", "tsv"):  # without names, as the rows are
            target.write_text("prediction\n" + target.read_text())
        found = read(target)
        assert list(found) == [*keep, "prediction"]
        assert np.array_equal(np.array(found["prediction"], np.float32), named.predict(rows))
        if keep:
            assert list(map(int, found["id"])) == list(range(len(rows)))
            assert set(found["z"]) == {"ü,\t"}


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_file_without_rows_gives_one(named: Any, tmp_path: Path, suffix: str) -> None:
    empty = to_table(np.empty((0, 3), np.float32))
    source = write(empty, tmp_path / f"rows.{suffix}")
    keep = ["id"] if suffix != "npy" else []
    assert predict_file(named, source, tmp_path / "out.parquet", keep) == 0
    found = parquet.read_table(tmp_path / "out.parquet")
    assert found.schema.field("prediction").type == pa.float32() and found.num_rows == 0
    assert found.schema.names == [*keep, "prediction"]
    assert predict_file(named, source, tmp_path / "out.csv", keep) == 0
    head = ",".join([*keep, "prediction"]) + "\n"
    assert (tmp_path / "out.csv").read_text() == (head if suffix != "npy" else "")


def test_a_model_without_names_takes_all_columns_that_are_not_kept(
    unnamed: Any, rows: Any, tmp_path: Path
) -> None:
    frame = pd.DataFrame(rows, columns=["y", "x", "w"], index=pd.Index(range(7, len(rows) + 7)))
    frame.insert(1, "id", range(len(rows)))
    frame[3:].to_parquet(tmp_path / "rows.parquet")  # with the index as a column
    predict_file(
        unnamed, tmp_path / "rows.parquet", tmp_path / "out.npy", batch_rows=50
    ) if 0 else None
    predict_file(unnamed, tmp_path / "rows.parquet", tmp_path / "out.parquet", ["id"])
    found = read(tmp_path / "out.parquet")
    assert found["id"] == list(range(3, len(rows)))
    assert np.array_equal(np.array(found["prediction"], np.float32), unnamed.predict(rows[3:]))
    with pytest.raises(
        InputError, match="4 columns are left for a model with 3 features: 'y', 'id'"
    ):
        predict_file(unnamed, tmp_path / "rows.parquet", tmp_path / "out.npy")


def test_numbers_of_all_types_are_read_and_nulls_are_missing(named: Any, tmp_path: Path) -> None:
    columns = {
        "a": pa.array([1, None, -3], pa.int64()),
        "b": pa.array([True, None, False]),
        "c": pa.array([None, None, None]),
    }
    parquet.write_table(pa.table(columns), tmp_path / "rows.parquet")
    predict_file(named, tmp_path / "rows.parquet", tmp_path / "out.npy")
    nan = np.nan
    expected = named.predict(np.array([[1, 1, nan], [nan, nan, nan], [-3, 0, nan]], np.float32))
    assert np.array_equal(np.load(tmp_path / "out.npy"), expected)


def test_an_array_in_fortran_order_is_read(named: Any, rows: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.asfortranarray(rows))
    predict_file(named, tmp_path / "rows.npy", tmp_path / "out.npy", batch_rows=31)
    assert np.array_equal(np.load(tmp_path / "out.npy"), named.predict(rows))


# -- columns of predictions -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("predict", ["prediction"]),
        ("predict_proba", ["probability_0", "probability_1"]),
        ("predict_margin", ["margin"]),
        ("apply", ["leaf_0", "leaf_1", "leaf_2", "leaf_3"]),
        ("predict_per_tree", ["tree_0", "tree_1", "tree_2", "tree_3"]),
    ],
)
def test_every_kind_has_names_and_values(
    named: Any, rows: Any, tmp_path: Path, kind: str, names: list[str]
) -> None:
    np.save(tmp_path / "rows.npy", rows)
    predict_file(named, tmp_path / "rows.npy", tmp_path / "out.parquet", kind=kind)
    predict_file(named, tmp_path / "rows.npy", tmp_path / "out.npy", kind=kind, batch_rows=40)
    found, expected = parquet.read_table(tmp_path / "out.parquet"), getattr(named, kind)(rows)
    assert found.schema.names == names and np.array_equal(np.load(tmp_path / "out.npy"), expected)
    columns = expected.reshape(len(rows), -1).T
    assert all(np.array_equal(x.to_numpy(), y) for x, y in zip(found, columns, strict=True))
    assert set(KINDS) >= {kind}


def test_probabilities_are_named_by_class_and_labels_are_texts(tmp_path: Path) -> None:
    from sklearn.tree import DecisionTreeClassifier

    rows = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    labels = np.array(["no", "yes", "maybe"], object)[np.arange(60) % 3]
    model = DecisionTreeClassifier(max_depth=2).fit(rows, labels)
    predictor = tvm_forest.build(model, schedule=lambda start: start)
    np.save(tmp_path / "rows.npy", rows)
    predict_file(predictor, tmp_path / "rows.npy", tmp_path / "out.parquet", kind="predict_proba")
    found = parquet.read_table(tmp_path / "out.parquet")
    assert found.schema.names == ["probability_maybe", "probability_no", "probability_yes"]
    assert np.array_equal(found["probability_no"].to_numpy(), model.predict_proba(rows)[:, 1])
    predict_file(predictor, tmp_path / "rows.npy", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text().split() == model.predict(rows).tolist()
    np.save(tmp_path / "rows.npy", rows[:0])
    predict_file(predictor, tmp_path / "rows.npy", tmp_path / "out.parquet")
    assert parquet.read_table(tmp_path / "out.parquet").schema.field(0).type == pa.string()


def test_columns_of_several_targets_and_leaf_vectors_are_numbered(named: Any) -> None:
    labels = np.array([3, 5, 0, 1])
    forest = replace(named.forest, labels=None)
    object.__setattr__(forest, "labels", labels)
    object.__setattr__(forest, "targets", (2, 2))
    parts = [np.zeros((1, 2)), np.ones((1, 2))]
    names = list(Predicted("predict_proba", parts, forest).columns)
    assert names == ["probability_0_3", "probability_0_5", "probability_1_0", "probability_1_1"]
    assert list(Predicted("predict_proba", np.zeros((1, 4)), forest).columns)[3] == "probability_3"
    names = list(Predicted("predict_per_tree", np.zeros((1, 2, 2)), forest).columns)
    assert names == ["tree_0_0", "tree_0_1", "tree_1_0", "tree_1_1"]


# -- categories -----------------------------------------------------------------------------------


def draw_frame(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    colour = pd.Categorical.from_codes(rng.integers(-1, 3, 80), ["red", "green", "NA"])
    size = pd.Categorical.from_codes(rng.integers(0, 3, 80), [10, 20, 30])
    return pd.DataFrame(
        {"x": rng.normal(size=80).astype(np.float32), "colour": colour, "size": size}
    )


@pytest.fixture(scope="module")
def categorical() -> tuple[Any, Any]:
    frame = draw_frame(0)
    data = xgboost.DMatrix(frame, np.arange(80) % 3 == 0, enable_categorical=True)
    parameters = {"objective": "binary:logistic", "max_depth": 3, "nthread": 1}
    booster = xgboost.train(parameters, data, 4)
    return tvm_forest.build(booster, schedule=lambda start: start), booster


def as_texts(frame: pd.DataFrame) -> pa.Table:
    """The labels as plain columns of texts and numbers."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    columns = [
        x.cast(x.type.value_type) if pa.types.is_dictionary(x.type) else x for x in table.columns
    ]
    return pa.table(columns, table.schema.names)


@pytest.mark.parametrize("suffix", ["dictionaries", "csv", "tsv", "jsonl"])
def test_categories_are_matched_by_label(categorical: Any, tmp_path: Path, suffix: str) -> None:
    predictor, booster = categorical
    frame = draw_frame(1)[::-1].reset_index(drop=True)
    expected = booster.predict(xgboost.DMatrix(frame, enable_categorical=True))
    source = tmp_path / f"rows.{suffix}"
    if suffix == "dictionaries":
        source = tmp_path / "rows.parquet"
        frame.to_parquet(source)
    elif suffix == "jsonl":
        lines = as_texts(frame).to_pylist()
        source.write_text("\n".join(json.dumps(line) for line in lines))
    else:
        frame.astype({"x": float}).to_csv(source, index=False, sep="\t" if suffix == "tsv" else ",")
    predict_file(predictor, source, tmp_path / "out.npy", batch_rows=33)
    assert np.array_equal(np.load(tmp_path / "out.npy"), expected)


def test_texts_of_parquet_are_labels_and_numbers_are_not(categorical: Any, tmp_path: Path) -> None:
    predictor, booster = categorical
    frame = draw_frame(1)
    table = as_texts(frame)
    bare = table.replace_schema_metadata(None)  # which says that pandas held categories
    parquet.write_table(bare, tmp_path / "rows.parquet")
    said = refused(predictor, tmp_path / "rows.parquet", tmp_path / "out.npy")
    assert "rows.parquet': rows 0 to 79 (counted from 0): predict: argument 'rows'" in said
    assert "column 'size' holds numbers, but the model was trained on categories" in said
    size = table["size"].combine_chunks().dictionary_encode()
    write(bare.set_column(2, "size", size), tmp_path / "rows.arrow")  # Parquet drops dictionaries
    predict_file(predictor, tmp_path / "rows.arrow", tmp_path / "out.npy")
    expected = booster.predict(xgboost.DMatrix(frame, enable_categorical=True))
    assert np.array_equal(np.load(tmp_path / "out.npy"), expected)


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv", "jsonl"])
def test_an_error_about_a_row_says_its_place_in_the_file(
    categorical: Any, tmp_path: Path, suffix: str
) -> None:
    texts = as_texts(draw_frame(1)).to_pandas()
    texts.loc[71, "colour"] = "pink"
    source = tmp_path / f"rows.{suffix}"
    if suffix == "parquet":
        texts.astype({"size": "category"}).to_parquet(source)
    else:
        table = pa.Table.from_pandas(texts, preserve_index=False).replace_schema_metadata(None)
        size = table["size"].combine_chunks().dictionary_encode()
        write(table.set_column(2, "size", size) if suffix == "arrow" else table, source)
    said = refused(categorical[0], source, tmp_path / "out.npy", batch_rows=32)
    assert f"rows.{suffix}': row 71 (counted from 0), column 'colour' is 'pink', a category" in said


def test_without_names_categories_are_codes(categorical: Any, tmp_path: Path) -> None:
    predictor, _ = categorical
    codes = np.array([[0.5, 2, 0], [0.25, np.nan, 1]])
    (tmp_path / "rows.csv").write_text("0.5,2,0\n0.25,,1\n")
    predict_file(predictor, tmp_path / "rows.csv", tmp_path / "out.npy")
    assert np.array_equal(np.load(tmp_path / "out.npy"), predictor.predict(codes))


def test_columns_of_categories_of_lightgbm(tmp_path: Path) -> None:
    import lightgbm

    frame = draw_frame(0).drop(columns="size")
    options = {
        "objective": "binary",
        "num_leaves": 5,
        "verbose": -1,
        "num_threads": 1,
        "min_data": 5,
    }
    model = lightgbm.train(options, lightgbm.Dataset(frame, np.arange(80) % 3 == 0), 4)
    predictor = tvm_forest.build(model, schedule=lambda start: start)
    expected = model.predict(frame)
    frame.to_parquet(tmp_path / "rows.parquet")
    lines = as_texts(frame).to_pylist()
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    for name in ("rows.parquet", "rows.jsonl"):
        predict_file(predictor, tmp_path / name, tmp_path / "out.npy")
        assert np.array_equal(np.load(tmp_path / "out.npy"), expected)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(InputError, match="which this format does not tell from numbers; use Parq"):
        predict_file(predictor, tmp_path / "rows.csv", tmp_path / "out.npy")


# -- rows that are refused ------------------------------------------------------------------------


def refused(predictor: Any, source: Any, target: Path, **options: Any) -> str:
    """Return what is said of a call that must leave nothing behind."""
    before = sorted(target.parent.iterdir())
    with pytest.raises(InputError) as error:
        predict_file(predictor, source, target, **options)
    assert sorted(target.parent.iterdir()) == before
    return str(error.value)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1], pa.date32()), "column 'b': type date32[day] holds no integers"),
        (pa.array([[1.0]]), "column 'b': type list<element: double> holds no"),
        (pa.array(["1.5"]), "column 'b' holds texts such as '1.5', and the model"),
    ],
)
def test_a_column_of_another_type_is_named(
    named: Any, tmp_path: Path, column: Any, message: str
) -> None:
    table = pa.table({"a": [1.0], "b": column, "c": [1.0]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    said = refused(named, tmp_path / "rows.parquet", tmp_path / "out.parquet")
    assert "rows.parquet'" in said and message in said


TEXTS = [
    ("csv", "1,2\n", [], "line 1: 2 fields, but the model has 3 features"),
    ("csv", "a,b,c\n1,2,3\n1,2,3,4\n", [], "line 3: 4 fields, but the first line has 3"),
    ("csv", "1,2,3\n1,x,3\n", [], "line 2: 'x' is no number"),
    ("csv", "a,b,d\n1,2,3\n", [], "no column 'c' (have: 'a', 'b', 'd')"),
    ("csv", "a,b,c,a\n1,2,3,4\n", [], "column 'a' occurs twice"),
    ("csv", "a,b,c\n1,2,3\n", ["id"], "no column 'id' (have: 'a', 'b', 'c')"),
    ("csv", "1,2,3\n", ["id"], "its columns have no names, so none can be kept"),
    ("csv", 'a,b,c\n1,2,3\n1,2,"3', [], "line 3: damaged: unexpected end of data"),
    ("csv", b"a,b,c\n1,2,\xff\n", [], "line 1: cannot be read: 'utf-8' codec"),
    ("tsv", "a\tb\tc\n1,2,3\n", [], "line 2: 1 fields, but the first line has 3"),
    ("jsonl", '{"a": 1, "b": 2, "c": 3}\n{"a": 1', [], "line 2: no JSON: "),
    ("jsonl", '{"a": 1, "b": 2, "c": 3, "c": 3}', [], "line 1: no JSON: a name occurs twice"),
    ("jsonl", "[1, 2, 3]\n", [], "line 1: no object of names and values"),
    ("jsonl", '{"a": 1, "b": 2}\n{"a": 1}\n', [], "no column 'c' (have: 'a', 'b')"),
    ("jsonl", '{"a": 1, "b": 2, "c": 3}\n\n{"b": [1], "a": 0}', [], "line 3: [1] is no number"),
    ("jsonl", '{"a": 1, "b": 2, "c": ' + "9" * 400 + "}", [], "line 1: 999"),
    ("parquet", "a,b,c\n", [], "rows.parquet': cannot be read: "),
    ("arrow", "a,b,c\n", [], "rows.arrow': cannot be read: "),
    ("npy", "a,b,c,d\n", [], "rows.npy': cannot be read: the magic string is not correct"),
]


@pytest.mark.parametrize(("suffix", "text", "keep", "message"), TEXTS)
def test_wrong_rows_are_told_with_their_place(
    named: Any, tmp_path: Path, suffix: str, text: str | bytes, keep: list[str], message: str
) -> None:
    path = tmp_path / f"rows.{suffix}"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    said = refused(named, path, tmp_path / "out.csv", keep=keep)
    assert said.startswith(f"predict: rows file '{path}'") and message in said


def test_kept_columns_of_odd_types_are_written_or_refused(named: Any, tmp_path: Path) -> None:
    one: Any = {name: pa.array([1.0]) for name in NAMES}
    time_of_day = pa.array([10**18], pa.timestamp("ns", "UTC"))
    odd = {
        "t": time_of_day,
        "d": pa.array([Decimal("1.50")]),
        "h": pa.array([np.float16(0.5)], pa.float16()),
        "n": pa.array([None]),
        "k.l": pa.array(["x"]).dictionary_encode(),
    }
    parquet.write_table(pa.table({**one, **odd}), tmp_path / "rows.parquet")
    for suffix in FORMATS[:-1]:
        predict_file(named, tmp_path / "rows.parquet", tmp_path / f"out.{suffix}", list(odd))
    texts = (tmp_path / "out.csv").read_text().splitlines()
    assert texts[0] == "t,d,h,n,k.l,prediction"
    assert texts[1].startswith("2001-09-09 01:46:40.000000000Z,1.50,0.5,,x,")
    assert read(tmp_path / "out.parquet")["k.l"] == ["x"]
    line = {"a": 1, "b": 2, "c": 3, "o": {"x": [1]}, "big": 10**30}
    (tmp_path / "rows.jsonl").write_text(json.dumps(line))
    predict_file(named, tmp_path / "rows.jsonl", tmp_path / "out.jsonl", ["o", "big"])
    assert read(tmp_path / "out.jsonl")["o"] == [{"x": [1]}]
    said = refused(named, tmp_path / "rows.jsonl", tmp_path / "new.csv", keep=["o"])
    assert "kept column 'o' holds lists or objects" in said
    said = refused(named, tmp_path / "rows.jsonl", tmp_path / "new.parquet", keep=["big"])
    assert "column 'big': " in said


def test_a_column_that_comes_late_in_json_is_refused_where_order_counts(
    unnamed: Any, tmp_path: Path
) -> None:
    lines = ['{"a": 1, "b": 2, "c": 3}\n'] * 1000 + ['{"d": 1}\n']
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    said = refused(unnamed, tmp_path / "rows.jsonl", tmp_path / "out.csv")
    assert "line 1001: column 'd', which the first 1000 lines lack" in said


PLAIN = ("p", "q", "r")
HEADERS = [  # names of the model, the first line, whether it names the columns; None for refused
    (None, "0,1,2", None),  # pandas
    (None, '"0","1","2"', None),
    (None, " 0, 1, 2", None),
    (None, ",0,1,2", True),  # pandas, with the index
    (None, "0,1,2,3", True),  # no row of this model; who keeps none is told
    (None, "0,1,3", False),
    (None, "1,2,3", False),
    (None, "0,2,1", False),
    (None, "0.0,1.0,2.0", False),
    (None, "x,y,z", True),
    (None, "x,,z", True),
    (None, "x,NA,z", True),
    (None, "NA,NA,NA", False),
    (None, "nan,NaN,null", False),
    (None, "<NA>,#N/A,", False),
    (None, "na,None,Null", False),
    (None, "\\N,NaT,missing", False),  # MySQL, pandas
    (None, "?,-,.", False),
    (None, "?,x,-", True),
    (None, ",,", False),
    (None, "NA,1,2", False),
    (None, "x,1,2", False),
    (PLAIN, "p,q,r", True),
    (PLAIN, "r,id,q,p", True),
    (PLAIN, ",p,q,r", True),
    (PLAIN, "P,Q,R", True),
    (PLAIN, "0,1,2", None),
    (PLAIN, "4,5,6", False),
    (("0", "1", "2"), "0,1,2", None),
    (("0", "1", "2"), "2,0,1", None),
    (("0", "1", "2"), "id,0,1,2", True),
    (("0", "1", "2"), "0,1,3", False),
    (("2019", "2020", "2021"), "2019,2020,2021", None),
    (("NA", "q", "r"), "NA,q,r", True),
]


@pytest.mark.parametrize(("names", "line", "expected"), HEADERS)
def test_a_first_line_names_the_columns_or_is_a_row_or_is_refused(
    unnamed: Any, names: Any, line: str, expected: bool | None
) -> None:
    forest = replace(unnamed.forest, feature_names=names)
    text = f"{line}\n".encode()
    for header in (True, False):
        known = SeparatedRows(io.BytesIO(text), "test", forest, Reading(header=header)).names
        assert (known is not None) == header
    if expected is None:
        with pytest.raises(InputError, match=r"here: line 1 \('.*'\) may name .*; say --header or"):
            open_csv(text, forest)
    else:
        assert (open_csv(text, forest).names is not None) == expected


def test_a_first_line_of_texts_may_be_a_row_of_categories() -> None:
    encoder = SimpleNamespace(categories=np.array([0, 1]))
    for names, width, line, expected in (
        (None, 2, ["red", "blue"], None),
        (("a", "b"), 2, ["a", "b"], True),
        (("a", "b"), 2, ["red", "blue"], None),
        (None, 3, ["red", "blue", "x"], True),
        (None, 3, ["red", "blue", "1.5"], False),
        (None, 3, ["red", "blue", "NA"], None),
    ):
        forest: Any = SimpleNamespace(
            given_names=names, given_width=width, encoder=encoder, spell=list
        )
        if expected is None:
            with pytest.raises(InputError, match="may name the columns, and may be a row"):
                names_columns(line, forest, "test")
        else:
            assert names_columns(line, forest, "test") == expected


def test_what_pandas_writes_is_predicted_or_refused_and_never_shifted(
    unnamed: Any, rows: Any, tmp_path: Path
) -> None:
    path, out, expected = tmp_path / "rows.csv", tmp_path / "out.npy", unnamed.predict(rows)
    frame = pd.DataFrame(rows.astype(np.float64))
    frame.to_csv(path, index=False)
    assert "say --header or --no-header" in refused(unnamed, path, out)
    predict_file(unnamed, path, out, header=True)
    assert np.array_equal(np.load(out), expected)
    frame.to_csv(path)
    predict_file(unnamed, path, out)
    assert np.array_equal(np.load(out), expected)
    frame.to_csv(path, header=False, index=False)
    predict_file(unnamed, path, out, header=False)
    assert np.array_equal(np.load(out), expected)
    frame.assign(id="x").to_csv(path, index=False)
    predict_file(unnamed, path, tmp_path / "out.csv", keep=["id"])
    assert len((tmp_path / "out.csv").read_text().splitlines()) == len(rows) + 1
    np.save(tmp_path / "rows.npy", rows)
    said = refused(unnamed, tmp_path / "rows.npy", out, header=True)
    assert "argument 'header': True, and only CSV" in said


def test_a_missing_value_that_others_write_is_refused_with_what_to_write(
    unnamed: Any, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("NA,1,2\n1,2,3\n")
    said = refused(unnamed, tmp_path / "rows.csv", tmp_path / "out.csv")
    assert "line 1: 'NA' is no number; say --header (header=True) if the line names" in said
    (tmp_path / "rows.csv").write_text("1,2,3\n1,NA,3\n")
    said = refused(unnamed, tmp_path / "rows.csv", tmp_path / "out.csv")
    assert "line 2: 'NA' is no number; leave the field of a missing value empty" in said


# -- types that only later rows show ---------------------------------------------------------------

LATER = {  # values of a kept column of JSON lines, and whether Parquet and Arrow can hold them all
    "whole, then fractions": ([1, 2, 10.99], False),
    "whole, then whole as a float": ([1, 2, 3.0], True),
    "fractions, then whole": ([1.5, 2.5, 3], True),
    "fractions, then a large one": ([1.5, 2.5, 2**53 + 1], False),
    "whole, then too large": ([1, 2, 2**63], False),
    "whole, then NaN": ([1, 2, float("nan")], False),
    "whole, then a bool": ([1, 2, True], False),
    "bools, then a number": ([True, False, 1], False),
    "fractions, then a bool": ([0.5, 1.5, True], False),
    "nothing, then a text": ([None, None, "x"], False),
    "nothing, then nothing": ([None, None, None], True),
    "numbers, then nothing": ([1, 2, None], True),
    "texts, then a number": (["x", "y", 1], False),
    "dates, then another text": (["2026-01-01", "2026-01-02", "soon"], True),
    "lists, then other lists": ([[1], [2, 3], [2.5]], False),
    "objects, then other values": ([{"k": 1}, {"k": 2}, {"k": 2.5}], False),
    "objects, then other names": ([{"k": 1}, {"k": 2}, {"l": 2}], False),
    "objects, then less": ([{"k": 1, "l": 1}, {"k": 2, "l": 2}, {"l": 2}], True),
}


@pytest.mark.parametrize("suffix", ["parquet", "arrows"])
@pytest.mark.parametrize("batch_rows", [2, 3])
@pytest.mark.parametrize("case", LATER)
def test_a_kept_value_is_written_as_it_is_or_its_row_is_refused(
    named: Any, tmp_path: Path, case: str, batch_rows: int, suffix: str
) -> None:
    values, fits = LATER[case]
    lines = (json.dumps({"a": 1, "b": 2, "c": 3, "v": value}) for value in values)
    source, target = tmp_path / "rows.jsonl", tmp_path / f"out.{suffix}"
    source.write_text("\n".join(lines))
    try:
        predict_file(named, source, target, ["v"], batch_rows=batch_rows)
    except InputError as error:
        assert not fits and re.search(r"row [012] \(counted from 0\), column 'v': ", str(error))
        assert "write JSON lines" in str(error) and not target.exists()
        return
    for given, found in zip(values, read(target)["v"], strict=True):
        names = found or {} if isinstance(found, dict) else {}
        known = {k: x for k, x in names.items() if x is not None} if names else found
        assert known == given or (given != given and found != found)
        assert isinstance(found, bool) == isinstance(given, bool)


@pytest.mark.parametrize("case", LATER)
def test_texts_hold_kept_values_of_any_types(named: Any, tmp_path: Path, case: str) -> None:
    values = [None if value != value else value for value in LATER[case][0]]
    lines = (json.dumps({"a": 1, "b": 2, "c": 3, "v": value}) for value in values)
    source = tmp_path / "rows.jsonl"
    source.write_text("\n".join(lines))
    predict_file(named, source, tmp_path / "out.jsonl", ["v"], batch_rows=2)
    assert str(read(tmp_path / "out.jsonl")["v"]) == str(values)
    if not any(isinstance(value, dict | list) for value in values):
        predict_file(named, source, tmp_path / "out.csv", ["v"], batch_rows=2)
        found = (tmp_path / "out.csv").read_text().splitlines()[1:]
        assert [line.split(",")[0] for line in found] == [
            "" if x is None else str(x) for x in values
        ]


def test_kept_texts_of_csv_stay_texts_whatever_they_look_like(named: Any, tmp_path: Path) -> None:
    values = ["1", "2", "10.99", "", "true", "0012", "2026-01-01"]
    source = tmp_path / "rows.csv"
    source.write_text("a,b,c,v\n" + "".join(f"1,2,3,{value}\n" for value in values))
    for suffix in ("parquet", "arrow", "jsonl"):
        predict_file(named, source, tmp_path / f"out.{suffix}", ["v"], batch_rows=2)
        assert read(tmp_path / f"out.{suffix}")["v"] == values


def test_json_has_no_infinity_inside_of_kept_objects(named: Any, tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text('{"a": 1, "b": 2, "c": 3, "v": {"k": [1e999]}}\n')
    said = refused(named, source, tmp_path / "out.jsonl", keep=["v"])
    assert "row 0 (counted from 0), a list or an object holds NaN or an infinity" in said


def test_an_empty_line_is_no_row_and_an_ambiguous_one_is_refused(
    named: Any, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("a,b,c\n\n1,2,3\n\n, ,\n")
    assert predict_file(named, tmp_path / "rows.csv", tmp_path / "out.csv") == 2
    (tmp_path / "rows.csv").write_text(",,\n1,2,3\n")  # no names
    assert predict_file(named, tmp_path / "rows.csv", tmp_path / "out.csv") == 2
    forest = replace(named.forest, feature_names=("0", "1", "2"))
    assert open_csv(b"2,id,0,1\n3,x,1,2\n", forest).names == ["2", "id", "0", "1"]  # not a row
    assert open_csv(b"2,3,0,7\n", forest).names is None
    with pytest.raises(InputError, match="line 3: empty; write nan for a missing value"):
        list(open_csv(b"a\n1\n\n3\n", forest).batches(Columns(["a"], ()), 10))


def open_csv(data: bytes, forest: Any) -> SeparatedRows:
    return SeparatedRows(io.BufferedReader(io.BytesIO(data)), "here", forest)


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "arrows", "npy"])
def test_a_file_that_is_damaged_half_way_leaves_nothing(
    named: Any, rows: Any, tmp_path: Path, suffix: str
) -> None:
    path = write(to_table(rows), tmp_path / f"rows.{suffix}")
    data = bytearray(path.read_bytes())
    if suffix == "parquet":
        about = parquet.ParquetFile(path).metadata.row_group(1).column(1)
        begin = about.dictionary_page_offset or about.data_page_offset
        data[begin : begin + 40] = b"\xff" * 40
    else:
        del data[-8 if suffix == "arrows" else len(data) * 2 // 3 :]  # also between two messages
    path.write_bytes(data)
    said = refused(named, path, tmp_path / "out.parquet", batch_rows=50)
    places = {
        "parquet": ": row group 1, after row 100: cannot be read",
        "arrow": ": cannot be read",
        "arrows": ": after row 150: cannot be read: the mark at the end of the stream is missing",
        "npy": "the file is damaged",
    }
    assert places[suffix] in said


# -- places ---------------------------------------------------------------------------------------


def test_the_file_of_rows_is_never_written_to(named: Any, rows: Any, tmp_path: Path) -> None:
    source = write(to_table(rows), tmp_path / "rows.parquet")
    (tmp_path / "same.parquet").symlink_to(source)
    (tmp_path / "also.parquet").hardlink_to(source)
    for name in ("rows", "same", "also"):
        said = refused(named, source, tmp_path / f"{name}.parquet")
        assert f"{name}.parquet' is the file of rows" in said


def test_a_file_that_is_there_stays_whole_until_another_takes_its_name(
    named: Any, rows: Any, tmp_path: Path
) -> None:
    target = tmp_path / "out.csv"
    target.write_text("old")
    (tmp_path / "rows.csv").write_text("a,b,c\n1,2,3\n1,2,x\n")
    refused(named, tmp_path / "rows.csv", target, batch_rows=1)
    assert target.read_text() == "old"
    (tmp_path / "rows.csv").write_text("a,b,c\n1,2,3\n")
    predict_file(named, tmp_path / "rows.csv", target)
    assert target.read_text().startswith("prediction\n")


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("no/out.csv", {}, "argument '--output': cannot write '"),
        ("folder.csv", {}, "(not a regular file)"),
        ("out.txt", {}, "suffix '.txt' is unknown; use .parquet, "),
        ("out.csv", {"target_format": "xml"}, "format 'xml' is unknown (have: parquet, csv, "),
        ("out.csv", {"kind": "fit"}, "argument 'kind': 'fit' is unknown (have: predict, "),
        ("out.csv", {"batch_rows": 0}, "argument 'batch_rows': expected 1 or more, got 0"),
        ("out.npy", {"keep": ["id"]}, ".npy holds no kept columns"),
        ("out.csv", {"keep": ["prediction"]}, "has the name of a column of predictions"),
        ("out.csv", {"keep": ["l"]}, "kept column 'l' of type list<element: int64>: text has no "),
        ("out.jsonl", {"keep": ["i"]}, "column 'i' is inf, which JSON lacks"),
    ],
)
def test_a_wrong_wish_is_refused(
    named: Any, tmp_path: Path, target: str, options: dict[str, Any], message: str
) -> None:
    one: Any = {name: [1.0] for name in [*NAMES, "id", "prediction"]}
    table = pa.table({**one, "l": [[1]], "i": [np.inf]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    (tmp_path / "folder.csv").mkdir()
    place = tmp_path / target
    if not place.parent.is_dir():
        place.parent.mkdir()
        os.rmdir(place.parent)
        with pytest.raises(InputError, match=message):
            predict_file(named, tmp_path / "rows.parquet", place)
        return
    assert message in refused(named, tmp_path / "rows.parquet", place, **options)


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv", "npy"])
def test_a_full_disk_is_told_and_nothing_is_left(named: Any, tmp_path: Path, suffix: str) -> None:
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(30_000, 3)))
    resource = pytest.importorskip("resource", reason="limits of POSIX")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        said = refused(named, tmp_path / "rows.npy", tmp_path / f"out.{suffix}", batch_rows=4000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "argument '--output': cannot write" in said and "File too large" in said


def test_a_closed_pipe_is_told(named: Any, rows: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.tile(rows, (100, 1)))
    for form in ("csv", "arrow"):
        reading, writing = os.pipe()
        os.close(reading)
        with open(writing, "wb", buffering=0) as target, pytest.raises(InputError) as error:
            predict_file(named, tmp_path / "rows.npy", target, target_format=form)
        assert "who reads the predictions has closed the pipe" in str(error.value)


def test_streams_of_the_caller_are_read_and_written_and_stay_open(
    named: Any, rows: Any, tmp_path: Path
) -> None:
    expected = named.predict(rows)
    for suffix in FORMATS:
        source = io.BytesIO(write(to_table(rows), tmp_path / f"rows.{suffix}").read_bytes())
        form = "arrow" if suffix == "arrows" else suffix
        target = io.BytesIO()
        predict_file(named, source, target, source_format=form, target_format="npy")
        assert np.array_equal(np.load(io.BytesIO(target.getvalue())), expected)
        assert not source.closed and not target.closed
    with pytest.raises(InputError, match="a stream has no suffix; say its format"):
        predict_file(named, io.BytesIO(), tmp_path / "out.csv")


@pytest.mark.parametrize(
    ("form", "message"), [("parquet", "Parquet is read from"), ("arrow", "an")]
)
def test_a_pipe_gives_no_end_to_begin_with(
    named: Any, rows: Any, tmp_path: Path, form: str, message: str
) -> None:
    data = write(to_table(rows[:9]), tmp_path / f"rows.{form}").read_bytes()
    reading, writing = os.pipe()
    with open(reading, "rb") as source, open(writing, "wb") as feeder:
        feeder.write(data)
        feeder.close()
        with pytest.raises(InputError, match=f"the stream of rows: {message}"):
            predict_file(named, source, tmp_path / "out.csv", source_format=form)


# -- folders --------------------------------------------------------------------------------------


@pytest.fixture
def folder(rows: Any, tmp_path: Path) -> Path:
    path = tmp_path / "rows"
    path.mkdir()
    table = to_table(rows)
    for number, begin in enumerate(range(0, 150, 60)):
        write(table.slice(begin, 60), path / f"part-{number}.snappy.parquet")
    (path / "_SUCCESS").touch()
    (path / ".part-0.crc").touch()
    return path


def test_a_folder_of_parts_becomes_a_folder_of_parts(
    named: Any, rows: Any, folder: Path, tmp_path: Path
) -> None:
    assert predict_file(named, folder, tmp_path / "out", ["id"]) == len(rows)
    paths = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in paths] == [f"part-{i}.snappy.parquet" for i in range(3)]
    found = parquet.read_table(tmp_path / "out")
    assert found["id"].to_pylist() == list(range(len(rows)))
    assert np.array_equal(found["prediction"].to_numpy(), named.predict(rows))
    predict_file(named, folder, tmp_path / "text", target_format="csv")
    assert sorted(path.name for path in (tmp_path / "text").iterdir())[0] == "part-0.snappy.csv"


def test_a_folder_of_parts_becomes_one_file(
    named: Any, rows: Any, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    assert predict_file(named, folder, tmp_path / "out.jsonl", ["id"]) == len(rows)
    found = read(tmp_path / "out.jsonl")
    assert found["id"] == list(range(len(rows)))
    assert np.array_equal(np.array(found["prediction"], np.float32), named.predict(rows))


def test_a_wrong_folder_is_refused(named: Any, rows: Any, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for place in (folder, folder / "out", folder / "out.csv"):
        assert "is in the folder of the rows" in refused(named, folder, place)
    assert "there is no folder" in str(
        pytest.raises(InputError, predict_file, named, folder, out / "x").value
    )
    out.mkdir()
    (out / "old").touch()
    assert "out' is there already; remove it" in refused(named, folder, out)
    (out / "old").unlink()
    assert predict_file(named, folder, out) == len(rows)  # an empty folder is as good as none
    (folder / "more").mkdir()
    assert "more': a folder in a folder" in refused(named, folder, tmp_path / "new")
    (folder / "more").rmdir()
    write(to_table(rows), folder / "part-1.snappy.csv")
    said = refused(named, folder, tmp_path / "new", target_format="tsv")
    assert "two files of rows would become 'part-1.snappy.tsv'" in said
    (folder / "notes.txt").touch()
    assert "notes.txt': suffix '.txt' is unknown" in refused(named, folder, tmp_path / "new")
    (tmp_path / "none").mkdir()
    assert "there is no file in it" in refused(named, tmp_path / "none", tmp_path / "new")


def test_parts_of_different_columns_are_refused(
    named: Any, rows: Any, folder: Path, tmp_path: Path
) -> None:
    table = to_table(rows)
    other = table.set_column(0, "id", table["id"].cast(pa.int32()))
    write(other, folder / "part-3.parquet")
    for target in ("out", "out.csv"):
        said = refused(named, folder, tmp_path / target, keep=["id"])
        assert "part-3.parquet': kept column 'id' is int32, but int64 in '" in said
    write(table.drop_columns("b"), folder / "part-3.parquet")
    said = refused(named, folder, tmp_path / "out")
    assert "part-3.parquet': no column 'b' (have: 'id', 'c', 'z', 'a')" in said


# -- threads, libraries, the command --------------------------------------------------------------


def test_a_reader_is_only_so_far_ahead_and_ends_with_the_block() -> None:
    made: list[int] = []

    def make() -> Any:
        for number in range(100):
            made.append(number)
            yield number
        raise ValueError("the end")

    with read_ahead(make()) as ahead:
        assert next(ahead) == 0
        deadline = time.monotonic() + 100
        while len(made) < DEPTH + 2 and time.monotonic() < deadline:
            pass
    assert len(made) == DEPTH + 2  # taken, in the queue, and in hand
    with read_ahead(make()) as ahead, pytest.raises(ValueError, match="the end"):
        assert list(ahead)


def test_what_needs_pyarrow_says_so_and_the_rest_does_without(
    named: Any, categorical: Any, rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for suffix in FORMATS:
        write(to_table(rows), tmp_path / f"rows.{suffix}")
    (tmp_path / "names.csv").write_text("x,colour,size\n1,red,10\n")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for suffix in ("csv", "tsv", "jsonl", "npy"):
        for other in ("csv", "jsonl", "npy"):
            predict_file(named, tmp_path / f"rows.{suffix}", tmp_path / f"out.{other}")
        assert np.array_equal(np.load(tmp_path / "out.npy"), named.predict(rows))
    remedy = "pyarrow is needed for this; pip install 'tvm-forest[streams]'"
    for name, target in [
        ("rows.parquet", "o.npy"),
        ("rows.arrow", "o.npy"),
        ("rows.csv", "o.arrow"),
    ]:
        assert remedy in refused(named, tmp_path / name, tmp_path / target)
    assert remedy in refused(categorical[0], tmp_path / "names.csv", tmp_path / "o.npy")


def test_progress_is_shown_on_the_error_stream(
    named: Any, rows: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "rows.npy", rows)
    predict_file(named, tmp_path / "rows.npy", tmp_path / "out.npy", progress=True)
    shown = capsys.readouterr()
    assert f"{len(rows)} rows, " in shown.err and not shown.out
    predict_file(named, tmp_path / "rows.npy", tmp_path / "out.npy", progress=None)  # no terminal
    assert capsys.readouterr() == ("", "")


# -- the command ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(named: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model.tvmf"
    named.save(path)
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object, status: int = 0) -> str:
    """Run a command, and return what it prints, or what it refuses."""
    assert main(list(map(str, words))) == status
    shown = capsys.readouterr()
    return shown.err if status else shown.out


def test_the_command_predicts_by_a_saved_predictor(
    named: Any, rows: Any, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(to_table(rows), tmp_path / "rows.parquet")
    out = tmp_path / "out.jsonl"
    kind = ["--kind", "predict_proba"]
    assert run(capsys, "predict", saved, source, "-o", out, "--keep", "id", "z", *kind) == ""
    assert list(read(out)) == ["id", "z", "probability_0", "probability_1"]
    assert np.array_equal(np.float32(read(out)["probability_1"]), named.predict_proba(rows)[:, 1])
    lines = run(capsys, "predict", saved, source, "--output-format", "tsv", "--keep", "id")
    assert lines.splitlines()[0] == "id\tprediction" and len(lines.splitlines()) == len(rows) + 1
    said = run(capsys, "predict", saved, source, "--target", "llvm", status=2)
    assert "argument '--target': 'llvm', but " in said and "is compiled already" in said
    said = run(capsys, "predict", saved, source, "-o", "-", "--output-format", "npy", status=2)
    assert ".npy begins with the number of rows" in said
    said = run(capsys, "predict", saved, tmp_path / "no.csv", status=2)
    assert "no.csv': there is no such file" in said


def test_a_model_is_compiled_to_a_file_that_info_tells_of(
    named: Any, rows: Any, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train().save_model(tmp_path / "model.json")
    made = tmp_path / "made.tvmf"
    target = '{"kind": "llvm", "mcpu": "x86-64"}' if platform.machine() == "x86_64" else "llvm"
    words = ["compile", tmp_path / "model.json", "-o", made, "--target", target]
    assert run(capsys, *words) == f"{made}\n"
    assert np.array_equal(tvm_forest.load_predictor(made).predict(rows), named.predict(rows))
    told = run(capsys, "info", saved)
    assert all(x in told for x in ("binary:logistic", "saved by", "code for", "for tree in"))
    said = run(capsys, "compile", "no model", "-o", tmp_path / "no" / "x.tvmf", status=2)
    assert "compile: argument '--output': cannot write" in said
    made.write_bytes(made.read_bytes()[:-99])
    assert "the file is damaged" in run(capsys, "info", made, status=2)


@pytest.mark.long
def test_a_saved_predictor_is_compiled_anew_and_exported(
    named: Any, rows: Any, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    anew = tmp_path / "anew.tvmf"
    assert run(capsys, "compile", saved, "--recompile", "-o", anew) == f"{anew}\n"
    assert np.array_equal(tvm_forest.load_predictor(anew).predict(rows), named.predict(rows))
    run(capsys, "export", saved, tmp_path / "made.so")
    assert (tmp_path / "made.so").stat().st_size and (tmp_path / "made.h").exists()


COMMAND = [sys.executable, "-m", "tvm_forest", "predict"]


@pytest.mark.long
def test_pipes_are_read_and_written(named: Any, rows: Any, saved: Path, tmp_path: Path) -> None:
    data = write(to_table(rows), tmp_path / "rows.csv").read_bytes()
    words = [saved, "-", "--format", "csv", "-o", "-", "--output-format", "arrow"]
    done = subprocess.run([*COMMAND, *words], input=data, capture_output=True, check=True)
    found = pa.ipc.open_stream(done.stdout).read_all()["prediction"].to_numpy()
    assert np.array_equal(found, named.predict(rows)) and not done.stderr
    reading, writing = os.pipe()
    os.close(reading)
    source = write(to_table(rows), tmp_path / "rows.parquet")
    with open(writing, "wb") as nobody:  # takes the predictions
        told = subprocess.run([*COMMAND, saved, source], stdout=nobody, stderr=subprocess.PIPE)
    assert (told.returncode, told.stderr) == (141, b"")  # as of a command of the shell


HEEDING = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup has switched off
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "left"),
    [(signal.SIGKILL, 1), (signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, 0)],
)
def test_a_signal_half_way_leaves_no_file(
    number: signal.Signals, left: int, saved: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out.csv"
    words = [saved, "-", "--format", "csv", "-o", target]
    started = subprocess.Popen(
        [sys.executable, "-c", HEEDING, *COMMAND, *words], stdin=subprocess.PIPE
    )
    with started as process:
        assert process.stdin is not None
        process.stdin.write(b"a,b,c\n1,2,3\n")  # and more will come
        process.stdin.flush()
        deadline = time.monotonic() + 600
        while not list(tmp_path.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(number)
    drafts = list(tmp_path.iterdir())
    assert len(drafts) == left and all(draft.suffix == ".draft" for draft in drafts)
    assert process.returncode == -number or number == signal.SIGINT


PAGE = Path(__file__).resolve().parents[2] / "docs" / "scoring_files.md"
COMMANDS = re.findall(r"^```(?:sh|python)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.long
@pytest.mark.usefixtures("kept_code")
def test_the_commands_of_the_page_run(
    rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    booster = train(["age", "income", "debt"])
    booster.save_model(tmp_path / "model.json")
    table = to_table(rows).select(["id", *NAMES]).rename_columns(["id", "age", "income", "debt"])
    write(table, tmp_path / "rows.parquet")
    write(table, tmp_path / "rows.jsonl")
    frame = table.to_pandas()
    frame.to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "parts").mkdir()
    for number in range(2):
        write(table, tmp_path / "parts" / f"part-{number}.parquet")
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "tvm-forest"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m tvm_forest "$@"\n')
    command.chmod(0o755)
    assert len(COMMANDS) > 3
    environment = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"}
    root = str(Path(tvm_forest.__file__).resolve().parents[1])
    environment["PYTHONPATH"] = f"{root}:{environment.get('PYTHONPATH', '')}"
    monkeypatch.chdir(tmp_path)
    for line in chain.from_iterable(text.splitlines() for text in COMMANDS):
        if "|" in line:
            subprocess.run(["sh", "-ec", line], env=environment, check=True)
        elif line.startswith("tvm-forest"):
            assert main(shlex.split(line, comments=True)[1:]) == 0
    names: dict[str, Any] = {}
    for program in (text for text in COMMANDS if "tvm_forest.predict_file(" in text):
        exec(program, names)
    stored = fsspec.filesystem("memory")
    assert gzip.decompress(stored.cat("/scores.csv.gz")).startswith(b"id,prediction\n0,")
    assert stored.find("/scores") == ["/scores/rows.csv", "/scores/rows.parquet"]
    assert names["n_rows"] == len(rows)
    expected = booster.predict(xgboost.DMatrix(frame.drop(columns="id")))
    assert len(read(tmp_path / "out.jsonl")["prediction"]) == len(rows)
    for name in ("out.parquet", "all.parquet"):
        found = parquet.read_table(tmp_path / name)["prediction"].to_numpy()
        assert np.array_equal(found[: len(rows)], expected)
