"""The interface of in-memory layouts of a model, and the table of all layouts.

takes: Forest; gives: a Layout (how to emit a walk) and arrays (what the walk reads).

A layout is one file of this folder, or one outside the package, that calls `register`;
`docs/new_layout.md` writes one. Canonical functions take their parameters from its buffers, and the
pass that lowers walks asks a `TreeAccess` for expressions. Expressions are asked for after
scheduling, so a layout sees the buffers that the schedule left in the walk operator's arguments, be
they the originals or cached copies.

Layouts derive from `Layout`, which tells the buffers of values and of leaf numbers apart, and
refuses, for all of them in one place, the forests that they do not hold.
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
from ..late import LateTable
from ..values import dataclass

if TYPE_CHECKING:
    from tvm import tirx

    from .row_codes.planes import PlaneCode
    from .row_codes.ranks import RankCode

Expr = Any  # tirx expression
Buffers = Mapping[str, "tirx.Var"]
"""The model's buffers by name, to be read with `tirx.BufferLoad(buffers[name], [index])`."""
Hold = Callable[[str, Expr], Expr]
"""Stores a value in a new cell and returns the load of it.

An expression is written out wherever it is used, and TVM simplifies `Not(a < b)` to `b <= a`, wrong
for NaN. So hold what is used twice, and comparisons of floats that may be negated.
"""

Columns = dict[str, Array]
"""What the elements of a buffer hold, for people: name to (elements,) or (elements, k).

Masked entries mean nothing at that place.
"""

FIELD_TYPES: Mapping[str, tuple[str, ...]] = {
    "feature": ("uint8", "uint16", "uint32"),
    "threshold": ("float32", "float64"),
}
"""All types that there are for a field."""

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
    """One tree, as far as `cache` needs it to fetch what the next walk reads.

    Only the addresses of loads are used, and they may lie behind the end of a buffer. Lists may be
    empty: then nothing is asked for.
    """

    def lines(self) -> list[tuple[int, Callable[[Expr], Expr]]]:
        """Return all cache lines of a tree: how many there are at most, and a load in the i-th.

        One pair for each buffer.
        """
        return []

    def heads(self) -> list[Expr]:
        """Return loads, plain or of another type, of what a walk reads first: some cache lines."""
        return []


class TreeAccess(NearTree, Protocol):
    """One tree, as far as a walk needs it. All arguments and results are TIR expressions.

    What the number of a node means, an int64, is the layout's choice, and so is what a step from a
    leaf does. A leaf may be its own child (`stays`), or no walk steps from one, for every leaf lies
    `hops` deep (`padded`). Otherwise the walk pass holds a walk that is at its leaf. It takes the
    step all the same and drops the result, so the loads of `test` and `child` are valid at a leaf,
    with any feature of the model, or else at the node `rest`, where the walk looks meanwhile. Do
    not guard a load with `Select`: both sides are evaluated, and TVM simplifies them by what the
    condition says.

    A layout of tiles sets `tile_size`; its `test` and `child` are about all nodes of a tile, and
    `member` is the `test` of one of them.
    """

    root: Expr
    """The node where a walk begins, int64."""

    hops: Expr
    """Number of steps after which every row is at its leaf, int32."""

    tile_size: int = 1
    """Nodes that one hop decides together."""

    stays: ClassVar[bool] = False
    """Whether a step from a leaf leads to the same leaf."""

    padded: ClassVar[bool] = False
    """Whether every leaf lies `hops` deep."""

    rest: Expr | None = None
    """A node that a walk at its leaf may test; None if it may test the leaf."""

    def test(self, node: Expr, hold: Hold) -> NodeTest:
        """Load what decides at `node`; `hold(name, expression)` stores a value used twice."""

    def test_at_once(self, node: Expr, hold: Hold) -> NodeTest:
        """Do what `test` does, with one load of a whole node if its fields lie side by side.

        `hold` stores vectors too. For GPUs, whose loads take a pass for each cache line.
        """
        return self.test(node, hold)

    def member(self, node: Expr, place: Expr | int, hold: Hold) -> NodeTest:
        """Load what decides at one node of the tile `node`; for layouts of tiles only.

        `place` is the number of the node, or an int64 below the next power of two of their number:
        that of a thread, whose outcome counts for nothing if there is no such node.
        """
        raise AssertionError("no layout of tiles")

    def child(self, node: Expr, outcome: Expr) -> Expr:
        """Return the next node, int64.

        `outcome` is held: a boolean, true for left; for a tile an int32, bit i for node i.
        """

    def is_leaf(self, node: Expr) -> Expr:
        """Return whether the walk may stop, a boolean."""

    def leaf_value(self, node: Expr) -> Expr:
        """Return the value of a leaf, in the forest's dtype; needs the value buffers."""

    def leaf_id(self, node: Expr) -> Expr:
        """Return the leaf's number in the source model, int32; needs the id buffers."""


@dataclasses.dataclass(frozen=True)  # of Python, for users derive such ones from it
class Layout(ABC):
    """How a model lies in memory, with the facts of it that decide the code but not the data.

    Attributes:
        specs: of all arrays, in their order, which is that of the functions' parameters.
    """

    specs: tuple[BufferSpec, ...]

    name: ClassVar[str]
    tile_sizes: ClassVar[Sequence[int]] = (1,)
    """Sizes of tiles that `pack` can lay out; 1 stands for no tiles."""
    walks: ClassVar[str] = "hops"
    """How trees are walked: "hops", node by node, or as `simdize` calls it: "bits", "permute"."""
    codes_rows: ClassVar[bool] = False
    """Whether there is a `row_code` that finds memberships in sets of categories, see `ranks`.
    Functions of other layouts take these memberships as further columns of the rows."""
    type_choices: ClassVar[Mapping[str, Sequence[str]]] = {}
    """The fields whose types users may choose, with these; then `pack` takes a dict of them."""
    copied: ClassVar[Mapping[str, str]] = {}
    """Buffers that lie tree by tree, so that some trees can be copied as a whole, each with the
    buffer that has the first element of every tree."""
    instead: ClassVar[str] = ""
    """Name of a layout that holds what this one does not."""
    instead_of_sets: ClassVar[str] = ""
    """The same for forests with memberships in sets of categories, if it is another one."""
    only_for_values: ClassVar[tuple[str, ...]] = ("leaf_value",)
    """Buffers that no walk to a leaf number reads."""
    only_for_ids: ClassVar[tuple[str, ...]] = ("leaf_id",)
    """Buffers that no walk to a leaf value reads."""

    @property
    def row_code(self) -> RankCode | PlaneCode | None:
        """How rows are coded before they are walked: what the layout calls `code`.

        None if walks read the rows themselves.
        """
        return getattr(self, "code", None)

    @classmethod
    def unfit(cls, forest: Forest) -> str | None:
        """Return why the layout cannot hold a forest, None if it can. Packs nothing.

        Args:
            forest: as for `pack`.
        """
        return None

    @staticmethod
    def find_excess(counts: Sequence[tuple[int, str, int]]) -> str | None:
        """Return which of some counts of what a model has is too high; None if all fit.

        Args:
            counts: how many there are, of what, and how many fit.
        """
        return next((f"{n} {what}, {most} fit" for n, what, most in counts if n > most), None)

    @classmethod
    def check(cls, forest: Forest) -> None:
        """Refuse a forest that the layout cannot hold.

        Raises:
            BuildError: says why, and which layout to use instead.
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
        """Lay a forest out; trees stand in the order `round * C + class`.

        Args:
            forest: at least one tree, with one value a leaf and no categories; thresholds and leaf
                values have the same dtype. Vectors and linear leaves are numbers, see `leaves`.

        Returns:
            the layout, and the array of each buffer by name.

        Raises:
            BuildError: the layout cannot hold this forest; names the tree and the node.
        """

    def value_buffers(self) -> tuple[BufferSpec, ...]:
        """Return what a walk to a leaf value reads: all but `only_for_ids`."""
        return tuple(spec for spec in self.specs if spec.name not in self.only_for_ids)

    def id_buffers(self) -> tuple[BufferSpec, ...]:
        """Return what a walk to a leaf number reads: all but `only_for_values`."""
        return tuple(spec for spec in self.specs if spec.name not in self.only_for_values)

    @abstractmethod
    def tree(self, buffers: Buffers, tree: Expr, hold: Hold) -> TreeAccess:
        """Return access to the tree number `tree`, an int64; done once for all hops of a walk."""

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Take buffers apart, by name, for pictures; those left out are shown as they are."""
        return {}


def read_specs(arrays: Mapping[str, Array]) -> tuple[BufferSpec, ...]:
    """Return the specs of the buffers that hold these arrays."""
    return tuple(BufferSpec(name, _name_dtype(x.dtype), x.shape) for name, x in arrays.items())


_name_dtype = functools.cache(str)
"""The name of a dtype, which numpy makes anew each time."""


OWN = {x: x for x in ("array", "banked", "bitsliced", "levels", "octets", "packed", "pieces")}
OWN |= {"ranked": "ranked", "reorg": "reorg", "sparse": "sparse", "sparse_peeled": "sparse"}
"""Names of the layouts of this folder, each with the file that registers it."""

LAYOUTS: MutableMapping[str, type[Layout]] = LateTable(
    {name: f"{__package__}.{file}" for name, file in OWN.items()}
)
"""All layouts; most processes import two or three of them."""


def register(layout: type[Layout]) -> type[Layout]:
    """Make a layout known under its name, in place of one of that name; a class decorator."""
    LAYOUTS[layout.name] = layout
    return layout


def takes_memberships(name: str, forest: Forest) -> bool:
    """Whether functions of a layout take rows with memberships in categories as columns."""
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
    """Do what `layout.pack(forest)` does, with fields of some types.

    Raises:
        BuildError: see `Layout.pack`; the layout has no such choice, or a value does not
            fit its type.
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
        BuildError: as said.
    """
    for field in types:
        raise BuildError(
            f"represent_as: argument '{field}': layout '{layout.name}' has no choice without "
            "tiles; leave it out, or use tile_nodes"
        )


def _check_values(forest: Forest, field: str, name: str) -> None:
    """Refuse the first value that a type does not hold."""
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
    """Return a number that is enough: `least` times a power of four, or `count` beyond `most`.

    For constants of the code: so most models that are alike have the same. What they leave over
    costs nothing but addresses.
    """
    size = least
    while size < count:
        size *= 4
    return size if size <= most else count
