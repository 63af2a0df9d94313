"""A forest as a constant of a Relax module.

takes: Forest; gives: a uint8 constant that holds the forest as an archive, and the Forest again.

The archive is that of `system/archive.py`: a manifest and arrays with a checksum, and no code.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from ..errors import ForestError, ModelFormatError, UnsupportedModel
from ..forest import Array, Forest
from ..forest.fields import from_fields, to_fields
from ..system import archive

KIND, FORMAT = "forest", 1
WHERE = "relax.tvm_forest.predict: argument 'model'"


def to_constant(forest: Forest) -> GenericConst:
    """Return a forest as a constant, uint8 (bytes,); see `to_bytes`."""
    return to_tensor_constant(to_bytes(forest))


def to_bytes(forest: Forest) -> Array:
    """Return a forest as the bytes of an archive, uint8 (bytes,).

    Raises:
        UnsupportedModel: its labels are Python objects that JSON cannot represent, or see
            `refuse_encoder`.
    """
    refuse_encoder(forest)
    values, arrays = to_fields(forest)
    manifest = {"kind": KIND, "format": FORMAT, "forest": values}
    parts = {f"{name}.npy": array for name, array in arrays.items()}
    return np.frombuffer(archive.pack(archive.Archive(manifest, parts)), np.uint8)


def refuse_encoder(forest: Forest) -> None:
    """Refuse a forest whose rows contain strings, which tensors cannot hold.

    Raises:
        UnsupportedModel: the forest has an encoder.
    """
    if forest.encoder is not None:
        raise UnsupportedModel(
            f"{WHERE}: field 'encoder': the categories of '{forest.source}' are encoded in Python, "
            "which a Relax module does not; use tvm_forest.build"
        )


def to_tensor_constant(array: Any) -> GenericConst:
    """Return an array as a constant of its own dtype; `relax.const` narrows int64 to int32."""
    return relax.const(tvm.runtime.tensor(np.ascontiguousarray(array)))


def from_constant(model: relax.Expr) -> Forest:
    """Return the forest that a constant holds.

    Raises:
        ModelFormatError: it is not a constant, or does not hold an intact archive of a forest.
    """
    if not isinstance(model, GenericConst):
        raise ModelFormatError(
            f"{WHERE}: expected a constant, got {type(model).__name__} {model!s:.100}; make one "
            "with tvm_forest.relax.to_constant(forest), and keep it in the module"
        )
    return from_bytes(model.value.numpy().tobytes())


@functools.lru_cache(maxsize=16)
def from_bytes(data: bytes) -> Forest:
    """Return the forest that the bytes of an archive hold.

    Raises:
        ModelFormatError: they are not an intact archive of a forest.
    """
    manifest, parts = archive.unpack(data, WHERE)
    if (manifest.get("kind"), manifest.get("format")) != (KIND, FORMAT):
        stored = archive.shorten((manifest.get("kind"), manifest.get("format")))
        raise ModelFormatError(
            f"{WHERE}: expected {(KIND, FORMAT)}, got {stored}; make the module with this version "
            "of tvm_forest"
        )
    arrays = {name.removesuffix(".npy"): part for name, part in parts.items()}
    try:
        return from_fields(manifest["forest"], arrays)
    except ForestError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ModelFormatError(
            f"{WHERE}: the archive is intact but not as expected ({type(error).__name__}: "
            f"{error!s:.300}); make the module anew"
        ) from None
