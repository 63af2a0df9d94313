"""Pipelines of scikit-learn as Relax modules, beside scikit-learn.

Features, sums and labels are equal to the bit; what an exponential makes of sums is within 4 ulp.
"""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tvm
from sklearn import compose, decomposition, ensemble, impute, linear_model, pipeline, preprocessing
from sklearn.base import BaseEstimator
from tvm import relax, tirx

import tvm_forest
from sklearn_pipelines import NAN, PIPELINES, call, data, score, target
from tvm_forest.errors import ForestError, InputError, ModelFormatError, UnsupportedModel
from tvm_forest.relax import LinkForests, from_sklearn, labels_of
from tvm_forest.relax.sklearn.arithmetic import Arithmetic
from tvm_forest.relax.sklearn.steps import Features, transform

ULP = 4
BATCHES = (0, 1, 7, 64)
p = preprocessing


def dtypes_of(name: str) -> list[str]:
    """List the dtypes in which the rows of a case are tried."""
    own = PIPELINES[name].dtype
    return ["float64", "float32"] if own == "float64" else [own]


TRIED = [(name, dtype) for name in PIPELINES for dtype in dtypes_of(name)]
BY_DEFAULT = ("minmax", "one hot sparse, dropped", "isolation", "xgb missing number")
"""Pipelines with the default schedules of their forest, which take far longer to compile."""


def transformer_module(step: Any, width: int, dtype: str) -> tvm.IRModule:
    """Return a module that gives the features of a transformer."""
    bb, n = relax.BlockBuilder(), tirx.Var("n", "int64")
    rows = relax.Var("rows", relax.TensorType((n, width), dtype))
    with bb.function("main", [rows]):
        with bb.dataflow():
            features = transform(Arithmetic(bb), "step", step, Features(rows))
            out = bb.emit_output(features.rows)
        bb.emit_func_output(out)
    return bb.get()


def run(mod: tvm.IRModule, *batches: Any) -> list[Any]:
    """Return what `main` of a module gives for batches of rows, by one executable."""
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    results = [vm["main"](tvm.runtime.tensor(np.ascontiguousarray(rows))) for rows in batches]
    return [x.numpy() if hasattr(x, "numpy") else [y.numpy() for y in x] for x in results]


def equal_bits(got: Any, wanted: Any) -> bool:
    """Say whether two arrays are of one dtype and shape, and hold the same bytes."""
    wanted = wanted.toarray() if hasattr(wanted, "toarray") else np.asarray(wanted)
    same = (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    return same and np.ascontiguousarray(wanted).tobytes() == got.tobytes()


def check_features(step: Any, rows: Any) -> None:
    """Compare the features of a fitted transformer with those of its module."""
    mod = transformer_module(step, rows.shape[1], str(rows.dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = step.transform(rows.copy())
    (got,) = run(mod, rows)
    assert equal_bits(got, wanted)


# -- beside scikit-learn --------------------------------------------------------------------------


def test_there_are_enough_pipelines() -> None:
    assert len(PIPELINES) >= 28
    assert sum(case.onnx for case in PIPELINES.values()) >= 25


def test_rows_are_hard() -> None:
    case = PIPELINES["minmax"]
    rows = case.rows(64)
    found = score(case, rows)
    pairs = [
        (found[i] != found[i + 1]).any() and (rows[i] != rows[i + 1]).sum() == 1
        for i in range(0, 32, 2)
    ]
    assert np.mean(pairs) > 0.9


@pytest.mark.cases(4)
@pytest.mark.parametrize(("name", "dtype"), TRIED)
def test_features_are_equal_to_the_bit(name: str, dtype: str) -> None:
    case = PIPELINES[name]
    check_features(case.fit()[:-1], case.rows(64).astype(dtype))


@pytest.mark.cases(2)
@pytest.mark.parametrize(("name", "dtype"), TRIED)
def test_predictions_are_equal(name: str, dtype: str) -> None:
    case = PIPELINES[name]
    schedule = None if name in BY_DEFAULT else tvm_forest.new_schedule(case.fit()[-1])
    mod = from_sklearn(case.fit(), dtype=dtype, outputs=case.outputs, schedule=schedule)
    rows = case.rows(max(BATCHES)).astype(dtype)
    batches = [rows[:n] for n in BATCHES]
    for batch, found in zip(batches, run(LinkForests()(mod), *batches), strict=True):
        found = found if len(case.outputs) > 1 else [found]
        for method, got in zip(case.outputs, found, strict=True):
            check_output(case.fit(), method, batch, got, labels_of(mod))


def check_output(model: Any, method: str, rows: Any, got: Any, labels: Any) -> None:
    """Compare what a module gives with what a method of the pipeline gives."""
    if len(rows) == 0:  # scikit-learn refuses it
        assert len(got) == 0
        return
    wanted = call(model, method, rows)
    if wanted.dtype.kind == "U":
        got = np.array(labels[method])[got]
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    by_link = method == "predict_proba" or type(model[-1]).__name__ == "IsolationForest"
    if by_link and wanted.dtype.kind == "f":
        assert np.abs(got - wanted).max() <= ULP * np.finfo(wanted.dtype).eps / 2
    else:
        assert equal_bits(got, wanted)


@pytest.mark.long
def test_a_module_needs_no_pass() -> None:
    case = PIPELINES["columns nested"]
    mod = from_sklearn(case.fit(), outputs=["predict_proba"])
    rows = case.rows(64)
    (got,) = run(mod, rows)
    assert equal_bits(got, call(case.fit(), "predict_proba", rows))


@pytest.mark.long
def test_a_forest_alone_is_taken() -> None:
    forest = PIPELINES["two targets"].fit()[-1]
    rows = PIPELINES["standard"].rows(9)
    (got,) = run(LinkForests()(from_sklearn(forest)), rows)
    assert equal_bits(got, call(forest, "predict", rows))


# -- transformers ---------------------------------------------------------------------------------


def column(values: Any, dtype: str = "f8") -> Any:
    """Return numbers as one column."""
    return np.array(values, dtype)[:, np.newaxis]


def fit(step: Any, rows: Any) -> Any:
    """Fit a transformer, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return step.fit(rows)


CATEGORIES = column([1, 2, 2, 2, 4, 4, 7, 7, 7, 9] * 5)
HOLED = np.where(CATEGORIES == 9, np.nan, CATEGORIES)
ODD = column([1, 2, 4, 7, 9, 0, -0.0, 3, 1e9, 7.5, NAN])
ordinal = p.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)


@pytest.mark.cases(5)
@pytest.mark.parametrize(
    ("step", "train", "rows"),
    [
        (p.StandardScaler(), column([1, 2, 6.1]), column([0.1, 3, 7, 1e-3, NAN, 1e300])),
        (p.MaxAbsScaler(), column([1, 2, 3]), column([0.1, 0.2, 0.7, 1e-3, NAN], "f4")),
        (p.MinMaxScaler((0, 1), clip=True), column([-3, 3]), column([-3, -0.0, -9, 9, NAN, 3])),
        (p.RobustScaler(with_scaling=False), data("plain"), data("single")[:9]),
        (p.RobustScaler(with_centering=False), data("single"), data("plain")[:9]),
        (p.Binarizer(threshold=np.float64(0.1)), column([1]), column([0.1, 0.2, 0, -1], "f4")),
        (p.Binarizer(threshold=2.5), column([1]), column([2, 3, 0, -1], "i8")),
        (p.OneHotEncoder(handle_unknown="ignore"), HOLED, ODD),
        (p.OneHotEncoder(handle_unknown="ignore", drop="first"), CATEGORIES, ODD),
        (p.OneHotEncoder(drop="if_binary", dtype="f4"), data("whole") > 0, data("whole") > 1),
        (p.OneHotEncoder(max_categories=3, handle_unknown="warn"), HOLED, ODD),
        (p.OneHotEncoder(categories=[[1, 2, 9]], handle_unknown="ignore"), column([1]), ODD),
        (ordinal, CATEGORIES, ODD),
        (p.OrdinalEncoder(encoded_missing_value=-7), HOLED, column([1, 4, NAN, 7])),
        (p.OrdinalEncoder(dtype="i4", min_frequency=6), CATEGORIES, column([1, 4, 9, 7], "f4")),
        (p.PolynomialFeatures((2, 4)), data("plain")[:, :3], data("single")[:20, :3]),
        (p.PolynomialFeatures(0), data("plain"), data("plain")[:5]),
        (p.KBinsDiscretizer(3, encode="onehot", dtype=np.float32), data("plain"), data("plain")),
        (impute.SimpleImputer(), np.array([[1, NAN], [2, NAN]]), np.array([[NAN, 3], [1, 2]])),
        (
            impute.SimpleImputer(keep_empty_features=True, strategy="constant", fill_value=4),
            np.array([[1, NAN], [2, NAN]]),
            np.array([[NAN, 3], [1, NAN]], "f4"),
        ),
        (impute.SimpleImputer(missing_values=0.1), column([0.1, 5]), column([0.1, 1, 2], "f4")),
        (
            impute.SimpleImputer(missing_values=2, strategy="most_frequent", add_indicator=True),
            data("whole"),
            data("whole")[:30],
        ),
        (impute.MissingIndicator(), data("holes"), data("holes")[:30]),
        (
            compose.ColumnTransformer([("a", "drop", [0]), ("b", "passthrough", [2, 1])]),
            data("short"),
            data("short")[:5],
        ),
        (
            compose.ColumnTransformer([("a", p.Normalizer(), slice(1, 5))]),
            data("plain"),
            data("plain")[:30],
        ),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, BaseEstimator) else "",
)
def test_a_transformer_is_equal_to_the_bit(step: Any, train: Any, rows: Any) -> None:
    train, rows = (x.astype("i8") if x.dtype.kind == "b" else x for x in (train, rows))
    check_features(fit(step, train), rows)


@pytest.mark.cases(2)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("width", [1, 5, 8, 17, 33, 131, 300])
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_norms_are_added_in_the_order_of_numpy(norm: str, width: int, dtype: str) -> None:
    rows = (np.random.default_rng(3).normal(size=(40, width)) * 10.0 ** -(width % 3)).astype(dtype)
    rows[3] = 0
    mod = transformer_module(p.Normalizer(norm), width, str(rows.dtype))
    (got,), wanted = run(mod, rows), p.Normalizer(norm).transform(rows)
    # on processors other than x86-64, NumPy adds squares in an order of its own
    allowed = 4 * np.finfo(dtype).eps * np.abs(wanted) if norm == "l2" else 0
    assert (np.abs(got - wanted) <= allowed).all()


def test_no_product_is_fused_with_a_sum() -> None:
    mod = transformer_module(PIPELINES["minmax"].fit()[:-1], 6, "float64")
    names = ("LegalizeOps", "AnnotateTIROpPattern", "FuseOps", "FuseTIR")
    with tvm.target.Target("llvm"):
        mod = tvm.ir.transform.Sequential([getattr(relax.transform, x)() for x in names])(mod)
    texts = [func.script() for func in mod.functions.values() if isinstance(func, tirx.PrimFunc)]
    assert any("T_multiply" in text for text in texts)
    assert not [text for text in texts if "T_multiply" in text and "T_add" in text]


# -- labels, arguments, refusals ------------------------------------------------------------------


def test_texts_of_labels_lie_beside_the_module() -> None:
    fitted = PIPELINES["standard float32"].fit()
    assert labels_of(from_sklearn(fitted)) == {"predict": ["green", "red", "äh"]}
    assert labels_of(from_sklearn(fitted, outputs="predict_proba")) == {}
    assert labels_of(from_sklearn(PIPELINES["standard"].fit())) == {}


def forest() -> Any:
    """A small forest that is not fitted."""
    return ensemble.RandomForestClassifier(n_estimators=2, max_depth=3, random_state=0)


def fitted(*steps: Any, rows: Any = None) -> Any:
    """Fit a pipeline to rows of training."""
    rows = data("plain") if rows is None else rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pipeline.make_pipeline(*steps).fit(rows, target() > 0)


def words() -> Any:
    """Rows of objects, the last of two columns texts."""
    return np.array([[float(i), "ab"[i % 2]] for i in range(len(target()))], object)


class OwnScaler(p.StandardScaler):
    """A class that derives from one of scikit-learn."""


def sparse_boosting() -> Any:
    import xgboost

    model = xgboost.XGBClassifier(n_estimators=2, n_jobs=1)
    return fitted(p.OneHotEncoder(handle_unknown="ignore"), model, rows=data("short"))


@pytest.mark.parametrize(
    ("make", "error", "words_of_it"),
    [
        (lambda: fitted(decomposition.PCA(2), forest()), UnsupportedModel, "step 'pca' (PCA): it "),
        (
            lambda: fitted(p.FunctionTransformer(np.abs), forest()),
            UnsupportedModel,
            "'functiontransformer' (FunctionTransformer): it calls a function of Python",
        ),
        (
            lambda: fitted(p.QuantileTransformer(n_quantiles=5), forest()),
            UnsupportedModel,
            "step 'quantiletransformer' (QuantileTransformer): it cannot be compiled",
        ),
        (lambda: fitted(OwnScaler(), forest()), UnsupportedModel, "(OwnScaler): it cannot"),
        (
            lambda: fitted(
                compose.ColumnTransformer([("words", p.OneHotEncoder(), [1])]),
                forest(),
                rows=words(),
            ),
            UnsupportedModel,
            "step 'columntransformer.words' (OneHotEncoder): categories of dtype object",
        ),
        (
            lambda: fitted(
                p.OneHotEncoder(), p.StandardScaler(with_mean=False), forest(), rows=data("short")
            ),
            UnsupportedModel,
            "step 'standardscaler' (StandardScaler): the step before it gives a sparse matrix",
        ),
        (
            lambda: fitted(
                compose.ColumnTransformer([("norm", p.Normalizer(), [0, 1, 2])]), forest()
            ),
            UnsupportedModel,
            "step 'columntransformer.norm' (Normalizer): NumPy adds columns",
        ),
        (sparse_boosting, UnsupportedModel, "(XGBClassifier): it is given a sparse matrix"),
        (
            lambda: fitted(p.StandardScaler(), linear_model.LogisticRegression()),
            UnsupportedModel,
            "step 'logisticregression' (LogisticRegression)",
        ),
        (
            lambda: pipeline.make_pipeline(p.StandardScaler(), forest()),
            ModelFormatError,
            "step 'randomforestclassifier' (RandomForestClassifier)",
        ),
        (
            lambda: pipeline.make_pipeline(p.StandardScaler(), fitted(forest())[-1]),
            ModelFormatError,
            "step 'standardscaler' (StandardScaler) is not fitted",
        ),
        (
            lambda: fitted(impute.SimpleImputer(missing_values=pd.NA), forest()),
            UnsupportedModel,
            "(SimpleImputer): missing_values=<NA> is no number",
        ),
        (lambda: 5, ForestError, "int"),
        (lambda: fitted(p.StandardScaler(), "passthrough"), ForestError, "passthrough"),
    ],
)
def test_a_step_is_refused_by_name(make: Any, error: type[Exception], words_of_it: str) -> None:
    with pytest.raises(error) as caught:
        from_sklearn(make())
    assert words_of_it in str(caught.value)
    assert str(caught.value).startswith("from_sklearn")


@pytest.mark.parametrize(
    ("arguments", "words_of_it"),
    [
        ({"n_features": 7}, "'n_features': the pipeline was fitted to 6, not 7"),
        ({"dtype": "float16"}, "'dtype': 'float16' is unknown"),
        ({"outputs": "margins"}, "'outputs': 'margins' is unknown"),
        ({"outputs": []}, "'outputs'"),
        ({"outputs": "decision_function"}, "(RandomForestClassifier) has no decision_function"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], words_of_it: str) -> None:
    with pytest.raises(InputError) as caught:
        from_sklearn(PIPELINES["standard"].fit(), **arguments)
    assert words_of_it in str(caught.value)
