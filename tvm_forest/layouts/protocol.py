"""The interface of in-memory layouts of a model, and the table of all layouts.

takes: Forest; gives: a Layout, which emits the expressions of a walk, and the arrays that it reads.

A layout is one file of this folder, or outside the package, that calls `register`;
`docs/new_layout.md` writes one. Its buffers become the parameters of canonical functions, and the
pass that lowers walks gets expressions from its `TreeAccess`. Expressions are created after
scheduling, so their buffers are those that the schedule left in the walk operator's arguments: the
originals or cached copies.

Layouts derive from `Layout`, which separates the buffers of values from those of leaf numbers, and
refuses unsuitable forests in one place for all of them.
"""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from ..errors import BuildError, ScheduleError
from ..forest import Array, Forest
from ..system.late import LateTable
from ..system.values import dataclass

if TYPE_CHECKING:
    from tvm import tirx

    from .row_codes.planes import PlaneCode
    from .row_codes.ranks import RankCode

Expr = Any  # tirx expression
Buffers = Mapping[str, "tirx.Var"]
"""The model's buffers by name, to be read with `tirx.BufferLoad(buffers[name], [index])`."""
Hold = Callable[[str, Expr], Expr]
"""A function that stores an expression's value in a new variable, and returns a load of it.

An expression is emitted wherever it is used, and TVM simplifies `Not(a < b)` to `b <= a`, wrong for
NaN. So hold expressions that are used twice, and float comparisons that may be negated.
"""

Columns = dict[str, Array]
"""Columns of a table that shows a buffer's elements: name to (elements,) or (elements, k).

Masked entries have no meaning for that element.
"""

FIELD_TYPES: Mapping[str, tuple[str, ...]] = {
    "feature": ("uint8", "uint16", "uint32"),
    "threshold": ("float32", "float64"),
}
"""By field of a node, all types that a user may request for it."""

Types = Mapping[str, str]
NO_TYPES: Types = {}


@dataclass(frozen=True)
class BufferSpec:
    """One model buffer, a parameter of the compiled functions.

    Attributes:
        name: name in the TIR and in the arrays.
        dtype: element type, exactly that of the array.
        shape: constant shape, exactly that of the array.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class NodeTest:
    """The fields of one node that decide where a row goes, or those of all nodes of a tile.

    Attributes:
        threshold: expression in the forest's threshold dtype; for a tile a vector, one lane a node.
        feature: int64 expression; for a tile an int32 vector.
        default_left: boolean expression, for a tile int32 with bit i for node i; None if no node of
            the model sends NaN to the left.
    """

    threshold: Expr
    feature: Expr
    default_left: Expr | None


class NearTree(Protocol):
    """Access to one tree for the directive `cache`, which prefetches what the next walk reads.

    Only the addresses of the returned loads are used, and they may be past the end of a buffer. An
    empty list means that nothing is prefetched.
    """

    def lines(self) -> list[tuple[int, Callable[[Expr], Expr]]]:
        """Return the cache lines of a tree: for each buffer, their number and a function.

        The number is that of the largest tree; the function returns a load in line i, from 0.
        """
        return []

    def heads(self) -> list[Expr]:
        """Return loads, plain or vector, in the first cache lines that a walk reads."""
        return []


class TreeAccess(NearTree, Protocol):
    """Access to one tree for a walk. All arguments and results are TIR expressions.

    A node is an int64, whose meaning is the layout's choice, and so is the step from a leaf. A leaf
    may be its own child (`stays`), or no walk steps from a leaf, since all leaves are `hops` deep
    (`padded`). Otherwise the walk pass keeps a walk at its leaf: it takes the step all the same and
    drops the result, so the loads of `test` and `child` must be valid at a leaf, with any feature
    of the model, or else at the node `rest`, which is tested in place of a leaf. Do not guard a
    load with `Select`: both sides are evaluated, and TVM simplifies them by the condition.

    A layout of tiles sets `tile_size`; then `test` and `child` are about all nodes of a tile, and
    `member` is the `test` of one of them.
    """

    root: Expr
    """The node where a walk begins, int64."""

    hops: Expr
    """Number of steps after which every row is at its leaf, int32."""

    tile_size: int = 1
    """Nodes that one hop decides together."""

    stays: ClassVar[bool] = False
    """Whether a step from a leaf stays at the leaf."""

    padded: ClassVar[bool] = False
    """Whether every leaf lies `hops` deep."""

    rest: Expr | None = None
    """A node that may be tested in place of a leaf; None if a leaf itself may be tested."""

    def test(self, node: Expr, hold: Hold) -> NodeTest:
        """Return the test at `node`; see `Hold`."""

    def test_at_once(self, node: Expr, hold: Hold) -> NodeTest:
        """Return the same as `test`, from one load of a whole node if its fields are adjacent.

        `hold` stores vectors too. Used on GPUs, where each load takes a pass for each cache line.
        """
        return self.test(node, hold)

    def member(self, node: Expr, place: Expr | int, hold: Hold) -> NodeTest:
        """Return the test of one node of the tile `node`; only for layouts of tiles.

        `place` is the number of the node, or of a thread: an int64 below the next power of two. The
        outcome of a thread without a node is ignored.
        """
        raise AssertionError("no layout of tiles")

    def child(self, node: Expr, outcome: Expr) -> Expr:
        """Return the next node, int64.

        `outcome` is held: a boolean, true for left; for a tile an int32, bit i for node i.
        """

    def is_leaf(self, node: Expr) -> Expr:
        """Return whether a node is a leaf, where the walk may stop; a boolean."""

    def leaf_value(self, node: Expr) -> Expr:
        """Return the value of a leaf, in the forest's dtype; needs the value buffers."""

    def leaf_id(self, node: Expr) -> Expr:
        """Return the leaf's number in the source model, int32; needs the id buffers."""


@dataclasses.dataclass(frozen=True)  # of Python, for users derive such ones from it
class Layout(ABC):
    """Base class of layouts. An object describes a packed model, as far as code depends on it.

    Attributes:
        specs: specs of all arrays, in the order of the functions' parameters.
    """

    specs: tuple[BufferSpec, ...]

    name: ClassVar[str]
    tile_sizes: ClassVar[Sequence[int]] = (1,)
    """Sizes of tiles that `pack` can lay out; 1 stands for no tiles."""
    walks: ClassVar[str] = "hops"
    """How trees are walked: "hops", hop by hop, or an argument of `simdize`: "bits", "permute"."""
    codes_rows: ClassVar[bool] = False
    """Whether the `row_code` finds memberships in sets of categories, see `ranks`.
    Functions of other layouts take these memberships as further columns of the rows."""
    type_choices: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Fields whose types users may choose, with the types; `pack` then takes a dict of them."""
    copied: ClassVar[Mapping[str, str]] = {}
    """Buffers stored tree by tree, so that some trees can be copied as a whole, each with the
        buffer that holds the first element of every tree."""
    instead: ClassVar[str] = ""
    """Name of the layout that the error recommends if this one cannot hold a forest."""
    instead_of_sets: ClassVar[str] = ""
    """The same for forests with sets of categories, if it is another layout."""
    only_for_values: ClassVar[tuple[str, ...]] = ("leaf_value",)
    """Buffers that are read only by walks that return leaf values."""
    only_for_ids: ClassVar[tuple[str, ...]] = ("leaf_id",)
    """Buffers that are read only by walks that return leaf numbers."""

    @property
    def row_code(self) -> RankCode | PlaneCode | None:
        """The row code of the layout, its attribute `code`: how rows are coded before they walk.

        None if walks read the rows themselves.
        """
        return getattr(self, "code", None)

    @classmethod
    def unfit(cls, forest: Forest) -> str | None:
        """Return why the layout cannot hold a forest, None if it can; packs nothing.

        Args:
            forest: as for `pack`.
        """
        return None

    @staticmethod
    def find_excess(counts: Sequence[tuple[int, str, int]]) -> str | None:
        """Return a text about the first count above its limit; None if all are within theirs.

        Args:
            counts: (number, what is counted, limit) triples.
        """
        return next((f"{n} {what}, {most} fit" for n, what, most in counts if n > most), None)

    @classmethod
    def check(cls, forest: Forest) -> None:
        """Refuse a forest that the layout cannot hold.

        Raises:
            BuildError: the layout cannot hold it; the message recommends another layout.
        """
        reason = cls.unfit(forest)
        instead = (forest.derived and cls.instead_of_sets) or cls.instead
        if reason is not None:
            raise BuildError(
                f"represent_as: layout '{cls.name}': {reason}; use represent_as('{instead}')"
            )

    @classmethod
    @abstractmethod
    def pack(cls, forest: Forest) -> tuple[Layout, dict[str, Array]]:
        """Pack a forest into arrays; trees are in the order `round * C + class`.

        Args:
            forest: at least one tree, with one value per leaf and no categories; thresholds and
                leaf values have the same dtype. For leaf vectors and linear leaves, the value is
                the number of the leaf, see `runtime.leaves`.

        Returns:
            the layout, and the array of each buffer by name.

        Raises:
            BuildError: the layout cannot hold this forest; the message says which part.
        """

    def value_buffers(self) -> tuple[BufferSpec, ...]:
        """Return the buffers that walks for leaf values read: all but `only_for_ids`."""
        return tuple(spec for spec in self.specs if spec.name not in self.only_for_ids)

    def id_buffers(self) -> tuple[BufferSpec, ...]:
        """Return the buffers that walks for leaf numbers read: all but `only_for_values`."""
        return tuple(spec for spec in self.specs if spec.name not in self.only_for_values)

    @abstractmethod
    def tree(self, buffers: Buffers, tree: Expr, hold: Hold) -> TreeAccess:
        """Return access to tree number `tree`, int64; a walk calls this once, before its hops."""

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Return the fields of buffers by name, for pictures; other buffers are shown as arrays."""
        return {}


def read_specs(arrays: Mapping[str, Array]) -> tuple[BufferSpec, ...]:
    """Return the specs of buffers that hold these arrays."""
    return tuple(BufferSpec(name, _name_dtype(x.dtype), x.shape) for name, x in arrays.items())


_name_dtype = functools.cache(str)
"""Return the name of a dtype, cached because numpy rebuilds it on every call."""


OWN = {x: x for x in ("array", "banked", "bitsliced", "levels", "octets", "packed", "pieces")}
OWN |= {"ranked": "ranked", "reorg": "array", "sparse": "sparse", "sparse_peeled": "sparse"}
"""Names of the layouts of this folder, each with the file that registers it."""

LAYOUTS: MutableMapping[str, type[Layout]] = LateTable(
    {name: f"{__package__}.{file}" for name, file in OWN.items()}
)
"""All layouts by name; most processes import two or three of them."""


def register(layout: type[Layout]) -> type[Layout]:
    """Register a layout under its name (a class decorator); an older one is replaced."""
    LAYOUTS[layout.name] = layout
    return layout


def takes_memberships(name: str, forest: Forest) -> bool:
    """Return whether functions of a layout take membership columns as part of the rows."""
    known = LAYOUTS.get(name)  # a saved predictor may be of a layout that is not here
    return bool(forest.derived) and not (known is not None and known.codes_rows)


def find(name: str) -> type[Layout]:
    """Return the layout of that name.

    Raises:
        ScheduleError: there is none.
    """
    if name not in LAYOUTS:
        known = ", ".join(sorted(LAYOUTS))
        raise ScheduleError(f"represent_as: argument 'name': no layout {name!r} (have: {known})")
    return LAYOUTS[name]


# -- types of fields that users choose ------------------------------------------------------------


def bits_of(name: str) -> int:
    """Return the width of an unsigned integer, such as 16 for "uint16"."""
    return np.dtype(name).itemsize * 8


def pack_with_types(layout: Any, forest: Forest, types: Types) -> tuple[Any, dict[str, Array]]:
    """Pack a forest with requested types of some fields.

    Raises:
        BuildError: see `Layout.pack`; the layout does not offer the type, or a value does not fit
            it.
    """
    if not types:
        return layout.pack(forest)
    for field, name in types.items():
        choices = layout.type_choices.get(field, ())
        if name not in choices:
            known = f"as {' or '.join(choices)}" if choices else "in a type of its own"
            raise BuildError(
                f"represent_as: argument '{field}': layout '{layout.name}' holds it {known}, not "
                f"as {name!r}; leave it out"
            )
        _check_values(forest, field, name)
    return layout.pack(forest, types)


def refuse_types(layout: Any, types: Types) -> None:
    """Refuse a choice of types for a model without tiles.

    Raises:
        BuildError: types are given.
    """
    for field in types:
        raise BuildError(
            f"represent_as: argument '{field}': layout '{layout.name}' has no choice without "
            "tiles; leave it out, or use tile_nodes"
        )


def _check_values(forest: Forest, field: str, name: str) -> None:
    """Refuse a field's values that do not fit type `name`, and thresholds narrower than rows."""
    if field == "feature":
        values, wrong = forest.feature, forest.feature >> bits_of(name) > 0
    elif name == "float32" and forest.row_dtype != "float32":
        with np.errstate(over="ignore"):
            narrow = forest.threshold.astype(np.float32)
        values, wrong = forest.threshold, ~forest.is_leaf & (narrow != forest.threshold)
        if not wrong.any():
            raise BuildError(
                f"represent_as: argument 'threshold': rows are {forest.row_dtype}, which are not "
                f"compared in {name!r}; leave it out"
            )
    else:
        return
    if wrong.any():
        raise BuildError(
            f"represent_as: argument '{field}': {forest.name_first(wrong)}: {field} "
            f"{values[wrong][0]} does not fit {name!r}; use a wider type, or leave it out"
        )


def round_up(count: int, least: int, most: int) -> int:
    """Round up to `least` times a power of four, or return `count` if that exceeds `most`.

    For sizes that are constants of compiled code: similar models get the same constants, and so
    share code. The unused rest costs nothing but addresses.
    """
    size = least
    while size < count:
        size *= 4
    return size if size <= most else count
