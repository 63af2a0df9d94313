"""Writes a predictor's CPU code as an object file, and the macros with which `cpu.c` calls it.

takes: Predictor; gives: an object file, and the macros that list its functions.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...compiler import compile_forest
from ...forest.contributions import CONTRIBUTIONS, ContributionTables
from ...layouts.laying_out import LaidTables, lay_out
from ...layouts.protocol import takes_memberships
from ...runtime.linked import LinkedLibrary
from ...schedule_prims.batches import name_functions, rows_per_block
from ...targets.objects import write_object
from ..contributions import MAX_SINGLE_ROWS
from .data import Data
from .processor import list_abilities

if TYPE_CHECKING:
    from ..predictor import Predictor


def write(
    predictor: Predictor,
    data: Data,
    prefix: str,
    folder: Path,
    tables: ContributionTables | None = None,
) -> dict[str, Any]:
    """Write the object file, and return macros by name.

    Args:
        predictor: a predictor for the target "llvm"; if it was loaded from a file or the cache, its
            code is linked already, so the model is compiled again.
        data: gets the arrays of the model.
        prefix: beginning of the functions' names.
        folder: folder for the object file "code.o".
        tables: what contributions are computed from, whose functions are compiled together with the
            others; None to leave them out.

    Raises:
        BuildError: the model must be compiled again, and that fails; or there is no room for
            temporary files.
    """
    forest, library, schedules = predictor.forest, predictor.library, predictor.schedules
    arrays = {name: [x.numpy() for x in read] for name, read in predictor.arguments.items()}
    explaining = dict[str, int]()
    if isinstance(library, LinkedLibrary) or tables is not None:
        laid_out = lay_out(predictor.request)
        if tables is not None:
            laid_out.functions.append(LaidTables(CONTRIBUTIONS, tables, on_gpu=False))
        compiled = compile_forest(predictor.request, laid_out, anew=True)
        library, arrays, explaining = (
            compiled.library,
            compiled.arguments,
            compiled.code[0].block_rows,
        )
    write_object(library, folder / "code.o", prefix)
    functions = list[str]()
    for smallest, name in name_functions(schedules).items():
        sch = schedules[smallest]
        block, is_wide = (
            rows_per_block(sch, schedules),
            takes_memberships(sch.layout, forest),
        )
        places = _list_places(data, arrays[name])
        functions.append(f"F({smallest}, {name}, {block}, {int(is_wide)}, {places})")
    return {
        "CALLS": '"cpu.c"',
        "DEVICE": 0,
        "KEEPS_ORDER": int(all(sch.keeps_order for sch in schedules.values())),
        "FUNCTIONS(F)": " ".join(functions),
        "ABILITIES(A)": list_abilities(predictor.target),
        **_describe_contributions(data, tables, explaining, arrays),
    }


def _list_places(data: Data, arrays: list[Any]) -> str:
    """Append arrays to `data`; return their offsets there as arguments of a C macro."""
    return ", ".join(f"AT({data.places[data.number(array)]})" for array in arrays)


def _describe_contributions(
    data: Data, tables: ContributionTables | None, names: dict[str, int], arrays: dict[str, Any]
) -> dict[str, Any]:
    """Return the macros of `contributions.c`.

    Args:
        data: gets the tables.
        tables: what contributions are computed from; None for a library without them.
        names: the names of the functions that compute contributions, that for single rows first if
            there is one; the numbers are not used.
        arrays: the arrays that functions read, by output.
    """
    if tables is None:
        return {"EXPLAINS": 0}
    forest, places = tables.forest, _list_places(data, arrays[CONTRIBUTIONS])
    starts = (0, MAX_SINGLE_ROWS + 1)
    functions = [
        f"F({start}, {name}, {places})" for start, name in zip(starts, names, strict=False)
    ]
    shape = f"(n, {forest.n_outputs * (forest.row_width + 1)})"
    return {
        "EXPLAINS": 1,
        "EXPLAINING(F)": " ".join(functions),
        "EXPLAINED_WIDE": int(forest.needs_preparation),
        "EXPECTED_AT": data.place(tables.expected.tobytes()),
        "CONTRIBUTIONS_TEXT": f'"float64 {shape}"',
    }
