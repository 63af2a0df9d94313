"""Exports a model as a package for another language, such as Go or Rust.

takes: Predictor, language; gives: the files of a package, with tests in that language.

    go.mod forest.go forest_test.go ...   files of `bindings/go`, the same for all models
    libmodel.so, model.h                  the library of the model
    expected.txt                          rows, and the bits that Python predicts for them
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...errors import BuildError, InputError, UnsupportedModel
from ...forest import Array, Forest
from ...forest.c_functions import apply_c_function
from ...forest.probe_rows import hard_rows
from ...forest.reference import choose_classes
from ...system import archive
from ...target import Target
from .package import read_dtypes
from .plain import write_plain
from .toolchain import KINDS, WHERE, system_of

if TYPE_CHECKING:
    from ..predictor import Predictor

PREFIX = "tvm_forest_"
"""Default beginning of the C functions' names. Prefixes end with an underscore, since "str" would
otherwise define `strerror`."""

AT_TO = f"{WHERE}: argument 'to'"
EXPECTED_ROWS = 33
"""Rows in "expected.txt": not a multiple of any block size, so that partly filled blocks occur."""


class Language(NamedTuple):
    """Properties of a language's packages.

    Attributes:
        types: the language's names of float32 and float64, for the type aliases Row, Margin and
            Value in its sources; None if the sources have no such aliases.
        is_web: whether the library is WebAssembly, not machine code.
        is_plain: whether the package has the model as C source text, and no library.
    """

    types: tuple[str, str] | None = None
    is_web: bool = False
    is_plain: bool = False


LANGUAGES = {
    "c": Language(is_plain=True),
    "cpp": Language(),
    "go": Language(types=("float32", "float64")),
    "java": Language(),
    "node": Language(is_web=True),
    "rust": Language(types=("f32", "f64")),
}
WEB_TARGET = {"kind": "llvm", "mtriple": "wasm32-wasi"}
"""The target for which a model is built to export it for Node.js."""


def check_language(target: Target, to: str) -> str:
    """Return the file name of the library in a language's package; "model.c" if it has none.

    Raises:
        InputError: the language is unknown.
        UnsupportedModel: the model is compiled for a target that such packages do not support.
    """
    if not isinstance(to, str) or to not in LANGUAGES:
        raise InputError(
            f"{AT_TO}: {archive.shorten(to)} is no language that there is a package for; give "
            f"one of {', '.join(LANGUAGES)}"
        )
    if LANGUAGES[to].is_plain:
        return "model.c"
    system = system_of(target)
    if LANGUAGES[to].is_web != (system == "WebAssembly"):
        wanted = WEB_TARGET if LANGUAGES[to].is_web else "llvm"
        raise UnsupportedModel(
            f"{AT_TO}: {to!r}, but the model is compiled for {system}; build it for {wanted}"
        )
    if system == "Windows" or target.kind != "llvm":
        what = "Windows" if system == "Windows" else f"target {target.kind!r}"
        raise UnsupportedModel(
            f"{AT_TO}: {to!r}, but the model is compiled for {what}, and packages are made for "
            "CPUs under Linux and macOS; give no 'to', and call the library by its header"
        )
    return f"model{KINDS[system][0]}" if system == "WebAssembly" else f"libmodel{KINDS[system][0]}"


def find_bindings(to: str) -> Path:
    """Return the folder with a language's sources, inside the installed package or next to it.

    Raises:
        BuildError: the folder is missing.
    """
    package = Path(__file__).resolve().parents[2]
    for place in (package / "bindings" / to, package.parent / "bindings" / to):
        if place.is_dir():
            return place
    raise BuildError(f"{WHERE}: {package / 'bindings'} is missing; install tvm-forest anew")


def list_sources(predictor: Predictor, to: str) -> dict[str, bytes]:
    """Return the files of a package, except the library and its header, as bytes by path.

    The aliases Row, Margin and Value in its sources are set to the types of the model.

    Raises:
        BuildError: the sources of the language are missing.
        UnsupportedModel: the package is plain C, which the model cannot be printed as.
    """
    source, forest = find_bindings(to), predictor.forest
    kinds = dict(zip(("Row", "Margin", "Value"), read_dtypes(forest), strict=True))
    files = dict[str, bytes]()
    for file in sorted(source.rglob("*")):
        if not file.is_file():
            continue
        data, names = file.read_bytes(), LANGUAGES[to].types
        if names is not None and file.suffix in (".go", ".rs"):
            of = dict(zip(("float32", "float64"), names, strict=True))
            for alias, kind in kinds.items():
                pattern = rf"(?m)^((?:pub )?type {alias} = )\w+".encode()
                data = re.sub(pattern, rb"\g<1>" + of[kind].encode(), data)
        files[file.relative_to(source).as_posix()] = data
    if LANGUAGES[to].is_plain:
        files |= write_plain(predictor, PREFIX)
    files["expected.txt"] = write_expected(predictor, LANGUAGES[to].is_plain).encode()
    return files


def write_expected(predictor: Predictor, by_reference: bool = False) -> str:
    """Return the text of "expected.txt": rows and their predictions, as bits in hexadecimal.

    The first line says how many features, outputs and class numbers a row has, how many rows there
    are, and by how many units in the last place values may differ on a machine with another C
    library. Then each row has a line: features, margins, values, class numbers.

    Args:
        predictor: the model.
        by_reference: whether to use the reference walk instead of the compiled code, whose
            schedules may add leaves in another order.
    """
    forest = predictor.forest
    rows = _take_out_refused(forest, hard_rows(forest, EXPECTED_ROWS, seed=1))
    margin, value = _predict(predictor, rows, by_reference)
    parts = [_to_bits(rows), _to_bits(margin), _to_bits(value)]
    labels = 0
    if forest.gives_labels:
        classes = choose_classes(forest, margin, value).reshape(len(rows), -1)
        labels = classes.shape[1]
        parts.append([[str(x) for x in row] for row in classes.tolist()])
    is_exact = value.dtype == np.float32 and forest.link not in ("log1p_exp", "halving")
    head = (forest.row_width, forest.n_outputs, labels, len(rows), 0 if is_exact else 2)
    lines = (" ".join(word for part in parts for word in part[k]) for k in range(len(rows)))
    return "\n".join([" ".join(map(str, head)), *lines, ""])


def _predict(predictor: Predictor, rows: Array, by_reference: bool) -> tuple[Array, Array]:
    """Return margins and values (R, C), by the reference walk if asked or if code cannot run."""
    forest, shape = predictor.forest, (len(rows), -1)
    if not (by_reference or predictor.target.is_elsewhere):
        margin, value = predictor.predict_margin(rows), predictor.predict_value(rows)
        return margin.reshape(shape), value.reshape(shape)
    margin = forest.predict_reference(rows)
    return margin, forest.values_of(margin, apply_c_function)


def _take_out_refused(forest: Forest, rows: Array) -> Array:
    for word, test in (("nan", np.isnan), ("inf", np.isinf)):
        if word in forest.refuses:
            rows = np.where(test(rows), rows.dtype.type(1), rows)
    return rows


def _to_bits(numbers: Array) -> list[list[str]]:
    """Return the bits of floats (R, C) as texts of 8 or 16 hexadecimal digits."""
    width = 2 * numbers.dtype.itemsize
    bits = np.ascontiguousarray(numbers).view(f"u{numbers.dtype.itemsize}")
    return [[f"{x:0{width}x}" for x in row] for row in bits.tolist()]
