"""Frozen dataclasses with shared methods are like those of the standard library."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any, ClassVar

import pytest

from tvm_forest.layouts.protocol import Layout
from tvm_forest.system import values


def make(dataclass: Any) -> Any:
    """The same class by some decorator."""

    @dataclass(frozen=True)
    class Point:
        """A point.

        Attributes:
            x, y: where it is.
        """

        x: int
        y: tuple[int, ...] = ()
        names: list[str] = dataclasses.field(default_factory=list, compare=False)
        note: str = dataclasses.field(default="", repr=False, kw_only=True)
        dimensions: ClassVar[int] = 2

        def __post_init__(self) -> None:
            object.__setattr__(self, "x", abs(self.x))

    return Point


OURS, PYTHONS = make(values.dataclass), make(dataclasses.dataclass)


@values.dataclass(frozen=True)
class Kept:
    """What pickle finds by its name."""

    number: int


@values.dataclass(frozen=True, kw_only=True)
class Derived(Kept):
    """It has one field more."""

    other: str = "a"


@pytest.mark.parametrize(
    ("given", "named"),
    [((1,), {}), ((-2, (3,)), {}), ((1, (), ["a"]), {"note": "b"}), ((), {"x": 5, "y": (1, 2)})],
)
def test_objects_are_told_and_compared_as_those_of_python(given: Any, named: Any) -> None:
    ours, other = OURS(*given, **named), PYTHONS(*given, **named)
    assert repr(ours) == repr(other) and vars(ours) == vars(other)
    assert hash(ours) == hash(other) and ours == OURS(*given, **named)
    assert ours != OURS(9) and ours != other
    assert dataclasses.asdict(ours) == dataclasses.asdict(other)
    assert dataclasses.replace(ours, x=-7) == OURS(**{**vars(ours), "x": 7})


@pytest.mark.parametrize("given", [(), (1, 2, 3, 4), (1, (), [], "note")])
def test_arguments_that_do_not_fit_are_refused(given: Any) -> None:
    for kind in (OURS, PYTHONS):
        with pytest.raises(TypeError, match="argument"):
            kind(*given)


def test_nothing_of_an_object_can_be_changed() -> None:
    point = OURS(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        point.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del point.x
    assert OURS(1).names is not OURS(1).names


def test_classes_that_derive_have_all_fields() -> None:
    derived = Derived(1, other="b")
    assert repr(derived) == "Derived(number=1, other='b')"
    assert derived == Derived(1, other="b") != Derived(1) and derived != Kept(1)
    assert pickle.loads(pickle.dumps(Kept(3))) == Kept(3) != Kept(4)


def test_users_may_derive_frozen_dataclasses_of_python_from_layouts() -> None:
    @dataclasses.dataclass(frozen=True)
    class Own(Layout):
        size: int

        pack = tree = None

    assert Own((), 3) == Own((), 3) != Own((), 4)
