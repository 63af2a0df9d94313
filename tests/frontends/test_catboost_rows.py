"""Rows with categories for CatBoost's models, from files and frames, and estimators around them."""

import json
import pickle

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("catboost")
pytest.importorskip("pyarrow")

import catboost as cb
import pyarrow as pa
from pyarrow import parquet
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import StackingRegressor, VotingClassifier
from sklearn.linear_model import Ridge
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import tvm_forest
from catboost_models import CATEGORIES, MODELS, OPTIONS, data, margins, pairs, with_categories, yes
from tvm_forest import InputError, accelerate, predict_file

NAMES = list("abcdefg")
CODED = NAMES[min(CATEGORIES) :]


def to_frame(rows):
    """The columns by name, with their own types."""
    frame = pd.DataFrame(rows, columns=NAMES)
    kinds = dict.fromkeys(NAMES, "float64") | dict.fromkeys(CODED, "str") | {"f": "int64"}
    return frame.astype(kinds)


@pytest.fixture(scope="module", params=["with names", "without names"])
def trained(request):
    """A model, its predictor, and a frame with categories that it has never seen."""
    rows, target = with_categories()
    options = OPTIONS | {"iterations": 5, "nan_mode": "Max"}
    if request.param == "with names":
        model = cb.CatBoostRegressor(**options, cat_features=CODED).fit(to_frame(rows), target)
    else:
        model = cb.CatBoostRegressor(**options, cat_features=CATEGORIES).fit(rows, target)
    rows = rows[:90].copy()
    rows[::7, 6], rows[::9, 5], rows[::11, 4] = "nie gesehen, ü", -5, ""
    return model, tvm_forest.build(model, schedule=lambda start: start), to_frame(rows)


def write(frame, path):
    """Write rows in the format of a suffix; numbers in full, missing ones as nothing."""
    if path.suffix == ".jsonl":
        lines = frame.astype(object).where(frame.notna(), None).to_dict("records")
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    elif path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    elif path.suffix == ".arrow":
        coded = frame.astype({"e": "category", "g": "category"})
        table = pa.Table.from_pandas(coded, preserve_index=False)
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table, 40)
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return path


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet", "arrow"])
def test_files_with_categories_give_the_bits_of_catboost(trained, tmp_path, suffix):
    model, predictor, frame = trained
    source = write(frame.assign(id=range(len(frame))), tmp_path / f"rows.{suffix}")
    options = {"kind": "predict_margin", "keep": ["id"], "batch_rows": 33}
    n_rows = predict_file(predictor, source, tmp_path / "out.parquet", **options)
    found = parquet.read_table(tmp_path / "out.parquet")
    assert n_rows == len(frame) and found["id"].to_pylist()[-1] in (89, "89")
    assert np.array_equal(found["margin"].to_numpy(), margins(model, frame))


def test_a_file_of_categories_without_names_or_rows_is_read(trained, tmp_path):
    model, predictor, frame = trained
    frame.to_csv(tmp_path / "rows.csv", index=False, header=False)
    predict_file(predictor, tmp_path / "rows.csv", tmp_path / "out.npy")
    assert np.array_equal(np.load(tmp_path / "out.npy"), model.predict(frame))
    for suffix in ("csv", "parquet"):
        source = write(frame[:0], tmp_path / f"none.{suffix}")
        assert predict_file(predictor, source, tmp_path / "out.npy") == 0


WRONG = {
    "a missing category": ("g", None, "got None"),
    "a real number": ("f", 1.5, "got 1.5"),
    "a text for a number": ("b", "much", "line 5: 'much' is no number"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_catboost_refuses_in_a_file_is_refused_with_its_place(trained, tmp_path, case):
    _, predictor, frame = trained
    column, value, message = WRONG[case]
    changed = frame.astype(object)
    changed.loc[4, column] = value
    with pytest.raises(InputError, match=message):
        predict_file(predictor, write(changed, tmp_path / "rows.jsonl"), tmp_path / "out.npy")
    assert not (tmp_path / "out.npy").exists()


def test_a_null_among_categories_of_parquet_is_refused(trained, tmp_path):
    _, predictor, frame = trained
    changed = frame.astype({"g": object})
    changed.loc[4, "g"] = None
    with pytest.raises(InputError, match="holds categories, got None"):
        predict_file(predictor, write(changed, tmp_path / "rows.parquet"), tmp_path / "out.npy")


def test_tables_of_polars_and_arrow_are_read_alike(trained):
    model, predictor, frame = trained
    polars = pytest.importorskip("polars")
    expected, table = model.predict(frame), polars.from_pandas(frame)
    coded = table.with_columns(polars.col("e", "g").cast(polars.Categorical))
    for given in (table, coded, table.to_arrow(), coded.to_arrow()):
        assert np.array_equal(predictor.predict(given), expected)


# -- estimators -----------------------------------------------------------------------------------

SMALL = OPTIONS | {"iterations": 3, "depth": 2}
classifier = cb.CatBoostClassifier(**SMALL)
regressor = cb.CatBoostRegressor(**SMALL)
COMPOSED = {
    "alone": (classifier, yes),
    "pipeline": (make_pipeline(StandardScaler(), regressor), None),
    "calibrated": (CalibratedClassifierCV(classifier, cv=2), yes),
    "voting": (VotingClassifier([("a", classifier), ("b", classifier)], voting="soft"), yes),
    "stacking": (StackingRegressor([("a", regressor)], Ridge(), cv=2), None),
    "targets": (MultiOutputRegressor(regressor), pairs),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPOSED)
@pytest.mark.cases(1)
def test_forests_of_catboost_inside_of_estimators_are_compiled(name):
    estimator, to_target = COMPOSED[name]
    rows, target = np.nan_to_num(data()[0][:200]), data()[1][:200]
    fitted = estimator.fit(rows, target if to_target is None else to_target(target))
    fast = pickle.loads(pickle.dumps(accelerate(fitted)))
    for method in ("predict", "predict_proba"):
        if hasattr(fitted, method):
            assert np.array_equal(getattr(fast, method)(rows), getattr(fitted, method)(rows))
        else:
            assert not hasattr(fast, method)


@pytest.mark.filterwarnings("ignore:X has feature names")
def test_an_estimator_takes_frames_with_categories(trained):
    model, _, frame = trained
    fitted = make_pipeline(model)
    assert np.array_equal(
        accelerate(fitted, schedule=lambda start: start).predict(frame), fitted.predict(frame)
    )


@pytest.mark.parametrize("name", ["classifier", "classes", "one_versus_all"])
def test_logarithms_of_estimators_are_those_of_catboost(name):
    model, rows = MODELS[name](), data()[0]
    found = accelerate(model, schedule=lambda start: start).predict_log_proba(rows)
    assert found.tobytes() == model.predict_log_proba(rows).tobytes()
