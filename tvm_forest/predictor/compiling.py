"""Compiled functions, from the cache where other processes have left them.

takes: Forest, schedules, Target; gives: Compiled.

    model, schedules, machine --digest--> entry "model", the key of the code,    nothing is chosen,
                                          schedules and arrays of the model      laid out or lowered
    lowered functions         --digest--> entry "code", machine code             nothing is compiled

The code is kept by what it is made of: the lowered functions, which hold no arrays of the model. So
models of one shape share it. The other entry spares a process that knows the very model all else,
and TVM's import; of a large model it has no arrays, and this process lays the model out.
"""

from __future__ import annotations

import logging
import time
from dataclasses import fields
from typing import TYPE_CHECKING, NamedTuple

from ..archive import Archive
from ..code_cache import MAX_ENTRY_BYTES, PACKAGE, CodeCache, digest, digest_sources, find_cache
from ..contributions import ContributionTables
from ..errors import BuildError, ForestError
from ..forest import Forest
from ..late import import_late
from ..laying_out import Compiled, LaidOut, lay_out
from ..layouts.representation import find
from ..process.ending import is_waited_for
from ..process.locks import holds_off_forks
from ..runtime import Library
from ..runtime.loading import LINKED, MachineCode
from ..runtime.results import SUMS, Output
from ..schedule_prims import Schedule
from ..schedule_prims.fitting import check_device
from ..search.machines import own_file
from ..target import Target
from ..targets.stored_code import (
    describe_machine,
    find_obstacle,
    load_library,
    to_machine_code,
)
from . import argument_parts

if TYPE_CHECKING:
    from .. import compiler
    from ..compiler import Lowered
    from ..search import heuristic
    from ..targets import machine_code
else:
    compiler = import_late("tvm_forest.compiler")
    heuristic = import_late("tvm_forest.search.heuristic")
    machine_code = import_late("tvm_forest.targets.machine_code")

LOG = logging.getLogger(__name__)

COLUMNS = "columns.npy"
"""Part of an entry with arrays that holds `Compiled.columns`."""


class Known(NamedTuple):
    """A model whose functions can be called.

    Attributes:
        compiled: the functions.
        schedules: by which they were compiled.
        signature: of the model, which takes long to compute of a large one.
    """

    compiled: Compiled
    schedules: dict[int, Schedule]
    signature: str


@is_waited_for
@holds_off_forks
def compile_or_load(
    forest: Forest,
    schedules: dict[int, Schedule] | None,
    target: Target,
    outputs: tuple[Output, ...] = (SUMS,),
    exact: bool = False,
) -> Known:
    """Do what `compile_forest` does, with the code of the cache if it is there.

    Args:
        forest, target, outputs, exact: see `compile_forest`.
        schedules: the same, or None for the default ones.

    Returns:
        What was compiled, its schedules, and the signature of the model.

    Raises:
        ScheduleError, BuildError, InputError: see `compile_forest`.
    """
    cache = find_cache()
    if cache is None or not _is_kept(target):
        schedules = schedules or heuristic.default_schedules(forest, target)
        begin = time.perf_counter()
        compiled = compiler.compile_forest(forest, schedules, target, outputs, exact)
        _say_compiled(outputs, schedules, target, begin)
        return Known(compiled, schedules, forest.signature)
    for sch in (schedules or {}).values():
        check_device(sch, target)
    has_key = schedules is None or _are_ours(schedules)
    key = _digest_model(forest, schedules, target, outputs, exact) if has_key else None
    known = None if key is None else _find_model(cache, key, forest, outputs, target)
    if known is not None:
        LOG.info("%s: code and arrays are those of the cache", _name(outputs))
        return known
    schedules = schedules or heuristic.default_schedules(forest, target)
    machine = machine_code.describe(target)  # refuses targets, before there is much to do
    laid_out = compiler.check_and_lay_out(forest, schedules, outputs, exact)
    lowered = compiler.lower_each(laid_out, target)
    code_key, library = _find_code(cache, lowered, outputs, schedules, target, machine)
    if key is not None:
        cache.write(key, _describe_model(code_key, laid_out, schedules, forest.signature))
    compiled = Compiled(library, laid_out.arguments, laid_out.columns)
    return Known(compiled, schedules, forest.signature)


@is_waited_for
@holds_off_forks
def compile_contributions(
    tables: ContributionTables, name: str, target: Target
) -> tuple[Library, dict[str, int]]:
    """Compile the functions of contributions or interactions, or take them from the cache.

    Returns:
        The library, and its functions as `lower_contributions` names them.

    Raises:
        BuildError, InputError: see `compile_forest`.
    """
    cache = find_cache()
    if cache is None or not _is_kept(target):
        functions, sizes = compiler.lower_contributions(tables, name, target)
        return compiler.compile_lowered(compiler.Lowered(functions, functions), {}, target), sizes
    key = digest("contributions", name, *_digest_all(tables.forest, target))
    known = cache.read(key)
    library = None if known is None else _load(cache, known.manifest["code"], target)
    if known is not None and library is not None:
        return library, known.manifest["sizes"]
    functions, sizes = compiler.lower_contributions(tables, name, target)
    lowered, machine = compiler.Lowered(functions, functions), machine_code.describe(target)
    code_key, library = _find_code(cache, lowered, (name,), {}, target, machine)
    cache.write(key, Archive({"code": code_key, "sizes": sizes}, {}))
    return library, sizes


def _is_kept(target: Target) -> bool:
    """Return whether the cache keeps code for a target."""
    return target.kind == "llvm" and not target.is_elsewhere


def _digest_all(forest: Forest, target: Target) -> tuple[str, ...]:
    """Return digests of the model, the machine and this package."""
    facts = {entry.name: getattr(target, entry.name) for entry in fields(target)}
    wanted = (f"{k} {sorted(v) if isinstance(v, frozenset) else v}" for k, v in facts.items())
    return forest.identity, digest_sources(), describe_machine(), *wanted


def _digest_model(
    forest: Forest,
    schedules: dict[int, Schedule] | None,
    target: Target,
    outputs: tuple[Output, ...],
    exact: bool,
) -> str:
    """Return the key of what is known of a model."""
    if schedules is None:
        steps = ["default", _read_own_machine()]
    else:
        steps = [f"{smallest} {sch.to_json()}" for smallest, sch in schedules.items()]
    return digest("model", f"{outputs} {exact}", *_digest_all(forest, target), *steps)


def _read_own_machine() -> str:
    """Return the text of the user's own machine, by which schedules are chosen; "" if none."""
    file = own_file()
    try:
        return "" if file is None else file.read_text("utf-8", "replace")
    except OSError:
        return ""


def _find_model(
    cache: CodeCache,
    key: str,
    forest: Forest,
    outputs: tuple[Output, ...],
    target: Target,
) -> Known | None:
    """Return what the cache knows of a model; None if it does not have its code."""
    known = cache.read(key)
    library = None if known is None else _load(cache, known.manifest["code"], target)
    if known is None or library is None:
        return None
    try:
        texts = known.manifest["schedules"]
        schedules = {int(smallest): Schedule.from_json(x) for smallest, x in texts.items()}
        signature = known.manifest["signature"]
    except (ForestError, LookupError, TypeError, ValueError, AttributeError):
        return None
    if COLUMNS in known.parts:
        arguments = argument_parts.from_parts(known.parts, known.manifest["functions"])
        return Known(Compiled(library, arguments, known.parts[COLUMNS]), schedules, signature)
    laid_out = lay_out(forest, schedules, outputs)
    compiled = Compiled(library, laid_out.arguments, laid_out.columns)
    return Known(compiled, schedules, signature)


def _find_code(
    cache: CodeCache,
    lowered: Lowered,
    outputs: tuple[str, ...],
    schedules: dict[int, Schedule],
    target: Target,
    machine: str,
) -> tuple[str, Library]:
    """Return the key of some code and its library, compiled if the cache does not have it."""
    key = digest("code", digest_sources(), machine, compiler.to_text(lowered.after))
    library = _load(cache, key, target)
    if library is None:
        begin = time.perf_counter()
        library = compiler.compile_lowered(lowered, schedules, target)
        library = _keep(cache, key, library, target)
        _say_compiled(outputs, schedules, target, begin)
    return key, library


def _say_compiled(
    outputs: tuple[str, ...], schedules: dict[int, Schedule], target: Target, begin: float
) -> None:
    """Log what was compiled since a time of the clock."""
    seconds, batches = time.perf_counter() - begin, sorted(schedules)
    about = "%s: compiled for %s in %.2f s, for batches from %s rows on"
    LOG.info(about, _name(outputs), target.to_dict(), seconds, batches)


def _name(outputs: tuple[str, ...]) -> str:
    return ", ".join(outputs)


def _describe_model(
    code_key: str, laid_out: LaidOut, schedules: dict[int, Schedule], signature: str
) -> Archive:
    """Return the entry of a model: the key of its code, schedules, and arrays unless too large."""
    texts = {str(smallest): sch.to_json() for smallest, sch in schedules.items()}
    about = {"code": code_key, "schedules": texts, "signature": signature}
    parts, functions = argument_parts.to_parts(laid_out.arguments)
    parts[COLUMNS] = laid_out.columns
    if sum(array.nbytes for array in parts.values()) > MAX_ENTRY_BYTES:
        return Archive(about, {})
    return Archive({**about, "functions": functions}, parts)


def _load(cache: CodeCache, key: str, target: Target) -> Library | None:
    """Return a library of the cache; None if it is not there, or cannot run."""
    found = cache.read(key)
    if found is None or find_obstacle(found.manifest["made_for"]) is not None:
        return None
    form = found.manifest["form"]
    code = MachineCode(form, found.parts[f"code.{form}"], found.manifest["made_for"])
    return load_library(code, target)


def _keep(cache: CodeCache, key: str, library: Library, target: Target) -> Library:
    """Store a library; return it as it comes back, for so LLVM makes machine code of it once."""
    try:
        code = to_machine_code(library, target)
    except BuildError as error:  # no room for temporary files; the library itself needs none
        LOG.warning("%s keeps nothing: %s", cache.folder, error)
        return library
    about = {"form": code.form, "made_for": code.made_for}
    cache.write(key, Archive(about, {f"code.{code.form}": code.data}))
    if code.form != LINKED:
        return library
    return load_library(code, target) or library


def _are_ours(schedules: dict[int, Schedule]) -> bool:
    """Return whether the sources of this package are all that lays the model out."""
    layouts = (find(sch.representation) for sch in schedules.values())
    return all(layout.__module__.partition(".")[0] == PACKAGE.name for layout in layouts)
