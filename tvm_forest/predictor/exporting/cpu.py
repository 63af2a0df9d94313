"""Writes a predictor's CPU code as an object file, and the macros with which `cpu.c` calls it.

takes: Predictor; gives: an object file, and the macros that list its functions.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...compiler import compile_forest
from ...layouts.protocol import takes_memberships
from ...runtime.linked import LinkedLibrary
from ...schedule_prims.batches import name_functions
from ...targets.objects import write_object
from ..functions import rows_per_block
from .data import Data
from .processor import list_abilities

if TYPE_CHECKING:
    from ..predictor import Predictor


def write(predictor: Predictor, data: Data, prefix: str, folder: Path) -> dict[str, Any]:
    """Write the object file, and return macros by name.

    Args:
        predictor: a predictor for the target "llvm"; if it was loaded from a file or the cache, its
            code is linked already, so the model is compiled again.
        data: gets the arrays of the model.
        prefix: beginning of the functions' names.
        folder: folder for the object file "code.o".
    """
    forest, library, schedules = predictor.forest, predictor.library, predictor.schedules
    arrays = {name: [x.numpy() for x in read] for name, read in predictor.arguments.items()}
    if isinstance(library, LinkedLibrary):
        compiled = compile_forest(predictor.request, anew=True)
        library, arrays = compiled.library, compiled.arguments
    write_object(library, folder / "code.o", prefix)
    functions = list[str]()
    for smallest, name in name_functions(schedules).items():
        sch = schedules[smallest]
        block, is_wide = (
            rows_per_block(sch, schedules),
            takes_memberships(sch.layout, forest),
        )
        places = ", ".join(f"AT({data.places[data.number(array)]})" for array in arrays[name])
        functions.append(f"F({smallest}, {name}, {block}, {int(is_wide)}, {places})")
    return {
        "CALLS": '"cpu.c"',
        "DEVICE": 0,
        "KEEPS_ORDER": int(all(sch.keeps_order for sch in schedules.values())),
        "FUNCTIONS(F)": " ".join(functions),
        "ABILITIES(A)": list_abilities(predictor.target),
    }
