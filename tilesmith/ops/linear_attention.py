"""Linear attention: queries, keys and values of a sequence and a state in, the result of one step
and the state behind it out.
"""

from __future__ import annotations

from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, compute, reduce_axis
from tilesmith.expr.functions import exp
from tilesmith.expr.ints import ONE
from tilesmith.expr.reductions import sum as sum_over
from tilesmith.expr.values import Value, cast
from tilesmith.ops.arguments import fixed, need_equal, need_tensor


def linear_attention_step(
    Q: Tensor, K: Tensor, V: Tensor, S: Tensor, T: Tensor, *given: Tensor, scale: float,
    decay: bool = False, beta: bool = False, name: str = "linear_attention",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Step number T (of rank 0) of a sequence: (batch, 1, heads, values), and the new state.

    Q, K and V are (batch, sequence, heads, size), where heads of Q may share those of K and V. The
    state is (batch, heads of K, size of K, size of V). `given` are, where named, decay (batch,
    sequence, heads, 1 or size), by whose exponential the state fades, and beta (batch, sequence,
    heads or 1), by which values are corrected for what the state holds already.
    """
    op = "linear_attention_step"
    for what, t in (("Q", Q), ("K", K), ("V", V)):
        need_tensor(op, what, t, "batch sequence heads size")
    need_tensor(op, "S", S, "batch heads keys values")
    if T.ndim or not T.dtype.is_int:
        raise ExpressionError(f"{op}: T is {T!r}; it must be one whole number, of rank 0")
    step = T[()]
    batch, _, heads, size = K.shape_ints
    values = V.shape_ints[3]
    shape = (batch, heads, size, values)
    for d in range(4):
        need_equal(op, f"dimension {d} of S", S.shape_ints[d], shape[d], "K and V have")
    need_equal(op, "the size of Q", Q.shape_ints[3], size, "K has")
    groups = fixed(op, "the heads of K", heads)
    shared, left = divmod(fixed(op, "the heads of Q", Q.shape_ints[2]), max(groups, 1))
    if left or len(given) != decay + beta:
        raise ExpressionError(
            f"{op}: Q has {Q.shape[2]} heads for {groups} of K, and there are {len(given)} more "
            f"tensors for decay={decay} and beta={beta}"
        )
    fade = given[0] if decay else None
    rate = given[-1] if beta else None

    def faded(b: Value, h: Value, k: Value, v: Value) -> Value:
        if fade is None:
            return S[b, h, k, v]
        return S[b, h, k, v] * exp(
            cast(fade[b, step, h, 0 if fade.shape_ints[3] == ONE else k], S.dtype)
        )

    F: Tensor = compute(shape, faded, name=f"{name}_faded")
    r = reduce_axis(size, name="k")
    held: Tensor | None = None
    if rate is not None:
        held = compute(
            (batch, heads, values),
            lambda b, h, v: sum_over(F[b, h, r, v] * cast(K[b, step, h, r], S.dtype), axis=r),
            name=f"{name}_held",
        )

    def updated(b: Value, h: Value, k: Value, v: Value) -> Value:
        x = cast(V[b, step, h, v], S.dtype)
        if rate is not None and held is not None:
            share = rate[b, step, 0 if rate.shape_ints[2] == ONE else h]
            x = cast(share, S.dtype) * (x - held[b, h, v])
        return F[b, h, k, v] + cast(K[b, step, h, k], S.dtype) * x

    state: Tensor = compute(shape, updated, name=f"{name}_state")
    n = reduce_axis(size, name="k")

    def read(b: Value, t: Value, h: Value, v: Value) -> Value:
        total = sum_over(cast(Q[b, step, h, n], S.dtype) * state[b, h // shared, n, v], axis=n)
        return cast(total * scale, Q.dtype)

    out: Tensor = compute((batch, 1, Q.shape_ints[2], values), read, name=name)
    return out, state
