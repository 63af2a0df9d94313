"""Functions for a CPU, for `cpu.c`.

takes: Predictor; gives: an object file, and the macro that lists the functions.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...compiler import compile_forest
from ...schedule_prims.batches import name_functions
from ..functions import rows_per_block
from .data import Data

if TYPE_CHECKING:
    from ..predictor import Predictor


def write(predictor: Predictor, data: Data, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Write object code; return macros, and what is to be linked.

    Args:
        predictor: of target "llvm"; a loaded one is linked already, so its model is compiled anew.
        data: takes the arrays of the model.
        folder: for the object file.
    """
    library, schedules = predictor.library, predictor.schedules
    arrays = {name: [x.numpy() for x in read] for name, read in predictor.arguments.items()}
    if library.mod.kind != "llvm":
        library, arrays, _ = compile_forest(predictor.forest, schedules, predictor.target)
    library.mod.write_to_file(str(folder / "code.o"))
    functions = list[str]()
    for smallest, name in name_functions(schedules).items():
        block = rows_per_block(schedules[smallest], schedules)
        places = ", ".join(f"AT({data.places[data.number(array)]})" for array in arrays[name])
        functions.append(f"F({smallest}, __tvm_ffi_{name}, {block}, {places})")
    macros = {"CALLS": '"cpu.c"', "DEVICE": 0, "FUNCTIONS(F)": " ".join(functions)}
    return macros, [str(folder / "code.o")]
