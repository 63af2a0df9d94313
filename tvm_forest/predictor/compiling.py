"""Compiled functions, from the cache where other processes have left them.

takes: Forest, schedules, Target; gives: Compiled.

    model, schedules, machine --digest--> entry "model", the key of the code,    nothing is laid out
                                          and arrays of the model                or lowered
    lowered functions         --digest--> entry "code", machine code             nothing is compiled

The code is kept by what it is made of: the lowered functions, which hold no arrays of the model. So
models of one shape share it. The other entry spares a process that knows the very model all else;
of a large model it has no arrays, and this process lays the model out.
"""

from __future__ import annotations

from dataclasses import fields

import tvm

from ..archive import Archive
from ..code_cache import MAX_ENTRY_BYTES, PACKAGE, CodeCache, digest, digest_sources, find_cache
from ..compiler import Compiled, LaidOut, compile_forest, compile_lowered, lay_out, lower_each
from ..forest import Forest
from ..forest.model import ROLES
from ..layouts.representation import find
from ..schedule_prims import Schedule
from ..schedule_prims.fitting import check_device
from ..target import Target
from ..targets import Library, machine_code
from ..targets.machine_code import MachineCode
from ..tir_gen.canonical import SUMS, Output
from . import argument_parts

COLUMNS = "columns.npy"
"""Part of an entry with arrays that holds `Compiled.columns`."""


def compile_or_load(
    forest: Forest,
    schedules: dict[int, Schedule],
    target: Target,
    outputs: tuple[Output, ...] = (SUMS,),
    exact: bool = False,
) -> Compiled:
    """Do what `compile_forest` does, with the code of the cache if it is there.

    Args:
        forest, schedules, target, outputs, exact: see `compile_forest`.

    Raises:
        ScheduleError, BuildError, InputError: see `compile_forest`.
    """
    cache = find_cache()
    if cache is None or target.kind != "llvm" or target.is_elsewhere:
        return compile_forest(forest, schedules, target, outputs, exact)
    for sch in schedules.values():
        check_device(sch, target)
    machine = machine_code.describe(target)
    steps = [f"{smallest} {sch.to_json()}" for smallest, sch in schedules.items()]
    model = [forest.digest(ROLES), *steps, f"{outputs} {exact}", _digest_target(target)]
    model_key = digest("model", digest_sources(), machine, *model)
    known = cache.read(model_key) if _are_ours(schedules) else None
    library = None if known is None else _load(cache, known.manifest["code"], target)
    if known is not None and library is not None and COLUMNS in known.parts:
        arguments = argument_parts.from_parts(known.parts, known.manifest["functions"])
        return Compiled(library, arguments, known.parts[COLUMNS])
    laid_out = lay_out(forest, schedules, outputs, exact)
    if library is None:
        lowered = lower_each(laid_out, target)
        text = tvm.ir.save_json(lowered.after)
        code_key = digest("code", digest_sources(), machine, text)
        library = _load(cache, code_key, target)
        if library is None:
            library = compile_lowered(lowered, schedules, target)
            library = _keep(cache, code_key, library, target)
        if _are_ours(schedules):
            cache.write(model_key, _describe_model(code_key, laid_out))
    return Compiled(library, laid_out.arguments, laid_out.columns)


def _describe_model(code_key: str, laid_out: LaidOut) -> Archive:
    """Return the entry of a model: the key of its code, and its arrays unless they are large."""
    parts, functions = argument_parts.to_parts(laid_out.arguments)
    parts[COLUMNS] = laid_out.columns
    if sum(array.nbytes for array in parts.values()) > MAX_ENTRY_BYTES:
        return Archive({"code": code_key}, {})
    return Archive({"code": code_key, "functions": functions}, parts)


def _load(cache: CodeCache, key: str, target: Target) -> Library | None:
    """Return a library of the cache; None if it is not there, or cannot run."""
    found = cache.read(key)
    if found is None or not machine_code.runs_here(found.manifest["made_for"]):
        return None
    form = found.manifest["form"]
    code = MachineCode(form, found.parts[f"code.{form}"], found.manifest["made_for"])
    return machine_code.load_library(code, target)


def _keep(cache: CodeCache, key: str, library: Library, target: Target) -> Library:
    """Store a library; return it as it comes back, for so LLVM makes machine code of it once."""
    code = machine_code.to_machine_code(library, target)
    about = {"form": code.form, "made_for": code.made_for}
    cache.write(key, Archive(about, {f"code.{code.form}": code.data}))
    if code.form != machine_code.LINKED:
        return library
    return machine_code.load_library(code, target) or library


def _are_ours(schedules: dict[int, Schedule]) -> bool:
    """Return whether the sources of this package are all that lays the model out."""
    layouts = (find(sch.representation) for sch in schedules.values())
    return all(layout.__module__.partition(".")[0] == PACKAGE.name for layout in layouts)


def _digest_target(target: Target) -> str:
    facts = {entry.name: getattr(target, entry.name) for entry in fields(target)}
    return digest(
        *(f"{k} {sorted(v) if isinstance(v, frozenset) else v}" for k, v in facts.items())
    )
