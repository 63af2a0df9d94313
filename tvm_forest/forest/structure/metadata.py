"""Metadata of the fields of a Forest.

takes: the metadata of dataclass fields; gives: which fields belong to nodes or trees, and which
decide a prediction.

    feature: Array = field(metadata=per_node(1, in_null_tree=LEAF))

means that `feature` has one entry per node, is the second field in the signature, and is -1 at the
only node of a null tree. Code that reorders nodes, takes trees, checks shapes or writes files uses
this metadata, so a new field is declared in one place.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from functools import partial
from typing import Any, Literal, NamedTuple

Unit = Literal["node", "tree", "model"]


class Role(NamedTuple):
    """The role of one field of a Forest.

    Attributes:
        unit: what has one entry each in the field: "node" or "tree"; "model" for all other fields.
        place: position among the fields that enter `Forest.signature`, counted from 0 and never
            changed, because saved files hold signatures; None for fields that decide no prediction.
        in_null_tree: entry for the leaf of a null tree, which is a tree of one leaf that changes no
            margin, or for the null tree itself.
        signed_if_set: whether the default is left out of the signature, as it must be for fields
            that are newer than the first saved files.
        default: default of the field, None if it has none.
    """

    unit: Unit
    place: int | None
    in_null_tree: float = 0
    signed_if_set: bool = False
    default: Any = None


def _make_metadata(
    unit: Unit, place: int | None, in_null_tree: float = 0, signed_if_set: bool = False
) -> dict[str, Role]:
    return {"role": Role(unit, place, in_null_tree, signed_if_set)}


per_node = partial(_make_metadata, "node")
"""Returns the metadata of an array with an entry for each node."""

per_tree = partial(_make_metadata, "tree")
"""Returns the metadata of an array with an entry for each tree."""

per_model = partial(_make_metadata, "model")
"""Returns the metadata of any other field."""


def read_roles(cls: Any) -> dict[str, Role]:
    """Return the role of each field of a dataclass, by the field's name."""
    return {
        entry.name: entry.metadata["role"]._replace(
            default=None if entry.default is MISSING else entry.default
        )
        for entry in fields(cls)
    }
