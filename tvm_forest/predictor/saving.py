"""A predictor as a file: code, model, schedule, and a manifest that says what they are.

takes: Predictor; gives: bytes, and a Predictor again, without any training library.

The stored code is used where it can run; elsewhere (another TVM, another version of this package, a
CPU that lacks an instruction) the stored model is compiled anew.
"""

from __future__ import annotations

import hashlib
import os
import sys
from functools import partial
from typing import Any

import numpy as np

from .. import archive
from ..archive import Archive
from ..compiler import compile_forest
from ..errors import BuildError, ForestError, ModelFormatError
from ..forest.fields import from_parts, to_parts
from ..schedule_prims import Schedule
from ..schedule_prims.batches import by_batch
from ..target import Target, parse_target
from ..targets import machine_code
from ..targets.machine_code import MachineCode
from ..threads import check_n_jobs
from .building import build, predictor_class
from .predictor import Predictor

FORMAT = 3
"""Counts up when an older version of the package would read a file wrongly."""

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
    where += f": {archive.shown(str(file))}"
    return from_bytes(archive.read_file(file, where), where, signature)


def to_bytes(predictor: Predictor) -> bytes:
    """Return what `save` writes.

    Raises:
        UnsupportedModel: see `save`.
    """
    libraries = list(predictor.libraries)  # before the arrays: another thread may add one
    values, arrays = to_parts(predictor.forest)
    parts: dict[str, Any] = {f"forest/{name}.npy": array for name, array in arrays.items()}
    parts["columns.npy"] = predictor.columns
    functions = _arrays_in(parts, predictor)
    first, *others = (
        _code_in(parts, f"{i or ''}", machine_code.of(library, predictor.target))
        | {"functions": {name: functions[name] for name in names}}
        for i, (library, names) in enumerate(libraries)
    )
    manifest = {
        "kind": KIND,
        "format": FORMAT,
        "versions": _versions(),
        "signature": predictor.signature,
        "row_width": predictor.forest.row_width,
        "n_jobs": predictor.n_jobs,
        "target": predictor.target.to_dict(),
        **first,
        "others": others,
        "forest": values,
        "schedules": {str(k): sch.to_json() for k, sch in predictor.schedules.items()},
    }
    return archive.pack(Archive(manifest, parts))


def _arrays_in(parts: dict[str, Any], predictor: Predictor) -> dict[str, list[str]]:
    """Put arrays in, which functions and libraries share; return their names by function."""
    names: dict[bytes, str] = {}
    functions: dict[str, list[str]] = {}
    for function, tensors in list(predictor.arguments.items()):
        functions[function] = []
        for array in (tensor.numpy() for tensor in tensors):
            about = f"{array.dtype.str} {array.shape} ".encode()
            digest = hashlib.sha256(about + array.tobytes()).digest()
            name = names.setdefault(digest, f"arrays/{len(names)}.npy")
            parts[name] = array
            functions[function].append(name)
    return functions


def _code_in(parts: dict[str, Any], number: str, code: MachineCode) -> dict[str, Any]:
    """Put code in; return what the manifest says of it."""
    parts[f"code{number}.{code.form}"] = code.data
    return {"code": {"form": code.form, "made_for": code.made_for}}


def from_bytes(
    data: bytes, where: str = "load_predictor", signature: str | None = None
) -> Predictor:
    """Return the predictor that `to_bytes` was given.

    Raises:
        ModelFormatError, BuildError: see `load_predictor`.
    """
    manifest, parts = archive.unpack(data, where)
    _check(manifest, where, signature)
    try:
        return _predictor(manifest, parts)
    except (BuildError, ModelFormatError):
        raise
    except (ForestError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise ModelFormatError(
            f"{where}: the file is intact but not as expected ({type(error).__name__}: "
            f"{error!s:.300}); build and save it again"
        ) from None


def _check(manifest: dict[str, Any], where: str, signature: str | None) -> None:
    for field, wanted, remedy in (
        ("kind", KIND, "give what Predictor.save wrote"),
        ("format", FORMAT, "read it with the version of tvm_forest that wrote it, or save anew"),
        ("signature", signature, "the model has changed since; build and save it again"),
    ):
        found = manifest.get(field)
        if wanted is not None and found != wanted:
            raise ModelFormatError(
                f"{where}: field '{field}': expected {wanted!r}, got {archive.shown(found)}, "
                f"written by {archive.shown(manifest.get('versions'))}; {remedy}"
            )


def _predictor(manifest: dict[str, Any], parts: dict[str, Any]) -> Predictor:
    prefix = "forest/"
    own = {k[len(prefix) : -4]: v for k, v in parts.items() if k.startswith(prefix)}
    forest = from_parts(manifest["forest"], own)
    named = {int(k): Schedule.from_json(v) for k, v in manifest["schedules"].items()}
    schedules = by_batch(named, "load_predictor")
    target = parse_target(manifest["target"])
    check_n_jobs("load_predictor", manifest["n_jobs"])
    stored = [manifest, *manifest.get("others", ())]  # older files have all functions in one
    same = manifest["versions"]["tvm_forest"] == _versions()["tvm_forest"]
    found = [_library(x, parts, target, f"{i or ''}") for i, x in enumerate(stored) if same]
    if not same or found[0] is None:
        predictor = build(forest, schedules, target, exact=False, signature=manifest["signature"])
    else:
        about = (parts["columns.npy"], target, manifest["signature"])
        given = [
            {k: [parts[name] for name in names] for k, names in x["functions"].items()}
            for x in stored
        ]
        later = partial(compile_forest, forest, schedules, target)
        serves = predictor_class(found[0])
        predictor = serves(found[0], given[0], forest, schedules, *about, later=later)
        for library, arguments in zip(found[1:], given[1:], strict=True):
            if library is not None:
                predictor.bind(library, arguments)
    predictor.n_jobs = manifest["n_jobs"]
    return predictor


def _library(stored: dict[str, Any], parts: dict[str, Any], target: Target, number: str) -> Any:
    """Return stored code, or None if it has to be compiled anew."""
    form, made_for = stored["code"]["form"], stored["code"]["made_for"]
    if not machine_code.runs_here(made_for):
        return None
    return machine_code.load(MachineCode(form, parts[f"code{number}.{form}"], made_for), target)


def _versions() -> dict[str, str]:
    package = sys.modules[__name__.partition(".")[0]]
    return {"tvm_forest": package.__version__, "numpy": np.__version__}
