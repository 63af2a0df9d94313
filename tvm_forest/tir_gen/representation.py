"""What an in-memory layout of the model has to say, and the table of those there are.

takes: Forest; gives: a Representation (how to emit a walk) and arrays (what the walk reads).

A layout is one file `rep_<name>.py` that calls `register`. Nothing else names a layout: canonical
functions take their parameters from `buffers`, and the walk pass asks a `TreeAccess` for
expressions. Emission happens after scheduling, so a layout sees the buffers that the schedule left
in the walk operator's arguments, be they the originals or cached copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from tvm import tirx

from ..errors import ScheduleError
from ..forest import Array, Forest

Expr = Any  # tirx expression
Buffers = Mapping[str, tirx.Var]


@dataclass(frozen=True)
class BufferSpec:
    """One model buffer, a parameter of the compiled functions.

    Attributes:
        name: name in the TIR and in the arrays.
        dtype: element type.
        shape: constant shape.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class NodeTest:
    """The fields of one node that decide where a row goes.

    Attributes:
        threshold: expression in the forest's threshold dtype.
        feature: int64 expression.
        default_left: boolean expression; None if no node of the model sends NaN to the left.
    """

    threshold: Expr
    feature: Expr
    default_left: Expr | None


class TreeAccess(Protocol):
    """One tree, as far as a walk needs it. All arguments and results are TIR expressions."""

    @property
    def root(self) -> Expr:
        """The node where a walk begins."""

    @property
    def hops(self) -> Expr:
        """Number of steps after which every row is at its leaf."""

    @property
    def stays(self) -> bool:
        """Whether a step from a leaf leads to the same leaf."""

    def test(self, node: Expr, hold: Any) -> NodeTest:
        """Load what decides at `node`; `hold(name, expression)` stores a value used twice."""

    def child(self, node: Expr, goes_left: Expr) -> Expr:
        """Return the next node; a leaf is its own child (`stays`), or lies `hops` steps deep."""

    def is_leaf(self, node: Expr) -> Expr:
        """Return whether the walk may stop."""

    def leaf_value(self, node: Expr) -> Expr:
        """Return the value of a leaf."""

    def leaf_id(self, node: Expr) -> Expr:
        """Return the leaf's number in the source model, int32; needs the id buffers."""

    def heads(self) -> list[Expr]:
        """Return loads of what a walk reads first, some cache lines at most."""


class Representation(Protocol):
    """A layout, with the facts of one model that decide the code but not the data."""

    name: ClassVar[str]

    @classmethod
    def pack(cls, forest: Forest) -> tuple[Representation, dict[str, Array]]:
        """Lay a forest out; trees stand in the order `round * C + class`.

        Raises:
            BuildError: the layout cannot hold this forest.
        """

    def value_buffers(self) -> tuple[BufferSpec, ...]:
        """Return what a walk to a leaf value reads."""

    def id_buffers(self) -> tuple[BufferSpec, ...]:
        """Return what a walk to a leaf number reads."""

    def tree(self, buffers: Buffers, tree: Expr, hold: Any) -> TreeAccess:
        """Return access to the tree number `tree`, an int64 expression."""


REPRESENTATIONS: dict[str, type[Representation]] = {}


def register(layout: type[Representation]) -> type[Representation]:
    """Make a layout known under its name; used as a class decorator."""
    REPRESENTATIONS[layout.name] = layout
    return layout


def find(name: str) -> type[Representation]:
    """Return the layout of that name.

    Raises:
        ScheduleError: there is none.
    """
    if name not in REPRESENTATIONS:
        known = ", ".join(sorted(REPRESENTATIONS))
        raise ScheduleError(f"represent_as: argument 'name': no layout {name!r} (have: {known})")
    return REPRESENTATIONS[name]
