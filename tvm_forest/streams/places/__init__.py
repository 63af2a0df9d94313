"""Finds the files of rows and of predictions of a call, and checks them before a row is read.

takes: paths, addresses, binary file objects; gives: `Files`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ...errors import InputError
from ..formats import FORMATS, name_format
from .addresses import Address, check_place, to_place
from .packing import PACKED, name_packed
from .sources import Part, Place, Places, find_sources, to_pure

OUTPUT = "predict: argument '--output'"


class Files(NamedTuple):
    """All files of a call.

    Attributes:
        parts: the files of rows, in order.
        target: the file or folder of predictions, or a binary file object.
        format: format of the predictions; None for that of each part.
        is_folder: whether `target` is a folder, in which each part gets a file of its own.
        packed: suffix for the compression of the file of predictions; "" for none.
    """

    parts: list[Part]
    target: Path | Address | BinaryIO
    format: str | None
    is_folder: bool
    packed: str = ""

    def name_output(self, part: Part) -> tuple[Path, str]:
        """Return the path of a part's predictions inside the target folder, and their format."""
        kind = self.format or part.format
        name = part.name.with_suffix("") if part.packed else part.name
        return name if kind == part.format else name.with_suffix(FORMATS[kind][0]), kind


def find_files(
    source: Places, target: Place, source_format: str | None, target_format: str | None
) -> Files:
    """Return the files of rows and of predictions.

    Args:
        source, target, source_format, target_format: see `streams.predict_file`.

    Raises:
        InputError: a file of rows is missing, a format is unknown, or the target cannot be written
            or contains the rows.
    """
    parts, folders, are_several = find_sources(source, source_format)
    if not isinstance(target, str | os.PathLike):
        if not hasattr(target, "write"):
            raise InputError(f"{OUTPUT}: a {type(target).__name__} is no path and no open file")
        return Files(parts, target, name_format(None, target_format, OUTPUT, _TO), False)
    path = to_place(target, OUTPUT)
    for folder in folders:
        if folder.resolve() in [path.resolve(), *path.resolve().parents]:
            raise InputError(f"{OUTPUT}: '{path}' is in the folder of the rows; name another place")
    suffixes = [*PACKED, *(suffix for own in FORMATS.values() for suffix in own)]
    if not are_several or path.suffix.lower() in suffixes:
        _check_apart(parts, path)
        kind, packed = name_packed(to_pure(path), target_format, OUTPUT, _TO)
        check_place(path, OUTPUT)
        return Files(parts, path, kind, False, packed)
    _check_folder(path)
    if target_format is not None:
        name_format(None, target_format, OUTPUT, _TO)
    files = Files(parts, path, target_format, True)
    names = [files.name_output(part)[0] for part in parts]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise InputError(f"{OUTPUT}: two files of rows would become '{doubled}'; rename one")
    return files


_TO = "--output-format (target_format)"


def _check_apart(parts: list[Part], target: Path | Address) -> None:
    for part in parts:
        if isinstance(part.place, Path) and isinstance(target, Path):
            is_same = target.exists() and target.samefile(part.place)
        else:
            is_same = target == part.place
        if is_same:
            raise InputError(f"{OUTPUT}: '{target}' is the file of rows; name another one")


def _check_folder(path: Path | Address) -> None:
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise InputError(f"{OUTPUT}: '{path}' is there already; remove it, or name a new folder")
    if isinstance(path, Path) and not path.absolute().parent.is_dir():
        raise InputError(f"{OUTPUT}: there is no folder '{path.absolute().parent}'; make it first")


@contextmanager
def refuse_unwritable(target: Any, where: str = OUTPUT) -> Iterator[None]:
    """Turn errors of the operating system, when writing predictions, into InputError."""
    try:
        yield
    except BrokenPipeError:
        raise InputError(f"{where}: who reads the predictions has closed the pipe") from None
    except OSError as error:
        name = f"'{target}'" if isinstance(target, Path | Address) else "the stream"
        raise InputError(
            f"{where}: cannot write {name} ({error.strerror or error}); nothing is left of it; "
            "make room, or name another place"
        ) from None
