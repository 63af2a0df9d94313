"""A predictor as a file: code, model, schedule, and a manifest that says what they are.

takes: Predictor; gives: bytes, and a Predictor again, without any training library.

The stored code is used where it can run; elsewhere (another TVM, another version of this package, a
CPU that lacks an instruction) the stored model is compiled anew.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from .. import archive
from ..compiler import Compiled
from ..errors import BuildError, ForestError, ModelFormatError, UnsupportedModel
from ..forest.fields import from_fields, to_fields
from ..schedule_prims import Schedule
from ..schedule_prims.batches import arrange_by_batch
from ..target import Target, parse_target
from ..targets import machine_code
from ..targets.machine_code import MachineCode
from ..threads import check_n_jobs
from . import argument_parts
from .building import build, class_for
from .predictor import Predictor

FORMAT = 3
"""A number that grows when an older version of the package would read a file wrongly."""

KIND = "predictor"


def save(predictor: Predictor, path: str | os.PathLike[str]) -> None:
    """See `Predictor.save`."""
    where = "save: argument 'path'"
    file = archive.to_path(path, where)
    archive.check_place(file, where)
    archive.write_file(file, to_bytes(predictor), where)


def load_predictor(path: str | os.PathLike[str], signature: str | None = None) -> Predictor:
    """See `tvm_forest.load_predictor`; the signature is that of the model, or None for any."""
    where = "load_predictor: argument 'path'"
    file = archive.to_path(path, where)
    where += f": {archive.shorten(str(file))}"
    return from_bytes(archive.read_file(file, where), where, signature)


def to_bytes(predictor: Predictor) -> bytes:
    """Return what `save` writes.

    Raises:
        UnsupportedModel: see `save`.
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
    for number, (library, names) in enumerate(libraries):
        code = machine_code.to_machine_code(library, predictor.target)
        parts[_name_code(number, code.form)] = code.data
        functions = {name: arrays_of[name] for name in names}
        about_code = {"form": code.form, "made_for": code.made_for}
        stored.append({"code": about_code, "functions": functions})
    manifest = {
        "kind": KIND,
        "format": FORMAT,
        "versions": _versions(),
        "signature": predictor.signature,
        "row_width": predictor.forest.row_width,
        "n_jobs": predictor.n_jobs,
        "target": predictor.target.to_dict(),
        **stored[0],
        "others": stored[1:],
        "forest": values,
        "schedules": {str(k): sch.to_json() for k, sch in predictor.schedules.items()},
    }
    return archive.pack(archive.Archive(manifest, parts))


def _name_code(number: int, form: str) -> str:
    """Name the part that holds the code of a library, counted from 0."""
    return f"code{number or ''}.{form}"


def from_bytes(
    data: bytes, where: str = "load_predictor", signature: str | None = None
) -> Predictor:
    """Return the predictor that `to_bytes` was given.

    Raises:
        ModelFormatError, BuildError: see `load_predictor`.
    """
    manifest, parts = archive.unpack(data, where)
    _check_manifest(manifest, where, signature)
    try:
        return _to_predictor(manifest, parts)
    except (BuildError, ModelFormatError):
        raise
    except (ForestError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise ModelFormatError(
            f"{where}: the file is intact but not as expected ({type(error).__name__}: "
            f"{error!s:.300}); build and save it again"
        ) from None


def _check_manifest(manifest: dict[str, Any], where: str, signature: str | None) -> None:
    for field, wanted, remedy in (
        ("kind", KIND, "give what Predictor.save wrote"),
        ("format", FORMAT, "read it with the version of tvm_forest that wrote it, or save anew"),
        ("signature", signature, "the model has changed since; build and save it again"),
    ):
        stored = manifest.get(field)
        if wanted is not None and stored != wanted:
            raise ModelFormatError(
                f"{where}: field '{field}': expected {wanted!r}, got {archive.shorten(stored)}, "
                f"written by {archive.shorten(manifest.get('versions'))}; {remedy}"
            )


def _to_predictor(manifest: dict[str, Any], parts: dict[str, Any]) -> Predictor:
    arrays = {
        name.removeprefix("forest/").removesuffix(".npy"): part
        for name, part in parts.items()
        if name.startswith("forest/")
    }
    forest, target = from_fields(manifest["forest"], arrays), parse_target(manifest["target"])
    named = {int(k): Schedule.from_json(v) for k, v in manifest["schedules"].items()}
    model = (forest, arrange_by_batch(named, "load_predictor"), target)
    check_n_jobs("load_predictor", manifest["n_jobs"])
    stored = [manifest, *manifest.get("others", ())]  # older files have all functions in one
    if manifest["versions"]["tvm_forest"] != _versions()["tvm_forest"]:
        stored = []
    first, *others = [_load(x, number, parts, target) for number, x in enumerate(stored)] or [None]
    if first is None:
        predictor = build(*model, exact=False, signature=manifest["signature"])
    else:
        predictor = class_for(first.library, target)(first, *model, manifest["signature"])
        for compiled in filter(None, others):
            predictor._functions.bind(compiled.library, compiled.arguments)
    predictor.n_jobs = manifest["n_jobs"]
    return predictor


def _load(
    stored: dict[str, Any], number: int, parts: dict[str, Any], target: Target
) -> Compiled | None:
    """Load the functions of a library; None if its code cannot run here."""
    form, made_for = stored["code"]["form"], stored["code"]["made_for"]
    if not machine_code.runs_here(made_for):
        return None
    code = MachineCode(form, parts[_name_code(number, form)], made_for)
    library = machine_code.load_library(code, target)
    if library is None:
        return None
    arguments = argument_parts.from_parts(parts, stored["functions"])
    return Compiled(library, arguments, parts["columns.npy"])


def _versions() -> dict[str, str]:
    package = sys.modules[__name__.partition(".")[0]]
    return {"tvm_forest": package.__version__, "numpy": np.__version__}
