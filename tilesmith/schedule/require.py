"""A bound across decisions, as a step of a trace: an integer expression over columns and its
limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import Int, is_size
from tilesmith.ir.function import Function
from tilesmith.ir.parse import parse_int
from tilesmith.schedule.step import Step


@dataclass(frozen=True, slots=True)
class Require(Step):
    """Rows in which `expression` leaves [least, most] are not part of the space."""

    name: ClassVar[str] = "require"
    expression: str
    most: int | None = None
    least: int = 0

    @property
    def value(self) -> Int:
        return parse_int(self.expression)

    def apply(self, func: Function) -> Function:
        value = self.value
        loops = [n for n in value.names if not is_size(n)]
        if loops:
            raise ScheduleError(
                f"require({self.expression!r}) uses {loops[0]}; it takes size variables"
            )
        n = value.const
        if n is not None and (n < self.least or (self.most is not None and n > self.most)):
            raise ScheduleError(
                f"{self.expression} is {n}; it must lie in {self.least}..{self.most}"
            )
        return func
