"""Swaps the leaf values of a predictor; its code and all other numbers stay.

takes: Predictor; a model of the same trees, or its leaf values; gives: the Predictor of these.

    leaf values         0.5  -1.0   0.25
    a buffer       ...  0.5  -1.0   ...   0.25  ...    Where leaves lie in it is found once, by
    of numbers     ...  1.0   1.1   ...   1.2   ...    laying the trees out with other numbers.

Whatever else a layout makes of leaf values, as sorted or joined ones, is laid out anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ...errors import InputError
from ...forest import Array, Forest
from ...forest.model import ROLES, SIGNED
from ...forest.rewrites.canonical_form import canonicalize
from ...layouts.bitsliced import split_bytes
from ...layouts.laying_out import lay_out
from ...layouts.laying_out.request import BuildRequest
from ...runtime.gpu import ModelArray
from ..functions import copy_to_lines
from ..parts import rounds
from ..predictor import Predictor
from . import updating

LEAVES = ("leaf_value", "copied_value", "bare_value")
"""The fields that hold values of leaves."""

OF_SHAPE = (
    *("is_leaf", "node_tree", "node_depth", "hop_depth", "depths", "shallowest", "is_oblivious"),
    *("distinct_tests", "cuts_per_column", "level_sizes", "leaf_counts", "trees_of_class"),
    "searches",
)
"""What is computed of a forest once, and has nothing to do with its leaf values."""


class Elements(NamedTuple):
    """Which elements of an array hold leaf values.

    Attributes:
        at: int64 (P,), the indices of these elements, with the bytes of the array taken as numbers
            of the size of a leaf value.
        leaf: int64 (P,), for each of them, the index of its leaf in `LeafPlaces.leaf`.
    """

    at: Array
    leaf: Array


class BytesOf(NamedTuple):
    """An array that holds the bytes of another one in the order of `bitsliced.split_bytes`.

    Attributes:
        tensor: index of the other array in `LeafPlaces.tensors`.
        table: number of elements that the other array has for each tree.
    """

    tensor: int
    table: int


class LeafPlaces(NamedTuple):
    """Where the leaf values of a model lie in the arrays that compiled code reads.

    Attributes:
        arguments: for each function by name, the indices in `tensors` of the arrays that it reads.
        tensors: the distinct arrays.
        places: for each array, where it holds leaf values.
        columns: see `Predictor.columns`.
        leaf: int64 (L,), the nodes that are leaves.
        order: int64 (L',), the nodes that are leaves of the source model, in the order in which
            users give values.
        is_source: whether the predictor's forest, which is in canonical form, has the signature of
            the source model.
    """

    arguments: dict[str, list[int]]
    tensors: list[ModelArray]
    places: list[Elements | BytesOf]
    columns: Array
    leaf: Array
    order: Array
    is_source: bool

    def with_values(self, values: Array) -> LeafPlaces:
        """Return places whose arrays hold other leaf values, (L,); only these arrays are copies."""
        bits, tensors = values.view(_bits_of(values)), list(self.tensors)
        for number, place in enumerate(self.places):
            if isinstance(place, Elements) and len(place.at):
                array = copy_to_lines(tensors[number].array)
                array.reshape(-1).view(bits.dtype)[place.at] = bits[place.leaf]
                tensors[number] = ModelArray(array)
        for number, place in enumerate(self.places):
            if isinstance(place, BytesOf):
                whole = tensors[place.tensor].array.reshape(-1, place.table)
                tensors[number] = ModelArray(copy_to_lines(split_bytes(whole)))
        return self._replace(tensors=tensors)


def make_refreshed(present: Any, model: Any) -> Predictor:
    """Return the predictor of the same trees with other leaf values.

    Args:
        present: a Predictor with its code.
        model: see `LiveMethods.update_leaves`.

    Raises:
        InputError, ModelFormatError, UnsupportedModel, BuildError: see `LiveMethods.update_leaves`.
    """
    places = present._leaf_places or _find_places(present)
    if isinstance(model, np.ndarray):
        order = _order_leaves(present.forest) if places is None else places.order
        forest = origin = _with_values(present.forest, order, model)
        is_source = places is not None and places.is_source
        signature = "" if is_source else _sign(present, forest)
    else:
        origin = updating.load_alike(present.forest, model, "update_leaves")
        forest, signature = canonicalize(origin), ""
        _refuse_other_trees(present.forest, forest)
        signature = "" if origin is forest else origin.signature
        if present.forest.hits is not None and forest.hits is None:  # of trees that stay
            signature = origin.signature
            forest = origin = replace(forest, hits=present.forest.hits)
    if places is None:
        return _lay_out_anew(present, origin)
    _share(present.forest, forest, OF_SHAPE)
    request = replace(present.request, forest=forest, origin=forest, known_signature=signature)
    places = places.with_values(forest.leaf_value[places.leaf, 0])
    arguments = {name: [places.tensors[i] for i in x] for name, x in places.arguments.items()}
    made = rounds.with_arguments(present, request, arguments, places.columns)
    made._leaf_places = places
    return made


def _lay_out_anew(present: Any, forest: Forest) -> Predictor:
    """Return the predictor of a model with other leaf values, by laying its trees out again."""
    return rounds.share_code(present, forest) or updating.build_alike(present, forest)


# -- where leaves lie -----------------------------------------------------------------------------


def _find_places(present: Any) -> LeafPlaces | None:
    """Return where leaf values lie in the arrays of a predictor.

    None if these places depend on the values, if a leaf has more than one number, or if there are
    too many leaves to give each a number of its own.
    """
    forest: Forest = present.forest
    leaf = np.flatnonzero(forest.is_leaf)
    values = forest.leaf_value[leaf, 0]
    if forest.has_vectors or forest.is_linear or len(leaf) * np.finfo(values.dtype).eps > 1:
        return None
    numbers, marked = _number(values), forest.leaf_value.copy()
    marked[leaf, 0] = numbers
    request = BuildRequest.of(replace(forest, leaf_value=marked), present.schedules, present.target)
    known, laid_out = lay_out(present.request), lay_out(request)
    if rounds.list_layouts(known) != rounds.list_layouts(laid_out):
        return None
    bound = {name: present.arguments[name] for name in known.arguments}
    tensors = {id(x): x for own in bound.values() for x in own}
    number_of = {key: number for number, key in enumerate(tensors)}
    arguments = {name: [number_of[id(x)] for x in own] for name, own in bound.items()}
    places = dict[int, Elements | BytesOf]()
    for laid, other in zip(known.functions, laid_out.functions, strict=True):
        own, tables = arguments[laid.name], _find_tables(laid, arguments[laid.name])
        for number, array, marked_array in zip(own, laid.arguments, other.arguments, strict=True):
            found = (
                places.get(number)
                or tables.get(number)
                or _match(array, marked_array, values, numbers)
            )
            if found is None:
                return None
            places[number] = found
    in_order = [places[number] for number in range(len(tensors))]
    is_source = bool(present.signature == forest.signature)
    nodes = leaf, _order_leaves(forest)
    return LeafPlaces(arguments, list(tensors.values()), in_order, known.columns, *nodes, is_source)


def _find_tables(laid: Any, own: list[int]) -> dict[int, BytesOf]:
    """Return the arrays of a function that hold the bytes of others, by their index.

    `own` has, for each array of the function, its index in `LeafPlaces.tensors`.
    """
    names = [*laid.packed.read_by(laid.output)]
    tables = getattr(laid.packed.layout, "byte_tables", {})
    known = {name: x for name, x in tables.items() if name in names}
    return {
        own[names.index(name)]: BytesOf(own[names.index(source)], table)
        for name, (source, table) in known.items()
    }


def _number(values: Array) -> Array:
    """Return a number in place of the value of each leaf, by which the leaf can be recognised.

    The numbers are distinct, ascend in absolute value, and have the other sign than the value.
    """
    numbers = 1 + np.arange(len(values)) * np.finfo(values.dtype).eps
    return np.where(values > 0, -numbers, numbers).astype(values.dtype)


def _match(array: Array, other: Array, values: Array, numbers: Array) -> Elements | None:
    """Return the elements of `array` that hold leaf values, maybe none.

    Args:
        array: an array laid out with the leaf values `values`.
        other: the same array, laid out with `numbers` in place of the leaf values.
        values: (L,), leaf values.
        numbers: (L,), see `_number`.

    Returns:
        None if the arrays differ in other ways than by a number in place of its leaf value.
    """
    if _are_equal(array, other):
        return Elements(np.empty(0, np.int64), np.empty(0, np.int64))
    if array.nbytes % values.itemsize:
        return None
    kind = _bits_of(values)
    before, after = (np.ascontiguousarray(x).reshape(-1).view(kind) for x in (array, other))
    at = np.flatnonzero(before != after)
    known = numbers.view(kind)
    order = np.argsort(known)
    leaf = order[np.minimum(np.searchsorted(known, after[at], sorter=order), len(order) - 1)]
    is_leaf = (known[leaf] == after[at]) & (values.view(kind)[leaf] == before[at])
    return Elements(at, leaf) if is_leaf.all() else None


def _bits_of(values: Array) -> np.dtype[Any]:
    return np.dtype(f"u{values.itemsize}")


# -- the model ------------------------------------------------------------------------------------


def _order_leaves(forest: Forest) -> Array:
    """Return the nodes that are leaves of the source model, tree by tree, by its leaf numbers."""
    leaf = np.flatnonzero(forest.is_leaf & (forest.tree_id[forest.node_tree] >= 0))
    return leaf[np.lexsort((forest.node_id[leaf], forest.tree_id[forest.node_tree[leaf]]))]


def _share(known: Forest, forest: Forest, names: Iterable[str]) -> None:
    """Set the attributes `names` of `forest` to those of `known`, as far as `known` has them."""
    values = vars(known)
    vars(forest).update((name, values[name]) for name in names if name in values)


def _with_values(forest: Forest, leaf: Array, values: Array) -> Forest:
    """Return a forest with other leaf values.

    Args:
        forest: the model in canonical form.
        leaf: its leaves in the order in which users give values, see `_order_leaves`.
        values: the values that a user gives.

    Raises:
        InputError: see `LiveMethods.update_leaves`.
    """
    more = (
        (forest.is_linear, "which are linear"),
        (forest.copied_value is not None or forest.bare_value is not None, "which are weighed"),
        (forest.with_all_rounds is not None, "which has rounds after the best one, too"),
    )
    for is_so, why in more:
        if is_so:
            raise InputError(
                "update_leaves: argument 'model': an array does not give all leaves of "
                f"{forest.source}, {why}; give the model"
            )
    width = forest.leaf_value.shape[1]
    shapes = ((len(leaf),), (len(leaf), 1)) if width == 1 else ((len(leaf), width),)
    is_masked = isinstance(values, np.ma.MaskedArray)
    if values.shape not in shapes or values.dtype.kind not in "iuf" or is_masked:
        raise InputError(
            f"update_leaves: argument 'model': expected numbers of shape {shapes[0]}, a value for "
            f"each leaf, got {values.dtype} of shape {values.shape}{' with a mask' * is_masked}; "
            "leaves are in the order of trees and of the numbers that `apply` returns"
        )
    changed = forest.leaf_value.copy()
    with np.errstate(over="ignore"):
        changed[leaf] = values.reshape(len(leaf), width)
    if not np.isfinite(changed[leaf]).all():
        raise InputError(
            "update_leaves: argument 'model': a value is infinite or not a number in "
            f"{changed.dtype}; give finite ones"
        )
    changed.flags.writeable = False
    made = object.__new__(Forest)  # all that is checked of a new one holds for the known one
    _share(forest, made, (*ROLES, *OF_SHAPE))
    vars(made)["leaf_value"] = changed
    return made


def _sign(present: Any, forest: Forest) -> str:
    """Return a signature for `forest`, the present model with an array of leaf values of a user.

    `forest` is in canonical form, and `Forest.signature` is of the source model's form. So the
    result is a digest of the present predictor's signature and of all leaf values.
    """
    digest = hashlib.sha256(present.signature.encode())
    digest.update(forest.leaf_value.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _refuse_other_trees(known: Forest, forest: Forest) -> None:
    """Refuse a model of which more than leaf values differ; name the first tree and field."""
    if known.n_trees != forest.n_trees:
        raise _error(f"it has {forest.n_trees} trees, and the model in use {known.n_trees}")
    sizes, wanted = np.diff(forest.tree_offset), np.diff(known.tree_offset)
    if not np.array_equal(sizes, wanted):
        tree = int(np.argmax(sizes != wanted))
        raise _error(
            f"tree {_name(known, tree)} has {sizes[tree]} nodes, and that of the model in use "
            f"{wanted[tree]}"
        )
    differing = list[tuple[int, str]]()
    for name in (x for x in SIGNED if x not in LEAVES):
        was, now = getattr(known, name), getattr(forest, name)
        if _are_equal(was, now):
            continue
        unit = ROLES[name].unit if isinstance(was, np.ndarray) else "model"
        if unit == "model" or not isinstance(now, np.ndarray) or was.shape != now.shape:
            raise _error(f"its field '{name}' differs from that of the model in use")
        rows = ([row.tobytes() for row in x] for x in (was, now))
        differs = np.array([one != other for one, other in zip(*rows, strict=True)])
        at = int(np.argmax(differs))
        differing.append((int(known.node_tree[at]) if unit == "node" else at, name))
    if differing:
        tree, name = min(differing, key=lambda x: x[0])
        raise _error(
            f"tree {_name(known, tree)} differs from that of the model in use in the field '{name}'"
        )


def _are_equal(one: Any, other: Any) -> bool:
    """Return whether two values of a field are equal, arrays to the bit."""
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return bool(type(one) is type(other) and repr(one) == repr(other))
    if one.dtype.hasobject or other.dtype.hasobject:
        return bool(one.tolist() == other.tolist())
    alike = one.dtype == other.dtype and one.shape == other.shape
    return alike and one.tobytes() == other.tobytes()


def _name(forest: Forest, tree: int) -> int:
    """Return the number of a tree in the source model; its index if it is in no source model."""
    number = int(forest.tree_id[tree])
    return tree if number < 0 else number


def _error(what: str) -> InputError:
    return InputError(
        f"update_leaves: argument 'model': {what}; use `update`, which takes other trees"
    )
