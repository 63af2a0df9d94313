"""Loading of models, the only room that knows the training libraries.

takes: file or fitted model; gives: Forest.

Each library has a folder or file of its own. It offers `from_object` and, if it has files,
`from_bytes`, which give a Forest, or None for what is not of the library, and `SUPPORT`, its rows
of the table of what is accepted. Readers make arrays over the nodes of all trees, of which
`assemble` builds the Forest, and raise errors of `refusals`.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..archive import is_archive
from ..errors import ForestError, ModelFormatError, UnsupportedModel
from ..forest import Forest
from . import lightgbm, onnx, sklearn, treelite, xgboost
from .kept_forests import read_or_find
from .objects import library_of
from .refusals import as_line, damaged, name_in_errors
from .support import Support

_FRONTENDS = (xgboost, lightgbm, sklearn, onnx, treelite)
_OF_FILES = (xgboost, lightgbm, treelite, onnx)
"""Readers of files, in the order in which they are asked; onnx goes by the name, too."""
_REFUSED = {"catboost": "how CatBoost rounds its sums has not been reproduced to the bit"}
"""Libraries whose objects are known and not taken, with the reason."""
_REMEDY = (
    "give a model file of XGBoost (JSON, UBJSON or binary), LightGBM (text), ONNX or treelite, a "
    "Booster or a fitted estimator of XGBoost, LightGBM or scikit-learn"
)

SUPPORT: tuple[Support, ...] = tuple(row for frontend in _FRONTENDS for row in frontend.SUPPORT)
"""What is accepted, exact or within a bound, and what is refused; from the tables that decide."""


def load(model: Any) -> Forest:
    """Load a trained model.

    Args:
        model: path to an XGBoost file (JSON, UBJSON or the binary format of XGBoost 0.90 to 2.0,
            told apart by content), an `xgboost.Booster`, a fitted `XGBClassifier`,
            `XGBRegressor`, `XGBRanker`, `XGBRFClassifier` or `XGBRFRegressor`; path to a text file
            of LightGBM, a `lightgbm.Booster`, a fitted `LGBMClassifier`, `LGBMRegressor` or
            `LGBMRanker`; a fitted tree or ensemble of trees of scikit-learn (see
            `frontends.sklearn`); an ONNX model as a file or `onnx.ModelProto`; a `treelite.Model`
            or a checkpoint file of it, with the meaning that treelite gives it; or a `Forest`,
            which is returned as it is. A file is taken as the `Booster` that it holds, and so are
            the bytes of one.

    Raises:
        ModelFormatError: the file is missing, truncated, damaged or no model.
        UnsupportedModel: the model has a part that cannot be reproduced exactly yet.
    """
    if isinstance(model, Forest):
        return model
    if isinstance(model, str | os.PathLike):
        return _load_file(os.fsdecode(model))
    if isinstance(model, bytes | bytearray):
        return _load_bytes(bytes(model), "bytes")
    name = f"{type(model).__module__}.{type(model).__qualname__}".removeprefix("builtins.")
    try:
        forests = (frontend.from_object(model) for frontend in _FRONTENDS)
        forest = next((forest for forest in forests if forest is not None), None)
    except ForestError:
        raise
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as e:
        what = f"its parts do not fit together ({type(e).__name__}: {e})"
        with name_in_errors(f"load: {name}"):
            raise damaged("model", what, "train it again") from e
    if forest is not None:
        return forest
    libraries = set(map(library_of, type(model).__mro__))
    reason = next((why for library, why in _REFUSED.items() if library in libraries), None)
    if reason is not None or libraries & {"xgboost", "lightgbm", "treelite"}:
        why = f" ({reason})" if reason else ""
        raise UnsupportedModel(
            f"load: argument 'model': an object of type {name} cannot be loaded{why}; {_REMEDY}"
        )
    raise ModelFormatError(f"load: argument 'model': got an object of type {name}; {_REMEDY}")


def _load_file(name: str) -> Forest:
    try:
        data = Path(name).read_bytes()
    except (OSError, ValueError) as error:  # ValueError for a name that no file can have
        reason, remedy = getattr(error, "strerror", None) or str(error), _REMEDY
        if "\n" in name or name.lstrip()[:1] in ("{", "["):
            reason, remedy = "it looks like the text of a model", "give a path, or text.encode()"
        raise ModelFormatError(
            f"load: argument 'model': cannot read '{as_line(name, 200)}' ({reason}); {remedy}"
        ) from None
    return _load_bytes(data, name)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Keep Python from looking for cycles meanwhile.

    The numbers of a model are in none, and with millions of them it looks a quarter of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _load_bytes(data: bytes, name: str) -> Forest:
    """Load the content of a file of any kind; errors call it by its name."""
    if is_archive(data):
        raise ModelFormatError(
            f"load: argument 'model': '{name}' is a compiled predictor and no model; read it with "
            "tvm_forest.load_predictor"
        )
    return read_or_find(data, name, lambda: _read_bytes(data, name))


def _read_bytes(data: bytes, name: str) -> Forest:
    with _without_collections():
        for frontend in _OF_FILES:
            forest = frontend.from_bytes(data, name)
            if forest is not None:
                return forest
    hint = "; unpickle it and give the object" if data[:1] == b"\x80" else f"; {_REMEDY}"
    looks = "is empty" if not data else f"is no model file (begins with {data[:8]!r})"
    raise ModelFormatError(f"load: argument 'model': '{name}' {looks}{hint}")
