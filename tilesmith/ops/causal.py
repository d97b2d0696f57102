"""The causal convolution of sequence models: an output depends on its own position and those before
it. The last inputs are carried to the next call.
"""

from __future__ import annotations

from tilesmith.expr.dsl import Tensor, compute, reduce_axis
from tilesmith.expr.ints import ZERO, Int, of
from tilesmith.expr.reductions import sum as sum_over
from tilesmith.expr.values import Value, cast, where
from tilesmith.ops.arguments import fixed, need_equal, need_tensor
from tilesmith.ops.precision import sum_dtypes


def causal_conv1d(
    X: Tensor, W: Tensor, past: Tensor | None = None, name: str = "causal_conv1d"
) -> Tensor:
    """One kernel per channel: X (N, C, L) and W (C, 1, K). In front of X stands `past`
    (N, C, K - 1), or zeros.
    """
    op = "causal_conv1d"
    need_tensor(op, "X", X, "N C L")
    need_tensor(op, "W", W, "C 1 K")
    taps = fixed(op, "the kernel of W", W.shape_ints[2])
    need_equal(op, "dimension 0 of W", W.shape_ints[0], X.shape_ints[1], "X has channels")
    need_equal(op, "dimension 1 of W", W.shape_ints[1], of(1), "it must be")
    length = X.shape_ints[2]
    joined = _joined(op, X, past, ZERO, length + (taps - 1), taps - 1, f"{name}_input")
    acc, result = sum_dtypes(op, X.dtype, W.dtype, None)
    r = reduce_axis(taps, name="r")

    def body(n: Value, c: Value, w: Value) -> Value:
        product = cast(joined[n, c, w + r], acc) * cast(W[c, 0, r], acc)
        return cast(sum_over(product, axis=r), result)

    out: Tensor = compute(X.shape_ints, body, name=name)
    return out


def causal_state(
    X: Tensor, past: Tensor | None = None, kept: int = 0, name: str = "causal_state"
) -> Tensor:
    """The last `kept` positions of X with `past`, or zeros, in front."""
    need_tensor("causal_state", "X", X, "N C L")
    return _joined("causal_state", X, past, X.shape_ints[2], of(kept), kept, name)


def _joined(
    op: str, X: Tensor, past: Tensor | None, start: Int, extent: Int, before: int, name: str
) -> Tensor:
    """`extent` positions from `start` on of X with `past`, of `before` positions, in front."""
    if past is not None:
        need_tensor(op, "past", past, "N C K-1")
        need_equal(op, "dimension 2 of past", past.shape_ints[2], of(before), "the kernel needs")

    def body(n: Value, c: Value, w: Value) -> Value:
        at = w + start
        here = X[n, c, at - before]
        if before == 0:
            return here
        return where(at >= before, here, 0 if past is None else past[n, c, at])

    out: Tensor = compute((*X.shape_ints[:2], extent), body, name=name)
    return out
