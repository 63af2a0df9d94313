"""Odd arrays, damaged estimators and odd arguments of directives.

`CHECKS` maps a kind to what draws an input, tries it and says what became of it.
"""

from __future__ import annotations

import inspect
import pickle
import random
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from scipy import sparse

import _path  # noqa: F401 (what tests share)
import lightgbm_models
import models
import sklearn_models
import tvm_forest
from fuzz_files import (
    FLOATS,
    MOST_FEATURES,
    N_ROWS,
    NUMBERS,
    OTHERS,
    Phase,
    check_schedule,
    compared,
    damaged_values,
    odd_value,
    small_forest,
)
from tvm_forest.errors import InputError, ModelFormatError, ScheduleError, UnsupportedModel
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.schedule_prims import DIRECTIVES, Schedule

DTYPES = (
    *("f2", "f4", "f8", ">f4", ">f8", "<f4", "g", "i1", "i2", "i4", "i8", ">i8", "u1", "u2", "u4"),
    *("u8", ">u2", "?", "c8", "c16", "O", "U9", "S9", "M8[s]", "m8[s]", "f4,i4"),
)
REFUSE = "refuse"
ANYTHING = "anything"


# -- arrays ---------------------------------------------------------------------------------------


@lru_cache
def predictors() -> list[Any]:
    """Compiled models: float32, float64, and one that refuses what is not finite."""
    found: list[Any] = [small_forest(), models.MODELS["softprob"]()]
    found += [lightgbm_models.MODELS["missing_zero_and_nan"](), sklearn_models.MODELS["rf"]()]
    return [tvm_forest.build(x, schedule=lambda start: start, n_jobs=1) for x in found]


def check_array(rng: random.Random, said: Phase) -> str:
    """Predict rows of an odd form; they are refused, or the result is that of a plain array."""
    predictor = rng.choice(predictors())
    forest = predictor.forest
    rows, meant = rng.choice(ROWS)(forest, rng)
    meant = _refused_values(forest, meant)
    said("ours")
    try:
        ours = predictor.predict_margin(rows)
    except InputError as error:
        assert not isinstance(meant, np.ndarray), f"refused: {error}"
        assert "; " in str(error) or "expected" in str(error) or "must" in str(error), str(error)
        return "refused"
    if isinstance(meant, str):
        assert meant == ANYTHING, f"a {type(rows)} is not refused"
        return "taken"
    margin = forest.predict_reference(meant)
    np.testing.assert_array_equal(ours.reshape(margin.shape), margin)
    return "equal"


def _refused_values(forest: Forest, meant: Any) -> Any:
    """What an array means to a model that may refuse numbers that are not finite."""
    if isinstance(meant, str):
        return meant
    found = {"nan": np.isnan(meant).any(), "inf": np.isinf(meant).any()}
    return REFUSE if any(found.get(word) for word in forest.refuses) else meant


def converted(array: Any, forest: Forest) -> Any:
    """The rows that a plain array stands for, or REFUSE."""
    if array.ndim != 2 or array.shape[1] != forest.row_width or array.dtype.kind not in "fiub":
        return REFUSE
    with np.errstate(all="ignore"):
        if forest.other_dtype and array.dtype not in (np.float32, np.float64):
            array = array.astype(forest.other_dtype)
        return (
            np.array([[x for x in row] for row in array.astype(forest.row_dtype)])
            .reshape(array.shape)
            .astype(forest.row_dtype)
        )


def _base(forest: Forest, rng: random.Random, n: int | None = None) -> Any:
    """Hard rows as float64, sometimes all finite, sometimes huge."""
    n = rng.choice((0, 1, 2, 7, 33)) if n is None else n
    rows = hard_rows(forest, n, rng.randrange(99)).astype(np.float64)
    if rng.random() < 0.5 or forest.refuses and rng.random() < 0.8:
        rows = np.where(np.abs(rows) < 1e6, rows, 0.5)
    if rng.random() < 0.1:
        rows *= 1e300
    return rows


def _plain(forest: Forest, rng: random.Random) -> tuple[Any, Any]:
    """Any dtype, any strides."""
    with np.errstate(all="ignore"):
        array = _base(forest, rng)
        try:
            array = array.astype(rng.choice(DTYPES))
        except (TypeError, ValueError):
            return array.astype("U9"), REFUSE
    array = rng.choice(STRIDES)(array)
    return array, converted(np.asarray(array), forest)


def _unaligned(array: Any) -> Any:
    if array.dtype.hasobject or not array.size:
        return array
    found = np.frombuffer(bytearray(array.nbytes + 1), array.dtype, array.size, 1)
    found = found.reshape(array.shape)
    found[...] = array
    return found


def _read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


STRIDES = (
    lambda a: a,
    np.asfortranarray,
    lambda a: a[::-1],
    lambda a: a[:, ::-1],
    lambda a: a[::3],
    lambda a: np.repeat(a, 2, axis=0)[::2],
    lambda a: np.broadcast_to(a[:1], (len(a[:1]) * 9, a.shape[1])),
    lambda a: a.T.copy().T,
    lambda a: a.view(np.matrix) if a.dtype.kind == "f" else a,
    lambda a: np.concatenate([a, a], axis=1)[:, : a.shape[1]],
    lambda a: np.lib.stride_tricks.as_strided(a, a.shape, (0, a.strides[1])),
    _unaligned,
    _read_only,
)


def _shaped(forest: Forest, rng: random.Random) -> tuple[Any, Any]:
    """Any shape."""
    width = forest.row_width
    shapes: list[tuple[int, ...]] = [(), (0,), (width,), (1, width + 1), (3, width - 1), (0, 0)]
    shapes += [(0, width), (2, width), (2, width, 1), (1, 2, width), (width, 0), (4, 0, width)]
    shapes += [(0, 2**40)]
    shape = rng.choice(shapes)
    array = np.zeros(shape, rng.choice(("f4", "f8", "i4")))
    return array, converted(array, forest)


def _listed(forest: Forest, rng: random.Random) -> tuple[Any, Any]:
    """Lists, and objects that are no rows at all."""
    array = _base(forest, rng, rng.choice((1, 2, 5)))
    lists = array.tolist()
    if rng.random() < 0.4:
        return lists, converted(array, forest)
    if rng.random() < 0.5:
        row = rng.choice(lists)
        row[rng.randrange(len(row))] = rng.choice(
            [None, "x", "1", [], {}, [1, 2], 1j, 10**400, object(), b"1", np.datetime64(3, "s")]
        )
        return lists, REFUSE
    lists[0] = lists[0] + [1.0]
    odd = [None, 3, "rows", b"rows", {}, {1: 2}, set(), range(3), iter(lists), lambda: 0, [], [[]]]
    odd += [
        [None],
        lists if len(lists) > 1 else [[lists]],
        np.float32(3),
        np.ma.masked_array(array),
    ]
    return rng.choice([*odd, memoryview(b"abc"), type, np, Ellipsis]), REFUSE


def _framed(forest: Forest, rng: random.Random) -> tuple[Any, Any]:
    """Frames of three libraries, columns of any type."""
    array = _base(forest, rng, rng.choice((1, 4, 9)))
    with np.errstate(all="ignore"):
        array = array.astype("f4").astype("f8")
    names = [f"f{i}" for i in range(array.shape[1])]
    columns = dict(zip(names, array.T.copy(), strict=True))
    meant: Any = array.astype(forest.row_dtype)
    choice = rng.random()
    if choice < 0.4:
        name = rng.choice(names)
        columns[name] = _odd_column(len(array), rng)
        meant = REFUSE
    elif choice < 0.5:
        columns["more"] = array[:, 0]
        meant = REFUSE
    elif choice < 0.6:
        at = rng.randrange(len(names))
        with np.errstate(all="ignore"):
            columns[names[at]] = np.nan_to_num(array[:, at]).clip(-99, 99).astype("i4")
            meant[:, at] = columns[names[at]]
    if forest.feature_names is not None:
        meant = REFUSE
    make = rng.choice((pd.DataFrame, pl.DataFrame, pa.table, lambda c: pl.DataFrame(c).lazy()))
    try:
        frame = make(columns)
    except Exception:  # what no library takes is not for us
        return "no frame", REFUSE
    return frame, REFUSE if isinstance(frame, pl.LazyFrame) else meant


def _odd_column(n: int, rng: random.Random) -> Any:
    return rng.choice(
        (
            ["x"] * n,
            [None, *["y"] * n][:n],
            np.full(n, "2020-01-01", "M8[s]"),
            [[1, 2]] * n,
            [{"a": 1}] * n,
            [b"1"] * n,
        )
    )


def _sparse(forest: Forest, rng: random.Random) -> tuple[Any, Any]:
    """Matrices of all formats, half of them damaged."""
    dense = _base(forest, rng, rng.choice((1, 4, 9)))
    with np.errstate(all="ignore"):
        dense = dense.astype("f4")
    held = np.random.default_rng(rng.randrange(99)).random(dense.shape) < 0.6
    line, column = np.nonzero(held)
    coo = sparse.coo_matrix((dense[held], (line, column)), dense.shape)
    form = rng.choice(("csr", "csc", "coo", "bsr", "lil", "dok", "dia"))
    meant = np.where(held, dense, np.float32(forest.absent)).astype(forest.row_dtype)
    if form in ("bsr", "dia", "lil", "dok"):
        return coo.asformat(form), ANYTHING  # these may hold other zeros
    matrix = coo.asformat(form)
    if rng.random() < 0.3:
        small = (coo.data != 0) & (np.abs(coo.data) <= forest.sparse_above)
        return matrix, REFUSE if small.any() else meant
    _damage_sparse(matrix, rng)
    return matrix, ANYTHING


def _damage_sparse(matrix: Any, rng: random.Random) -> None:
    names = [n for n in ("indices", "indptr", "data", "row", "col", "coords") if hasattr(matrix, n)]
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(names)
        array = getattr(matrix, name)
        if isinstance(array, np.ndarray) and array.size and rng.random() < 0.7:
            at = rng.randrange(array.size)
            choices = [-1, 99, 10**9, 2**31 - 1, -(2**31), 0, 1, 5]
            array[at] = rng.choice(choices)
        elif isinstance(array, np.ndarray):
            changed = rng.choice(
                (array[:-1], array[:0], np.append(array, array), array.astype("f8"))
            )
            setattr(matrix, name, changed)


ROWS = (_plain, _plain, _plain, _shaped, _listed, _framed, _sparse, _sparse)


# -- estimators -----------------------------------------------------------------------------------

XGBOOST = ("estimator_classifier", "estimator_classifier_classes", "estimator_regressor")
LIGHTGBM = ("estimator_classifier", "estimator_regressor", "estimator_classifier_words")
NODE_FIELDS = ("children_left", "children_right", "feature", "threshold", "value")


@lru_cache
def estimators() -> list[bytes]:
    """Fitted estimators, pickled."""
    found = [build() for build in sklearn_models.MODELS.values()] * 2
    found += [models.MODELS[name]() for name in XGBOOST] * 3
    found += [lightgbm_models.MODELS[name]() for name in LIGHTGBM] * 3
    return [pickle.dumps(model) for model in found]


def damaged_estimator(rng: random.Random) -> Any:
    """A fitted estimator with other numbers in its trees, or another attribute."""
    model = pickle.loads(rng.choice(estimators()))
    for _ in range(rng.choice((1, 1, 1, 2))):
        trees = _trees(model)
        if trees and rng.random() < 0.5:
            _damage_tree(rng.choice(trees), rng)
        else:
            _damage_attribute(model, rng)
    return model


def _trees(model: Any) -> list[Any]:
    """What holds the nodes of each tree."""
    try:
        if hasattr(model, "_predictors"):
            return [part for stage in model._predictors for part in stage if part.nodes.size]
        if hasattr(model, "tree_"):
            return [model.tree_] if model.tree_.value.size else []
        return [part.tree_ for part in np.ravel(getattr(model, "estimators_", ()))]
    except (AttributeError, TypeError):  # damaged already
        return []


def _damage_tree(tree: Any, rng: random.Random) -> None:
    if hasattr(tree, "nodes"):
        name = rng.choice(tree.nodes.dtype.names)
        array = tree.nodes[name]
        if rng.random() < 0.1:
            tree.nodes = rng.choice((tree.nodes[:-1], tree.nodes[:0], None, tree.nodes[name]))
            return
    else:
        array = getattr(tree, rng.choice(NODE_FIELDS))
    at = rng.randrange(array.size)
    new = odd_value(array.flat[at].item(), rng)
    try:
        array.flat[at] = new
    except (TypeError, ValueError, OverflowError):
        array.flat[at] = 1


def _damage_attribute(model: Any, rng: random.Random) -> None:
    name = rng.choice(sorted(vars(model)))
    value = vars(model)[name]
    if isinstance(value, np.ndarray) and rng.random() < 0.7:
        value = rng.choice((value[:-1], value[:0], value[None], value.astype("O"), value[::-1]))
    elif isinstance(value, list):
        value = damaged_values([list(value)], rng)[0]
    elif rng.random() < 0.1:
        delattr(model, name)
        return
    else:
        value = odd_value(value, rng)
    try:
        setattr(model, name, value)
    except Exception:  # an estimator that takes no such value has nothing to say about it
        return


def check_estimator(rng: random.Random, said: Phase) -> str:
    """Load a damaged estimator; where we and its library take it, margins are equal."""
    model = damaged_estimator(rng)
    said("ours")
    try:
        forest = tvm_forest.load(model)
    except (ModelFormatError, UnsupportedModel):
        return "refused"
    if not type(model).__module__.startswith("sklearn") or forest.row_width > MOST_FEATURES:
        return "taken"
    rows = _rows_of(model, forest)
    if rows is None:
        return "taken"
    ours = forest.predict_reference(rows)
    said("library")
    return compared(forest, ours, rows, lambda: sklearn_models.margins(model, rows))


def _rows_of(model: Any, forest: Forest) -> Any:
    """Hard rows, None if the estimator is too damaged to tell its categories."""
    try:
        return sklearn_models.probe_rows(model, forest, N_ROWS)
    except (AttributeError, IndexError, TypeError, ValueError):
        return None


# -- directives -----------------------------------------------------------------------------------

STARTS = (
    Schedule(12),
    Schedule(12, 3),
    Schedule(12, depths=tuple(range(1, 13))),
    Schedule(12, 3, "cpu", (3, 3, 5, 9)),
    Schedule(64, 1, "gpu", (6,) * 64),
    Schedule(0),
    Schedule(10**9),
)


def check_directives(rng: random.Random, said: Phase) -> str:
    """Give directives odd arguments: each is refused, or leaves a valid schedule."""
    sch, outcome = rng.choice(STARTS), "refused"
    said("ours")
    for _ in range(rng.choice((1, 2, 3, 6))):
        name = rng.choice(sorted(DIRECTIVES))
        before = sch.to_json()
        try:
            new = getattr(sch, name)(*_arguments(sch, name, rng))
        except ScheduleError:
            assert sch.to_json() == before
            continue
        check_schedule(new)
        sch, outcome = new, "taken"
    return outcome


def _arguments(sch: Schedule, name: str, rng: random.Random) -> list[Any]:
    found: list[Any] = []
    for parameter in list(inspect.signature(getattr(Schedule, name)).parameters.values())[1:]:
        if parameter.kind is parameter.VAR_POSITIONAL:
            found += [_argument(sch, parameter, rng) for _ in range(rng.randrange(5))]
        elif parameter.default is parameter.empty or rng.random() < 0.6:
            found.append(_argument(sch, parameter, rng))
        else:
            break
    return found


def _argument(sch: Schedule, parameter: Any, rng: random.Random) -> Any:
    """Mostly what the annotation asks for, and sometimes anything."""
    kind = str(parameter.annotation)
    odd = [*NUMBERS, *FLOATS, *OTHERS, (1, 2), {1}, np.int64(3), np.float32(2), object(), b"b", 1j]
    if rng.random() < 0.2:
        return rng.choice([*odd, "b\n", "ä", '"', "batch " * 99, np.arange(3)])
    if parameter.name in ("index", "indices") and sch.names():
        return rng.choice(sch.names())
    words = ["depth", "likely", "x", "a.b", "", "b0", "t0", "auto", "tree", "forest", "uniform"]
    words += ["array", "packed", "sparse", "ranked", "grid.x", "block.x", "gather", "optimal"]
    lists: list[Any] = [[3] * len(sch.depths or ()), [1], [0.5, 0.5], (0.1, 0.9), [float("nan"), 1]]
    if "int" in kind and rng.random() < 0.7:
        return rng.choice([1, 2, 3, 4, 8, 0, -1, True, 10**9])
    if "Sequence" in kind or "list" in kind:
        return rng.choice(lists)
    return rng.choice(words)


CHECKS = {"arrays": check_array, "estimators": check_estimator, "directives": check_directives}


def prepare() -> None:
    """Train and compile what the checks need."""
    predictors()
    estimators()
