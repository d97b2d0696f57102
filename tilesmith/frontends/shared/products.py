"""Matrix products. Leading dimensions are folded into the rows or into one batch where that is
possible, so that the product itself is a plain one. And the two products of attention, where heads
may share keys (grouped queries).
"""

from __future__ import annotations

from math import prod

from tilesmith.frontends.shared.building import Building, shaped
from tilesmith.graph.graph import Value
from tilesmith.ops.elementwise import add, bias_add, multiply
from tilesmith.ops.matmul import batch_matmul, matmul


def scaled(call: Building, x: Value, factor: float) -> Value:
    """x times a number of the model; x itself for 1."""
    if factor == 1:
        return x
    if not x.dtype.is_float:
        if not float(factor).is_integer():
            call.refuse(f"a factor of {factor} for {x.dtype}; it must be a whole number")
        factor = int(factor)
    return call.add(multiply, x, B=factor)


def product(call: Building, a: Value, b: Value) -> Value:
    """NumPy's matmul: a vector is a row on the left and a column on the right, and leading
    dimensions are broadcast.
    """
    if not a.shape or not b.shape:
        call.refuse(f"the product of {a} and {b}: both must have at least one dimension")
    left = a if len(a.shape) > 1 else shaped(call, a, (1, *a.shape))
    right = b if len(b.shape) > 1 else shaped(call, b, (*b.shape, 1))
    y = _of_matrices(call, left, right)
    rows = y.shape[-2:-1] if len(a.shape) > 1 else ()
    columns = y.shape[-1:] if len(b.shape) > 1 else ()
    return shaped(call, y, (*y.shape[:-2], *rows, *columns))


def _of_matrices(call: Building, a: Value, b: Value) -> Value:
    *lead_a, m, k = a.shape
    *lead_b, kb, n = b.shape
    if k != kb:
        call.refuse(f"the product of {a} and {b}: the inner dimensions are {k} and {kb}")
    batch_a, batch_b = _without_ones(lead_a), _without_ones(lead_b)
    rank = max(len(lead_a), len(lead_b))
    if not batch_b:  # one matrix on the right: all else are rows
        rows, columns = shaped(call, a, (prod(lead_a) * m, k)), shaped(call, b, (k, n))
        y = call.add(matmul, rows, columns)
        lead = [1] * (rank - len(lead_a)) + lead_a
        return shaped(call, y, (*lead, m, n))
    if batch_a == batch_b or not batch_a:
        # Batch dimensions are not folded into one: a transpose in front of them would then have
        # to be a copy.
        y = call.add(
            batch_matmul, shaped(call, a, (*batch_a, m, k)), shaped(call, b, (*batch_b, k, n))
        )
        lead = [1] * (rank - len(lead_b)) + lead_b
        return shaped(call, y, (*lead, m, n))
    return call.add(batch_matmul, a, b)


def _without_ones(lead: list[int]) -> list[int]:
    """A batch without the dimensions of 1 in front of it, which broadcasting adds anyway."""
    while lead and lead[0] == 1:
        lead = lead[1:]
    return lead


def plus_bias(call: Building, y: Value, bias: Value) -> Value:
    """A product plus what is broadcast to it: as a rule one number for each column."""
    if bias.shape and bias.size == bias.shape[-1] == y.shape[-1]:
        return call.add(bias_add, y, shaped(call, bias, (y.shape[-1],)), axis=-1)
    return call.add(add, y, bias)


def scores_of(call: Building, q: Value, k: Value, lead: tuple[int, ...]) -> Value:
    """The products of queries and keys, each (batch, heads, ..., size), as (batch, heads, queries,
    keys). Heads that share keys are rows of one product. `lead` is the batch of these products:
    (batch, heads of k), or both as one dimension.
    """
    batch, heads, queries, size = q.shape
    _, groups, keys, _ = k.shape
    # Scores of half precision stay in float32 up to the softmax.
    wide = {"out_dtype": "float32"} if q.dtype.bits < 32 else {}
    rows = shaped(call, q, (*lead, heads // groups * queries, size))
    columns = shaped(call, k, (*lead, keys, size))
    y = call.add(batch_matmul, rows, columns, transpose_b=True, **wide)
    return shaped(call, y, (batch, heads, queries, keys))


def attended(call: Building, p: Value, v: Value, lead: tuple[int, ...]) -> Value:
    """The values (batch, heads, keys, size) weighted by p (batch, heads, queries, keys)."""
    batch, heads, queries, keys = p.shape
    rows = shaped(call, p, (*lead, heads // v.shape[1] * queries, keys))
    y = call.add(batch_matmul, rows, shaped(call, v, (*lead, keys, v.shape[3])))
    return shaped(call, y, (batch, heads, queries, v.shape[3]))
