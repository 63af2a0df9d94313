"""Function attributes that describe the model, so that a function can be compiled by itself.

takes: Forest, Layout; gives: attributes of a function, as plain values. takes: a function with
them; gives: ModelFacts.

    tvm_forest.forest   {"trees": 100, "classes": 1, "comparison": "<", "depths": "6 6 5 ..."}
    tvm_forest.layout   {"kind": "tvm_forest.layouts.packed:PackedLayout", "feature_bits": 8, ...}

Of the model's numbers, only the depths of the trees are stored, since the code depends on them. For
GPUs, `passes.gpu.array_facts` adds where trees begin, and bounds of integers.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from ..errors import BuildError, ScheduleError
from ..forest import Array, Forest
from ..layouts.protocol import LAYOUTS, Layout
from ..runtime.results import OF_SUMS, Output, result_names
from ..schedule_prims.walks import TreeDepths
from ..system.values import dataclass, fields, is_dataclass

FOREST = "tvm_forest.forest"
LAYOUT = "tvm_forest.layout"
SCALARS = (bool, int, float, str)


@dataclass(frozen=True, eq=False)
class ModelFacts:
    """The facts about the model, apart from the loop nest, that generated code depends on.

    Attributes:
        output: "predict", "resume", "per_tree" or "apply".
        n_arguments: number of arrays passed between the rows and the results.
        trees, classes, vectors: size of the problem, see `Nest`.
        comparison: "<" or "<=": a row goes left if `value < threshold`, or `<=`.
        aggregate: how leaf values are combined, see `Forest`.
        tile_size: number of nodes that one hop decides together.
        depths: depths of the trees, see `TreeDepths`.
        layout: how the model lies in memory.
        steps: trace steps, as dicts, that rewrote the model and chose its layout.
    """

    output: Output
    n_arguments: int
    trees: int
    classes: int
    vectors: bool
    comparison: str
    aggregate: str
    tile_size: int
    depths: TreeDepths
    layout: Layout
    steps: list[dict[str, Any]]

    @property
    def is_sorted(self) -> bool:
        """Whether the schedule has sorted the trees, so that they are not in the model's order."""
        return any(step["do"] == "sort_trees" for step in self.steps)


def with_model_facts(
    func: tirx.PrimFunc,
    forest: Forest,
    layout: Layout,
    output: Output,
    steps: list[dict[str, Any]],
) -> tirx.PrimFunc:
    """Return the function with attributes about its model.

    Args:
        func: a canonical function.
        forest: the model as the schedule rewrote it.
        layout: how it lies in memory.
        output: the kind of output that the function computes.
        steps: see `ModelFacts`.

    Raises:
        BuildError: the layout has a field that cannot be stored in an attribute.
    """
    trees = TreeDepths.of(forest)
    results = len(result_names(forest)) if output in OF_SUMS else 1
    facts = {
        "output": output,
        "n_arguments": len(func.params) - 1 - results,
        "trees": forest.n_trees,
        "classes": forest.n_outputs,
        "vectors": forest.has_vectors,
        "comparison": forest.comparison,
        "aggregate": forest.aggregate,
        "tile_size": int(forest.tile_size),
        "depths": _to_text(trees.depths),
        "shallowest": _to_text(trees.shallowest),
        "likely": None if trees.likely is None else _to_text(trees.likely),
        "steps": steps,
    }
    return func.with_attr(FOREST, facts).with_attr(
        LAYOUT, _encode(layout, f"layout {layout.name!r}")
    )


def read_model_facts(func: tirx.PrimFunc) -> ModelFacts:
    """Return the facts that a function's attributes hold about its model.

    Raises:
        ScheduleError: the layout's class is not registered in this process.
    """
    said = to_plain(func.attrs[FOREST])
    depths, likely = said.pop("depths"), said.pop("likely")
    shallowest = _from_text(said.pop("shallowest"))
    trees = TreeDepths(_from_text(depths), shallowest, likely and _from_text(likely))
    layout = _decode(to_plain(func.attrs[LAYOUT]))
    return ModelFacts(**said, depths=trees, layout=layout)


def _to_text(numbers: Array) -> str:
    """Return an array as one string of numbers, which parses faster than a TVM array."""
    return " ".join(map(str, numbers.tolist()))


def _from_text(text: str) -> Array:
    return np.array(text.split(), np.int64)


def to_plain(value: Any) -> Any:
    """Convert a TVM attribute value to plain Python numbers, strings, lists and dicts."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (tirx.IntImm, tirx.FloatImm, tvm.ir.StringImm)):
        return to_plain(value.value)
    if hasattr(value, "items"):
        return {str(key): to_plain(x) for key, x in value.items()}
    return [to_plain(x) for x in value]


# -- layouts --------------------------------------------------------------------------------------


def _encode(x: Any, where: str) -> Any:
    """Return a layout, or one of its fields, as plain values; dataclasses with their class name.

    Raises:
        BuildError: a field is of a type that no attribute can hold; the message names the layout
            by `where`.
    """
    if x is None or type(x) in SCALARS:
        return x
    if isinstance(x, np.integer):
        return int(x)
    named = [f.name for f in fields(x)] if is_dataclass(x) else getattr(x, "_fields", None)
    if named is not None:
        kind = f"{type(x).__module__}:{type(x).__qualname__}"
        return {"kind": kind, **{name: _encode(getattr(x, name), where) for name in named}}
    if type(x) in (tuple, list):
        return [_encode(each, where) for each in x]
    raise BuildError(
        f"represent_as: argument 'name': {where} holds a {type(x).__name__}, which no attribute of "
        "a function can say; make it a dataclass of numbers, texts, tuples and other dataclasses"
    )


def _decode(x: Any) -> Any:
    """Rebuild the value that `_encode` encoded; lists come back as tuples.

    Raises:
        ScheduleError: see `_find_class`.
    """
    if isinstance(x, list):
        return tuple(map(_decode, x))
    if not isinstance(x, dict):
        return x
    kind: Any = _find_class(x["kind"])
    values = {name: _decode(value) for name, value in x.items() if name != "kind"}
    if hasattr(kind, "_fields"):
        return kind(**values)
    made = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _find_class(kind: str) -> Any:
    """Return the class named "module:name", from a loaded module or the registered layouts.

    Raises:
        ScheduleError: there is no such dataclass or named tuple.
    """
    module, _, name = kind.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    known = [x for x in LAYOUTS.values() if f"{x.__module__}:{x.__qualname__}" == kind]
    found = next(iter(known), found)
    if isinstance(found, type) and (is_dataclass(found) or hasattr(found, "_fields")):
        return found
    raise ScheduleError(
        f"build: argument 'schedule': its layout {kind!r} is not known here; import the module "
        "that registers it"
    )
