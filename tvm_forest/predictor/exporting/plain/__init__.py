"""Exports a model as C99 source text, for any compiler.

takes: Predictor, prefix; gives: model.c and model.h, which include standard headers only.

The prediction function is lowered with the plain schedule, which walks row by row and tree by tree,
and printed as C. The model's arrays are printed as numbers, integers in the smallest type
that can hold them.
"""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from ....compiler import lower_request
from ....errors import BuildError, ScheduleError
from ....forest import Array, Forest
from ....forest.coarse_powers import COARSE_LINKS
from ....layouts.laying_out import lay_out
from ....layouts.laying_out.request import BuildRequest
from ....runtime.results import SUMS, result_names
from ....search.workload import new_schedule
from ....target import Target
from ....targets.own_functions import list_powers
from ..package import C_TYPES, REFUSAL_TESTS, read_dtypes
from .printing import Printer, name_type, refuse, write_number

if TYPE_CHECKING:
    from ...predictor import Predictor

HERE = Path(__file__).parent
REFUSE = """\
  for (int64_t i = 0; i < n * {}; ++i) {{
    const double x = rows[i];
    if ({}) return -1;
  }}
"""
COPY = "  for (int64_t i = 0; value && i < n * {}; ++i) value[i] = margin[i];\n"
LAYOUTS = ("packed", "sparse")
"""Layouts with the fewest bytes per node; the first that can hold the model is used."""


def write_plain(predictor: Predictor, prefix: str) -> dict[str, bytes]:
    """Return model.c and model.h as bytes, by file name.

    Raises:
        UnsupportedModel: the model needs something that cannot be printed as C.
    """
    forest = predictor.forest
    _check_plain(forest)
    function, arrays = _lower(forest)
    row, margin, value = read_dtypes(forest)
    names = dict(
        zip(("row", "margin", "value"), (C_TYPES[x] for x in (row, margin, value)), strict=True)
    )
    names |= {"prefix": prefix, "trees": str(forest.n_trees), "PREFIX": prefix.upper()}
    names |= {"features": str(forest.row_width), "outputs": str(forest.n_outputs)}

    results = result_names(forest)
    rows, *others = function.params
    placed = {rows: "rows", rows.shape[0]: "n"}
    texts = list[str]()
    for buffer, array in zip(others, arrays, strict=False):
        placed[buffer] = f"model_{buffer.name}"
        texts.append(write_array(placed[buffer], array))
    for buffer, name in zip(others[len(arrays) :], results, strict=True):
        placed[buffer] = "margin" if name == "sum" else name  # sums are overwritten by margins
    printer = Printer(placed)
    names["body"] = "\n".join(printer.print(function.body))
    refused = [REFUSAL_TESTS[word] for word in forest.refuses if word in REFUSAL_TESTS]
    is_linked = "value" in results
    names["refuse"] = REFUSE.format(forest.row_width, " || ".join(refused)) if refused else ""
    names["copy"] = "" if is_linked else COPY.format(forest.n_outputs)
    names["null"] = "" if is_linked else "value may be NULL, for the margins are the values. "
    names["arrays"] = "\n".join(texts)
    names["powers"] = "".join(map(_write_powers, sorted(printer.powers)))
    return {
        f"model.{suffix}": Template((HERE / f"model.{suffix}").read_text("ascii"))
        .substitute(names)
        .encode()
        for suffix in ("c", "h")
    }


def _check_plain(forest: Forest) -> None:
    """Refuse models that the prediction function alone cannot predict.

    Raises:
        UnsupportedModel: the model has categories, a number that means missing, or a link whose
            values depend on the batch.
    """
    if forest.derived or forest.known_categories:
        refuse("categories")
    if forest.needs_cleaning:
        refuse("numbers that stand for missing ones")
    if forest.link in COARSE_LINKS:
        refuse(f"the link '{forest.link}', whose values depend on the batch")


def _lower(forest: Forest) -> tuple[Any, list[Array]]:
    """Return the lowered prediction function, and the arrays that it reads."""
    for last, name in enumerate(LAYOUTS, 1 - len(LAYOUTS)):
        try:
            request = BuildRequest.of(forest, new_schedule(forest).represent_as(name), Target())
            laid_out = lay_out(request)
            lowered = lower_request(request, laid_out)
        except (BuildError, ScheduleError):
            if not last:
                raise
            continue
        break
    functions = {var.name_hint: func for var, func in lowered.after.functions.items()}
    arrays = [x.numpy() if hasattr(x, "numpy") else x for x in laid_out.arguments[SUMS]]
    return functions[SUMS], arrays


def write_array(name: str, array: Array) -> str:
    """Return the C definition of an array; integers get the smallest type that can hold them."""
    flat = array.ravel()
    dtype = str(flat.dtype)
    if not dtype.startswith("float") and flat.size:
        fits = (x for x in ("int8", "int16", "int32") if _holds(x, flat))
        dtype = next(fits, dtype)
    words = [write_number(x, dtype) for x in flat.tolist()] or ["0"]
    lines, line = list[str](), ""
    for word in words:
        if len(line) + len(word) > 96:
            lines, line = [*lines, line], ""
        line += f"{word}, "
    body = "\n  ".join(x.rstrip() for x in [*lines, line])
    return f"static const {name_type(dtype)} {name}[{len(words)}] = {{\n  {body}\n}};"


def _holds(dtype: str, flat: Array) -> bool:
    limits = np.iinfo(dtype)
    return bool(limits.min <= int(flat.min()) and int(flat.max()) <= limits.max)


def _write_powers(dtype: str) -> str:
    """Return the C text of the function `exp_<dtype>`, with its table of powers of two."""
    table = list_powers()
    words = (
        [bits for _, bits in table[::4]]
        if dtype == "float32"
        else [x for pair in table for x in pair]
    )
    numbers = ",\n  ".join(
        ", ".join(f"UINT64_C(0x{x % 2**64:016x})" for x in words[k : k + 3])
        for k in range(0, len(words), 3)
    )
    head = f"static const uint64_t powers_{dtype}[{len(words)}] = {{\n  {numbers}\n}};\n\n"
    return head + (HERE / f"exp_{dtype}.c").read_text("ascii") + "\n"
