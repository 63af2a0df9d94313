"""Saves a predictor as a file: code, model, schedules, and a manifest that describes them.

takes: Predictor; gives: bytes, and a Predictor again; no training library is needed.

The stored code is used where it can run; elsewhere (another TVM or package version, a CPU that
lacks an instruction), or if the user does not trust it, the stored model is compiled again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import BuildError, InputError, ModelFormatError, UnsupportedModel
from ..forest.fields import from_fields, to_fields
from ..layouts.laying_out import CodeOf, Compiled, argument_parts
from ..layouts.laying_out.request import BuildRequest
from ..runtime.loading import MachineCode
from ..runtime.results import OF_LEAVES, OF_TABLES
from ..runtime.threads import check_n_jobs
from ..schedule_prims import Schedule
from ..schedule_prims.batches import arrange_by_batch
from ..system import archive
from ..target import Target, parse_target
from ..targets.stored_code import find_obstacle, load_library, to_machine_code
from .building import build, to_predictor
from .predictor import Predictor

LOG = logging.getLogger(__name__)

FORMAT = 3
"""File format; incremented when older versions would misread a file."""

KIND, PAIR = "predictor", "crossover"
_WROTE = {
    KIND: "give what Predictor.save wrote; Crossover.load reads this in Python, and its attributes "
    "'cpu' and 'gpu' can be saved each by itself",
    PAIR: "give what Crossover.save wrote, or read that of a Predictor by load_predictor",
}

Source = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO
"""A saved predictor: a path, bytes, or a readable file object."""

Reader = Callable[[dict[str, Any], dict[str, Any], str, bool], Predictor]
"""Makes a predictor from a manifest, the archive's parts, the beginning of error messages, and
whether to compile the model again."""


def save(file: str | os.PathLike[str] | BinaryIO, make: Callable[[], bytes]) -> None:
    """Write the bytes that `make` returns to a file; `make` is called once its path is checked.

    Raises:
        InputError: the file cannot be written.
    """
    where = "save: argument 'file'"
    if hasattr(file, "write"):
        file.write(make())
        return
    path = archive.to_path(file, where)
    archive.check_place(path, where)
    archive.write_file(path, make(), where)


def load_predictor(
    file: Source,
    signature: str | None = None,
    recompile: bool = False,
    others: Mapping[str, Reader] | None = None,
) -> Predictor:
    """See `tvm_forest.load_predictor`; the signature is that of the model, or None for any.

    `others` are functions that read archives of other kinds, by kind.
    """
    data, where = read(file, "load_predictor: argument 'file'")
    return from_bytes(data, where, signature, recompile, others)


def read(file: Source, where: str) -> tuple[bytes, str]:
    """Return the bytes of a file, and its name for errors.

    Raises:
        ModelFormatError, InputError: see `tvm_forest.load_predictor`.
    """
    if isinstance(file, bytes | bytearray | memoryview):
        return bytes(file), where
    if hasattr(file, "read"):
        data = file.read()
        if not isinstance(data, bytes):
            raise InputError(f"{where}: it is open for text; open it with mode 'rb'")
        return data, where
    path = archive.to_path(file, where)
    where += f": {archive.shorten(str(path))}"
    return archive.read_file(path, where), where


def to_bytes(predictor: Predictor) -> bytes:
    """Return the bytes that `Predictor.save` writes.

    Raises:
        UnsupportedModel, BuildError: see `Predictor.save`.
    """
    if predictor.target.is_elsewhere:
        raise UnsupportedModel(
            f"save: target {predictor.target.to_dict()}: code for another machine cannot be loaded "
            "here; use Predictor.export_library"
        )
    libraries = list(predictor.libraries)  # before the arrays: another thread may add one
    values, forest_arrays = to_fields(predictor.forest)
    parts: dict[str, Any] = {f"forest/{name}.npy": array for name, array in forest_arrays.items()}
    parts["columns.npy"] = predictor.columns
    arguments = {k: [x.numpy() for x in read] for k, read in list(predictor.arguments.items())}
    arrays, arrays_of = argument_parts.to_parts(arguments)
    parts |= arrays
    stored: list[dict[str, Any]] = []
    for number, part in enumerate(libraries):
        code = to_machine_code(part.library, predictor.target)
        parts[_name_code(number, code.form)] = code.data
        functions = {name: arrays_of[name] for name in part.symbols}
        about_code = {"form": code.form, "made_for": code.made_for, "symbols": part.symbols}
        about_code["block_rows"] = part.block_rows
        stored.append({"code": about_code, "functions": functions})
    manifest = {
        **describe(predictor),
        "row_width": predictor.forest.row_width,
        "n_jobs": predictor.n_jobs,
        "target": predictor.target.to_dict(),
        **stored[0],
        "others": stored[1:],
        "forest": values,
        "schedules": {str(k): sch.to_json() for k, sch in predictor.schedules.items()},
        "has_own_schedules": predictor.request.given is not None,
    }
    return archive.pack(archive.Archive(manifest, parts))


def describe(predictor: Predictor) -> dict[str, Any]:
    """Return the fields of a manifest that `check_manifest` checks."""
    about = {"kind": KIND, "format": FORMAT, "versions": _versions()}
    return {**about, "signature": predictor.signature}


def _name_code(number: int, form: str) -> str:
    """Return the name of the archive part with the code of a library, counted from 0."""
    return f"code{number or ''}.{form}"


def from_bytes(
    data: bytes,
    where: str = "load_predictor",
    signature: str | None = None,
    recompile: bool = False,
    others: Mapping[str, Reader] | None = None,
) -> Predictor:
    """Rebuild a predictor from the output of `to_bytes`; with `recompile`, its code is not run.

    Raises:
        ModelFormatError, BuildError: see `tvm_forest.load_predictor`.
    """
    manifest, parts = archive.unpack(data, where)
    kind = str(manifest.get("kind"))
    if others is not None and kind in others:
        check_manifest(manifest, where, signature, kind)
        return others[kind](manifest, parts, where, recompile)
    check_manifest(manifest, where, signature)
    with refuse_unexpected(where):
        return _to_predictor(manifest, parts, recompile)


def read_saved(path: str) -> tuple[BuildRequest, dict[str, Any], str]:
    """Return the build request of a saved predictor; its code is not loaded.

    Also returns what its code needs of a machine, see `MachineCode.made_for`, and the version of
    this package that wrote the file.

    Raises:
        ModelFormatError: see `tvm_forest.load_predictor`.
    """
    where = f"read_saved: {archive.shorten(path)}"
    manifest, parts = archive.unpack(archive.read_file(Path(path), where), where)
    check_manifest(manifest, where, None)
    with refuse_unexpected(where):
        made_for, version = manifest["code"]["made_for"], manifest["versions"]["tvm_forest"]
        return _read_model(manifest, parts), made_for, version


@contextlib.contextmanager
def refuse_unexpected(where: str) -> Iterator[None]:
    """Convert unexpected exceptions about a file's content to a ModelFormatError with its name."""
    try:
        yield
    except (BuildError, ModelFormatError):
        raise
    except Exception as error:  # a file written to do harm can cause any of them
        raise ModelFormatError(
            f"{where}: the file is intact but not as expected ({type(error).__name__}: "
            f"{error!s:.300}); build and save it again"
        ) from None


def check_manifest(
    manifest: dict[str, Any], where: str, signature: str | None, kind: str = KIND
) -> None:
    """Refuse an archive of another kind, of another format version, or of another model.

    Raises:
        ModelFormatError: it is one of these.
    """
    for field, wanted, remedy in (
        ("kind", kind, _WROTE.get(kind, _WROTE[KIND])),
        ("format", FORMAT, "read it with the version of tvm_forest that wrote it, or save anew"),
        ("signature", signature, "the model has changed since; build and save it again"),
    ):
        stored = manifest.get(field)
        if wanted is not None and stored != wanted:
            raise ModelFormatError(
                f"{where}: field '{field}': expected {wanted!r}, got {archive.shorten(stored)}, "
                f"written by {archive.shorten(manifest.get('versions'))}; {remedy}"
            )


def _read_model(manifest: dict[str, Any], parts: dict[str, Any]) -> BuildRequest:
    """Return the stored model, schedules and target as a request."""
    arrays = {
        name.removeprefix("forest/").removesuffix(".npy"): part
        for name, part in parts.items()
        if name.startswith("forest/")
    }
    forest, target = from_fields(manifest["forest"], arrays), parse_target(manifest["target"])
    named = {int(k): Schedule.from_json(v) for k, v in manifest["schedules"].items()}
    schedules = arrange_by_batch(named, "load_predictor")
    request = BuildRequest.of(forest, schedules, target, signature=manifest["signature"])
    return replace(request, given=schedules if manifest.get("has_own_schedules") else None)


def _to_predictor(manifest: dict[str, Any], parts: dict[str, Any], recompile: bool) -> Predictor:
    request = _read_model(manifest, parts)
    check_n_jobs("load_predictor", manifest["n_jobs"])
    code = "it is not trusted" if recompile else _load_all(manifest, parts, request.target)
    if isinstance(code, str):
        LOG.warning("the stored code is not used, and the model is compiled anew: %s", code)
        predictor = build(request)
    else:
        predictor = to_predictor(request, code)
    predictor.n_jobs = manifest["n_jobs"]
    return predictor


def _load_all(manifest: dict[str, Any], parts: dict[str, Any], target: Target) -> Compiled | str:
    """Load all stored functions that can run here, or return why the stored code is not used.

    It is not used if another version of the package wrote it, or a function of sums cannot run.

    Functions of leaves and of contributions that cannot be loaded are compiled on first use.
    """
    version, here = (x["tvm_forest"] for x in (manifest["versions"], _versions()))
    if version != here:
        return f"it is for tvm_forest {version!r}, and here is {here!r}"
    stored = [manifest, *manifest.get("others", ())]  # older files have all functions in one
    arguments, code = dict[str, list[Any]](), list[CodeOf]()
    for number, about in enumerate(stored):
        loaded = _load(about, number, parts, target)
        if isinstance(loaded, str):
            if any(name not in (*OF_LEAVES, *OF_TABLES) for name in about["functions"]):
                return loaded
            continue
        code.append(loaded)
        arguments |= argument_parts.from_parts(parts, about["functions"])
    return Compiled(code, arguments, parts["columns.npy"])


def _load(
    stored: dict[str, Any], number: int, parts: dict[str, Any], target: Target
) -> CodeOf | str:
    """Load a library, or return why its code cannot run here.

    Args:
        stored: the manifest's fields about the library.
        number: its number among the libraries of the file, from 0.
        parts: the parts of the archive.
        target: the target of the code.

    Raises:
        ValueError: its functions are not those whose arrays are stored, or a field is missing.
    """
    form, made_for = stored["code"]["form"], stored["code"]["made_for"]
    obstacle = find_obstacle(made_for)
    if obstacle is not None:
        return obstacle
    code = MachineCode(form, parts[_name_code(number, form)], made_for)
    library = load_library(code, target)
    if library is None:
        return "the system cannot load it"
    functions = stored["functions"]
    symbols = stored["code"].get("symbols") or {name: name for name in functions}
    if symbols.keys() != functions.keys():
        raise ValueError(f"code of {list(symbols)}, and arrays of {list(functions)}")
    rows = stored["code"].get("block_rows", {})
    if not rows and any(name in OF_TABLES for name in functions):
        raise ValueError(f"code of {list(symbols)} without its 'block_rows'")
    return CodeOf(library, symbols, block_rows=rows)


def _versions() -> dict[str, str]:
    package = sys.modules[__name__.partition(".")[0]]
    return {"tvm_forest": package.__version__, "numpy": np.__version__}
