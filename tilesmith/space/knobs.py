"""`Knob`: a number that a template leaves to the tuner, as a value it can compute with.

Arithmetic on a knob keeps it open: `2*x` is an expression over size variables, for use as a factor
or in `require`. Where Python needs the number itself (a comparison, `int`, `range`, the key of a
dictionary), the template branches: it is run once for each possible answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Union, cast

from tilesmith.expr.ints import Int

Operand = Union["Knob", Int, int]


class Asker(Protocol):
    """The runner of a template, which answers questions about knobs and records the answers."""

    def number_of(self, value: Int) -> int:
        """One of the values that `value` can take."""
        ...

    def lies_in(self, value: Int, least: int | None, most: int | None) -> bool:
        """Whether `value` lies in [least, most]; None is no bound."""
        ...


class Knob:
    """An integer expression over decisions. `str` gives its text, such as "#C.i.1"."""

    __slots__ = ("_asker", "value")

    def __init__(self, asker: Asker, value: Int) -> None:
        self._asker = asker
        self.value = value

    def _with(self, other: object, op: Callable[[Int, Int], Int]) -> Knob:
        if isinstance(other, Knob):
            return Knob(self._asker, op(self.value, other.value))
        if isinstance(other, Int | int) and not isinstance(other, bool):
            return Knob(self._asker, op(self.value, Int({}) + other))
        return cast("Knob", NotImplemented)  # the protocol of Python's operators

    def __add__(self, other: Operand) -> Knob:
        return self._with(other, lambda a, b: a + b)

    __radd__ = __add__

    def __sub__(self, other: Operand) -> Knob:
        return self._with(other, lambda a, b: a - b)

    def __rsub__(self, other: Operand) -> Knob:
        return self._with(other, lambda a, b: b - a)

    def __mul__(self, other: Operand) -> Knob:
        return self._with(other, lambda a, b: a * b)

    __rmul__ = __mul__

    def __floordiv__(self, other: Operand) -> Knob:
        return self._with(other, lambda a, b: a // b)

    def __rfloordiv__(self, other: Operand) -> Knob:
        return self._with(other, lambda a, b: b // a)

    def __mod__(self, other: Operand) -> Knob:
        return self._with(other, lambda a, b: a % b)

    def __rmod__(self, other: Operand) -> Knob:
        return self._with(other, lambda a, b: b % a)

    def __neg__(self) -> Knob:
        return Knob(self._asker, -self.value)

    # operations that need the number
    def __truediv__(self, other: float) -> float:
        return int(self) / float(other)

    def __rtruediv__(self, other: float) -> float:
        return float(other) / int(self)

    def __int__(self) -> int:
        return self._asker.number_of(self.value)

    __index__ = __int__

    def __float__(self) -> float:
        return float(int(self))

    def __hash__(self) -> int:
        return hash(int(self))

    def __bool__(self) -> bool:
        return self != 0

    def _lies(self, other: object, least: int | None, most: int | None) -> bool:
        """Whether self - other lies in [least, most]."""
        difference = self._with(other, lambda a, b: a - b)
        if difference is NotImplemented:
            return cast(bool, NotImplemented)
        if (n := difference.value.const) is not None:
            return (least is None or n >= least) and (most is None or n <= most)
        return self._asker.lies_in(difference.value, least, most)

    def __eq__(self, other: object) -> bool:
        return self._lies(other, 0, 0)

    def __lt__(self, other: Operand) -> bool:
        return self._lies(other, None, -1)

    def __le__(self, other: Operand) -> bool:
        return self._lies(other, None, 0)

    def __gt__(self, other: Operand) -> bool:
        return self._lies(other, 1, None)

    def __ge__(self, other: Operand) -> bool:
        return self._lies(other, 0, None)

    def __str__(self) -> str:
        return str(self.value)

    __repr__ = __str__
