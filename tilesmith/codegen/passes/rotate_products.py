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
from tilesmith.expr.ints import ONE, ZERO, of, var
from tilesmith.ir.function import Function
from tilesmith.ir.intrinsics import WARPGROUP
from tilesmith.ir.nodes import For, Stmt, Store, rewrite, statements


def rotate_products(func: Function, _: Target) -> Function:
    """Takes launch form with fragments in registers."""

    def go(s: Stmt) -> tuple[Stmt, ...]:
        return (_rotated(s) or (s,)) if isinstance(s, For) and s.kind == "serial" else (s,)

    return replace(func, body=rewrite(func.body, go))


def _rotated(loop: For) -> tuple[Stmt, ...] | None:
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

    def at(body: tuple[Stmt, ...], turn: object) -> tuple[Stmt, ...]:
        return simplify_body(substitute_body(body, {loop.name: turn}), {}, {})  # type: ignore[dict-item]

    k = var(loop.name)
    inner = (
        *substitute_body(ahead, {loop.name: k + 1}),
        *behind,
        *substitute_body(between, {loop.name: k + 1}),
    )
    rest = replace(loop, extent=of(loop.trips - 1), body=inner)
    if loop.trips == 2:
        inside = at(inner, ZERO)
        return (*at(ahead, ZERO), *at(between, ZERO), *inside, *at(behind, ONE))
    end = of(loop.trips - 1)
    return (*at(ahead, ZERO), *at(between, ZERO), rest, *at(behind, end))


def _product(s: Stmt) -> str | None:
    """The result, if the statement is a product of groups of threads and nothing else."""
    stores = [t for t in statements((s,)) if isinstance(t, Store)]
    units = [t.intrinsic for t in stores]
    if not stores or any(
        u is None or u.fragment is None or u.fragment.threads != WARPGROUP for u in units
    ):
        return None
    return stores[0].writes[0].buffer
