"""The models of a server, by name and version.

takes: predictors; gives: `Models`, with the inputs, outputs and speed of each.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from ..errors import InputError
from ..forest import Array, Forest
from ..forest.contributions import can_explain
from ..monitoring import Monitor
from ..predictor.contributions import shape_contributions
from .refusals import Refused
from .tensors import count_bytes, name_datatype

if TYPE_CHECKING:
    from ..predictor.predictor import Predictor

ROWS = "rows"
"""Name of the input that holds all columns."""

SUMS = ("predict", "predict_proba", "predict_margin")
"""Methods of a Predictor that add up leaves."""

EXPLAINED = "predict_contributions"
OUTPUTS = (*SUMS, "apply", "predict_per_tree", EXPLAINED)
"""Methods of a Predictor, which are also the names of outputs; the first is the default."""

_NAME = re.compile(r"[\w.-]+", re.ASCII)
_FEW, _MANY = 1, 64
"""Numbers of rows of the batches that are timed."""


class Model:
    """A version of a model.

    Attributes:
        name, version: its name and version in requests.
        predictor: its predictor.
        forest: the predictor's forest.
        outputs: for each possible output by name, an array of its shape and dtype for one row.
        seconds: seconds of a call, measured for two numbers of rows, by that number.
        monitor: observes rows; None for a model that was built without a profile, or whose code is
            not compiled yet.
    """

    def __init__(self, name: str, version: str, predictor: Predictor) -> None:
        """Predict rows of zeros, to compile the code of sums, and to find their shapes and speed.

        Code for other outputs is compiled at first use.

        Raises:
            InputError: the name cannot be part of a URL, or no datatype can represent the labels.
        """
        for what, text in (("name", name), ("version", version)):
            if not _NAME.fullmatch(text):
                raise InputError(
                    f"serve: argument 'models': the {what} {text!r} may hold letters, digits, "
                    "'_', '.' and '-' only"
                )
        self.name, self.version, self.predictor = name, version, predictor
        self.forest = predictor.forest
        self.monitor: Monitor | None = None  # of the rows of clients alone
        has_proba = predictor.gives_probabilities
        row, n_trees = _make_rows(self.forest, 1), self.forest.n_trees
        width = self.forest.leaf_value.shape[1]
        self.outputs = {
            **{x: self.predict(x, row) for x in SUMS if x != "predict_proba" or has_proba},
            "apply": np.zeros((1, n_trees), self.forest.leaf_id_dtype),  # or it would be compiled
            "predict_per_tree": np.zeros(
                (1, n_trees, width) if width > 1 else (1, n_trees), self.forest.sum_dtype
            ),
        }
        if can_explain(self.forest):
            none = np.zeros((1, self.forest.n_outputs, self.forest.given_width + 1))
            self.outputs[EXPLAINED] = shape_contributions(self.forest, none)
        first, labels = self.outputs[OUTPUTS[0]], self.forest.labels
        if first.dtype == object and not all(isinstance(x, str) for x in labels or ()):
            raise InputError(
                f"serve: argument 'models': {name!r} has labels that are neither all texts nor all "
                "numbers, which the protocol lacks"
            )
        texts = [] if labels is None else [x for x in labels if isinstance(x, str)]
        self._row_bytes = {
            (output, is_binary): count_bytes(row, texts, is_binary)
            for output, row in self.outputs.items()
            for is_binary in (False, True)
        }
        self.seconds = {size: self._time(size) for size in (_FEW, _MANY)}
        if self.forest.hits is not None and predictor.ready:
            self.monitor = Monitor(predictor)

    def predict(self, output: str, rows: Array) -> Array:
        """Return an output of rows, (R,) or (R, ...); the monitor, if any, observes the rows.

        Args:
            output: one of `outputs`.
            rows: see `Request.rows`.

        Raises:
            InputError: rows that the model refuses.
        """
        result = getattr(self.predictor, output)(rows)
        if self.monitor is not None:
            self.monitor.observe(rows)
        return np.concatenate(result, axis=1) if isinstance(result, list) else result

    def count_bytes(self, output: str, n_rows: int, is_binary: bool) -> int:
        """Return the largest possible size in bytes of an output of `n_rows` rows."""
        return n_rows * self._row_bytes[output, is_binary]

    def expect_seconds(self, n_rows: int) -> float:
        """Return the expected seconds of a call, on a line through the two measured times."""
        few, many = self.seconds[_FEW], self.seconds[_MANY]
        return few + max(0.0, many - few) * (n_rows - _FEW) / (_MANY - _FEW)

    def _time(self, n_rows: int) -> float:
        rows = _make_rows(self.forest, n_rows)
        seconds = []
        for _ in range(4):  # the first may compile
            begin = time.perf_counter()
            self.predict(OUTPUTS[0], rows)
            seconds.append(time.perf_counter() - begin)
        return min(seconds)

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the inputs that hold one column each; None if the model has no column names."""
        return self.forest.given_names

    @property
    def kinds(self) -> list[str]:
        """The datatypes of the columns, in their order; BYTES for categories given as texts."""
        forest, encoder = self.forest, self.forest.encoder
        texts = set(forest.category_names if encoder is None else encoder.categories.tolist())
        number = name_datatype(np.empty(0, forest.row_dtype))
        return ["BYTES" if i in texts else number for i in range(forest.given_width)]

    @property
    def inputs(self) -> list[dict[str, Any]]:
        """The inputs in the protocol's metadata: one tensor with all columns, or one per column.

        Models with names and with categories as texts have one per column.
        """
        if "BYTES" not in self.kinds or self.columns is None:
            number = name_datatype(np.empty(0, self.forest.row_dtype))
            return [{"name": ROWS, "datatype": number, "shape": [-1, self.forest.given_width]}]
        columns = zip(self.columns, self.kinds, strict=True)
        return [{"name": name, "datatype": kind, "shape": [-1]} for name, kind in columns]

    def describe(self, versions: Sequence[str], as_texts: bool = False) -> dict[str, Any]:
        """Return the model's metadata as the protocol defines it.

        Args:
            versions: all versions of the model.
            as_texts: whether columns are described by a JSON text, as gRPC needs it.
        """
        about: dict[str, Any] = {
            "name": self.name,
            "versions": list(versions),
            "platform": "tvm_forest",
            "inputs": self.inputs,
            "outputs": [
                {"name": name, "datatype": name_datatype(row), "shape": [-1, *row.shape[1:]]}
                for name, row in self.outputs.items()
            ],
        }
        if self.columns is not None:
            pairs = zip(self.columns, self.kinds, strict=True)
            columns: Any = [{"name": name, "datatype": kind} for name, kind in pairs]
            if as_texts:
                columns = {"string_param": orjson.dumps(columns).decode()}
            about["parameters"] = {"columns": columns}
        return about


class Models:
    """All models of a server."""

    def __init__(self, named: Iterable[tuple[str, str, Predictor]]) -> None:
        """Prepare models by name and version; the last version serves requests that name none.

        Raises:
            InputError: there are no models, or two have the same name and version.
        """
        self._versions: dict[str, dict[str, Model]] = {}
        for name, version, predictor in named:
            versions = self._versions.setdefault(name, {})
            if version in versions:
                raise InputError(
                    f"serve: argument 'models': two are called {name!r} in version {version!r}; "
                    "give each a name or a version, as in name:version=path"
                )
            versions[version] = Model(name, version, predictor)
        if not self._versions:
            raise InputError("serve: argument 'models': there is none")

    def __iter__(self) -> Any:
        return (model for versions in self._versions.values() for model in versions.values())

    def __contains__(self, name: str) -> bool:
        return name in self._versions

    def put(self, model: Model) -> Model | None:
        """Add a model; return the one with its name and version that it replaces, else None."""
        versions = self._versions.setdefault(model.name, {})
        before = versions.get(model.version)
        versions[model.version] = model
        return before

    def remove(self, name: str) -> list[Model]:
        """Remove all versions of a model, and return them."""
        return list(self._versions.pop(name, {}).values())

    def versions(self, name: str) -> list[str]:
        """Return the versions of the model with a name."""
        return list(self._versions[name])

    def find(self, name: str, version: str | None = None) -> Model:
        """Return a model; its last version if `version` is None or "".

        Raises:
            Refused: there is no such model or version (404).
        """
        versions = self._versions.get(name)
        if versions is None:
            known = ", ".join(self._versions) or "none"
            raise Refused(f"model {name!r:.80} is unknown (have: {known})", 404)
        if not version:
            return list(versions.values())[-1]
        if version not in versions:
            known = ", ".join(versions)
            raise Refused(
                f"model {name!r}: version {version!r:.80} is unknown (have: {known})", 404
            )
        return versions[version]


def _make_rows(forest: Forest, n_rows: int) -> Array:
    """Return rows of zeros, with empty texts as categories if the model has an encoder."""
    if forest.encoder is None:
        return np.zeros((n_rows, forest.row_width), forest.row_dtype)
    rows = np.zeros((n_rows, forest.given_width), object)
    rows[:, forest.encoder.categories] = ""
    return rows
