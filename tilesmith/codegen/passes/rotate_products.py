"""GPU: rotates a loop in which two products of tensor cores follow one another, so that the first
one of an iteration runs together with the second one of the iteration before, and other work hides
behind that one. The order in which each result is computed stays the same.

    for t in 8:                      S = Q * K[0]; P = f(S)
      S = Q * K[t]                   for t in 7:
      P = f(S)                 ->      S = Q * K[t + 1]
      O = O * g; O += P * V[t]         O = O * g; O += P * V[t]
                                       P = f(S)
                                     O = O * g; O += P * V[7]
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import accesses, substitute_body
from tilesmith.codegen.passes.simplify import simplify_body
from tilesmith.expr.ints import ZERO, Int, maximum, of, var
from tilesmith.ir.function import Function
from tilesmith.ir.intrinsics import WARPGROUP
from tilesmith.ir.nodes import For, If, Stmt, Store, rewrite, statements


def rotate_products(func: Function, _: Target) -> Function:
    """Takes launch form with fragments in registers."""

    def go(s: Stmt) -> tuple[Stmt, ...]:
        return (_rotated(s) or (s,)) if isinstance(s, For) and s.kind == "serial" else (s,)

    return replace(func, body=rewrite(func.body, go))


def _rotated(loop: For) -> tuple[Stmt, ...] | None:
    if len(loop.body) == 1 and isinstance(only := loop.body[0], If):
        return _rotated_while(loop, only)
    parts = _parts(loop)
    if parts is None:
        return None
    ahead, between, behind = parts
    k = var(loop.name)
    inner = (*_at(ahead, loop, k + 1), *behind, *_at(between, loop, k + 1))
    rest = replace(loop, extent=of(loop.trips - 1), body=inner)
    end = of(loop.trips - 1)
    first = (*_at(ahead, loop, ZERO), *_at(between, loop, ZERO))
    middle = _at(inner, loop, ZERO) if loop.trips == 2 else (rest,)
    return (*first, *middle, *_at(behind, loop, end))


def _rotated_while(loop: For, only: If) -> tuple[Stmt, ...] | None:
    """A loop whose iterations end where a condition no longer holds."""
    parts = _parts(replace(loop, body=only.body))
    if parts is None or len(only.conds) != 1:
        return None
    (cond,) = only.conds
    step = cond.coefficient(loop.name).const
    start = cond.substitute({loop.name: ZERO})
    if step is None or step >= 0 or cond != start + var(loop.name) * step:
        return None
    ahead, between, behind = parts
    k, last = var(loop.name), of(loop.trips - 1)
    end = -maximum(-last, -(start // of(-step)))
    inner = (*_at(ahead, loop, k + 1), *behind, *_at(between, loop, k + 1))
    guarded = If((cond.substitute({loop.name: k + 1}),), inner)
    rest = replace(loop, extent=last, body=(guarded,))
    whole: tuple[Stmt, ...] = (
        *_at(ahead, loop, ZERO), *_at(between, loop, ZERO), rest, *_at(behind, loop, end)
    )  # fmt: skip
    return (If((start,), whole),)


def _at(body: tuple[Stmt, ...], loop: For, turn: Int) -> tuple[Stmt, ...]:
    return simplify_body(substitute_body(body, {loop.name: turn}), {}, {})


def _parts(loop: For) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...], tuple[Stmt, ...]] | None:
    """The first product, the second one with all that touches its result, and what is between."""
    products = [(k, r) for k, s in enumerate(loop.body) if (r := _product(s)) is not None]
    if len(products) != 2 or loop.trips < 2:
        return None
    (first, score), (last, result) = products
    if result == score or last != len(loop.body) - 1:
        return None
    # The second part is all that touches its result, and what fills its operands for it alone.
    start = next(
        k for k, s in enumerate(loop.body) if any(a.buffer == result for a in accesses((s,)))
    )
    if start <= first:
        return None
    ahead, between, behind = loop.body[: first + 1], loop.body[first + 1 : start], loop.body[start:]
    made = {a.buffer for a in accesses(ahead) if a.write}
    used = {a.buffer for a in accesses(behind)}
    if made & used:
        return None

    return ahead, between, behind


def _product(s: Stmt) -> str | None:
    """The result, if the statement is a product of groups of threads and nothing else."""
    stores = [t for t in statements((s,)) if isinstance(t, Store)]
    units = [t.intrinsic for t in stores]
    if not stores or any(
        u is None or u.fragment is None or u.fragment.threads != WARPGROUP for u in units
    ):
        return None
    return stores[0].writes[0].buffer
