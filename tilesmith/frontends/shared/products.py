"""Matrix products. Leading dimensions are folded into the rows or into one batch where that is
possible, so that the product itself is a plain one. And the weights of transposed convolutions,
so that the stride divides their extents.
"""

from __future__ import annotations

from math import prod

from tilesmith.frontends.shared.building import Building, shaped
from tilesmith.graph.graph import Value
from tilesmith.ops.elementwise import multiply
from tilesmith.ops.matmul import batch_matmul, matmul
from tilesmith.ops.transform import pad


def scaled(call: Building, x: Value, factor: float) -> Value:
    """x times a number of the model; x itself for 1."""
    if factor == 1:
        return x
    if not x.dtype.is_float:
        if not float(factor).is_integer():
            call.refuse(f"a factor of {factor} for {x.dtype}; it must be a whole number")
        factor = int(factor)
    return call.add(multiply, x, B=factor)


def product(call: Building, a: Value, b: Value, out_dtype: str | None = None) -> Value:
    """NumPy's matmul: a vector is a row on the left and a column on the right, and leading
    dimensions are broadcast.
    """
    if not a.shape or not b.shape:
        call.refuse(f"the product of {a} and {b}: both must have at least one dimension")
    left = a if len(a.shape) > 1 else shaped(call, a, (1, *a.shape))
    right = b if len(b.shape) > 1 else shaped(call, b, (*b.shape, 1))
    y = _of_matrices(call, left, right, {} if out_dtype is None else {"out_dtype": out_dtype})
    rows = y.shape[-2:-1] if len(a.shape) > 1 else ()
    columns = y.shape[-1:] if len(b.shape) > 1 else ()
    return shaped(call, y, (*y.shape[:-2], *rows, *columns))


def _of_matrices(call: Building, a: Value, b: Value, settings: dict[str, str]) -> Value:
    *lead_a, m, k = a.shape
    *lead_b, kb, n = b.shape
    if k != kb:
        call.refuse(f"the product of {a} and {b}: the inner dimensions are {k} and {kb}")
    batch_a, batch_b = _without_ones(lead_a), _without_ones(lead_b)
    rank = max(len(lead_a), len(lead_b))
    y: Value
    if not batch_b:  # one matrix on the right: all else are rows
        rows, columns = shaped(call, a, (prod(lead_a) * m, k)), shaped(call, b, (k, n))
        y = call.add(matmul, rows, columns, **settings)
        lead = [1] * (rank - len(lead_a)) + lead_a
        return shaped(call, y, (*lead, m, n))
    if batch_a == batch_b or not batch_a:
        # Batch dimensions are not folded into one: a transpose in front of them would then have
        # to be a copy.
        y = call.add(
            batch_matmul, shaped(call, a, (*batch_a, m, k)), shaped(call, b, (*batch_b, k, n)),
            **settings,
        )  # fmt: skip
        lead = [1] * (rank - len(lead_b)) + lead_b
        return shaped(call, y, (*lead, m, n))
    return call.add(batch_matmul, a, b, **settings)


def _without_ones(lead: list[int]) -> list[int]:
    """A batch without the dimensions of 1 in front of it, which broadcasting adds anyway."""
    while lead and lead[0] == 1:
        lead = lead[1:]
    return lead


Pairs = tuple[tuple[int, int], ...]


def whole_phases(
    call: Building, w: Value, stride: tuple[int, ...], padding: Pairs
) -> tuple[Value, Pairs]:
    """Weights with zeros around them, so that the stride divides their extent and the padding, and
    what they add to the output cut off again. Then the operator is a few small convolutions, not
    one over an input with zeros between its elements.
    """
    more = []
    for n, s, (before, _) in zip(w.shape[2:], stride, padding, strict=True):
        front = 0 if s == 2 else -before % s  # of a stride of 2 the operator takes any padding
        more.append((front, -(n + front) % s))
    if not any(map(any, more)):
        return w, padding
    wider: Value = call.add(pad, w, widths=((0, 0), (0, 0), *more))
    cut = zip(padding, more, strict=True)
    return wider, tuple((p[0] + m[0], p[1] + m[1]) for p, m in cut)
