"""`OpenSize`: the name of an open size, the range that it is expected in, and the values that it is
tuned for. `OpenInt` is an Int that knows the open sizes in it, as `ts.size` returns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ExpressionError
from tilesmith.expr.ints import Int, IntLike, var

DEFAULT_RANGE = (1, 1024)  # of a size without one
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_MOST_SAMPLES = 8  # by default: powers of 2, if there are not too many, and both ends


@dataclass(frozen=True, slots=True)
class OpenSize:
    """A size with its range, both ends included; None is `DEFAULT_RANGE`. A kernel is right for
    sizes outside, too, but it is tuned for those inside. `samples` are the values that it is tuned
    for, with their weights; by default, powers of two in the range.
    """

    name: str
    range: tuple[int, int] | None = None
    samples: tuple[tuple[int, float], ...] = ()

    @property
    def limits(self) -> tuple[int, int]:
        """The range, or the default one."""
        return self.range or DEFAULT_RANGE

    @property
    def weights(self) -> dict[int, float]:
        """The values to tune for, in order, with their weights."""
        if self.samples:
            return dict(self.samples)
        low, high = self.limits
        low = max(low, 1)
        values = sorted({low, high, *(1 << k for k in range(64) if low < 1 << k < high)})
        step = -(-(len(values) - 1) // (_MOST_SAMPLES - 1)) or 1
        return dict.fromkeys(sorted({*values[::-step], low}), 1.0)

    @property
    def typical(self) -> int:
        """The value with the largest weight; of several, the one in the middle."""
        weights = self.weights
        heaviest = [v for v, w in weights.items() if w == max(weights.values())]
        return heaviest[len(heaviest) // 2]


class OpenInt(Int):
    """An Int with the declarations of the sizes in it."""

    __slots__ = ("declared",)

    def __init__(self, p: Int, declared: frozenset[OpenSize]) -> None:
        super().__init__(p.terms)
        self.declared = declared

    def _with(self, result: Any, other: object) -> Any:
        if not isinstance(result, Int):
            return result
        more = other.declared if isinstance(other, OpenInt) else frozenset()
        return OpenInt(result, self.declared | more)

    def __add__(self, other: IntLike) -> Int:
        return self._with(super().__add__(other), other)  # type: ignore[no-any-return]

    __radd__ = __add__

    def __sub__(self, other: IntLike) -> Int:
        return self._with(super().__sub__(other), other)  # type: ignore[no-any-return]

    def __rsub__(self, other: IntLike) -> Int:
        return -self + other

    def __neg__(self) -> Int:
        return OpenInt(super().__neg__(), self.declared)

    def __mul__(self, other: IntLike) -> Int:
        return self._with(super().__mul__(other), other)  # type: ignore[no-any-return]

    __rmul__ = __mul__

    def __floordiv__(self, other: IntLike) -> Int:
        return self._with(super().__floordiv__(other), other)  # type: ignore[no-any-return]

    __hash__ = Int.__hash__


def open_size(
    name: str, limits: Sequence[int] | None, samples: Mapping[int, float] | None
) -> OpenInt:
    """Checks what a user said of a size."""
    if not isinstance(name, str) or not _NAME.fullmatch(plain := name.removeprefix("#")):
        raise ExpressionError(
            f"{name!r} is not the name of a size; a name is made of letters, digits and _"
        )
    low_high = None if limits is None else _range(plain, limits)
    weights = [] if samples is None else _samples(plain, low_high, samples)
    return OpenInt(var(f"#{plain}"), frozenset({OpenSize(plain, low_high, tuple(weights))}))


def _range(name: str, limits: Sequence[int]) -> tuple[int, int]:
    ok = isinstance(limits, Sequence) and len(limits) == 2 and all(map(_is_whole, limits))
    if not ok or not 0 <= limits[0] <= limits[1]:
        raise ExpressionError(
            f"the range of size {name} is {limits!r}; it is (lowest, highest), two whole numbers, "
            "of which the lowest is at least 0"
        )
    return int(limits[0]), int(limits[1])


def _samples(
    name: str, limits: tuple[int, int] | None, samples: Mapping[int, float]
) -> list[tuple[int, float]]:
    if not isinstance(samples, Mapping) or not samples:
        raise ExpressionError(
            f"the samples of size {name} are {samples!r}; they are values with weights, as in "
            "{16: 1, 128: 4}"
        )
    low, high = limits or DEFAULT_RANGE
    out = []
    for value, weight in sorted(samples.items()):
        if not _is_whole(value) or value < 1:
            raise ExpressionError(
                f"a sample of size {name} is {value!r}; it is a whole number of at least 1"
            )
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < 1e9:
            raise ExpressionError(
                f"sample {value} of size {name} has weight {weight!r}; it is a positive number"
            )
        if not low <= value <= high:
            said = "" if limits else ", the default range; give range=(lowest, highest)"
            raise ExpressionError(
                f"sample {value} of size {name} is outside of its range, {low} to {high}{said}"
            )
        out.append((int(value), float(weight)))
    return out


def _is_whole(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def declared_in(shapes: Iterable[Iterable[Int]], name: str) -> tuple[OpenSize, ...]:
    """The open sizes in shapes, in order of appearance. Equal names are one size: raises where two
    declarations contradict each other. One without range and samples adds nothing.
    """
    found: dict[str, OpenSize] = {}
    for shape in shapes:
        for extent in shape:
            said = {s.name: s for s in extent.declared} if isinstance(extent, OpenInt) else {}
            for n in sorted(extent.names):
                plain = n.removeprefix("#")
                new, old = said.get(plain, OpenSize(plain)), found.get(plain, OpenSize(plain))
                found[plain] = OpenSize(
                    plain,
                    _one("range", old.range, new.range, plain, name),
                    _one("samples", old.samples, new.samples, plain, name),
                )
    return tuple(found.values())


def _one(what: str, old: Any, new: Any, size: str, name: str) -> Any:
    if old and new and old != new:
        shown = [dict(x) if what == "samples" else x for x in (old, new)]
        raise ExpressionError(
            f"function({name!r}) has two sizes {size!r} with {what} {shown[0]} and {shown[1]}; "
            "give them different names, or the same"
        )
    return old or new
