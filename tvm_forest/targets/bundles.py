"""Bundles: files with compiled code for future models, for a class of processors.

takes: cache entries of generated models; gives: a bundle file, and the entries of such files.

The cache serves one model of processor and one version of TVM. The code of a bundle is compiled for
a class of processors, such as "x86-64-v3", and its keys depend on no version of TVM, only on the
sources of this package. So a process may build models of known kinds where TVM is not installed.
"""

from __future__ import annotations

import functools
import io
import json
import logging
import os
import stat
import warnings
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from ..errors import ForestError, InputError
from ..system import archive
from ..system.archive import Archive
from ..system.code_cache import CodeCache, digest, digest_sources, read_own
from ..target import Target, parse_target

LOG = logging.getLogger(__name__)

VARIABLE = "TVM_FOREST_KERNELS"
"""Environment variable with the bundle files, separated as in PATH."""

MANIFEST = "tvm_forest_kernels.json"

FAULTS = (OSError, ForestError, LookupError, TypeError, ValueError, zipfile.BadZipFile, zlib.error)
"""Exceptions that are raised while reading a file that is damaged, or not a bundle."""


class Bundle(CodeCache):
    """The read-only entries of a bundle file.

    Attributes:
        target: target of the code.
    """

    def __init__(self, file: Path, members: zipfile.ZipFile, target: Target) -> None:
        super().__init__(file)
        self._members, self.target = members, target

    def read(self, key: str) -> Archive | None:
        """Return the entry of a key; None if there is none, or if it is damaged."""
        try:
            found = archive.unpack(self._members.read(key), VARIABLE)
        except FAULTS as error:
            if not isinstance(error, KeyError):
                LOG.warning("%s is not used: %s", self.folder, error)
            return None
        return found

    def write(self, key: str, entry: Archive, *, warns: bool = True) -> None:
        """Do nothing: bundles are read-only."""


def name_kind(target: Target, outputs: str, kind: str) -> str:
    """Return the key under which a bundle holds the code that models of one kind share.

    Args:
        target: target of the code.
        outputs: what the code computes, such as sums or leaves.
        kind: what these models have in common, see `layouts/laying_out/kinds.py`.
    """
    return digest("kind", digest_sources(), json.dumps(target.to_dict()), outputs, kind)


def write_bundle(file: Path, target: Target, entries: Iterable[tuple[str, Archive]]) -> None:
    """Write a bundle atomically, with permissions that let only the user modify it.

    Raises:
        InputError: the file cannot be written.
    """
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as members:
        about = {"sources": digest_sources(), "target": target.to_dict()}
        members.writestr(MANIFEST, json.dumps(about))
        for key, entry in dict(entries).items():
            members.writestr(key, archive.pack(entry))
    archive.write_file(file, data.getvalue(), "warm: argument 'out'")
    file.chmod(stat.S_IMODE(file.stat().st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))


def find_bundles(target: Target) -> list[Bundle]:
    """Return the bundles named in the environment whose code fits a target.

    A target without options, the CPU at hand, takes bundles for any class of processors; whether
    the CPU has the instructions of an entry is checked when the entry is loaded.
    """
    files = os.environ.get(VARIABLE, "")
    bundles = _open_all(files) if files else []
    asked = target.to_dict()
    return [x for x in bundles if asked in ({"kind": "llvm"}, x.target.to_dict())]


@functools.lru_cache(maxsize=8)
def _open_all(files: str) -> list[Bundle]:
    """Open bundle files, separated as in PATH; warn of those that cannot be used."""
    bundles = list[Bundle]()
    for name in filter(None, files.split(os.pathsep)):
        try:
            bundles.append(_open(Path(name).absolute()))
        except FAULTS as error:
            warnings.warn(
                f"{VARIABLE}: {name} is not used ({error}); give what `tvm-forest warm --out` has "
                "written with this version of tvm_forest",
                RuntimeWarning,
                stacklevel=2,
            )
    return bundles


def _open(file: Path) -> Bundle:
    data = read_own(file)
    if data is None:
        raise InputError("others may write it; forbid it by chmod go-w, or give it to yourself")
    members = zipfile.ZipFile(io.BytesIO(data))
    about = json.loads(members.read(MANIFEST))
    if about["sources"] != digest_sources():
        raise InputError("another version of tvm_forest has written it")
    return Bundle(file, members, parse_target(about["target"]))
