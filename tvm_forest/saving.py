"""A predictor as a file: code, model, schedule, and a manifest that says what they are.

takes: Predictor; gives: bytes, and a Predictor again, without any training library.

Importing this module gives `Predictor` its method `save`, and makes it a thing that can be pickled
and copied. The stored code is used where it can run; elsewhere (another TVM, another version of
this package, a CPU that lacks an instruction) the stored model is compiled anew.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from . import archive, ranges  # noqa: F401  # ranges gives Predictor its method rounds
from .archive import Archive
from .device_predictor import predictor_class
from .errors import BuildError, ForestError, ModelFormatError
from .forest.parts import from_parts, to_parts
from .lower import build
from .runtime import Predictor
from .schedule_prims import Schedule
from .schedule_prims.batches import by_batch
from .target import Target, parse_target
from .targets import machine_code
from .targets.machine_code import MachineCode
from .threads import check_n_jobs

FORMAT = 3
"""Counts up when an older version of the package would read a file wrongly."""

KIND = "predictor"


def save(self: Predictor, path: str | os.PathLike[str]) -> None:
    """Write the predictor to a file, which appears under its name once it is complete.

    Args:
        path: of the file, by custom `<name>.tvmf`; read it with `tvm_forest.load_predictor`.

    Raises:
        InputError: the file cannot be written.
        UnsupportedModel: class labels that are neither texts nor numbers.
    """
    archive.write_file(path, to_bytes(self))


def load_predictor(path: str | os.PathLike[str], signature: str | None = None) -> Predictor:
    """Read what `save` wrote.

    Args:
        path: of the file.
        signature: `Forest.signature` of the model that it must be of; None for any.

    Raises:
        ModelFormatError: the file is missing, damaged, foreign, of a newer version, or stale.
        BuildError: it asks for a CPU that this machine cannot stand in for.
    """
    where = f"load_predictor: argument 'path': '{path}'"
    return from_bytes(archive.read_file(path, where), where, signature)


def to_bytes(predictor: Predictor) -> bytes:
    """Return what `save` writes.

    Raises:
        UnsupportedModel: see `save`.
    """
    library, arguments = predictor.whole()
    code = machine_code.of(library, predictor.target)
    values, arrays = to_parts(predictor.forest)
    parts: dict[str, Any] = {f"code.{code.form}": code.data}
    parts |= {f"forest/{name}.npy": array for name, array in arrays.items()}
    parts["columns.npy"] = predictor.columns
    names: dict[int, str] = {}  # functions share arrays
    for array in (a for arrays in arguments.values() for a in arrays):
        if id(array) not in names:
            names[id(array)] = f"arrays/{len(names)}.npy"
            parts[names[id(array)]] = array
    manifest = {
        "kind": KIND,
        "format": FORMAT,
        "versions": _versions(),
        "signature": predictor.signature,
        "row_width": predictor.forest.row_width,
        "n_jobs": predictor.n_jobs,
        "target": predictor.target.to_dict(),
        "code": {"form": code.form, "made_for": code.made_for},
        "functions": {k: [names[id(a)] for a in v] for k, v in arguments.items()},
        "forest": values,
        "schedules": {str(k): sch.to_json() for k, sch in predictor.schedules.items()},
    }
    return archive.pack(Archive(manifest, parts))


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
            f"{where}: the file is intact but not as expected ({type(error).__name__}: {error}); "
            "build and save it again"
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
                f"{where}: field '{field}': expected {wanted!r}, got {found!r}, written by "
                f"{manifest.get('versions')}; {remedy}"
            )


def _predictor(manifest: dict[str, Any], parts: dict[str, Any]) -> Predictor:
    prefix = "forest/"
    own = {k[len(prefix) : -4]: v for k, v in parts.items() if k.startswith(prefix)}
    forest = from_parts(manifest["forest"], own)
    named = {int(k): Schedule.from_json(v) for k, v in manifest["schedules"].items()}
    schedules = by_batch(named, "load_predictor")
    target = parse_target(manifest["target"])
    check_n_jobs("load_predictor", manifest["n_jobs"])
    library = _library(manifest, parts, target)
    if library is None:
        predictor = build(forest, schedules, target, exact=False, signature=manifest["signature"])
    else:
        arguments = {k: [parts[name] for name in v] for k, v in manifest["functions"].items()}
        about = (parts["columns.npy"], target, manifest["signature"])
        predictor = predictor_class(library)(library, arguments, forest, schedules, *about)
    predictor.n_jobs = manifest["n_jobs"]
    return predictor


def _library(manifest: dict[str, Any], parts: dict[str, Any], target: Target) -> Any:
    """Return the stored code, or None if it has to be compiled anew."""
    form, made_for = manifest["code"]["form"], manifest["code"]["made_for"]
    same = manifest["versions"]["tvm_forest"] == _versions()["tvm_forest"]
    if not same or not machine_code.runs_here(made_for):
        return None
    return machine_code.load(MachineCode(form, parts[f"code.{form}"], made_for), target)


def _versions() -> dict[str, str]:
    package = sys.modules[__name__.partition(".")[0]]
    return {"tvm_forest": package.__version__, "numpy": np.__version__}


def _reduce(self: Predictor) -> tuple[Callable[[bytes], Predictor], tuple[bytes]]:
    """Say how to pickle and copy a predictor."""
    return from_bytes, (to_bytes(self),)


Predictor.save = save  # type: ignore[method-assign]
Predictor.__reduce__ = _reduce  # type: ignore[method-assign, assignment]
