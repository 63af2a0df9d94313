"""Exports a predictor as a C library, which needs neither Python nor TVM.

takes: Predictor; gives: a shared or static library, an object file or a module of WebAssembly, with
its header; or a package of their sources.

The library consists of the compiled functions, the arrays of the model, and `library.c`, which
calls the functions. For an NVIDIA GPU the functions are kernels, with C code that launches them
(`cuda.c`). A C program calls `tvm_forest_predict`. Python calls the function "main" of a shared
library, for which it needs the package apache-tvm-ffi only:

    tvm_ffi.load_module("model.so")["main"](rows, margin)
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError, UnsupportedModel
from ...forest.contributions import ContributionTables
from ...system import archive
from ...system.process.ending import is_waited_for
from ...system.process.locks import holds_off_forks
from ...system.process.scratch import make_folder
from ...target import Target
from ..contributions import read_background
from .languages import LANGUAGES, PREFIX, check_language, list_sources
from .package import header, pack, write_sources
from .toolchain import AT_PATH, WHERE, Command, Toolchain, check_suffix, find_toolchain

if TYPE_CHECKING:
    from ..predictor import Predictor

AT_EXPLAINED = f"{WHERE}: argument 'contributions'"


@is_waited_for
@holds_off_forks
def export_library(
    predictor: Predictor,
    path: str | os.PathLike[str],
    prefix: str = PREFIX,
    cc: Command = None,
    to: str | None = None,
    contributions: bool = False,
    background: Any = None,
) -> None:
    """Write a library of a predictor to `path`, see `Predictor.export_library`, also for errors."""
    file, tools = check_wishes(predictor.target, path, prefix, cc, to, contributions)
    _check_exportable(predictor)
    if background is not None and not contributions:
        raise InputError(
            f"{WHERE}: argument 'background': rows, but contributions are not exported; give "
            "contributions=True, or leave it out"
        )
    tables = _make_tables(predictor, background) if contributions else None
    for name, data in ({} if to is None else list_sources(predictor, to)).items():
        place = file.parent / name
        with archive.refuse_unwritable(place, AT_PATH):
            place.parent.mkdir(parents=True, exist_ok=True)
        archive.write_file(place, data, AT_PATH)
    if to is not None and LANGUAGES[to].is_plain:
        return
    with make_folder("export_library") as sources:
        write_sources(predictor, prefix, sources, tables)
        forest, name = predictor.forest, file.with_suffix(".h").name
        explaining = () if tables is None else ("predict_contributions",)
        text = header(forest, predictor.target.kind == "cuda", prefix, bool(explaining))
        if tools.suffix == ".zip":
            packed = pack(forest.n_trees, text, prefix, name, tools.baseline, sources)
            return archive.write_file(file, packed, AT_PATH)
        made = tools.build(sources, prefix, file.name, explaining)
    archive.write_file(file, made, AT_PATH)
    archive.write_file(file.with_suffix(".h"), text.encode(), AT_PATH)


def list_files(path: Path, to: str | None = None) -> list[Path]:
    """Return the paths that an export writes: a package's folder, or the library and its header.

    A ".zip" with sources contains the header. `to` is the language of a package, None for none.
    """
    if to is not None:
        return [path]
    return [path] if path.suffix == ".zip" else [path, path.with_suffix(".h")]


def check_wishes(
    target: Target,
    path: str | os.PathLike[str],
    prefix: str,
    cc: Command = None,
    to: str | None = None,
    contributions: bool = False,
) -> tuple[Path, Toolchain]:
    """Check the arguments of an export before anything is compiled; make a package's folder.

    Returns:
        The path of the library, and the toolchain that makes it.

    Raises:
        InputError, UnsupportedModel, BuildError: see `Predictor.export_library`.
    """
    if not isinstance(prefix, str) or not re.fullmatch("[A-Za-z][A-Za-z0-9_]*_", prefix):
        raise InputError(
            f"{WHERE}: argument 'prefix': {archive.shorten(prefix)} cannot begin the names of C "
            "functions; give a letter, then letters, digits and underscores, an underscore at the "
            "end, such as 'airline_'"
        )
    if contributions:
        _check_explaining(target, to)
    file = archive.to_path(path, AT_PATH)
    if to is not None:
        if prefix != PREFIX:
            raise InputError(
                f"{WHERE}: argument 'prefix': {prefix!r}, but a package for {to!r} loads its "
                "library beside others, whatever their names are; leave it out"
            )
        file /= check_language(target, to)
        with archive.refuse_unwritable(file.parent, AT_PATH):
            file.parent.mkdir(parents=True, exist_ok=True)
        if LANGUAGES[to].is_plain:
            archive.check_place(file, AT_PATH)
            return file, Toolchain((), ".c", ())
    check_suffix(target, file)
    for place in list_files(file):
        archive.check_place(place, AT_PATH)
    return file, find_toolchain(target, file, cc)


def _check_explaining(target: Target, to: str | None) -> None:
    """Refuse contributions where exported code does not compute them.

    Raises:
        UnsupportedModel: a package of a language, or a target other than CPUs.
    """
    if to is not None:
        raise UnsupportedModel(
            f"{AT_EXPLAINED}: a package for {archive.shorten(to)} has no function for them; leave "
            "out 'to', and call the library by its header"
        )
    if target.kind != "llvm":
        raise UnsupportedModel(
            f"{AT_EXPLAINED}: target {target.kind!r}: libraries for CPUs alone compute them; "
            "export one more, of the model built for 'llvm'"
        )


def _make_tables(predictor: Predictor, background: Any) -> ContributionTables:
    """Return what contributions are computed from.

    Raises:
        UnsupportedModel: the model has none, see `Predictor.predict_contributions`.
        InputError: rows of the background that the model does not accept.
    """
    request = predictor.request
    try:
        if background is None:
            return request.tables
        return ContributionTables(request.forest, read_background(request, background, WHERE))
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{AT_EXPLAINED}: {error}; or leave 'contributions' out") from None


def _check_exportable(predictor: Predictor) -> None:
    if predictor.target.kind not in ("llvm", "cuda"):
        raise UnsupportedModel(
            f"{WHERE}: target {predictor.target.kind!r}: only code for CPUs and for GPUs of NVIDIA "
            "is exported; build the model with target 'llvm' or 'cuda'"
        )
    if predictor.forest.encoder is not None:
        raise UnsupportedModel(
            f"{WHERE}: field 'encoder': the model takes categories by their texts, which are "
            "hashed in Python and not in a library; use Predictor.save"
        )
    if predictor.forest.refuses_unseen:
        raise UnsupportedModel(
            f"{WHERE}: field 'refuses_unseen': a library does not look for categories that the "
            "model does not know; build the model without 'refuse_unseen', or use Predictor.save"
        )
