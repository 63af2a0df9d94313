"""A model of the benchmark on a GPU as one file: forest, kernels of several schedules, answers.

takes: PackedModel; gives: a file, and a PackedModel again. Reading needs numpy, and no TVM.
"""

from __future__ import annotations

import gzip
import hashlib
from bisect import bisect_right
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tvm_forest.forest import Forest
from tvm_forest.forest.fields import from_fields, to_fields
from tvm_forest.runtime.gpu.cuda_compiler import compile_cuda
from tvm_forest.runtime.gpu.library import Backend, KernelLibrary
from tvm_forest.system import archive

SUFFIX = ".tvmf.gz"
_COMPILERS = {"opencl": lambda text, *_: text.encode()}
"""What makes of a text what the driver of that name loads, which OpenCL's compiles itself."""


class Function(NamedTuple):
    """A function of a library: its name, and the arrays of the model in the order it takes them."""

    name: str
    arrays: list[Any]


class Candidate(NamedTuple):
    """A compiled schedule, or several by the size of batch.

    Attributes:
        schedule: its text, for people.
        keeps_order: whether margins must be equal to the bit.
        library: kernels, and what launches them.
        functions: by the smallest batch that each serves, ascending from 1.
    """

    schedule: str
    keeps_order: bool
    library: KernelLibrary
    functions: dict[int, Function]

    def smallest_for(self, rows: int) -> int:
        """Return the key of the function that predicts so many rows."""
        smallest = list(self.functions)
        return smallest[max(0, bisect_right(smallest, rows) - 1)]


class PackedModel(NamedTuple):
    """All that is known of a model.

    Attributes:
        about: name, source of the rows, reasons of schedules that were refused, ...
        results: names and dtypes of what "predict" writes, in order.
        candidates: the default schedule under the name "default", and others.
        checks: for each kind of rows: "rows" (R, F), the right "margin" and "value", (R, C), and
            "bound", how far margins may be from that if the order of additions is another.
        rows: (K, F), from which batches are drawn.
    """

    about: dict[str, Any]
    forest: Forest
    results: list[tuple[str, str]]
    candidates: dict[str, Candidate]
    checks: dict[str, dict[str, Any]]
    rows: Any


def write(model: PackedModel, path: Path) -> None:
    """Write a model; equal arrays are stored once."""
    parts: dict[str, Any] = {}

    def stored(array: Any) -> str:
        about = f"{array.dtype} {array.shape}".encode()
        name = f"arrays/{hashlib.sha256(about + array.tobytes()).hexdigest()[:16]}.npy"
        parts[name] = array
        return name

    fields, arrays = to_fields(model.forest)
    manifest: dict[str, Any] = {"about": model.about, "results": model.results, "fields": fields}
    manifest["forest"] = {name: stored(array) for name, array in arrays.items()}
    manifest["rows"] = stored(model.rows)
    manifest["checks"] = {
        kind: {name: stored(array) for name, array in check.items()}
        for kind, check in model.checks.items()
    }
    manifest["candidates"] = {}
    for name, one in model.candidates.items():
        parts[f"kernels/{name}"] = one.library.to_bytes()
        said = {"schedule": one.schedule, "keeps_order": one.keeps_order}
        manifest["candidates"][name] = said | {
            "functions": [
                (smallest, function.name, list(map(stored, function.arrays)))
                for smallest, function in one.functions.items()
            ]
        }
    data = gzip.compress(archive.pack(archive.Archive(manifest, parts)), mtime=0)
    archive.write_file(path, data, f"gpu: '{path}'")


def read(path: Path, driver: Any) -> PackedModel:
    """Read what `write` wrote, for a GPU.

    Raises:
        ModelFormatError, OSError: the file is damaged or cannot be read.
    """
    manifest, parts = archive.unpack(gzip.decompress(path.read_bytes()), f"gpu: '{path}'")
    named = partial(_named, parts)
    backend = Backend(lambda: driver, _COMPILERS.get(getattr(driver, "name", ""), compile_cuda))
    candidates = {}
    for name, one in manifest["candidates"].items():
        library = KernelLibrary.from_bytes(parts[f"kernels/{name}"], backend)
        functions = {
            smallest: Function(function, [parts[x] for x in arrays])
            for smallest, function, arrays in one["functions"]
        }
        candidates[name] = Candidate(one["schedule"], one["keeps_order"], library, functions)
    return PackedModel(
        manifest["about"],
        from_fields(manifest["fields"], named(manifest["forest"])),
        [(name, dtype) for name, dtype in manifest["results"]],
        candidates,
        {kind: named(check) for kind, check in manifest["checks"].items()},
        np.asarray(parts[manifest["rows"]]),
    )


def name_of(path: Path) -> str:
    """Return the name of the model in a file."""
    return path.name.removesuffix(SUFFIX)


def _named(parts: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {name: parts[stored] for name, stored in names.items()}
