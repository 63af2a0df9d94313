"""Composed estimators of scikit-learn in which forests are compiled: equal to the original."""

import copy
import pickle
import re
import threading
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost

pytest.importorskip("sklearn", minversion="1.6")

from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    BaggingRegressor,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
    RandomTreesEmbedding,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.feature_selection import RFE, SelectFromModel
from sklearn.frozen import FrozenEstimator
from sklearn.impute import IterativeImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import FixedThresholdClassifier, GridSearchCV, cross_val_score
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.multioutput import (
    ClassifierChain,
    MultiOutputClassifier,
    MultiOutputRegressor,
    RegressorChain,
)
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from sklearn.utils.estimator_checks import estimator_checks_generator
from sklearn.utils.validation import check_is_fitted

import models
from tvm_forest import ForestClassifier, ForestRegressor, InputError, UnsupportedModel, accelerate

ROWS, TARGET = models.data()
TWO, THREE = models.labels(2), models.labels(3)
LABELS = np.stack([THREE, TWO], axis=1)
TARGETS = np.stack([TARGET, TARGET * 2], axis=1).astype(np.float64)
HOLES = np.where(np.arange(ROWS.size).reshape(ROWS.shape) % 17 == 0, np.nan, ROWS)
METHODS = (
    "predict",
    "predict_proba",
    "predict_log_proba",
    "decision_function",
    "score_samples",
    "transform",
)

forest = partial(RandomForestClassifier, 5, max_depth=4, random_state=0, n_jobs=1)
numbers = partial(RandomForestRegressor, 5, max_depth=4, random_state=0, n_jobs=1)
boosting = partial(GradientBoostingClassifier, n_estimators=3, random_state=0)
histogram = partial(HistGradientBoostingClassifier, max_iter=3, random_state=0)
light = partial(lightgbm.LGBMClassifier, n_estimators=3, verbose=-1, n_jobs=1)
light_forest = partial(light, boosting="rf", bagging_freq=1, bagging_fraction=0.5)
extreme = partial(xgboost.XGBClassifier, n_estimators=3, n_jobs=1)
by_columns = partial(
    ColumnTransformer, [("a", StandardScaler(), [0, 1]), ("b", "passthrough", [3])]
)
both_scales = partial(FeatureUnion, [("a", StandardScaler()), ("b", MinMaxScaler())])

COMPOSED: dict[str, Callable[[], Any]] = {
    "calibrated": lambda: CalibratedClassifierCV(boosting(), cv=2).fit(ROWS, THREE),
    "calibrated one": lambda: CalibratedClassifierCV(extreme(), cv=2, ensemble=False).fit(
        ROWS, TWO
    ),
    "calibrated frozen": lambda: CalibratedClassifierCV(
        FrozenEstimator(light().fit(ROWS, TWO))
    ).fit(ROWS, TWO),
    "votes": lambda: VotingClassifier([("a", forest()), ("b", extreme()), ("c", light())]).fit(
        ROWS, THREE
    ),
    "soft votes": lambda: VotingClassifier(
        [("a", forest()), ("b", boosting()), ("c", LogisticRegression())], voting="soft"
    ).fit(ROWS, THREE),
    "votes of numbers": lambda: VotingRegressor([("a", numbers()), ("b", Ridge())]).fit(
        ROWS, TARGET
    ),
    "stack": lambda: StackingClassifier(
        [("a", forest()), ("b", histogram())], cv=2, passthrough=True
    ).fit(ROWS, THREE),
    "stack of numbers": lambda: StackingRegressor(
        [("a", numbers()), ("b", Ridge())], numbers(), cv=2
    ).fit(ROWS, TARGET),
    "several": lambda: MultiOutputClassifier(forest()).fit(ROWS, LABELS),
    "several numbers": lambda: MultiOutputRegressor(
        lightgbm.LGBMRegressor(n_estimators=3, verbose=-1, n_jobs=1)
    ).fit(ROWS, TARGETS),
    "one against the rest": lambda: OneVsRestClassifier(boosting()).fit(ROWS, THREE),
    "averages against the rest": lambda: OneVsRestClassifier(light_forest()).fit(ROWS, THREE),
    "one against one": lambda: OneVsOneClassifier(histogram()).fit(ROWS, THREE),
    "pipeline": lambda: make_pipeline(StandardScaler(), SelectFromModel(forest()), forest()).fit(
        ROWS, THREE
    ),
    "columns": lambda: make_pipeline(by_columns(), both_scales(), boosting()).fit(ROWS, THREE),
    "target": lambda: TransformedTargetRegressor(numbers(), func=np.log, inverse_func=np.exp).fit(
        ROWS, TARGET
    ),
    "bags": lambda: BaggingClassifier(
        DecisionTreeClassifier(max_depth=3), 3, max_features=0.5, random_state=0
    ).fit(ROWS, THREE),
    "bags of numbers": lambda: BaggingRegressor(numbers(), 2, random_state=0).fit(ROWS, TARGET),
    "adaptive": lambda: AdaBoostClassifier(
        DecisionTreeClassifier(max_depth=2), n_estimators=3, random_state=0
    ).fit(ROWS, THREE),
    "search": lambda: GridSearchCV(
        make_pipeline(StandardScaler(), forest()), {"randomforestclassifier__max_depth": [2]}, cv=2
    ).fit(ROWS, THREE),
    "chain": lambda: ClassifierChain(boosting()).fit(ROWS, LABELS > 0),
    "chain of numbers": lambda: RegressorChain(numbers()).fit(ROWS, TARGETS),
    "fewer features": lambda: RFE(forest(), n_features_to_select=3).fit(ROWS, THREE),
    "threshold": lambda: FixedThresholdClassifier(boosting(), threshold=0.3).fit(ROWS, TWO),
    "imputer": lambda: IterativeImputer(
        DecisionTreeRegressor(max_depth=2, random_state=0), max_iter=1, random_state=0
    ).fit(HOLES),
    "outliers": lambda: make_pipeline(
        StandardScaler(), IsolationForest(n_estimators=5, random_state=0)
    ).fit(ROWS),
}


@lru_cache
def composed(name: str) -> Any:
    return COMPOSED[name]()


def compiled(estimator: Any, **options: Any) -> Any:
    """Compile with plain schedules, which take a tenth of the time of the default ones."""
    return accelerate(estimator, schedule=lambda start: start, **options)


def check_equal(found: Any, original: Any, rows: Any) -> None:
    for method in METHODS:
        assert hasattr(found, method) == hasattr(original, method), method
        if hasattr(original, method):
            with np.errstate(divide="ignore"):
                parts = getattr(found, method)(rows), getattr(original, method)(rows)
            ours, own = (part if isinstance(part, list) else [part] for part in parts)
            for one, other in zip(ours, own, strict=True):
                assert (one.dtype, one.shape) == (other.dtype, other.shape), method
                assert one.tobytes() == other.tobytes(), method


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", COMPOSED)
@pytest.mark.cases(4)
def test_a_composed_estimator_predicts_the_bits_of_the_original(name: str) -> None:
    original = composed(name)
    before = pickle.dumps(original)
    found = compiled(original)
    for rows in (ROWS[:1], ROWS[3:132], HOLES.astype(np.float32) if name == "imputer" else ROWS):
        check_equal(found, original, rows)
        check_equal(pickle.loads(pickle.dumps(found)), original, rows)
    assert type(found) is type(original)
    assert pickle.dumps(original) == before


@pytest.mark.parametrize("classes", [2, 11])
@pytest.mark.parametrize("kind", [boosting, partial(boosting, init="zero"), histogram])
@pytest.mark.cases(1)
def test_probabilities_of_boosting_have_the_bits_of_scikit_learn(kind: Any, classes: int) -> None:
    original = kind().fit(ROWS, models.labels(classes))
    check_equal(compiled(original), original, ROWS)


def test_a_forest_itself_becomes_a_compiled_one() -> None:
    assert isinstance(compiled(forest().fit(ROWS, TWO)), ForestClassifier)
    assert isinstance(compiled(numbers().fit(ROWS, TARGET), n_jobs=1), ForestRegressor)


def test_nothing_is_shared_and_what_is_compiled_is_not_compiled_again() -> None:
    original = composed("pipeline")
    found = compiled(original)
    assert found[0] is not original[0] and found[0].mean_ is not original[0].mean_
    assert isinstance(found[-1], ForestClassifier)
    assert isinstance(original[-1], RandomForestClassifier)
    assert compiled(found) is found


def test_a_forest_in_two_places_is_compiled_once() -> None:
    found = compiled(composed("votes"))
    for name, one in zip("abc", found.estimators_, strict=True):
        assert found.named_estimators_[name] is one


def test_a_clone_of_the_copy_can_be_trained_where_the_original_holds_its_model_twice() -> None:
    found = compiled(composed("votes of numbers"))
    trained = clone(found).fit(ROWS, TARGET)
    check_equal(trained, composed("votes of numbers"), ROWS)


def test_a_forest_that_was_given_trained_leaves_nothing_of_itself_in_the_copy() -> None:
    model = forest().fit(ROWS, TWO)
    for original in (
        CalibratedClassifierCV(FrozenEstimator(model)).fit(ROWS, TWO),
        StackingClassifier([("a", model)], cv="prefit").fit(ROWS, TWO),
    ):
        assert b"sklearn.ensemble._forest" in pickle.dumps(original)
        assert b"sklearn.ensemble._forest" not in pickle.dumps(compiled(original))


def test_names_of_columns_are_those_of_the_original() -> None:
    frame = pd.DataFrame(ROWS, columns=list("abcdef"))
    original = VotingClassifier([("a", forest()), ("b", extreme())]).fit(frame, TWO)
    found = compiled(original)
    assert found.feature_names_in_.tolist() == list("abcdef")
    assert found.estimators_[0].feature_names_in_.tolist() == list("abcdef")
    check_equal(found, original, frame)


def test_importances_of_a_forest_are_kept() -> None:
    original = forest().fit(ROWS, TWO)
    found = compiled(original)
    for one in (found, pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        np.testing.assert_array_equal(one.feature_importances_, original.feature_importances_)
    assert not hasattr(compiled(histogram().fit(ROWS, TWO)), "feature_importances_")


NOISE = np.random.default_rng(1).integers(0, 2, len(ROWS))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", COMPOSED)
@pytest.mark.parametrize("method", ["fit", "fit_transform", "fit_predict", "partial_fit"])
@pytest.mark.cases(3)
def test_a_copy_refuses_to_be_trained_by_name(name: str, method: str) -> None:
    original = composed(name)
    found, before = compiled(original), pickle.dumps(original)
    assert hasattr(found, method) == hasattr(original, method)
    if hasattr(original, method):
        with pytest.raises(InputError, match=rf"{method}: {type(original).__name__} .*not train"):
            getattr(found, method)(5 * ROWS + 100, THREE)
    assert pickle.dumps(original) == before
    with np.errstate(invalid="ignore"):
        check_equal(found, original, ROWS)


def test_cross_validation_scores_no_rows_that_were_trained_on() -> None:
    pipeline = make_pipeline(StandardScaler(), forest(max_depth=9)).fit(ROWS, NOISE)
    with pytest.raises(ValueError, match="All the 3 fits failed(.|\n)*do not train"):
        cross_val_score(compiled(pipeline), ROWS, NOISE, cv=3)
    votes = VotingClassifier([("a", forest(max_depth=9))]).fit(ROWS, NOISE)
    own, ours = (cross_val_score(one, ROWS, NOISE, cv=3) for one in (votes, compiled(votes)))
    np.testing.assert_array_equal(ours, own)


@pytest.mark.parametrize("step", [0, 1, 2])
@pytest.mark.cases(1, others="long")
def test_training_a_part_leaves_the_other_as_it_is(step: int) -> None:
    original = make_pipeline(
        StandardScaler(), SelectFromModel(forest(), threshold=-np.inf), forest()
    ).fit(ROWS, TWO)
    found, expected = compiled(original), original.predict_proba(ROWS)
    importances = found[-1].feature_importances_
    if step == 0:
        found[0].partial_fit(100 + 5 * ROWS)
        np.testing.assert_array_equal(original.predict_proba(ROWS), expected)
        found = compiled(original)
    original[step].fit(100 + 5 * ROWS, NOISE)
    for one in (found, copy.deepcopy(found)):
        np.testing.assert_array_equal(one.predict_proba(ROWS), expected)
        np.testing.assert_array_equal(clone(one[-1]).feature_importances_, importances)


class Locked(StandardScaler):
    """A part that nobody can copy."""

    def fit(self, X: Any, y: Any = None) -> Any:
        self.lock_ = threading.Lock()
        return super().fit(X)


def test_what_cannot_be_copied_is_refused() -> None:
    original = make_pipeline(Locked(), forest()).fit(ROWS, TWO)
    with pytest.raises(InputError, match=r"accelerate: .*Pipeline cannot be copied .*lock"):
        compiled(original)


class OwnForest(RandomForestClassifier):
    """A class of a user, which may predict otherwise."""


def test_a_forest_that_cannot_be_compiled_is_named_by_its_place() -> None:
    pair = [("a", forest()), ("b", OwnForest(3, random_state=0))]
    original = make_pipeline(StandardScaler(), VotingClassifier(pair)).fit(ROWS, TWO)
    place = r"accelerate: steps\[1\]\[1\].estimators_\[1\]: .*OwnForest .*derives"
    with pytest.raises(UnsupportedModel, match=place):
        compiled(original)
    found = compiled(original, strict=False)
    check_equal(found, original, ROWS)
    ours, own = found[-1].estimators_
    assert isinstance(ours, ForestClassifier)
    assert isinstance(own, OwnForest)
    with pytest.raises(InputError, match=r"met: it: OwnForest, refused: .*derives"):
        compiled(OwnForest(2).fit(ROWS, TWO), strict=False)


def test_trees_that_another_estimator_reads_are_left_alone() -> None:
    embedding = RandomTreesEmbedding(3, max_depth=2, random_state=0)
    original = make_pipeline(embedding, forest()).fit(ROWS, TWO)
    found = compiled(original)
    assert isinstance(found[0], RandomTreesEmbedding)
    check_equal(found, original, ROWS)


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (StandardScaler().fit(ROWS), r"StandardScaler holds no fitted forest .*met: none"),
        (GridSearchCV(forest(), {}), r"met: estimator: RandomForestClassifier, not fitted"),
        (forest(), r"met: it: RandomForestClassifier, not fitted"),
        (RandomForestClassifier, r"RandomForestClassifier is no fitted estimator"),
        ("model.json", r"str is no fitted estimator"),
        (ForestRegressor(), r"ForestRegressor holds no fitted forest"),
    ],
)
def test_what_holds_no_fitted_forest_is_refused(estimator: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        accelerate(estimator)


class TrainedAndCompiled(BaseEstimator):
    """Trains an estimator, and predicts by a copy with compiled forests, or by itself."""

    kind: Callable[[], Any]

    def __init__(self, compiles: bool = True) -> None:
        self.compiles = compiles

    def fit(self, X: Any, y: Any) -> Any:
        fitted = self.kind().fit(X, y)
        self.fitted_ = compiled(fitted) if self.compiles else fitted
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "fitted_" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.fitted_, name)

    def predict(self, X: Any) -> Any:
        check_is_fitted(self)
        return self.fitted_.predict(X)


class OfClasses(ClassifierMixin, TrainedAndCompiled):
    kind = staticmethod(lambda: make_pipeline(StandardScaler(), boosting()))

    def predict_proba(self, X: Any) -> Any:
        check_is_fitted(self)
        return self.fitted_.predict_proba(X)


class OfNumbers(RegressorMixin, TrainedAndCompiled):
    kind = staticmethod(lambda: make_pipeline(StandardScaler(), numbers()))


def checks(estimator: Any) -> dict[str, str]:
    """Return what becomes of scikit-learn's checks, by name."""
    found = {}
    for number, (each, check) in enumerate(estimator_checks_generator(estimator)):
        name = f"{number} {check.func.__name__}"
        try:
            check(each)
        except Exception as error:
            found[name] = type(error).__name__
        else:
            found[name] = "passed"
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [OfClasses, pytest.param(OfNumbers, marks=pytest.mark.rare)])
@pytest.mark.long
def test_scikit_learns_checks_find_in_the_copy_what_they_find_in_the_original(kind: Any) -> None:
    ours, own = checks(kind()), checks(kind(compiles=False))
    assert ours == own
    assert sum(result == "passed" for result in ours.values()) >= 40


@pytest.mark.filterwarnings("ignore")
@pytest.mark.long
def test_the_page_runs() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "sklearn.md"
    block, _ = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(compile(block, str(page), "exec", dont_inherit=True), names)
    assert type(names["fast"]) is type(names["model"])
