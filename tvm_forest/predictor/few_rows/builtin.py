"""Predicts rows by CPython builtin functions, which cost less than tvm_ffi's calls.

takes: Functions; gives: functions of rows, which return margins, values, probabilities or the
numbers of classes, or None.

A builtin function consists of `runtime/threads/few_rows.ll` and a sheet, its `__self__`: a numpy
array of words with all addresses and sizes that the code needs. It reads rows in place, and
allocates the result array itself. It takes rows of float32 and float64 in C order, unless they are
too many or contain refused values, and returns None for all others. It holds the GIL, but releases
it in long calls and those that threads share, and now and then in short ones: Python does so itself
between two calls, but not in loops of C code, such as `map`.

The code accesses Python and numpy objects without their headers. So it is used only if their memory
layout is as expected, which is checked once; `TVM_FOREST_BUILTIN=off` turns it off.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from ...errors import BuildError
from ...forest import Array, Forest
from ...runtime.linked import LinkedLibrary
from ...runtime.threads import FEW_ROWS
from ...runtime.threads.by_batch import BoundFunction
from ...runtime.threads.pool import POOL
from ...system.cores import most_cores
from ...system.late import import_late
from ...system.process.locks import holds_off_forks
from ..functions import Functions

if TYPE_CHECKING:
    from ...runtime.threads import pool_code
else:
    pool_code = import_late("tvm_forest.runtime.threads.pool_code")

LOG = logging.getLogger(__name__)

VARIABLE = "TVM_FOREST_BUILTIN"
"""Environment variable that turns builtin functions off, by the value "off"."""

Code = TypeVar("Code")

Predict: TypeAlias = Callable[[Any], Array | None]

STEPS_WITH_LOCK = 4096
"""Hops and leaves of a batch, over all rows and trees, from which a call releases the GIL.
Releasing it takes some microseconds, which is little compared with such a call."""

KINDS = ("float32", "float64")
"""The dtypes of rows, in the order of their numbers in the code."""

REFUSALS = {"inf": 1, "nan": 2}
"""Bit flags in the code for refused values, by their names in `Forest.refuses`."""


def take_none(rows: Any) -> Array | None:
    """Return None, as for rows that builtin functions do not take."""
    return None


class Calls(NamedTuple):
    """Functions of rows, each of which is `take_none` for models or rows that it does not support.

    Attributes:
        margins, values: return (R,) or (R, C).
        probabilities: returns what `predict_proba` gives, (R, 2) or (R, C).
        classes: returns the numbers of the rows' classes, (R,) int64, see `choose_classes`.
    """

    margins: Predict = take_none
    values: Predict = take_none
    probabilities: Predict = take_none
    classes: Predict = take_none


class _Wanted(NamedTuple):
    """What a function returns.

    Attributes:
        place: index of the result that it is made of.
        form: what is made of it, see `tvm_forest_give` in the code; 0 for the result itself.
        bound: for forms that compare with one.
    """

    place: int
    form: int = 0
    bound: float = 0.0


PAIRS, ABOVE, AT_LEAST, LARGEST, LARGEST_OF_CPP = range(1, 6)
"""Forms of `tvm_forest_give`."""


class _Served(NamedTuple):
    """How batches from a number of rows on are predicted.

    Attributes:
        begin: that number.
        function: the function that reads rows in place; None for batches that are not taken.
        helpers: number of threads, besides the caller's, that share the rows; fewer if the caller
            may not use so many cores.
    """

    begin: int
    function: BoundFunction | None
    helpers: int = 0


def list_served(functions: Functions, most: int, n_jobs: int | None = None) -> Iterator[_Served]:
    """Yield how batches of up to `most` rows are predicted, smallest first.

    Batches are not taken if they need membership columns, or must wait for the threads of another
    call, since their function adds in another order than one thread would.
    """

    def serve(begin: int) -> _Served:
        function, threads = functions.plan(begin, n_jobs)
        waits = threads > 1 and not function.keeps_order
        is_taken = not (waits or function.takes_memberships)
        return _Served(begin, function if is_taken else None, min(threads, most_cores()) - 1)

    last = _Served(0, None, -1)
    for begin in functions.list_turns(most, n_jobs):
        served = serve(begin)
        if served[1:] != last[1:]:
            yield (last := served)


def count_serial(functions: Functions, most: int) -> int:
    """Return up to which number of rows, at most `most`, one thread reads rows in place."""
    served = list_served(functions, most)
    others = (each.begin for each in served if each.function is None or each.helpers)
    return next(others, most + 1) - 1


@holds_off_forks
def bind(functions: Functions, most: int, n_jobs: int | None = 1) -> Calls:
    """Return functions that predict rows.

    Args:
        functions: the compiled functions to call, which are kept alive.
        most: largest number of rows to take.
        n_jobs: see `Functions`.
    """
    python, forest = _find_python(), functions.forest
    served = list(list_served(functions, most, n_jobs)) if most else []
    if python is None or forest.refuses_unseen or not any(x.function for x in served):
        return Calls()
    code = load_own_code(functions, POOL.load_few_rows)
    if code is None:
        return Calls()
    margins, values = _Wanted(functions.margin_place), _Wanted(len(functions.result_dtypes) - 1)
    classes = _classes(forest, margins, values, functions.result_dtypes[margins.place])
    wanted = (margins, values, _probabilities(forest, values), classes)
    make, made = _prepare(code), dict[_Wanted | None, Predict]({None: take_none})
    for each in filter(None, wanted):
        made[each] = made.get(each) or make(_Sheet.of(functions, most, served, each, python))
    return Calls(*(made[x] for x in wanted))


def _probabilities(forest: Forest, values: _Wanted) -> _Wanted | None:
    """Return what `to_probabilities` returns; None if it splits values by target."""
    if not forest.gives_probabilities or forest.targets:
        return None
    is_pair = forest.n_outputs == 1 and forest.label_rule != "argmax_probability"
    if is_pair:
        return values._replace(form=PAIRS)
    return values if forest.n_outputs > 1 else None


def _classes(forest: Forest, margins: _Wanted, values: _Wanted, dtype: Any) -> _Wanted | None:
    """Return what `choose_classes` returns; None if a row has no class, or several.

    Args:
        dtype: that of margins.
    """
    rule = forest.class_rule
    if forest.targets or (rule in ("half", "cut") and forest.n_outputs > 1):
        return None
    if rule == "half":
        return values._replace(form=ABOVE, bound=0.5)
    if rule == "cut":
        return margins._replace(form=AT_LEAST, bound=float(dtype.type(forest.label_cut)))
    if rule == "argmax_probability":
        return values._replace(form=LARGEST)
    forms = {"argmax_margin": LARGEST, "top_margin": LARGEST_OF_CPP}
    return margins._replace(form=forms[rule]) if rule in forms else None


@holds_off_forks
def load_own_code(functions: Functions, load: Callable[[Callable[[], Any]], Code]) -> Code | None:
    """Return some of the package's own LLVM code; None if it cannot be compiled or loaded.

    Args:
        functions: compiled functions, whose library may hold that code.
        load: method of the pool that finds it in a library.
    """
    libraries = (x.library for x in functions.libraries)
    linked = next((x for x in libraries if isinstance(x, LinkedLibrary)), None)
    try:
        return load(lambda: linked or pool_code.compile_pool())
    except (BuildError, OSError, RuntimeError, ValueError) as error:
        LOG.info("calls go through Python, which takes longer: %s", error)
        return None


class _Sheet(np.ndarray):
    """The words that the code reads, uint64, see `few_rows.ll`.

    Attributes:
        functions: the compiled functions that it points to, kept alive.
    """

    functions: Functions

    @classmethod
    def of(
        cls,
        functions: Functions,
        most: int,
        served: list[_Served],
        wanted: _Wanted,
        python: tuple[int, ...],
    ) -> _Sheet:
        """Return the sheet for calls that return what is `wanted`.

        Args:
            functions: the compiled functions, whose `result_dtypes` lists the results.
            most: largest number of rows to take.
            served: see `list_served`.
            wanted: what of the results they return.
            python: see `_find_python`.
        """
        forest, results = functions.forest, functions.result_dtypes
        width, kind = forest.row_width, KINDS.index(forest.row_dtype)
        dropped = [x.itemsize for at, x in enumerate(results) if wanted.form or at != wanted.place]
        is_class = wanted.form > PAIRS
        dtype = np.dtype(np.int64) if is_class else results[wanted.place]
        columns = 1 if is_class else 2 if wanted.form == PAIRS else forest.n_outputs
        bits = [8 * x.itemsize for x in results]
        refused = {*forest.refuses, *["inf"] * bool(forest.finite_columns)}
        calls = list[int]()
        for begin, bound, helpers in reversed(served):
            if bound is None:
                calls += [begin, 1, 0, 0, 0, 0]
                continue
            shared = bound.parallel.__chandle__() if helpers else 0
            calls += [begin, max(1, bound.rows_per_block), bound.serial.__chandle__()]
            calls += [bound.model[0].value, shared, helpers]
        words = [
            *python,
            *(0, -(-STEPS_WITH_LOCK // max(1, functions.steps_per_row))),
            *(sum(REFUSALS.get(x, 0) for x in refused), kind),
            *(most, forest.n_outputs * sum(dropped)),
            *(width, 1, forest.n_outputs, 1, wanted.place, len(results)),
            *(bits + [0] * 2)[:3],
            *(wanted.form, int(np.float64(wanted.bound).view(np.uint64)), dtype.num, columns),
            *(FEW_ROWS, *calls),
        ]
        sheet = np.array(words, np.uint64).view(cls)
        sheet.functions = functions
        return sheet


class _Method(ctypes.Structure):
    """CPython's struct PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("code", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


OF_ONE_ARGUMENT = 8
"""CPython's flag METH_O, for methods of one argument."""


@functools.cache
def _prepare(code: int) -> Callable[[_Sheet], Predict]:
    """Return a function that makes a builtin function from a sheet.

    Args:
        code: address of the machine code of `few_rows.ll`, the same for all builtin functions.
    """
    method = _Method(b"predict_few_rows", code, OF_ONE_ARGUMENT, None)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(method))  # Python reads it when a function goes
    types = (ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    new = ctypes.PYFUNCTYPE(*types)(("PyCFunction_NewEx", ctypes.pythonapi))
    return lambda sheet: new(ctypes.addressof(method), sheet, None)


@functools.cache
def _find_python() -> tuple[int, ...] | None:
    """Return the addresses of Python and numpy that sheets begin with; None if they are unknown."""
    is_known = sys.implementation.name == "cpython" and object.__basicsize__ == 16
    is_free = "t" in getattr(sys, "abiflags", "")  # of the interpreter's lock
    if is_free or not is_known or os.environ.get(VARIABLE, "").lower() == "off":
        return None
    new_array = _find_new_array()
    if new_array is None or not all(_lies_as_expected(np.ones((3, 5), x)) for x in KINDS):
        return None
    names = ("Py_IncRef", "Py_DecRef", "PyEval_SaveThread", "PyEval_RestoreThread")
    code = (ctypes.cast(getattr(ctypes.pythonapi, x), ctypes.c_void_p).value or 0 for x in names)
    return (id(np.ndarray), new_array, id(None), *code)


def _find_new_array() -> int | None:
    """Return the address of PyArray_New, from numpy's table for C code; None if it is unknown."""
    core: Any = getattr(np, "_core", None) or np.core
    find = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    table = find(core._multiarray_umath._ARRAY_API, None)
    version = ctypes.CFUNCTYPE(ctypes.c_uint)(_read(table))()
    is_known = version >> 24 in (1, 2) and _read(table + 8 * 2) == id(np.ndarray)
    return _read(table + 8 * 93) if is_known else None


def _lies_as_expected(array: Array) -> bool:
    """Return whether a C-order array has the memory layout that the code expects.

    The offsets are those of its types `%array` and `%dtype`; 257 are the flags it requires.
    """
    at, order = id(array), array.dtype.newbyteorder()
    dtype = _read(at + 56)
    flags, turned = (_read(id(x) + 64, ctypes.c_int) for x in (array, array.T))
    return (
        [_read(at + 8), _read(at + 16), dtype]
        == [id(np.ndarray), array.ctypes.data, id(array.dtype)]
        and _read(at + 24, ctypes.c_int) == 2
        and [_read(_read(at + 32) + 8 * k) for k in (0, 1)] == list(array.shape)
        and (flags & 257, turned & 257) == (257, 256)
        and _read(dtype + 26, ctypes.c_char) == b"="
        and _read(id(order) + 26, ctypes.c_char) == order.byteorder.encode()
        and _read(dtype + 28, ctypes.c_int) == array.dtype.num
    )


def _read(address: int, kind: Any = ctypes.c_void_p) -> Any:
    return kind.from_address(address).value
