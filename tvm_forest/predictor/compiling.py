"""Compiles models, or takes their code from the cache of earlier processes.

takes: BuildRequest; gives: Compiled.

    model, schedules, machine --digest--> entry "model", the keys of the code,   nothing is chosen,
                                          schedules and arrays of the model      laid out or lowered
    function, as it is laid --digest-->   entry "kind", the key of the code,     it is not lowered
    out                                   and the function's name in it

The first entry saves a process that builds the same model all work of `compile_forest`, and TVM's
import; for a large model it has no arrays, and the process lays the model out. The second entry
belongs to all functions of one kind, see `layouts/laying_out/kinds.py`; only kinds not seen before
are compiled. The code itself is stored by its content, see `targets/kept_code.py`. Code that a
predictor of this process already runs is not read again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from ..errors import BuildError, ForestError
from ..layouts.laying_out import CodeOf, Compiled, LaidFunction, LaidOut, argument_parts, lay_out
from ..layouts.laying_out.kinds import describe_kinds
from ..layouts.laying_out.request import BuildRequest
from ..layouts.protocol import find
from ..runtime import Library
from ..runtime.loading import LINKED
from ..schedule_prims import Schedule
from ..search.machines import own_file
from ..system.archive import Archive
from ..system.code_cache import MAX_ENTRY_BYTES, PACKAGE, CodeCache, digest, digest_sources
from ..system.late import import_late
from ..system.process.ending import is_waited_for
from ..system.process.locks import holds_off_forks
from ..target import Target
from ..targets.stored_code import describe_machine, find_code_cache, load_kept

if TYPE_CHECKING:
    from .. import compiler
    from ..search import heuristic, workload
    from ..targets import bundles, kept_code
    from . import kept_choices
else:
    bundles = import_late("tvm_forest.targets.bundles")
    compiler = import_late("tvm_forest.compiler")
    heuristic = import_late("tvm_forest.search.heuristic")
    kept_choices = import_late("tvm_forest.predictor.kept_choices")
    kept_code = import_late("tvm_forest.targets.kept_code")
    workload = import_late("tvm_forest.search.workload")

LOG = logging.getLogger(__name__)

COLUMNS = "columns.npy"
"""Archive part of an entry with arrays that holds `Compiled.columns`."""

_running = WeakValueDictionary[tuple[Path, str], CodeOf]()
"""Code that predictors of this process run, by cache folder and key of the kind."""


@is_waited_for
@holds_off_forks
def compile_or_load(request: BuildRequest) -> tuple[BuildRequest, Compiled]:
    """Compile a request with `compile_forest`, or load its code from the cache or a bundle.

    Returns:
        The request, with its schedules, and with the signature of the model if the cache knows it;
        the compiled functions.

    Raises:
        ScheduleError, BuildError, InputError: see `compile_forest` and `check_machine`.
    """
    request.check_machine()
    place = _find_place(request)
    known = _find_model(place, request)
    if known is not None:
        return known
    asked, (request, laid_out) = request, _lay_out(request, place)
    kinds = {} if place is None else _describe_kinds(request, laid_out)
    code = [] if place is None else _find_code(place.cache, kinds, request.target)
    missing = [x for x in laid_out.functions if not any(x.name in y.symbols for y in code)]
    if not missing:  # no entry: laying the model out again is as fast as reading one
        LOG.info("%s: code is that of other models of its kind", ", ".join(request.outputs))
        return request, Compiled(code, laid_out.arguments, laid_out.columns)
    bundled = find_bundled(asked)
    if bundled is not None:
        return bundled
    symbols = {kinds[x.name]: x.name for x in missing if x.name in kinds}
    about = str(symbols) if len(symbols) == len(missing) else ""
    compiled = compiler.compile_forest(request, laid_out._replace(functions=missing), about=about)
    new = replace(compiled.code[0], kinds=symbols)
    compiled = compiled._replace(code=[*code, new], arguments=laid_out.arguments)
    if place is not None and new.key:
        _run(place.cache, new)
    if place is not None and place.cache.read(new.key) is not None:  # there was room for it
        for kind, symbol in symbols.items():
            place.cache.write(kind, Archive({"code": new.key, "symbol": symbol}, {}))
        place.cache.write(place.key, _describe_model(request, compiled))
    return request, compiled


def keep_shared(request: BuildRequest, name: str, compile: Callable[[], Library]) -> Library:
    """Return code that depends on no model, from the cache if possible.

    Args:
        request: for the target and the machine.
        name: distinguishes it from other such code.
        compile: compiles it.
    """
    cache = find_code_cache(request.target)
    key = digest("shared", name, *describe_machine_code(request))
    library = None if cache is None else load_kept(cache, key, request.target)
    if library is None:
        library = compile()
        if cache is not None:
            library = kept_code.CodeKeeper(cache, request.target, "").keep(key, library)
    return library


@is_waited_for
@holds_off_forks
def find_known(request: BuildRequest) -> tuple[BuildRequest, Compiled] | None:
    """Return the result of `compile_or_load` if the cache or a bundle has the code; else None."""
    return find_kept(request) or find_bundled(request)


def find_kept(request: BuildRequest) -> tuple[BuildRequest, Compiled] | None:
    """Return the result of `compile_or_load` if the cache has the code; else None."""
    place = _find_place(request)
    known = _find_model(place, request)
    return known if known is not None or place is None else _find_of_kinds(request, place)


def find_bundled(request: BuildRequest) -> tuple[BuildRequest, Compiled] | None:
    """Return the result of `compile_or_load` if a bundle has the code; else None.

    The model is then built for the bundle's class of processors.
    """
    known = bundles.find_bundles(request.target) if are_ours(request) else []
    found = (_find_of_kinds(replace(request, target=x.target), _Place(x, "")) for x in known)
    return next((model for model in found if model is not None), None)


def list_entries(request: BuildRequest) -> Iterator[tuple[str, Archive]]:
    """Yield (key in a bundle, entry) for the code of a model's functions that is in the cache.

    With these entries in a bundle, similar models need no compiler.

    Raises:
        BuildError: the code in the cache needs TVM.
    """
    place = _find_place(request)
    if place is None:
        return
    request, laid_out = _lay_out(request, place)
    bundled = _describe_kinds(request, laid_out, in_bundle=True)
    for name, kind in _describe_kinds(request, laid_out).items():
        entry = place.cache.read(kind)
        code = None if entry is None else place.cache.read(entry.manifest["code"])
        if entry is None or code is None:
            continue
        if code.manifest["form"] != LINKED:
            raise BuildError(
                "warm: argument 'out': code needs TVM where no C compiler has linked it; install a "
                "C compiler, empty the cache by `tvm-forest cache --clear`, and try again"
            )
        yield bundled[name], entry
        yield entry.manifest["code"], code


def _find_of_kinds(request: BuildRequest, place: _Place) -> tuple[BuildRequest, Compiled] | None:
    """Lay a model out, and return it with cached code of its functions' kinds.

    Returns:
        The result of `compile_or_load`; None if the code of a function is not there.
    """
    request, laid_out = _lay_out(request, place)
    kinds = _describe_kinds(request, laid_out, in_bundle=not place.key)
    code = _find_code(place.cache, kinds, request.target)
    if sum(len(x.symbols) for x in code) < len(laid_out.functions):
        return None
    return request, Compiled(code, laid_out.arguments, laid_out.columns)


class _Place(NamedTuple):
    """A cache and the key of a model's entry in it; or a bundle and "", as it has no such entry."""

    cache: CodeCache
    key: str


def _find_place(request: BuildRequest) -> _Place | None:
    """Return where a model's cache entry is, or would be.

    None if there is no cache for the target, or a layout is not from this package.
    """
    cache = find_code_cache(request.target)
    if cache is None or not are_ours(request):
        return None
    return _Place(cache, _digest_model(request))


def _lay_out(request: BuildRequest, place: _Place | None) -> tuple[BuildRequest, LaidOut]:
    """Choose schedules if there are none, and lay the model out.

    With a cache, a retrained model gets the schedules that are compiled already.
    """
    if not request.schedules:
        work = workload.Workload(request.forest, request.target)
        if place is None:
            schedules = heuristic.default_schedules_for(work)
        else:
            schedules = kept_choices.keep_or_choose(work, place.cache)
        request = request.with_schedules(schedules)
    return request, lay_out(request)


def _describe_kinds(
    request: BuildRequest, laid_out: LaidOut, *, in_bundle: bool = False
) -> dict[str, str]:
    """Return the key of each function's kind, in the cache or a bundle, by the function's name."""
    kinds = describe_kinds([x for x in laid_out.functions if isinstance(x, LaidFunction)])
    if in_bundle:
        outputs = str(request.outputs)
        return {
            name: bundles.name_kind(request.target, outputs, kind) for name, kind in kinds.items()
        }
    machine = digest(*describe_machine_code(request))
    return {name: digest("kind", machine, kind) for name, kind in kinds.items()}


def _find_code(cache: CodeCache, kinds: dict[str, str], target: Target) -> list[CodeOf]:
    """Return the libraries that hold the code of functions.

    A library is one that this process runs already, or else is loaded from the cache. Functions
    whose code is in neither are left out.

    Args:
        cache: the cache.
        kinds: the key of each function's kind, by the function's name.
        target: the target of the code.
    """
    symbols, libraries = dict[str, dict[str, str]](), dict[str, Library | None]()
    for name, kind in kinds.items():
        running = _running.get((cache.folder, kind))
        if running is not None:
            key, symbol = running.key, running.kinds[kind]
            libraries[key] = running.library
        else:
            entry = cache.read(kind)
            if entry is None:
                continue
            key, symbol = str(entry.manifest["code"]), entry.manifest["symbol"]
        symbols.setdefault(key, {})[name] = symbol
    code = list[CodeOf]()
    for key, names in symbols.items():
        library = libraries[key] if key in libraries else load_kept(cache, key, target)
        if library is not None:
            of_kinds = {kinds[name]: symbol for name, symbol in names.items()}
            code.append(_run(cache, CodeOf(library, names, key, of_kinds)))
    return code


def _run(cache: CodeCache, code: CodeOf) -> CodeOf:
    """Return the code; record in `_running`, under each of its kinds, that this process runs it."""
    _running.update(((cache.folder, kind), code) for kind in code.kinds)
    return code


def _digest_model(request: BuildRequest) -> str:
    """Return the cache key of a model."""
    steps = [f"{smallest} {sch.to_json()}" for smallest, sch in request.schedules.items()]
    about = (request.origin.identity, *describe_machine_code(request))
    return digest("model", *about, *(steps or ["default", _read_own_machine()]))


def describe_machine_code(request: BuildRequest) -> list[str]:
    """Return what machine code depends on besides the model: outputs, compiler, machine, target."""
    target = request.target
    facts = {entry.name: getattr(target, entry.name) for entry in fields(target)}
    wanted = (f"{k} {sorted(v) if isinstance(v, frozenset) else v}" for k, v in facts.items())
    return [str(request.outputs), digest_sources(), describe_machine(), *wanted]


def _read_own_machine() -> str:
    """Return the text of the user's own machine file, which affects schedules; "" if none."""
    file = own_file()
    try:
        return "" if file is None else file.read_text("utf-8", "replace")
    except OSError:
        return ""


def _find_model(
    place: _Place | None, request: BuildRequest
) -> tuple[BuildRequest, Compiled] | None:
    """Return a model's compiled functions from the cache; None if it lacks the code."""
    known = None if place is None else place.cache.read(place.key)
    if known is None or place is None:
        return None
    try:
        wanted = [(str(key), dict(x), dict(rows)) for key, x, rows in known.manifest["code"]]
        texts = known.manifest["schedules"]
        schedules = {int(smallest): Schedule.from_json(x) for smallest, x in texts.items()}
        signature = known.manifest["signature"]
    except (ForestError, LookupError, TypeError, ValueError, AttributeError):
        return None
    code = [
        CodeOf(load_kept(place.cache, key, request.target), symbols, key, block_rows=rows)
        for key, symbols, rows in wanted
    ]
    if any(x.library is None for x in code):
        return None
    LOG.info("%s: code and arrays are those of the cache", ", ".join(request.outputs))
    request = replace(request, schedules=schedules, known_signature=signature)
    if COLUMNS in known.parts:
        arguments = argument_parts.from_parts(known.parts, known.manifest["functions"])
        return request, Compiled(code, arguments, known.parts[COLUMNS])
    laid_out = lay_out(request)
    return request, Compiled(code, laid_out.arguments, laid_out.columns)


def _describe_model(request: BuildRequest, compiled: Compiled) -> Archive:
    """Return a model's cache entry: keys of its code, schedules, and arrays unless too large."""
    about = {
        "code": [(x.key, x.symbols, x.block_rows) for x in compiled.code],
        "schedules": {str(k): sch.to_json() for k, sch in request.schedules.items()},
        "signature": request.signature,
    }
    parts, functions = argument_parts.to_parts(compiled.arguments)
    parts[COLUMNS] = compiled.columns
    if sum(array.nbytes for array in parts.values()) > MAX_ENTRY_BYTES:
        return Archive(about, {})
    return Archive({**about, "functions": functions}, parts)


def are_ours(request: BuildRequest) -> bool:
    """Return whether all layouts of a request come from this package."""
    layouts = (find(sch.layout) for sch in request.schedules.values())
    return all(layout.__module__.partition(".")[0] == PACKAGE.name for layout in layouts)
