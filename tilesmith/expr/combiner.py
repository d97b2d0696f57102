"""Combiners: how a reduction joins two partial results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tilesmith.base.dtype import DType
from tilesmith.expr.nodes import Arg, Binary, Const, Expr, rewrite

COMBINERS = ("add", "mul", "max", "min")  # operators of plain reductions
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Combiner:
    """One expression per output over the Args x0.. and y0.., and the identity of each.

    It must be associative and commutative; schedules rely on it.
    """

    values: tuple[Expr, ...]
    identity: tuple[Const, ...]

    @property
    def op(self) -> str | None:
        """The name, if it is a plain add, mul, max or min."""
        if len(self.values) == 1 and isinstance(v := self.values[0], Binary):
            plain = (v.a, v.b) == (Arg("x0", v.dtype), Arg("y0", v.dtype))
            return v.op if plain and v.op in COMBINERS else None
        return None

    def join(self, x: tuple[Expr, ...], y: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return map_args(self.values, join_args(x, y))


def map_args(values: tuple[Expr, ...], env: Mapping[str, Expr]) -> tuple[Expr, ...]:
    """The values with each Arg replaced by its value in `env`."""
    return tuple(rewrite(v, lambda e: env[e.name] if isinstance(e, Arg) else e) for v in values)


def join_args(x: Iterable[_T], y: Iterable[_T]) -> dict[str, _T]:
    """The Args of a combiner by name: x is the partial result so far, y what is joined to it."""
    return {f"x{k}": v for k, v in enumerate(x)} | {f"y{k}": v for k, v in enumerate(y)}


def plain_combiner(op: str, dtype: DType) -> Combiner:
    identity = {"add": 0, "mul": 1, "max": dtype.lowest(), "min": dtype.highest()}[op]
    value = Binary(op, Arg("x0", dtype), Arg("y0", dtype), dtype)
    return Combiner((value,), (Const(dtype.wrap(identity), dtype),))
