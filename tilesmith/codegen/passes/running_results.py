"""Running sums that take the sum so far from the results, instead of keeping it in a buffer."""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.dtype import BOOL, INT64
from tilesmith.expr.ints import ZERO, var
from tilesmith.expr.nodes import Binary, Expr, IntValue, Load, Select
from tilesmith.expr.nodes import rewrite as rewrite_value
from tilesmith.ir.function import Function, readers
from tilesmith.ir.nodes import Block, Path, joined


def reads_results(func: Function, path: Path, b: Block) -> Block | None:
    """The block of a running sum without its buffer of sums so far; None where that buffer is
    needed, or small enough for registers.

        for k, j                      ->    for k, j
          P[j] = P[j] + X[k, j]               Y[k, j] = where(k == 0, 0, Y[k-1, j]) + X[k, j]
          Y[k, j] = P[j] + X[k, j]

    A core begins fewer of the stores that miss its first cache ahead, where stores that hit it
    stand between them: sums along the columns of a matrix take half of the time without.
    """
    if len(b.writes) != 2 or b.keeps_partial != (False, True) or b.combiner is None or not b.init:
        return None
    total, result = joined(b.writes, b.combiner)
    if total.value != result.value or all(p.name != result.buffer for p in func.params):
        return None
    others = any(x.name != b.name for buffer in (total.buffer, result.buffer)
                 for x in readers(func, buffer))  # fmt: skip
    (k,) = b.reducing[:1]
    along = [d for d, p in enumerate(result.index) if k.name in p.names]
    if others or b.tile or len(b.reducing) != 1 or len(along) != 1 or not _in_memory(path, b):
        return None
    index, d = list(result.index), along[0]
    step = index[d].coefficient(k.name).const
    if step not in (1, -1):
        return None
    index[d] = index[d] - step
    so_far = Load(result.buffer, tuple(index), result.value.dtype)
    is_first = Binary("eq", IntValue(var(k.name), INT64), IntValue(ZERO, INT64), BOOL)
    before = Select(is_first, b.combiner.identity[0], so_far, so_far.dtype)

    def put(e: Expr) -> Expr:
        return before if e == total.held else e

    write = replace(result, value=rewrite_value(result.value, put))
    return replace(b, writes=(write,), combiner=None, init=False)


def _in_memory(path: Path, b: Block) -> bool:
    """Whether a loop that is not written out changes the sum within a step of the running one."""
    reducing = b.reducing_loops
    at = next((k for k, f in enumerate(path) if f.name in reducing), len(path))
    return any(
        f.kind not in ("unroll", "vectorize") and f.extent.const != 1 and f.name not in reducing
        for f in path[at:]
    )
