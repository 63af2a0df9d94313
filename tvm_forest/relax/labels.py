"""Stores string labels with a module, whose outputs are label indices: TVM has no string tensors.

takes: IRModule; gives: the labels of each output, in the order of their indices.

The module holds them as JSON in its attribute `tvm_forest.labels`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import tvm

ATTRIBUTE = "tvm_forest.labels"


def attach_labels(mod: tvm.IRModule, labels: Mapping[str, Sequence[Any]]) -> tvm.IRModule:
    """Return a module with the labels of its outputs as an attribute, if there are labels."""
    if not labels:
        return mod
    texts = {
        output: [label if isinstance(label, int) else str(label) for label in column]
        for output, column in labels.items()
    }
    return mod.with_attr(ATTRIBUTE, json.dumps(texts))


def labels_of(mod: tvm.IRModule) -> dict[str, list[Any]]:
    """Return the labels of outputs that are label indices, or have a column per class.

    Args:
        mod: a module from `from_sklearn` or `from_onnx`, before or after other passes.

    Returns:
        dict: by the name of each such output, the label of index 0, of index 1 and so on, or the
        class of each column, a text or a number. Empty for a module without such outputs.
    """
    text = (mod.attrs or {}).get(ATTRIBUTE)
    return dict(json.loads(str(text))) if text is not None else {}
