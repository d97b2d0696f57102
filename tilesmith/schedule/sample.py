"""Steps that stand for a decision of the search, and constraints across decisions. An open one
introduces size variables (or a choice of structure) for the steps after it. A decided one also
holds the value, so it can be decided anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any, ClassVar, Self

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import Int, is_size, of, parse_int
from tilesmith.ir.function import Function, find_block, find_loop
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.location import ComputeAt
from tilesmith.schedule.loops import Reorder
from tilesmith.schedule.step import Step

MAX_PARTS = 1000  # of a tile; kernels have up to five


@dataclass(frozen=True, slots=True)
class SampleTile(Step):
    """The extents of a loop's tile, outermost first, as the size variables #loop.0, #loop.1, ...

    `policy` is the set to choose from: "divisors" of the extent, "powers" of two, "both" of these,
    "any" number (tiles need not divide), "vector" (any number, with an innermost extent that fills
    vectors of `lanes`), or "steps" (the same, where the innermost two extents together fill them,
    and the last one is 1, 2, 4 or 8). `candidates` lists the tuples explicitly instead. The
    innermost extent, or with "steps" the product of the last two, is at most `max_innermost`.

    for i in 512    ->    for i in 512, with #i.0 * #i.1 = 512 to be used by a split
    """

    name: ClassVar[str] = "sample_tile"
    loop: str
    parts: int
    policy: str = "divisors"
    max_innermost: int = 0
    lanes: int = 1
    candidates: tuple[tuple[int, ...], ...] = ()
    decision: tuple[int, ...] | None = None

    POLICIES: ClassVar[tuple[str, ...]] = (
        "divisors", "powers", "both", "any", "vector", "steps"
    )  # fmt: skip

    def __post_init__(self) -> None:
        # Here and not in `apply`: each part is a column, which a reader of the trace asks for.
        if isinstance(self.parts, int) and self.parts > MAX_PARTS:
            raise ScheduleError(
                f"sample_tile of {self.loop} into parts={self.parts}: it takes at most {MAX_PARTS}"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(f"#{self.loop}.{k}" for k in range(self.parts))

    @property
    def exact(self) -> bool:
        return self.policy == "divisors" and not self.candidates

    @property
    def decided(self) -> tuple[int, ...]:
        """The chosen numbers for the first columns; empty while the decision is open."""
        return self.decision or ()

    def apply(self, func: Function) -> Function:
        find_loop(func, self.loop)
        if self.policy not in self.POLICIES:
            policies = ", ".join(self.POLICIES)
            raise ScheduleError(
                f"sample_tile of {self.loop}: unknown policy {self.policy!r}; known are {policies}"
            )
        if not isinstance(self.parts, int) or self.parts < 1:
            raise ScheduleError(
                f"sample_tile of {self.loop} into parts={self.parts!r}: it takes 1 or more"
            )
        wrong = next((c for c in self.candidates if len(c) != self.parts or min(c) < 1), None)
        if wrong is not None:
            raise ScheduleError(
                f"sample_tile of {self.loop}: a candidate is {self.parts} factors, each at least "
                f"1; got {wrong}"
            )
        return func

    def decide(self, sizes: Mapping[str, int]) -> Self:
        if not all(c in sizes for c in self.columns):
            return self
        return replace(self, decision=tuple(sizes[c] for c in self.columns))


@dataclass(frozen=True, slots=True)
class SampleChoice(Step):
    """One of a few numbers, as the size variable `column`. With `probabilities`, one for each
    value, random rows have some more often than others; else all are equally likely.
    """

    name: ClassVar[str] = "sample_choice"
    column: str
    values: tuple[int, ...]
    decision: int | None = None
    probabilities: tuple[float, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def decided(self) -> tuple[int, ...]:
        """The chosen number; empty while the decision is open."""
        return () if self.decision is None else (self.decision,)

    def apply(self, func: Function) -> Function:
        if not self.values:
            raise ScheduleError(
                f"sample_choice of {self.column} has nothing to choose from; give it some numbers"
            )
        given = self.probabilities
        if given and not (
            len(given) == len(self.values) and all(0 <= p < inf for p in given) and sum(given) > 0
        ):
            raise ScheduleError(
                f"sample_choice of {self.column}: probabilities are a number for each of the "
                f"{len(self.values)} values, none negative and one at least above 0; got {given}"
            )
        return func

    @property
    def values_by_name(self) -> dict[str, Any]:
        """Without probabilities if there are none, as traces were before these."""
        values = {"column": self.column, "values": self.values, "decision": self.decision}
        return {**values, "probabilities": self.probabilities} if self.probabilities else values

    def decide(self, sizes: Mapping[str, int]) -> Self:
        return replace(self, decision=sizes[self.column]) if self.column in sizes else self


@dataclass(frozen=True, slots=True)
class SampleLocation(Step):
    """The place where a block is computed: "root", "inline", or inside one of the loops. It changes
    the program's structure, so each choice is a variant of its own.

    places=("root", "C.i.0", "C.k.0")    ->    compute_at(block, "C.k.0")
    """

    name: ClassVar[str] = "sample_location"
    block: str
    places: tuple[str, ...]
    decision: str | None = None

    @property
    def choices(self) -> tuple[str, ...]:
        return self.places

    def apply(self, func: Function) -> Function:
        if self.decision is None:
            raise ScheduleError(f"where {self.block} is computed is not decided yet")
        if self.decision not in self.places:
            raise ScheduleError(
                f"{self.block} cannot be computed at {self.decision!r}; it may be at {self.places}"
            )
        find_block(func, self.block)
        if self.decision == "root":
            return func
        if self.decision == "inline":
            return Inline(self.block).apply(func)
        return ComputeAt(self.block, self.decision).apply(func)


@dataclass(frozen=True, slots=True)
class SamplePermutation(Step):
    """The order of some loops: one of `orders`. Each choice is a variant of its own."""

    name: ClassVar[str] = "sample_permutation"
    orders: tuple[tuple[str, ...], ...]
    decision: tuple[str, ...] | None = None

    @property
    def choices(self) -> tuple[tuple[str, ...], ...]:
        return self.orders

    def apply(self, func: Function) -> Function:
        if self.decision is None:
            raise ScheduleError(f"the order of {', '.join(self.orders[0])} is not decided yet")
        if self.decision not in self.orders:
            raise ScheduleError(f"{self.decision} is not one of the orders {self.orders}")
        return Reorder(self.decision).apply(func)


NumericSample = SampleTile | SampleChoice


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
