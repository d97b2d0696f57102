"""A constraint across decisions, as a step of a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import Int, is_size, of
from tilesmith.ir.function import Function
from tilesmith.ir.parse import parse_int
from tilesmith.schedule.step import Step


@dataclass(frozen=True, slots=True)
class Require(Step):
    """Candidates in which `expression` lies outside [least, most] are never sampled.

    require("#i.2 * #j.2", most=64)    ->    require("8 * 4", most=64), once decided
    """

    name: ClassVar[str] = "require"
    expression: str
    most: int | None = None
    least: int = 0

    @property
    def value(self) -> Int:
        return parse_int(self.expression)

    def decide(self, sizes: Mapping[str, int]) -> Self:
        value = self.value.substitute({k: of(v) for k, v in sizes.items()})
        return replace(self, expression=str(value))

    def apply(self, func: Function) -> Function:
        value = self.value
        loops = sorted(n for n in value.names if not is_size(n))
        if loops:
            raise ScheduleError(
                f"require({self.expression!r}) uses {loops[0]}; it takes size variables"
            )
        n = value.const
        if n is not None and (n < self.least or (self.most is not None and n > self.most)):
            limits = f"{self.least}..{'' if self.most is None else self.most}"
            raise ScheduleError(f"require: {self.expression} must lie in {limits}")
        return func
