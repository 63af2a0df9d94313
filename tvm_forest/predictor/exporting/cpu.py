"""Functions for a CPU, for `cpu.c`.

takes: Predictor; gives: an object file, and the macro that lists the functions.
"""

from __future__ import annotations

from pathlib import Path

from ...schedule_prims.batches import function_names
from ..building import build
from ..predictor import Predictor
from .data import Data


def write(predictor: Predictor, data: Data, folder: Path) -> tuple[dict[str, str], list[str]]:
    """Write object code; return macros, and what is to be linked.

    Args:
        predictor: of target "llvm"; a loaded one is linked already, and built anew.
        data: takes the arrays of the model.
        folder: for the object file.
    """
    fresh = predictor
    if predictor.library.mod.kind != "llvm":
        model = (predictor.forest, predictor.schedules, predictor.target)
        fresh = build(*model, exact=False, signature=predictor.signature)
    fresh.library.mod.write_to_file(str(folder / "code.o"))
    functions = list[str]()
    exact = all(sch.keeps_order for sch in fresh.schedules.values())
    for smallest, name in function_names(fresh.schedules).items():
        numbers = [data.number(tensor, tensor.numpy()) for tensor in fresh.arguments[name]]
        block = fresh.schedules[smallest].sliced if exact else 0
        places = ", ".join(f"AT({data.places[number]})" for number in numbers)
        functions.append(f"F({smallest}, __tvm_ffi_{name}, {block}, {places})")
    macros = {"CALLS": '"cpu.c"', "DEVICE": "0", "FUNCTIONS(F)": " ".join(functions)}
    return macros, [str(folder / "code.o")]
