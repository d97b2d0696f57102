"""`tilesmith.base.dataclass` beside the decorator of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from functools import cached_property
from typing import Any, ClassVar

import pytest

from tilesmith.base.dataclass import compiled
from tilesmith.base.dataclass import dataclass as quick
from tilesmith.base.given import checks_given

Decorator = Callable[..., Callable[[type], Any]]
SETTINGS = [
    {},
    {"frozen": True},
    {"slots": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "eq": False},
    {"frozen": True, "slots": True, "eq": False, "repr": False},
    {"frozen": True, "kw_only": True},
]


def make(decorator: Decorator, settings: dict[str, bool]) -> Any:
    class Base:
        kind: ClassVar[str] = "base"
        a: int
        b: tuple[int, ...] = (1, 2)

    Base.__qualname__ = Base.__name__ = "Base"
    base: Any = decorator(**settings)(Base)

    class Derived(base):  # type: ignore[misc]
        b: tuple[int, ...] = (3,)
        c: list[int] = field(default_factory=list)
        d: str = field(default="d", compare=False)
        e: int = field(default=5, init=False, repr=False)
        f: int = field(default=6, hash=False, kw_only=True)

        def twice(self) -> int:
            return int(self.a * 2)

    Derived.__qualname__ = "Derived"
    return decorator(**settings)(Derived)


def outcome(act: Callable[[], object]) -> object:
    try:
        return act()
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_same_as_the_standard_one(settings: dict[str, bool]) -> None:
    ours, theirs = (make(d, settings) for d in (quick, dataclasses.dataclass))
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((1,), {}), ((), {"a": 1}),
        ((2, (4,), [1], "x"), {"f": 7}), ((), {}), ((1, 2, 3, 4, 5), {}),
        ((), {"a": 1, "unknown": 2}), ((1,), {"e": 2}),
    ]  # fmt: skip

    def seen(cls: Any) -> list[object]:
        made = [outcome(lambda a=a, k=k: cls(*a, **k)) for a, k in calls]
        objects = [m for m in made if not isinstance(m, type)]
        shown = [repr(m) for m in objects] if settings.get("repr", True) else []
        fields = [[getattr(m, f.name) for f in dataclasses.fields(cls)] for m in objects]
        found: list[object] = [m if isinstance(m, type) else None for m in made]
        found += [shown, fields, [m.twice() for m in objects]]
        found += [[a == b for a in objects for b in objects], cls.__match_args__]
        found += [objects[0] == 1, objects[0] != objects[0]]
        for m in objects if settings.get("eq", True) else ():
            found += [outcome(lambda m=m: hash(dataclasses.replace(m, c=())))]
        for m in objects:
            found += [outcome(lambda m=m: setattr(m, "a", 9)), outcome(lambda m=m: delattr(m, "a"))]
            found += [hasattr(m, "__dict__"), outcome(lambda m=m: dataclasses.asdict(m))]
        found += [[(f.name, f.type, f.compare, f.kw_only) for f in dataclasses.fields(cls)]]
        return found

    assert seen(ours) == seen(theirs)


@quick(frozen=True, slots=True)
class Point:
    x: int
    y: Any = None


@quick(frozen=True)
class Line:
    points: tuple[Point, ...]
    name: str = ""

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError("a line without points")

    @cached_property
    def length(self) -> int:
        return len(self.points)


def test_copies_and_pickles() -> None:
    line = Line((Point(1), Point(2, (3,))), "l")
    assert line.length == 2
    for other in (copy.deepcopy(line), pickle.loads(pickle.dumps(line)), copy.copy(line)):
        assert other == line
        assert hash(other) == hash(line)
    with pytest.raises(ValueError, match="without"):
        dataclasses.replace(line, points=())


def test_equal_of_one_class_only() -> None:
    @quick(frozen=True, slots=True)
    class Other:
        x: int
        y: Any = None

    assert Other(1) != Point(1)
    assert Point(1) == Point(1)
    nan = float("nan")
    assert Point(1, nan) == Point(1, nan)  # the same object, as in a tuple


def test_shows_itself_within_itself() -> None:
    held: list[Any] = []
    held.append(Point(1, held))
    assert repr(held[0]) == "Point(x=1, y=[...])"
    assert repr(Point(1, Point(2))) == "Point(x=1, y=Point(x=2, y=None))"


def test_classes_derived_by_the_standard_one() -> None:
    """As a user's own primitives are."""

    @dataclasses.dataclass(frozen=True, slots=True)
    class Far(Point):
        z: int = 3

    far = Far(1, 2)
    assert (far.x, far.y, far.z) == (1, 2, 3)
    assert repr(far).endswith("Far(x=1, y=2, z=3)")
    with pytest.raises(FrozenInstanceError):
        far.z = 4  # type: ignore[misc]
    with pytest.raises(TypeError, match="frozen"):

        @quick
        class Loose(Point):  # type: ignore[misc]
            pass


def test_constructors_are_known_where_they_are_checked() -> None:
    @checks_given
    @quick(frozen=True)
    class Named:
        size: int = 3

    assert list(inspect.signature(Named).parameters) == ["size"]
    assert compiled(len) is len


def test_own_methods_stay() -> None:
    @quick(frozen=True)
    class Own:
        x: int

        def __init__(self) -> None:
            object.__setattr__(self, "x", 7)

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 1

    assert (Own().x, repr(Own()), Own() == 3, hash(Own())) == (7, "own", True, 1)
