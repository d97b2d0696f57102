"""A vectorized loop longer than a few registers becomes a loop over strips of them, and a rest."""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.dtype import BOOL, DType
from tilesmith.base.target import Target
from tilesmith.codegen.passes.access import substitute_body
from tilesmith.expr.ints import of, var
from tilesmith.expr.nodes import Const, Expr, IntValue, children
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import For, Stmt, Store, rewrite, statements

_VECTORS = 8  # so many registers are written out side by side


def strip_vectors(func: Function, target: Target) -> Function:
    def go(s: Stmt) -> tuple[Stmt, ...]:
        if not (isinstance(s, For) and s.kind == "vectorize"):
            return (s,)
        n = s.extent.const or 0
        strip = lanes_of(s.body, target) * _VECTORS // 2
        if n <= 2 * strip:
            return (s,)
        outer, inner = f"{s.name}.strip", f"{s.name}.lane"
        whole = substitute_body(s.body, {s.name: var(outer) * strip + var(inner)})
        loop = For(outer, of(n // strip), (replace(s, name=inner, extent=of(strip), body=whole),))
        rest = n % strip
        if not rest:
            return (loop,)
        tail = substitute_body(s.body, {s.name: var(s.name) + (n - rest)})
        return (loop, replace(s, extent=of(rest), body=tail))

    return replace(func, body=rewrite(func.body, go))


def lanes_of(body: tuple[Stmt, ...], target: Target) -> int:
    """As many lanes as one register holds of the widest type that is computed with."""
    widest = 8
    for s in statements(body):
        if isinstance(s, Store):
            for w in s.writes:
                widest = max(widest, _bits(w.value, target), compute_bits(w.value.dtype, target))
    return max(1, target.vector_bits // widest)


def compute_bits(d: DType, target: Target) -> int:
    """Half precision is computed with in float, unless the target has it."""
    if d is BOOL:
        return 1
    if d.name == "bfloat16" or (d.name == "float16" and "fp16" not in target.features):
        return 32
    return d.bits


def _bits(e: Expr, target: Target) -> int:
    own = 8
    if not isinstance(e, IntValue | Const) and e.dtype is not BOOL:
        own = compute_bits(e.dtype, target)
    return max([own, *(_bits(x, target) for x in children(e))])
