"""Parts of attention that are not matrix products: scores and masks in, probabilities out; and the
rotation of queries and keys by their positions.
"""

from __future__ import annotations

from tilesmith.base.dtype import BOOL
from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, compute, reduce_axis
from tilesmith.expr.functions import exp, sigmoid, tanh
from tilesmith.expr.reductions import amax
from tilesmith.expr.reductions import sum as sum_over
from tilesmith.expr.values import Value, cast, where
from tilesmith.ops.arguments import fixed, need_equal, need_tensor
from tilesmith.ops.broadcast import broadcast_shape, read_broadcast
from tilesmith.ops.precision import widen

_NOTHING = float("-inf")  # the score of a key that a query does not see


def softcap(X: Tensor, limit: float, name: str = "softcap") -> Tensor:
    """limit * tanh(x / limit): scores brought into (-limit, limit) without a kink."""
    need_tensor("softcap", "X", X)
    if not limit > 0:
        raise ExpressionError(f"softcap: limit is {limit}; it must be above 0")

    def body(*i: Value) -> Value:
        return cast(tanh(widen(X[i]) * (1 / limit)) * limit, X.dtype)

    out: Tensor = compute(X.shape_ints, body, name=name)
    return out


def mask_scores(
    S: Tensor, *given: Tensor, causal: bool = False, left: int = -1, right: int = -1,
    offset: int = 0, lengths: bool = False, name: str = "mask_scores",
) -> Tensor:  # fmt: skip
    """Scores (batch, heads, queries, keys), with -inf where a query does not see a key.

    `given` is a mask that is broadcast (bool: which are seen; floats are added), and with
    `lengths` behind it the number of keys of each batch. Query i stands at position i + offset, or
    with lengths such that the last query is the last key. With `causal` it sees no later position;
    `left` and `right` say how far it sees to each side, and -1 is no bound.
    """
    op = "mask_scores"
    need_tensor(op, "S", S, "batch heads queries keys")
    tensors = list(given)
    counts = tensors.pop() if lengths else None
    mask = tensors.pop() if tensors else None
    if counts is not None:
        need_tensor(op, "lengths", counts, "batch")
        need_equal(op, "the extent of lengths", counts.shape_ints[0], S.shape_ints[0], "S has")
    if mask is not None:
        need_tensor(op, "mask", mask)
        if broadcast_shape(op, S.shape_ints, mask.shape_ints) != S.shape_ints:
            raise ExpressionError(f"{op}: a mask of shape {mask.shape} does not fit S {S.shape}")
    queries = S.shape_ints[2]

    def body(b: Value, h: Value, i: Value, j: Value) -> Value:
        s = S[b, h, i, j]
        seen: list[Value] = []
        place: Value = i + offset
        if counts is not None:
            seen.append(j < counts[b])
            place = counts[b] + (i - queries)
        if causal:
            seen.append(j <= place)
        if left >= 0:
            seen.append(j + left >= place)
        if right >= 0:
            seen.append(j <= place + right)
        if mask is not None:
            m = read_broadcast(mask, (b, h, i, j))
            if mask.dtype is BOOL:
                seen.append(m)
            else:  # chosen, not added: an infinite score plus -inf would be NaN
                m = cast(m, s.dtype)
                s = where(m == _NOTHING, _NOTHING, s + m)
        if not seen:
            return s
        every = seen[0]
        for condition in seen[1:]:
            every = every & condition
        return where(every, s, _NOTHING)

    out: Tensor = compute(S.shape_ints, body, name=name, axes=("b", "h", "i", "j"))
    return out


def masked_softmax(X: Tensor, name: str = "masked_softmax") -> Tensor:
    """softmax along the last axis, where a row of nothing but -inf gives 0 and not NaN."""
    need_tensor("masked_softmax", "X", X)
    if not X.dtype.is_float or X.ndim < 1:
        raise ExpressionError(f"masked_softmax: X is {X!r}; it must be of floats, and have rows")
    row, columns = X.shape_ints[:-1], X.shape_ints[-1]
    k, r = reduce_axis(columns, name="k"), reduce_axis(columns, name="k")
    top: Tensor = compute(row, lambda *i: amax(X[*i, k], axis=k), name=f"{name}_max")

    def shifted(*i: Value) -> Value:
        t = widen(top[i[:-1]])
        return exp(widen(X[i]) - where(t == _NOTHING, 0.0, t))

    e: Tensor = compute(X.shape_ints, shifted, name=f"{name}_exp")
    total: Tensor = compute(row, lambda *i: sum_over(e[*i, r], axis=r), name=f"{name}_sum")

    def body(*i: Value) -> Value:
        t = total[i[:-1]]
        return cast(e[i] * (1 / where(t == 0.0, 1.0, t)), X.dtype)

    out: Tensor = compute(X.shape_ints, body, name=name)
    return out


def rotary_embedding(
    X: Tensor, cos: Tensor, sin: Tensor, *positions: Tensor, interleaved: bool = False,
    width: int = 0, axis: int = 2, name: str = "rotary_embedding",
) -> Tensor:  # fmt: skip
    """Pairs of elements of X (batch, heads, sequence, dim) turned by an angle that depends on their
    position. With axis=1, X is (batch, sequence, heads, dim).

    cos and sin are (batch, sequence, half), or (positions, half) where `positions` (batch,
    sequence) says which row to take. The first `width` elements are turned, or all of them: k with
    k + half, or neighbours where they are interleaved.
    """
    op = "rotary_embedding"
    need_tensor(op, "X", X, "batch heads sequence dim")
    dim = fixed(op, "the last extent of X", X.shape_ints[3])
    turned = width or dim
    if axis not in (1, 2):
        raise ExpressionError(f"{op}: axis is {axis}; the sequence is dimension 1 or 2")
    if turned % 2 or not 0 < turned <= dim:
        raise ExpressionError(f"{op}: {turned} of {dim} elements cannot be turned in pairs")
    half = turned // 2
    words = "positions half" if positions else "batch sequence half"
    for what, t in (("cos", cos), ("sin", sin)):
        need_tensor(op, what, t, words)
        if fixed(op, f"the last extent of {what}", t.shape_ints[-1]) != half:
            raise ExpressionError(
                f"{op}: {what} has shape {t.shape}; its last extent must be {half}"
            )
    for what, t in (("positions", positions[0]),) if positions else (("cos", cos), ("sin", sin)):
        need_tensor(op, what, t, "batch sequence" if positions else words)
        for d, own in ((0, 0), (1, axis)):
            need_equal(op, f"dimension {d} of {what}", t.shape_ints[d], X.shape_ints[own], "X has")

    def body(*at: Value) -> Value:
        *front, d = at
        where_in = (positions[0][at[0], at[axis]],) if positions else (at[0], at[axis])
        pair = (d // 2) % half if interleaved else d % half
        first = d % 2 < 1 if interleaved else d < half
        other = (d + 1 - d % 2 * 2) % turned if interleaved else (d + half) % turned
        c, s = (widen(t[(*where_in, pair)]) for t in (cos, sin))
        x, y = widen(X[at]), widen(X[*front, other])
        new = cast(c * x + where(first, -s, s) * y, X.dtype)
        return new if turned == dim else where(d < turned, new, X[at])

    out: Tensor = compute(X.shape_ints, body, name=name)
    return out


def swiglu(A: Tensor, B: Tensor, alpha: float = 1.0, name: str = "swiglu") -> Tensor:
    """a * sigmoid(alpha * a) * b."""
    for what, x in (("A", A), ("B", B)):
        need_tensor("swiglu", what, x)
    if A.shape_ints != B.shape_ints or A.dtype is not B.dtype:
        raise ExpressionError(f"swiglu: A is {A!r} and B is {B!r}; they must agree")

    def body(*i: Value) -> Value:
        a = widen(A[i])
        return cast(a * sigmoid(a if alpha == 1 else a * alpha) * widen(B[i]), A.dtype)

    out: Tensor = compute(A.shape_ints, body, name=name)
    return out
