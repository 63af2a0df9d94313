"""Labels that are texts, beside a module: TVM has no tensors of texts, so modules give places.

takes: IRModule; gives: for each output, the texts in the order of their places.

They stay with the module as its attribute `tvm_forest.labels`, which holds JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import tvm

ATTRIBUTE = "tvm_forest.labels"


def attach_labels(mod: tvm.IRModule, labels: Mapping[str, Sequence[Any]]) -> tvm.IRModule:
    """Return a module that knows the texts of its outputs; those of an empty mapping are none."""
    if not labels:
        return mod
    texts = {output: [str(text) for text in column] for output, column in labels.items()}
    return mod.with_attr(ATTRIBUTE, json.dumps(texts))


def labels_of(mod: tvm.IRModule) -> dict[str, list[str]]:
    """Return the labels of outputs that give the place of a text.

    Args:
        mod: a module that `from_sklearn` or `from_onnx` gave, before or after other passes.

    Returns:
        dict: for the name of each such output, the text of place 0, of place 1 and so on. Empty
        for a module whose outputs are all numbers.
    """
    text = (mod.attrs or {}).get(ATTRIBUTE)
    return dict(json.loads(str(text))) if text is not None else {}
