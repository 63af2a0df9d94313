"""Predictions of some boosting rounds, against the training libraries."""

import gc
import pickle
import weakref
from functools import lru_cache
from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost as xgb
from sklearn.ensemble import RandomForestClassifier

import lightgbm_models
import models
import sklearn_models
import tvm_forest
import xgboost_models
from forests import drawn_forest
from tvm_forest import Forest, InputError, UnsupportedModel
from tvm_forest.forest.rewrites.canonical_form import canonicalize
from tvm_forest.forest.rewrites.ordering import take_rounds
from tvm_forest.predictor.parts import rounds as ranges

FOREST = drawn_forest(12, 4)
OF_XGBOOST = {**models.MODELS, **xgboost_models.KINDS}
XGBOOST = ["logistic_with_base_score", "dart", "random_forest_classes", "vectors_of_a_forest"]
XGBOOST += ["categories_forest", "estimator_forest_classes_early_stopped"]
LIGHTGBM = [name for name in lightgbm_models.MODELS if not name.startswith("estimator")]


def build(trained: Any, by_default: bool = False) -> tvm_forest.Predictor:
    """Compile by the schedule that is compiled fastest, or by the default ones."""
    return tvm_forest.build(trained, schedule=None if by_default else lambda start: start)


@lru_cache
def regression() -> tvm_forest.Predictor:
    return build(models.MODELS["regression"]())


def rows_of(name: str, forest: Any, n: int = 60) -> Any:
    if name in models.MODELS:
        return np.nan_to_num(models.probe_rows(OF_XGBOOST[name](), forest, n), nan=np.nan)
    return np.clip(xgboost_models.odd_rows(OF_XGBOOST[name](), forest, n), -1e30, 1e30)


def xgboost_margin(trained: Any, rows: Any, span: tuple[int, int]) -> Any:
    options = {"iteration_range": span, "output_margin": True}
    if isinstance(trained, xgb.Booster):
        return trained.predict(models.matrix_of(trained, rows), **options)
    return trained.predict(rows, **options)


def some_ranges(forest: Forest) -> set[tuple[int, int]]:
    last = forest.n_rounds
    return {(0, 1), (last // 2, last)} if last else set()


def of_rounds(forest: Forest, rows: Any, span: tuple[int, int]) -> Any:
    """Return what the reference walk says of some rounds, without compiling them."""
    margin = take_rounds(canonicalize(forest), *span).predict_reference(rows)
    return margin[:, 0] if forest.n_outputs == 1 else margin


MORE = sorted({*OF_XGBOOST} - {*XGBOOST, "zero_rounds"})[::4]


@pytest.mark.parametrize(
    "name", [*XGBOOST, *(pytest.param(x, marks=[pytest.mark.slow, pytest.mark.long]) for x in MORE)]
)
@pytest.mark.cases(1)
def test_margins_of_some_rounds_equal_xgboost(name: str) -> None:
    trained = OF_XGBOOST[name]()
    predictor = build(trained, by_default=name in XGBOOST[1:])
    rows = rows_of(name, tvm_forest.load(trained))
    for span in some_ranges(predictor.forest):
        found = predictor.predict_margin(rows, iteration_range=span)
        np.testing.assert_array_equal(found, xgboost_margin(trained, rows, span), str(span))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*OF_XGBOOST} - {"zero_rounds"}))
def test_rounds_that_are_taken_have_the_margins_of_xgboost(name: str) -> None:
    trained = OF_XGBOOST[name]()
    forest = tvm_forest.load(trained)
    rows = rows_of(name, forest)
    for span in some_ranges(forest):
        found, wanted = of_rounds(forest, rows, span), xgboost_margin(trained, rows, span)
        np.testing.assert_array_equal(found, wanted, str(span))


def lightgbm_margin(booster: Any, forest: Forest, rows: Any, span: tuple[int, int]) -> Any:
    begin, end = span
    wanted = booster.predict(rows, begin, end - begin, raw_score=True)
    return wanted / (end - begin) if forest.aggregate == "average" else wanted  # not in raw scores


SOME = sorted(LIGHTGBM)[::4]
BY_DEFAULT = SOME[::3]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [*BY_DEFAULT, *(pytest.param(x, marks=pytest.mark.long) for x in SOME if x not in BY_DEFAULT)],
)
@pytest.mark.cases(1)
def test_margins_of_some_rounds_equal_lightgbm(name: str) -> None:
    booster = lightgbm_models.MODELS[name]()
    predictor, forest = build(booster, by_default=name in BY_DEFAULT[1:]), tvm_forest.load(booster)
    rows = lightgbm_models.probe_rows(forest, 60)
    for span in some_ranges(forest):
        found = predictor.predict_margin(rows, iteration_range=span)
        wanted = lightgbm_margin(booster, forest, rows, span)
        np.testing.assert_array_equal(found, wanted, str(span))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LIGHTGBM))
def test_rounds_that_are_taken_have_the_margins_of_lightgbm(name: str) -> None:
    booster = lightgbm_models.MODELS[name]()
    forest = tvm_forest.load(booster)
    rows = lightgbm_models.probe_rows(forest, 60)
    for span in some_ranges(forest):
        found = of_rounds(forest, rows, span)
        np.testing.assert_array_equal(
            found, lightgbm_margin(booster, forest, rows, span), str(span)
        )


def test_values_labels_and_leaves_of_some_rounds_equal_xgboost() -> None:
    trained = models.MODELS["estimator_classifier_classes"]()
    predictor, rows = build(trained), models.data()[0]
    equal, span = np.testing.assert_array_equal, (2, 5)
    labels = trained.predict(rows, iteration_range=span)
    equal(predictor.predict(rows, iteration_range=span), labels)
    equal(predictor.apply(rows, iteration_range=span), trained.apply(rows)[:, 8:20])
    np.testing.assert_allclose(
        predictor.predict_proba(rows, iteration_range=span),
        trained.predict_proba(rows, iteration_range=span),
        rtol=1e-6,
    )
    part = predictor.predict_per_tree(rows, iteration_range=span)
    equal(part, predictor.predict_per_tree(rows)[:, 8:20])


def test_a_round_of_a_random_forest_is_a_tree_and_averages_are_of_the_range() -> None:
    rows = models.data()[0]
    trained = RandomForestClassifier(5, n_jobs=1, random_state=0).fit(rows, models.labels(3))
    predictor = build(trained)
    wanted = sum(tree.predict_proba(rows) for tree in trained.estimators_[1:4]) / 3
    found = predictor.predict_proba(rows, iteration_range=(1, 4))
    np.testing.assert_array_equal(found, wanted)


def test_rounds_are_found_again_in_what_a_schedule_rewrote() -> None:
    trained = models.MODELS["random_forest_classes"]()
    schedule = tvm_forest.new_schedule(trained).tile_nodes(4).pad_trees("tree").sort_trees()
    predictor = tvm_forest.build(trained, schedule=schedule, exact=False)
    rows = models.data()[0]
    found = predictor.predict_margin(rows, iteration_range=(1, 2))
    np.testing.assert_array_equal(found, xgboost_margin(trained, rows, (1, 2)))


@pytest.mark.long
def test_rounds_of_rounds_are_counted_anew() -> None:
    predictor = build(models.MODELS["random_forest_classes"]())
    part = predictor.rounds(1).rounds(1, 2)
    assert part.forest.n_rounds == 1
    rows = models.data()[0]
    np.testing.assert_array_equal(part.predict(rows), predictor.predict(rows, None, (2, 3)))


IN_LAYOUTS = {
    "array": lambda sch: sch.pad_trees("tree").represent_as("array"),
    "tiles": lambda sch: sch.tile_nodes(4).represent_as("sparse"),
    "reorg": lambda sch: sch.represent_as("reorg"),
    "packed": lambda sch: sch.represent_as("packed"),
    "ranked": lambda sch: sch.represent_as("ranked"),
    "sliced": lambda sch: (
        sch.tile("batch", "b0", "b1", 64)
        .reorder("b0", "tree", "b1")
        .represent_as("bitsliced")
        .simdize("b1", "bits")
    ),
}


@pytest.mark.parametrize("name", IN_LAYOUTS)
def test_a_range_has_the_code_of_the_whole_in_every_layout(name: str) -> None:
    trained = models.MODELS["regression"]()
    schedule = IN_LAYOUTS[name](tvm_forest.new_schedule(trained))
    predictor, rows = tvm_forest.build(trained, schedule=schedule), models.data()[0]
    for span in ((0, 1), (5, 9)):
        part = predictor.rounds(*span)
        assert part.library is predictor.library
        wanted = of_rounds(tvm_forest.load(trained), rows, span)
        np.testing.assert_array_equal(part.predict_margin(rows), wanted)


@pytest.mark.parametrize("fits", [True, False])
def test_a_range_that_is_compiled_anew_is_so_by_the_function_of_the_whole(fits: bool) -> None:
    rows = models.data()[0]
    trained = RandomForestClassifier(5, max_depth=4, n_jobs=1, random_state=0)
    forest = tvm_forest.load(trained.fit(rows, models.labels(3)))

    def make(start: Any) -> Any:
        if fits:
            return start.represent_as("sparse")
        return start.split("tree", "first", "last", 3)  # there are no 3 trees in the range

    part = tvm_forest.build(forest, schedule=make).rounds(1, 3)
    wanted = of_rounds(forest, rows, (1, 3))
    np.testing.assert_array_equal(part.predict_margin(rows), wanted)
    default = tvm_forest.default_schedules(part.forest)
    made = {1: tvm_forest.new_schedule(part.forest).represent_as("sparse")}
    assert part.schedules == (made if fits else default) and made != default


def test_a_range_is_made_once_and_the_whole_range_is_the_predictor_itself() -> None:
    predictor = build(models.MODELS["regression"]())
    assert predictor.rounds(0, 3) is predictor.rounds(0, 3)
    assert predictor.rounds() is predictor.rounds(0, predictor.forest.n_rounds) is predictor


def test_a_predictor_keeps_the_latest_ranges_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "MAX_PARTS", 2)
    predictor = build(models.MODELS["regression"]())
    first, second = predictor.rounds(0, 1), predictor.rounds(0, 2)
    assert predictor.rounds(0, 1) is first
    predictor.rounds(0, 3)
    assert predictor.rounds(0, 1) is first
    assert predictor.rounds(0, 2) is not second


def test_a_predictor_is_freed_at_once_though_it_made_others() -> None:
    predictor = build(FOREST)
    part, freed = predictor.rounds(0, 3), weakref.ref(predictor)
    gc.disable()
    try:
        del predictor
        assert freed() is None
    finally:
        gc.enable()
    assert part.forest.n_rounds == 3


def test_a_loaded_predictor_knows_its_rounds(tmp_path: Any) -> None:
    predictor = build(models.MODELS["random_forest_classes"]())
    predictor.save(tmp_path / "a.tvmf")
    again, rows = tvm_forest.load_predictor(tmp_path / "a.tvmf"), models.data()[0]
    wanted = predictor.predict(rows, iteration_range=(1, 3))
    np.testing.assert_array_equal(again.predict(rows, iteration_range=(1, 3)), wanted)


@pytest.mark.parametrize("span", [(3, 3), (12, 12), (2, 0)])
def test_an_empty_range_and_one_without_an_end_are_what_xgboost_takes_them_for(span: Any) -> None:
    rows = models.data()[0]
    booster, estimator = models.MODELS["regression"](), models.MODELS["estimator_classifier"]()
    found = regression().predict(rows, iteration_range=span)
    assert np.array_equal(found, booster.predict(xgb.DMatrix(rows), iteration_range=span))
    predictor = build(estimator)
    for options in ({"output_margin": True}, {}):
        found = predictor.predict(rows, iteration_range=(2, 0), **options)
        assert np.array_equal(found, estimator.predict(rows, iteration_range=(2, 0), **options))


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ((0, 13), "no range of the 12 rounds"),
        ((-1, 2), "no range"),
        ((3, 2), "no range"),
        ((13, 0), "no range"),
        ((0.0, 2), "two whole numbers"),
        ((True, 2), "two whole numbers"),
        (3, "3 is no pair"),
        ((1, 2, 3), "is no pair"),
    ],
)
def test_what_is_no_range_is_an_input_error(span: Any, message: str) -> None:
    predictor = regression()
    with pytest.raises(InputError, match=f"argument 'iteration_range'.*{message}"):
        predictor.predict(models.data()[0], iteration_range=span)


def test_rounds_behind_the_best_one_are_those_of_the_estimator() -> None:
    rows, target = models.data()[0], models.data()[1]
    options = {"n_estimators": 30, "max_depth": 3, "learning_rate": 0.9, "early_stopping_rounds": 2}
    part = {"eval_set": [(rows[400:], target[400:][::-1])], "verbose": False}
    estimator = xgb.XGBRegressor(**options).fit(rows[:400], target[:400], **part)
    best = estimator.best_iteration
    predictor = build(estimator)
    for span in ((0, best + 2), (best + 1, best + 3), (1, best + 2), (0, best + 3)):
        found = predictor.predict(rows, iteration_range=span)
        assert np.array_equal(found, estimator.predict(rows, iteration_range=span))
        if not span[0]:  # XGBoost's own limit
            leaves = predictor.apply(rows, iteration_range=span)
            assert np.array_equal(leaves, estimator.apply(rows, iteration_range=span))
        margin = np.full(len(rows), 0.25, np.float32)
        found = predictor.predict(rows, base_margin=margin, iteration_range=span)
        expected = estimator.predict(rows, base_margin=margin, iteration_range=span)
        assert np.array_equal(found, expected)
    assert np.array_equal(predictor.predict(rows), estimator.predict(rows))
    with pytest.raises(InputError, match=f"no range of the {best + 3} rounds"):
        predictor.predict(rows, iteration_range=(0, best + 4))


def test_rounds_behind_the_best_one_of_lightgbm_are_those_of_the_booster() -> None:
    rows, target = models.data()
    settings = {"verbose": -1, "num_threads": 1}
    booster = lightgbm.train(
        settings, lightgbm.Dataset(rows, target), 5, keep_training_booster=True
    )
    booster.best_iteration = 3
    predictor = build(booster)
    for options in (
        *({}, {"start_iteration": 1, "num_iteration": 2}, {"num_iteration": 3}),
        *({"num_iteration": -1}, {"start_iteration": 1}, {"num_iteration": 4}),
        *({"num_iteration": 9, "pred_leaf": True}, {"start_iteration": 4, "raw_score": True}),
    ):
        assert np.array_equal(predictor.predict(rows, **options), booster.predict(rows, **options))


def test_a_saved_predictor_refuses_rounds_behind_the_best_one_with_a_model_that_has_them() -> None:
    rows, target = models.data()
    booster = lightgbm.train(
        {"verbose": -1}, lightgbm.Dataset(rows, target), 5, keep_training_booster=True
    )
    booster.best_iteration = 3
    predictor = build(booster)
    loaded = pickle.loads(pickle.dumps(predictor))
    assert np.array_equal(loaded.predict(rows), booster.predict(rows))
    with pytest.raises(InputError, match=r"2 more are left out; .* lightgbm\.Booster"):
        loaded.predict(rows, num_iteration=4)
    whole = lightgbm.Booster(model_str=booster.model_to_string(num_iteration=-1))
    again = build(whole)
    found = again.predict(rows, num_iteration=4)
    assert np.array_equal(found, booster.predict(rows, num_iteration=4))


def test_an_isolation_forest_has_no_scores_of_some_trees() -> None:
    predictor = build(sklearn_models.MODELS["isolation"]())
    with pytest.raises(UnsupportedModel, match="isolation forest"):
        predictor.rounds(0, 3)
    assert predictor.rounds() is predictor
