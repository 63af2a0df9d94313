"""What users get wrong when they build and predict, and what they must be told.

`BAD_INPUTS` lists the mistakes; `tests/predictor/test_inputs.py` checks them one by one. To read
all of the messages:

    PYTHONPATH=tests/helpers python -c "import bad_inputs; bad_inputs.show()\"
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import lightgbm
import numpy as np
import pandas as pd
import tvm
import xgboost

import tvm_forest
from forests import Split, forest_of
from tvm_forest.errors import (
    BuildError,
    ForestError,
    InputError,
    ModelFormatError,
    ScheduleError,
    UnsupportedModel,
)

NAMES = ("age", "height", "weight")
TREES = [Split(0, 0.5, -1.0, 2.0), Split(1, -0.25, 0.5, Split(2, 1.5, 0.25, 4.0), True), 0.125]
FOREST = forest_of(TREES, base=[0.1], feature_names=NAMES)
ROWS = np.array([[0, 0, 0], [1, -1, 2], [0.5, np.nan, np.inf]], np.float32)


class BadInput(NamedTuple):
    """A mistake.

    Attributes:
        name: what is wrong, for people.
        call: makes the mistake.
        error: the class of the exception; no other will do, not even a subclass.
        parts: texts that the message contains: place, argument, value, remedy.
    """

    name: str
    call: Callable[[], Any]
    error: type[ForestError]
    parts: tuple[str, ...]


class _Frame:
    """Like a frame of polars: named columns, which numpy would read without their names."""

    columns = ("weight", "height", "age")

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return ROWS


@functools.cache
def predictor() -> tvm_forest.Predictor:
    """Return the predictor that the mistakes are made with."""
    return tvm_forest.build(FOREST)


class Tensor:
    """A tensor of a foreign library, which shares its memory by DLPack."""

    def __init__(self, array: Any, device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.device = array, device

    def __dlpack__(self, **options: Any) -> Any:
        if self.device[0] != 1:
            raise BufferError("the tensor is on another device")
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def foreign(module: str, name: str) -> Any:
    """Return an object of a library that is not installed, with what its frames have."""
    return type(name, (), {"__module__": module, "columns": NAMES, "iloc": None})()


def message(case: BadInput) -> str:
    """Return what a mistake is answered with."""
    try:
        case.call()
    except ForestError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def show() -> None:
    """Print the answer to every mistake."""
    for case in BAD_INPUTS:
        print(f"{case.name}\n    {message(case)}\n".replace("\n", "\n    ").rstrip(" "))


def _rows(name: str, rows: Any, *parts: str) -> BadInput:
    where = ("predict: argument 'rows': ", *parts)
    return BadInput(name, lambda: predictor().predict(rows), InputError, where)


def _frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({name: columns.get(name, [1.0, 2.0]) for name in NAMES})


def _jobs(value: Any) -> BadInput:
    parts = ("argument 'n_jobs': ", repr(value), "use 1 or more, -1 for all cores, or None")
    return BadInput(
        f"n_jobs {value!r}", lambda: predictor().predict(ROWS, n_jobs=value), InputError, parts
    )


def _target(name: str, target: Any, *parts: str, error: type[ForestError] = InputError) -> BadInput:
    where = ("build: argument 'target': ", *parts)
    return BadInput(name, lambda: tvm_forest.build(FOREST, target), error, where)


def _schedule(name: str, sch: Any, *parts: str) -> BadInput:
    where = ("build: argument 'schedule': ", *parts)
    return BadInput(name, lambda: tvm_forest.build(FOREST, schedule=sch), ScheduleError, where)


def _model(name: str, forest: Any, *parts: str) -> BadInput:
    where = ("build: argument 'model': ", "predict with", *parts)
    return BadInput(name, lambda: tvm_forest.build(forest), UnsupportedModel, where)


ON_X86 = platform.machine() in ("x86_64", "AMD64")
IS_AMD = "znver" in tvm.target.codegen.llvm_get_system_cpu()
ONLY_HERE = ("leave it out", "(have: mcpu, ", "for another machine mtriple, mattr, mabi)")
ARM, RISC = {"mtriple": "aarch64-linux-gnu"}, {"mtriple": "riscv64-linux-gnu"}
MACHINE = ("option 'mtriple'", "is no machine that code is made for", "aarch64-linux-gnu, riscv64")
WEB, X86 = {"mtriple": "wasm32-wasi"}, {"mtriple": "x86_64-linux-gnu"}
START = tvm_forest.Schedule(3)
SHAPE = "rows must have shape (R, 3), got "
TYPE = "rows must hold numbers, got dtype "
CONVERT = "rows.astype('float32')"

BAD_INPUTS = [
    # rank and width
    _rows("rows too narrow", ROWS[:, :2], SHAPE + "(3, 2)"),
    _rows("rows too wide", np.zeros((2, 4)), SHAPE + "(2, 4)"),
    _rows("no columns", np.zeros((2, 0)), SHAPE + "(2, 0)"),
    _rows("one row, rank 1", ROWS[0], SHAPE + "(3,)", "for one row use rows.reshape(1, -1)"),
    _rows("a list of numbers", [1, 2, 3], SHAPE + "(3,)", "for one row use rows.reshape(1, -1)"),
    _rows("a column of pandas", _frame()["age"], "no value of 'age'", "None where it is missing"),
    _rows("rank 3", ROWS[None], SHAPE + "(1, 3, 3)"),
    _rows("a number", 3.0, SHAPE + "()"),
    _rows("nothing", None, "a NoneType cannot be read", "a numpy array of shape"),
    _rows("an iterator", iter(ROWS), "cannot be read (it is no array)"),
    # what holds rows
    _rows(
        "a DMatrix",
        xgboost.DMatrix(np.zeros((2, 3))),
        "DMatrix of xgboost: its rows cannot be read back",
    ),
    _rows(
        "a QuantileDMatrix",
        xgboost.QuantileDMatrix(np.zeros((2, 3))),
        "QuantileDMatrix of xgboost: its",
    ),
    _rows("a Dataset", lightgbm.Dataset(ROWS), "Dataset of lightgbm: ", "that it was made from"),
    _rows("a Pool", foreign("catboost.core", "Pool"), "Pool of catboost: its rows cannot be"),
    _rows("a Dask frame", foreign("dask.dataframe.core", "DataFrame"), "use rows.compute()"),
    _rows("a Dask array", foreign("dask.array.core", "Array"), "Array of dask: ", "rows.compute"),
    _rows("a Spark frame", foreign("pyspark.sql.dataframe", "DataFrame"), "use rows.toPandas()"),
    _rows("a Modin frame", foreign("modin.pandas.dataframe", "DataFrame"), "rows.modin.to_pandas"),
    _rows("dicts", [dict.fromkeys(NAMES[:1], 1.0)], f"no value of '{NAMES[1]}'", "give each"),
    _rows("a dict", {name: [1.0] for name in NAMES}, "use pandas.DataFrame(rows)"),
    _rows("an empty list", [], SHAPE + "(0,)"),
    # kind
    _rows("dtype object", ROWS.astype(object), TYPE + "object", CONVERT),
    _rows("dtype string", ROWS.astype(str), TYPE + "<U", CONVERT),
    _rows("dtype bytes", ROWS.astype("S4"), TYPE + "|S4", CONVERT),
    _rows("dtype complex", ROWS.astype(complex), TYPE + "complex128", CONVERT),
    _rows("dtype datetime", np.zeros((2, 3), "datetime64[s]"), TYPE + "datetime64[s]", CONVERT),
    _rows("dtype timedelta", np.zeros((2, 3), "timedelta64[s]"), TYPE + "timedelta64[s]", CONVERT),
    _rows("dtype record", np.zeros((2, 3), [("x", "f4")]), TYPE + "[('x', '<f4')]", CONVERT),
    _rows("a list of strings", [["a", "b", "c"]], TYPE + "<U1", CONVERT),
    _rows("a list with None", [[1.0, None, 2.0]], TYPE + "object", CONVERT),
    _rows("a ragged list", [[1, 2, 3], [1, 2]], "a list cannot be read", "a numpy array of shape"),
    _rows("a masked array", np.ma.masked_invalid(ROWS), "masked array", "rows.filled(numpy.nan)"),
    _rows(
        "a tensor on a GPU", Tensor(ROWS, (2, 0)), "a Tensor cannot be read", "tensor on the CPU"
    ),
    # frames
    _rows(
        "columns in another order",
        _frame()[["age", "weight", "height"]],
        "column 1 is 'weight', the model has 'height' there",
        "use rows[list(predictor.forest.given_names)]",
    ),
    _rows(
        "a column too few",
        _frame()[["age", "height"]],
        "expected 3 columns, got 2: the frame has no column 'weight'; rename or add columns",
    ),
    _rows(
        "a column too many",
        _frame().assign(sex=1),
        "expected 3 columns, got 4: the model has no column 'sex'",
        "use rows[list(predictor.forest.given_names)]",
    ),
    _rows(
        "a column of another name",
        _frame().rename(columns={"age": "Age"}),
        "the frame has no column 'age', and the model has no 'Age'; rename or add columns",
    ),
    _rows(
        "a column that comes twice",
        pd.concat([_frame(), _frame()[["age"]]], axis=1),
        "expected 3 columns, got 4: column 'age' occurs twice; rename or drop one of them",
    ),
    _rows(
        "a categorical column",
        _frame(height=pd.Categorical(["a", "b"])),
        "column 'height' holds categories",
        "the model stores no labels",
        "convert it to the numbers that the model was trained on",
    ),
    _rows(
        "an object column", _frame(age=pd.Series([1, "x"], dtype=object)), "holds texts such as 'x'"
    ),
    _rows("a text column", _frame(weight=["1", "2"]), "column 'weight' holds texts such as '1'"),
    _rows("a date column", _frame(age=pd.to_datetime(["2020-01-01"] * 2)), "column 'age': dtype"),
    # threads
    *(_jobs(value) for value in (0, -2, 1.5, "2", True, [1])),
    # target
    _target("an unknown target", "quantum", "unknown kind 'quantum' (have: llvm, simt, cuda, "),
    _target("a GPU", "metal", "'metal' is not supported yet", "use 'llvm'"),
    _target("a GPU dict", {"kind": "vulkan"}, "'vulkan' is not supported yet", "use 'llvm'"),
    _target("no architecture", {"kind": "cuda", "arch": "90"}, "'arch' of 'cuda': '90'", "'sm_90'"),
    _target(
        "an architecture that nobody compiled for",
        {"kind": "cuda", "arch": "sm_75"},
        "kernels were never compiled for 'sm_75' (have: sm_80, sm_86, ",
        "use one of them, or 'any'",
    ),
    _target("no GPU number", {"kind": "cuda", "device": "a"}, "'device' of 'cuda': 'a'", "use 0"),
    _target("a CUDA option", {"kind": "cuda", "libs": 1}, "'libs' of 'cuda' is unknown", "'arch'"),
    _target("options in a string", "llvm -mcpu=x86-64-v2", "-mcpu=x86-64-v2", "as a dict"),
    _target("an empty name", "", "unknown kind ''"),
    _target("a dict without kind", {"mcpu": "x86-64-v2"}, "expected a name or a dict", "'llvm'"),
    _target("no target", None, "got None", "use 'llvm'"),
    _target("a number as target", 3, "got 3", "use 'llvm'"),
    _target(
        "a CPU of the wrong type", {"kind": "llvm", "mcpu": 7}, "TVM refuses", "'mcpu'", "'int'"
    ),
    _target("an unknown CPU", {"kind": "llvm", "mcpu": "z80"}, "no CPU 'z80'", "leave 'mcpu' out"),
    _target("fast math", {"kind": "llvm", "fast-math": True}, "'fast-math' lets", "leave it out"),
    *(
        _target(f"option {option!r}", {"kind": "llvm", option: value}, shown, *ONLY_HERE)
        for option, value, shown in [
            ("speed", 11, "option 'speed' cannot be 11"),
            ("mabi", "lp64d", "option 'mabi' cannot be 'lp64d'"),
            ("mattr", ["+avx2"], "option 'mattr' cannot be ['+avx2']"),
            ("cl-opt", None, "option 'cl-opt' cannot be None"),
            ("mfloat-abi", "soft", "option 'mfloat-abi' cannot be 'soft'"),
            ("jit", "bogus", "option 'jit' cannot be 'bogus'"),
            ("host", "cuda", "option 'host' cannot be 'cuda'"),
            ("target_device_type", 2, "option 'target_device_type' cannot be 2"),
            (3, 4, "option 3 cannot be 4"),
        ]
    ),
    *(
        _target(f"{triple!r} as machine", {"kind": "llvm", "mtriple": triple}, *MACHINE)
        for triple in (
            *("", "aarch64", "foo-bar-baz", "aarch64-foo-bar", "aarch64_be-linux-gnu", 5, None),
            *(
                "i686-linux-gnu",
                "armv7-linux-gnueabihf",
                "riscv32-linux-gnu",
                "bpfel",
                "wasm64-wasi",
            ),
            *("nvptx64-nvidia-cuda", "amdgcn-amd-amdhsa", "x86_64-linux-gnux32", "a" * 3000),
        )
    ),
    *(
        _target(f"{options} elsewhere", {"kind": "llvm", **options}, *parts)
        for options, *parts in (
            (
                {**ARM, "mcpu": "znver4"},
                "'mcpu': 'znver4' is no CPU of aarch64",
                "use one of: a64fx",
            ),
            ({**ARM, "mcpu": ""}, "'mcpu': '' is no CPU", "use one of"),
            ({**ARM, "mcpu": 7}, "'mcpu': 7 is no CPU", "use one of"),
            ({**WEB, "mcpu": "generic-rv64"}, "is no CPU of wasm32-wasi", "bleeding-edge, generic"),
            ({**RISC, "mcpu": "generic-rv32"}, "'generic-rv32' has no 64-bit mode", "a newer one"),
            ({**X86, "mcpu": "i386"}, "'i386' has no 64-bit mode", "name a newer one"),
            ({**ARM, "mattr": "+neon"}, "'mattr': '+neon' is no list", "use one such as ['+aes']"),
            ({**ARM, "mattr": ["neon"]}, "'neon' begins with neither '+' nor '-'", "has aes, bf16"),
            ({**ARM, "mattr": [1]}, "'mattr': 1 begins with neither", "aes"),
            ({**ARM, "mattr": ["+avx2"]}, "'+avx2' is no ability that aarch64", "use: aes"),
            ({**ARM, "mattr": ["+aes,+foo"]}, "'+aes,+foo' is no ability", "use: aes"),
            ({**ARM, "mattr": ["-neon"]}, "'-neon' is no ability", "use: aes"),
            ({**RISC, "mattr": ["-64bit"]}, "'-64bit' is no ability", "use: m, a, f, d, c"),
            ({**RISC, "mattr": ["+zfinx"]}, "'+zfinx' is no ability", "use: m, a, f, d, c"),
            (
                {**RISC, "mcpu": "sifive-x280", "mattr": ["-v"]},
                "'-v' would leave parts",
                "'mcpu' out",
            ),
            ({**RISC, "mabi": "ilp32"}, "'mabi': 'ilp32' is unknown", "lp64, lp64f, lp64d"),
            ({**RISC, "mabi": "lp64d", "mattr": ["-d"]}, "'lp64d' needs '+d'", "or use lp64f"),
            ({**RISC, "mabi": 3}, "'mabi': 3 is unknown", "use one of: lp64"),
            ({**ARM, "mabi": "lp64d"}, "'lp64d' is for riscv64 only", "leave it out"),
            ({**WEB, "mattr": ["+relaxed-simd"]}, "'+relaxed-simd' is no ability", "simd128"),
            ({**X86, "mattr": ["-sse2"]}, "'-sse2' is no ability", "use: avx, avx2"),
            ({**ARM, "fast-math": True}, "'fast-math' lets", "leave it out"),
            ({**ARM, "cl-opt": ["x"]}, "option 'cl-opt' cannot be", "leave it out"),
            ({**ARM, "vector-width": "x"}, "TVM refuses", "vector-width"),
            ({**ARM, "num-cores": "x"}, "TVM refuses", "num-cores"),
        )
    ),
    # schedule
    _schedule("text as schedule", "fast", "expected a Schedule, got str", "new_schedule(model)"),
    _schedule(
        "a schedule of another model",
        tvm_forest.Schedule(100),
        "made for 100 trees and 1 classes, the model has 3 and 1",
        "new_schedule(model)",
        "for tree in (0, 100, 1)",
    ),
    BadInput(
        "a frame of another library",
        lambda: predictor().predict(_Frame()),
        InputError,
        ("argument 'rows'", "bad_inputs frame is not supported yet", "use rows.to_pandas()"),
    ),
    BadInput(
        "n_jobs 0 when building",
        lambda: tvm_forest.build(FOREST, n_jobs=0),
        InputError,
        ("build: argument 'n_jobs': 0", "use 1 or more"),
    ),
    _schedule("other classes", tvm_forest.Schedule(3, 3), "3 trees and 3 classes", "new_schedule"),
    _schedule(
        "another order of the trees",
        START.tile("tree", "t0", "t1", 2).reorder("t1", "t0"),
        "adds the trees in another order than the model",
        "exact=False",
        "for t1 in (0, 2, 1)",
    ),
    # models that only the reference can predict
    _model(
        "thresholds finer than leaves",
        replace(FOREST, threshold=FOREST.threshold.astype(np.float64)),
        "'threshold'",
    ),
    _model("no features", forest_of([1.0], n_features=0), "'n_features'", "0"),
    BadInput(
        "probabilities of a regression",
        lambda: predictor().predict_proba(ROWS),
        UnsupportedModel,
        ("predict_proba: ", "'by hand'", "use predict or predict_margin"),
    ),
    BadInput(
        "trees without a class",
        lambda: replace(FOREST, tree_class=np.full(3, -1, np.int32)),
        ModelFormatError,
        ("forest: field 'tree_class' is negative", "the model is damaged"),
    ),
    BadInput(
        "an unknown comparison",
        lambda: replace(FOREST, comparison=">="),
        ModelFormatError,
        ("forest: field 'comparison' is '>='", "expected '<' or '<='", "the model is damaged"),
    ),
    BadInput(
        "a tree too deep for the layout",
        lambda: tvm_forest.build(
            forest_of([functools.reduce(_deeper, range(30), 0.0)]), schedule=tvm_forest.Schedule(1)
        ),
        BuildError,
        ("layout 'array'", "tree 0 of depth 30", "the limit is", "represent_as('sparse')"),
    ),
]


def _deeper(tree: Any, threshold: int) -> Split:
    return Split(0, threshold, tree, 1.0)


if ON_X86:
    BAD_INPUTS += [
        _target(
            "an old CPU", {"kind": "llvm", "mcpu": "i386"}, "'i386' has no 64-bit mode", "newer"
        ),
        _target(
            "a CPU with other instructions",
            {"kind": "llvm", "mcpu": "graniterapids" if IS_AMD else "znver5"},
            "the CPU at hand",
            " lacks ",
            "leave 'mcpu' out",
            error=BuildError,
        ),
    ]
