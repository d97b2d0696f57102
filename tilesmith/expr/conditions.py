"""Conditions of selects and guards: as linear inequalities, and decided by known values."""

from __future__ import annotations

from collections.abc import Mapping

from tilesmith.expr.ints import Int
from tilesmith.expr.nodes import COMPARISONS, Binary, Expr, IntValue, Select, rewrite, substitute
from tilesmith.expr.walk import preorder


def condition_parts(cond: Expr) -> tuple[tuple[Int, ...], tuple[Expr, ...]]:
    """A condition as a conjunction: Ints that must be >= 0, and other conditions that must hold."""
    ints: list[Int] = []
    rest: list[Expr] = []
    for x in preorder(cond, _conjuncts):
        match x:
            case Binary(op="and"):
                continue
            case Binary(op=op, a=IntValue(value=p), b=IntValue(value=q)) if op in COMPARISONS:
                match op:
                    case "lt":
                        ints.append(q - p - 1)
                    case "le":
                        ints.append(q - p)
                    case "gt":
                        ints.append(p - q - 1)
                    case "ge":
                        ints.append(p - q)
                    case "eq":
                        ints += (p - q, q - p)
                    case _:
                        rest.append(x)
            case _:
                rest.append(x)
    return tuple(ints), tuple(rest)


def _conjuncts(e: Expr) -> tuple[Expr, ...]:
    return (e.a, e.b) if isinstance(e, Binary) and e.op == "and" else ()


def settled(e: Expr, env: Mapping[str, Int]) -> Expr:
    """The expression with these values of iterators. Selects that they decide are replaced."""

    def settle(x: Expr) -> Expr:
        cond = x.cond if isinstance(x, Select) else None
        if isinstance(x, Select) and isinstance(cond, Binary) and cond.op == "eq":
            sides = [y.value.const for y in (cond.a, cond.b) if isinstance(y, IntValue)]
            if len(sides) == 2 and None not in sides:
                return x.a if sides[0] == sides[1] else x.b
        return x

    return rewrite(substitute(e, env), settle) if env else e
