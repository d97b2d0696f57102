"""A bound on an expression over size variables, which is checked before anything is built."""

from __future__ import annotations

from dataclasses import dataclass

from tilesmith.expr.ints import Int


@dataclass(frozen=True)
class Limit:
    """`value` must lie in [least, most]; both bounds are numbers."""

    name: str
    value: Int
    most: int
    least: int = 0
