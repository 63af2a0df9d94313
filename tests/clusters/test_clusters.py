"""What Spark, Ray and Dask have in common: columns, names, and models that workers load once.

No cluster runs here; partitions of Dask are those of this thread.
"""

from __future__ import annotations

import pickle
import re
import shlex
from functools import lru_cache
from pathlib import Path
from typing import Any

import catboost
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import xgboost
from pyarrow import parquet

import tvm_forest
import tvm_forest.dask
from cluster_rows import (
    BLOCKS,
    COMMAND,
    N_ROWS,
    NAMES,
    PAGE,
    build_fast,
    equal_bits,
    given,
    model,
    predictor,
    run_blocks,
    table,
)
from programs import run
from tvm_forest import clusters, ray
from tvm_forest.cli import main
from tvm_forest.clusters import Score, names_of, ship
from tvm_forest.errors import InputError
from tvm_forest.streams.formats import KINDS, QUANTILES, Predicted
from tvm_forest.system import archive
from tvm_forest.target import cpu_abilities

ENGINES = ("tvm_forest.spark", "tvm_forest.ray", "tvm_forest.dask")
OTHERS = ("duckdb", "polars", "daft")
FOR_ALL, ARRAYS = "x86-64-v3", "dask.array"
FORMS = {
    "table": lambda: table(),
    "record batch": lambda: table().to_batches()[0],
    "chunks": lambda: pa.concat_tables([table().slice(0, 7), table().slice(7)]),
    "dictionaries": lambda: table().set_column(1, "city", table()["city"].dictionary_encode()),
    "frame": lambda: table().to_pandas(),
    "frame of pyarrow": lambda: table().to_pandas(types_mapper=pd.ArrowDtype),
    "frame of polars": lambda: pl.from_arrow(table()),
    "categories": lambda: table().to_pandas().astype({"city": "category"}),
    "arrays": lambda: {name: x.to_numpy() for name, x in zip(table().schema.names, table())},  # noqa: B905
}
ONLY_NUMBERS = np.random.default_rng(4).normal(size=(50, 3)).astype(np.float32)


def column_of(batch: Any, name: str) -> Any:
    return np.asarray(batch[name])


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_of_any_form_gives_the_bits_of_predict(form: str) -> None:
    batch = FORMS[form]()
    found = Score(predictor())(batch)
    assert type(found) is type(batch)
    assert names_of(found) == [*names_of(batch), "prediction"]
    assert equal_bits(column_of(found, "prediction"), predictor().predict(given(), n_jobs=1))
    for name in ("id", "note"):
        assert list(column_of(found, name)) == list(column_of(batch, name))


@pytest.mark.parametrize("form", sorted(set(FORMS) - {"arrays"}))
def test_a_batch_without_rows_gives_columns_of_the_same_types(form: str) -> None:
    score, batch = Score(predictor(), n_jobs=1), FORMS[form]()
    whole, none = score(batch), score(batch[:0])
    assert names_of(none) == names_of(whole)
    assert column_of(none, "prediction").shape == (0,)
    assert column_of(none, "prediction").dtype == column_of(whole, "prediction").dtype


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {QUANTILES}))
def test_columns_are_called_as_those_of_predicted_files(kind: str) -> None:
    expected = Predicted(kind, getattr(predictor(), kind)(given()), predictor().forest).columns
    found = Score(predictor(), kind=kind)(table())
    assert names_of(found) == [*names_of(table()), *expected]
    for name, x in expected.items():
        is_text = x.dtype.kind not in "biuf"
        column = column_of(found, name)
        assert list(column) == list(x) if is_text else equal_bits(column, x), name
    renamed = Score(predictor(), kind=kind, output="score")(table())
    ends = [name.removeprefix(KINDS[kind]) for name in expected]
    assert names_of(renamed)[6:] == [f"score{end}" for end in ends]


def test_labels_and_several_outputs_become_columns() -> None:
    rows, labels = ONLY_NUMBERS, np.array(["no", "yes"])[(ONLY_NUMBERS[:, 0] > 0).astype(int)]
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    options = {"n_estimators": 3, "max_depth": 3, "random_state": 0}
    batch = pa.table({name: rows[:, i] for i, name in enumerate(NAMES)})
    classifier = RandomForestClassifier(**options).fit(rows, labels)
    found = Score(build_fast(classifier))(batch)
    assert found["prediction"].to_pylist() == classifier.predict(rows).tolist()
    found = Score(build_fast(classifier), kind="predict_proba")(batch)
    assert names_of(found)[3:] == ["probability_no", "probability_yes"]
    regressor = RandomForestRegressor(**options).fit(rows, rows[:, :2])
    found = Score(build_fast(regressor))(batch)
    both = [found[f"prediction_{i}"] for i in range(2)]
    assert equal_bits(np.stack(both, axis=1), regressor.predict(rows))


def test_columns_may_have_other_names_than_the_features() -> None:
    renamed = table().rename_columns([f"x {name}" for name in table().schema.names])
    found = Score(predictor(), [f"x {name}" for name in [*NAMES, "city"]])(renamed)
    assert equal_bits(found["prediction"], predictor().predict(given()))


@lru_cache
def unnamed() -> Any:
    data = xgboost.DMatrix(ONLY_NUMBERS, ONLY_NUMBERS[:, 0])
    return xgboost.train({"max_depth": 3, "nthread": 1}, data, 4)


@lru_cache
def built() -> Any:
    return build_fast(unnamed())


def test_a_model_without_names_takes_all_columns_in_order_or_those_that_are_named() -> None:
    score, expected = Score(unnamed()), built().predict(ONLY_NUMBERS)
    batch = {f"f{i}": ONLY_NUMBERS[:, i] for i in range(3)}
    assert equal_bits(score(batch)["prediction"], expected)
    score = Score(built())
    more = {"id": np.arange(50), **dict(reversed(batch.items()))}
    assert equal_bits(Score(built(), list(batch))(more)["prediction"], expected)
    frame = pd.DataFrame(dict(zip([2, 0, 1], ONLY_NUMBERS.T, strict=True)))  # numbers are names
    assert equal_bits(score(frame)["prediction"], expected)
    with pytest.raises(InputError, match="4 columns for a model with 3 features: 'id', 'f2', 'f1'"):
        Score(built())(more)


def test_categories_of_catboost_are_texts_in_batches_and_in_files(tmp_path: Path) -> None:
    frame = given().to_pandas().astype({"city": object}).fillna({"city": "none"})
    frame = frame.replace([np.inf, -np.inf], np.nan)
    model = catboost.CatBoostRegressor(
        iterations=4, depth=3, verbose=0, allow_writing_files=False, cat_features=["city"]
    )
    model.fit(frame, np.arange(N_ROWS) % 7)
    mixed, built = frame[["city", "debt", "income", "age"]], build_fast(model)
    assert equal_bits(Score(built)(mixed)["prediction"], model.predict(frame))
    mixed.to_parquet(tmp_path / "rows.parquet")
    tvm_forest.predict_file(built, tmp_path / "rows.parquet", tmp_path / "out.parquet")
    found = parquet.read_table(tmp_path / "out.parquet")
    assert equal_bits(found["prediction"], model.predict(frame))


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        (
            {},
            lambda x: x.drop(columns="age"),
            "clusters.Score: argument 'columns': no column 'age' ",
        ),
        ({}, lambda x: x.rename(columns={"age": "Age"}), r"no column 'age' \(have: .*'Age'\)"),
        ({}, lambda x: x.assign(age="old"), "column 'age' holds texts such as 'old'"),
        ({}, lambda x: x.assign(age=[[1]] * len(x)), "column 'age': type list<"),
        ({}, lambda x: x.assign(age=[{}, "x"] * 120), "predict: argument 'rows': "),
        ({}, lambda x: x.assign(prediction=1), "argument 'output': there is a column 'prediction'"),
        ({"output": "note"}, lambda x: x, "'output': there is a column 'note' already"),
        (
            {},
            lambda x: x.to_numpy(),
            "a ndarray has no names; give a table of pyarrow, a frame, or",
        ),
        ({"kind": "shap"}, lambda x: x, "argument 'kind': 'shap' is unknown"),
        ({"columns": "age"}, lambda x: x, "argument 'columns': 'age' is one name; give a list"),
        ({"columns": ["age"]}, lambda x: x, "1 columns for a model with 4 features: 'age'"),
        ({"columns": [*NAMES, "town"]}, lambda x: x, "no column 'town'"),
    ],
)
def test_what_does_not_fit_is_refused(options: Any, change: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Score(predictor(), **options)(change(table().to_pandas()))


def test_a_column_that_occurs_twice_is_refused() -> None:
    doubled = table().append_column("age", table()["age"])
    with pytest.raises(InputError, match="column 'age' occurs twice"):
        Score(predictor())(doubled)


@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_later_batch_that_lacks_a_column_is_refused_by_its_name(form: str) -> None:
    score, batch = Score(predictor()), FORMS[form]()
    score(batch)
    if form == "arrays":
        del batch["age"]
    elif "frame" in form or form == "categories":
        batch = batch[[name for name in names_of(batch) if name != "age"]]
    else:
        batch = batch.select([name for name in names_of(batch) if name != "age"])
    with pytest.raises(InputError, match="clusters.Score: argument 'columns': no column 'age' "):
        score(batch)


def test_an_error_about_a_row_says_its_place_in_the_batch_or_the_partition() -> None:
    wrong = table().slice(0, 20).to_pandas()
    wrong.loc[7, "city"] = "Paris"
    said = (
        r"clusters.Score: row 7 of its batch or partition \(counted from 0\), column 'city' is 'Pa"
    )
    with pytest.raises(InputError, match=said):
        Score(predictor())(wrong)
    scoring = clusters.plan_scoring(
        "spark.predict", predictor().forest, names_of(wrong), None, "predict", None
    )
    with pytest.raises(InputError, match="spark.predict: row 1007 of"):
        scoring.predict(predictor(), wrong, 1, 1000)


def test_no_number_of_threads_is_refused() -> None:
    with pytest.raises(InputError, match="'n_jobs': 0 is no number of threads"):
        Score(predictor(), n_jobs=0)


# -- models that travel ---------------------------------------------------------------------------


def test_a_model_may_be_anything_that_build_takes_or_a_saved_predictor(tmp_path: Path) -> None:
    unnamed().save_model(tmp_path / "model.json")
    built().save(tmp_path / "saved")
    expected = built().predict(ONLY_NUMBERS)
    batch = {f"f{i}": ONLY_NUMBERS[:, i] for i in range(3)}
    saved = ship(str(tmp_path / "saved"))
    for given_as in (tmp_path / "model.json", tmp_path / "saved", saved):
        assert equal_bits(Score(given_as)(batch)["prediction"], expected)


def test_a_process_loads_a_model_once_and_keeps_the_latest() -> None:
    sent = pickle.loads(pickle.dumps(ship(predictor())))
    assert sent == ship(predictor())
    assert len(repr(sent)) < 100
    assert sent.open() is sent.open()
    loaded = sent.open()
    reads: list[int] = []
    for number in range(clusters.KEPT):
        clusters.load_once(f"model {number}", lambda: reads.append(0) or sent.data)
    assert sent.open() is not loaded
    clusters.load_once("model 3", lambda: reads.append(0) or sent.data)
    assert len(reads) == clusters.KEPT


def test_models_with_other_content_have_other_names() -> None:
    assert ship(built()).name != ship(predictor()).name


def test_a_worker_that_lacks_an_instruction_compiles_the_model_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    manifest, parts = archive.unpack(ship(predictor()).data, "test")
    manifest["code"]["made_for"]["instructions"].append("avx9000")
    data = archive.pack(archive.Archive(manifest, parts))
    found = Score(clusters.Parcel("lacking", data))(table())
    assert "this CPU lacks avx9000" in caplog.text
    assert equal_bits(found["prediction"], predictor().predict(given()))


def test_the_modules_of_engines_import_no_engine() -> None:
    slow = ["pyspark", "ray", "dask", "distributed", "pandas", "pyarrow", "tvm"]
    names = ", ".join(ENGINES)
    run(f"import sys, {names}\nfound = set({slow}) & set(sys.modules)\nassert not found, found")


# -- Dask, without a cluster ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["predict", "predict_proba"])
def test_partitions_of_dask_give_what_was_said_of_them(kind: str) -> None:
    from dask import config, dataframe

    with config.set(scheduler="synchronous"):
        rows = dataframe.from_pandas(table().to_pandas(), npartitions=5)
        rows = rows[rows["id"] >= 48]  # the first partition is empty now
        lazy = tvm_forest.dask.predict(rows, predictor(), kind=kind)
        found = lazy.compute()
    assert lazy.divisions == rows.divisions
    assert found.index.tolist() == found["id"].tolist() == list(range(48, N_ROWS))
    assert found.dtypes.to_dict() == lazy.dtypes.to_dict()
    expected = getattr(predictor(), kind)(given())[48:]
    assert equal_bits(found.to_numpy()[:, 6:].squeeze().astype(np.float32), expected)


def test_dask_says_at_once_what_does_not_fit() -> None:
    from dask import dataframe

    rows = dataframe.from_pandas(table().to_pandas(), npartitions=2)
    with pytest.raises(InputError, match="dask.predict: argument 'columns': no column 'age'"):
        tvm_forest.dask.predict(rows.drop(columns="age"), predictor())
    with pytest.raises(InputError, match="column 'age': type timestamp"):
        tvm_forest.dask.predict(rows.assign(age=pd.Timestamp("2026-01-01")), predictor())
    with pytest.raises(InputError, match="there is a column 'id' already"):
        tvm_forest.dask.predict(rows, predictor(), output="id")


def test_arrays_of_dask_take_a_predictor_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dask import config

    monkeypatch.chdir(tmp_path)
    with config.set(scheduler="synchronous"):
        found = run_blocks(ARRAYS, {}, tmp_path)["found"].compute()
    assert equal_bits(found, predictor().predict(np.zeros((1000, 4), np.float32)))


# -- the page -------------------------------------------------------------------------------------


def test_every_program_of_the_page_is_run_by_a_test() -> None:
    assert set(re.findall("^```(.+)$", PAGE.read_text(), re.MULTILINE)) == {"python", "sh"}
    for text in BLOCKS:
        assert sum(word in text for word in (*ENGINES, *OTHERS, FOR_ALL, ARRAYS)) == 1, text


@pytest.mark.long
@pytest.mark.parametrize("library", OTHERS)
def test_what_the_page_says_of_other_libraries_gives_the_bits_of_predict(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    found = run_blocks(library, {}, tmp_path)
    expected = predictor().predict(given(), n_jobs=1)
    results = [found[name] for name in ("found", "streamed") if name in found]
    assert results
    for result in results:
        rows = result if isinstance(result, pa.Table) else parquet.read_table(result)
        assert equal_bits(rows.sort_by("id")["prediction"], expected)


@pytest.mark.long
@pytest.mark.skipif("avx2" not in cpu_abilities(), reason="names a CPU with AVX2")
def test_a_model_that_is_compiled_for_all_workers_travels_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model().save_model("model.json")
    assert main(shlex.split(COMMAND)[1:]) == 0
    assert equal_bits(Score("model.tvmf")(table())["prediction"], predictor().predict(given()))
    run_blocks(FOR_ALL, {}, tmp_path)
    manifest, _ = archive.unpack(ship("model.tvmf").data, "test")
    assert manifest["target"]["mcpu"] == FOR_ALL
    assert not any("avx512" in name for name in manifest["code"]["made_for"]["instructions"])
    found = Score("model.tvmf")(table())
    assert equal_bits(found["prediction"], predictor().predict(given()))


def test_an_actor_outside_of_ray_takes_one_thread() -> None:
    pytest.importorskip("ray")
    score = ray.ActorScore(predictor())
    assert score._n_jobs == 1
    expected = predictor().predict(given(), n_jobs=1)
    assert equal_bits(score(table())["prediction"], expected)
