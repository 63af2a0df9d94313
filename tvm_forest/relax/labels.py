"""Stores string labels with a module, whose outputs are indices: TVM has no string tensors.

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
    """Return a module with the labels of its outputs as an attribute; none if there are none."""
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
        mod: a module that `from_sklearn` or `from_onnx` gave, before or after other passes.

    Returns:
        dict: for the name of each such output, the text of place 0, of place 1 and so on, or the
        classes of its columns, texts or numbers. Empty for a module without such outputs.
    """
    text = (mod.attrs or {}).get(ATTRIBUTE)
    return dict(json.loads(str(text))) if text is not None else {}
