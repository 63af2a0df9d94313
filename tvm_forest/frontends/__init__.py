"""Loads trained models; the only room that uses the training libraries.

takes: file or fitted model; gives: Forest.

Each library has its own folder, a reader. It offers `from_object` and, if the library has files,
`from_bytes`, which return a Forest, or None for an object or file of another library, and
`SUPPORT`, its rows of the table of accepted and refused features. Readers make arrays over the
nodes of all trees, from which `assemble` builds the Forest, and raise errors of `refusals`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ForestError, ModelFormatError, UnsupportedModel
from ..forest import Forest
from ..system.archive import is_archive
from ..system.late import import_late
from .kept_forests import read_or_find
from .objects import library_of
from .refusals import as_line, damaged, name_in_errors
from .support import Support

if TYPE_CHECKING:
    from ..forest.rewrites import stacking
    from . import catboost, lightgbm, onnx, sklearn, treelite, xgboost, ydf

    SUPPORT: tuple[Support, ...]
else:  # not needed if the forest of a file is in the cache
    stacking = import_late("tvm_forest.forest.rewrites.stacking")
    catboost = import_late("tvm_forest.frontends.catboost")
    lightgbm = import_late("tvm_forest.frontends.lightgbm")
    onnx = import_late("tvm_forest.frontends.onnx")
    sklearn = import_late("tvm_forest.frontends.sklearn")
    treelite = import_late("tvm_forest.frontends.treelite")
    xgboost = import_late("tvm_forest.frontends.xgboost")
    ydf = import_late("tvm_forest.frontends.ydf")

LOG = logging.getLogger(__name__)

_FRONTENDS = (catboost, xgboost, lightgbm, sklearn, onnx, treelite, ydf)
_OF_FILES = (catboost, xgboost, lightgbm, treelite, onnx)
"""The readers of files, in the order in which they are tried; onnx also looks at the name."""
_BEGINNINGS = {
    b'{"learner"': xgboost,
    b"{L": xgboost,
    b"tree\n": lightgbm,
    b"tree\r": lightgbm,
}
"""The reader to try first, by the beginning of a file; others are not imported."""
_LIBRARIES = {frontend.__name__.rpartition(".")[2] for frontend in _FRONTENDS}
_OF_FORESTS = _LIBRARIES - {"sklearn", "onnx"}
"""Libraries whose models are all forests."""
_REMEDY = (
    "give a model file of XGBoost (JSON, UBJSON or binary), LightGBM (text), CatBoost (JSON or "
    "cbm), ONNX or treelite, a Booster or a fitted estimator of XGBoost, LightGBM, CatBoost or "
    "scikit-learn, or a model of YDF; use tvm_forest.accelerate(model) for an estimator, such as a "
    "pipeline, that holds one of them"
)


def __getattr__(name: str) -> Any:
    """Return the attribute SUPPORT of this module: the table of accepted and refused features."""
    if name != "SUPPORT":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _list_support()


@functools.cache
def _list_support() -> tuple[Support, ...]:
    """Return the rows of the support table from all readers."""
    return tuple(row for frontend in _FRONTENDS for row in frontend.SUPPORT)


def load(model: Any) -> Forest:
    """Load a trained model.

    Args:
        model: path to an XGBoost file (JSON, UBJSON or the binary format of XGBoost 0.90 to 2.0,
            told apart by content), an `xgboost.Booster`, a fitted `XGBClassifier`,
            `XGBRegressor`, `XGBRanker`, `XGBRFClassifier` or `XGBRFRegressor`; path to a text file
            of LightGBM, a `lightgbm.Booster`, a fitted `LGBMClassifier`, `LGBMRegressor` or
            `LGBMRanker`; path to a JSON or `.cbm` file of CatBoost, a `CatBoost`,
            `CatBoostClassifier`, `CatBoostRegressor` or `CatBoostRanker`; a fitted tree or
            ensemble of trees of scikit-learn (see `frontends.sklearn`); an ONNX model as a file or
            `onnx.ModelProto`; a `treelite.Model` or a checkpoint file of it, with the meaning that
            treelite gives it; a model of YDF, or the path of the folder of a saved one; or a
            `Forest`, which is returned as it is. A file predicts as the `Booster` that it holds, a
            file of CatBoost as the estimator that fits its loss. Instead of a path, the content of
            a file may be given as bytes or text, or an open file; a text that is the name of a file
            or folder is a path. A list of these becomes one forest with an output for each model,
            see `forest.rewrites.stacking`.

    Raises:
        ModelFormatError: the file is missing, truncated, damaged or not a model.
        UnsupportedModel: the model has a part that cannot be reproduced exactly yet.
    """
    if isinstance(model, Forest):
        return model
    if isinstance(model, list | tuple):
        return _load_several(model)
    forest = _load_any(model)
    if LOG.isEnabledFor(logging.INFO):
        deepest = forest.depths.max(initial=0)
        about = "%s: %d trees, at most %d deep, of %d columns"
        LOG.info(about, forest.source, forest.n_trees, deepest, forest.row_width)
    return forest


def _load_several(models: Sequence[Any]) -> Forest:
    """Load a list of models as one forest, which has an output for each.

    Raises:
        ModelFormatError, UnsupportedModel: see `load` and `stack_forests`, or the list is empty.
    """
    if not models:
        raise ModelFormatError("load: the list of models is empty; give one model or more")
    return stacking.stack_forests([load(model) for model in models])


def _load_any(model: Any) -> Forest:
    """Load a model that is a file, the content of one, or an object of a training library."""
    if isinstance(model, str | os.PathLike):
        return _load_file(os.fsdecode(model))
    if isinstance(model, bytes | bytearray | memoryview):
        return _load_bytes(bytes(model), "bytes")
    if callable(getattr(model, "read", None)):
        return _load_bytes(_read_all(model), str(getattr(model, "name", "file")))
    name = f"{type(model).__module__}.{type(model).__qualname__}".removeprefix("builtins.")
    libraries = set(map(library_of, type(model).__mro__))
    if is_quantile_forest(model):
        raise UnsupportedModel(
            f"load: argument 'model': {name} predicts by its training rows, which no Forest has; "
            "give it to tvm_forest.build"
        )
    # Readers of the object's own libraries come first: the others need not be imported then.
    readers = sorted(_FRONTENDS, key=lambda x: x.__name__.rpartition(".")[2] not in libraries)
    try:
        with _without_collections():
            forests = (reader.from_object(model) for reader in readers)
            forest = next((forest for forest in forests if forest is not None), None)
    except ForestError:
        raise
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as e:
        what = f"its parts do not fit together ({type(e).__name__}: {e})"
        with name_in_errors(f"load: {name}"):
            raise damaged("model", what, "train it again") from e
    if forest is not None:
        return forest
    if libraries & _OF_FORESTS:
        raise UnsupportedModel(
            f"load: argument 'model': an object of type {name} cannot be loaded; {_REMEDY}"
        )
    raise ModelFormatError(f"load: argument 'model': got an object of type {name}; {_REMEDY}")


def is_forest(model: Any) -> bool:
    """Return whether an object is a model of trees by its class, whether supported or not."""
    libraries = set(map(library_of, type(model).__mro__))
    return bool(libraries & _OF_FORESTS) or sklearn.is_forest(model)


def is_quantile_forest(model: Any) -> bool:
    """Return whether an object's class is one of quantile-forest, or derives from one."""
    return "quantile_forest" in map(library_of, type(model).__mro__)


def _load_file(name: str) -> Forest:
    """Load a file or folder, or a string that is the content of a file."""
    try:
        if Path(name).is_dir():
            forest = ydf.from_folder(Path(name))
            if forest is not None:
                return forest
        data = Path(name).read_bytes()
    except (OSError, ValueError) as error:  # ValueError for a name that no file can have
        if "\n" in name or name.lstrip()[:1] == "{":
            return _load_bytes(name.encode(errors="surrogateescape"), "text")
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelFormatError(
            f"load: argument 'model': cannot read '{as_line(name, 200)}' ({reason}); {_REMEDY}"
        ) from None
    return _load_bytes(data, name)


def _read_all(file: Any) -> bytes:
    """Return the rest of an open binary or text file as bytes.

    Raises:
        ModelFormatError: it cannot be read, for example because it is closed.
    """
    try:
        data = file.read()
    except (OSError, ValueError) as error:  # ValueError for one that is closed
        raise ModelFormatError(
            f"load: argument 'model': the file cannot be read ({error}); open it again with "
            "open(path, 'rb')"
        ) from None
    return data.encode() if isinstance(data, str) else bytes(data)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Suspend Python's cycle collector while the block runs.

    The numbers of a model form no reference cycles, but with millions of them the collector takes a
    quarter of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _load_bytes(data: bytes, name: str) -> Forest:
    """Load the content of a file of any kind; `name` is for error messages."""
    if is_archive(data):
        raise ModelFormatError(
            f"load: argument 'model': '{name}' is a compiled predictor and no model; read it with "
            "tvm_forest.load_predictor"
        )
    return read_or_find(data, name, lambda: _read_bytes(data, name))


def _read_bytes(data: bytes, name: str) -> Forest:
    with _without_collections():
        first = next((x for begin, x in _BEGINNINGS.items() if data.startswith(begin)), None)
        for frontend in sorted(_OF_FILES, key=lambda x: x is not first):
            forest = frontend.from_bytes(data, name)
            if forest is not None:
                return forest
    hint = "; unpickle it and give the object" if data[:1] == b"\x80" else f"; {_REMEDY}"
    looks = "is empty" if not data else f"is no model file (begins with {data[:8]!r})"
    raise ModelFormatError(f"load: argument 'model': '{name}' {looks}{hint}")
