"""Attention, with scores of one's own; the parts of it that are not matrix products: scores and
masks in, probabilities out; the rotation of queries and keys by their positions; and steps of
linear attention.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

from tilesmith.base.dtype import BOOL, FLOAT32
from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, compute, reduce_axis
from tilesmith.expr.functions import exp, sigmoid, tanh
from tilesmith.expr.ints import ONE
from tilesmith.expr.reductions import amax
from tilesmith.expr.reductions import sum as sum_over
from tilesmith.expr.values import Value, cast, where
from tilesmith.ops.arguments import (
    broadcast_shape,
    fixed,
    need_equal,
    need_tensor,
    operator,
    read_broadcast,
    widen,
)

_NOTHING = float("-inf")  # the score of a key that a query does not see


@operator
def attention(
    Q: Tensor, K: Tensor, V: Tensor, *, score: Callable[..., Value] | None = None,
    scale: float | None = None, name: str = "attention",
) -> Tensor:  # fmt: skip
    """softmax(Q K^T * scale) V of each head: Q is (batch, heads, queries, size), K (batch, groups,
    keys, size) and V (batch, groups, keys, values). Neighbouring heads share a group. The scale is
    1 / sqrt(size) unless it is given.

    `score(s, b, h, i, j)` makes of each scaled score, for key j of query i in head h of batch b,
    the one that counts: a bias, a cap, or -inf where the query does not see the key. A query that
    sees nothing gives 0. Scores of half precision are computed in float32.
    """
    need_tensor("Q", Q, "batch heads queries size")
    need_tensor("K", K, "batch groups keys size")
    need_tensor("V", V, "batch groups keys values")
    for what, x, d, y, whose in (
        ("K", K, 0, Q, "Q"), ("K", K, 3, Q, "Q"), ("V", V, 0, K, "K"), ("V", V, 1, K, "K"),
        ("V", V, 2, K, "K"),
    ):  # fmt: skip
        need_equal(f"dimension {d} of {what}", x.shape_ints[d], y.shape_ints[d], f"{whose} has")
    batch, heads, queries, size = Q.shape_ints
    _, groups, keys, values = V.shape_ints
    shared, left = divmod(fixed("the heads of Q", heads), fixed("the groups of K", groups) or 1)
    if left or not shared or not Q.dtype.is_float or {K.dtype, V.dtype} != {Q.dtype}:
        raise ExpressionError(
            f"Q is {Q!r}, K {K!r} and V {V!r}; they must be floats of one type, and the heads of Q "
            "a multiple of the groups"
        )
    factor = 1 / sqrt(fixed("the size of a head", size) or 1) if scale is None else scale
    c, j = reduce_axis(size, name="c"), reduce_axis(keys, name="j")
    wide = FLOAT32 if Q.dtype.bits < FLOAT32.bits else Q.dtype

    def group(h: Value) -> Value:
        return h if shared == 1 else h // shared

    def scores(b: Value, h: Value, i: Value, j: Value) -> Value:
        return sum_over(cast(Q[b, h, i, c], wide) * cast(K[b, group(h), j, c], wide), axis=c)

    axes = ("b", "h", "i", "j")
    S = compute((batch, heads, queries, keys), scores, name=f"{name}_scores", axes=axes)

    def seen(*at: Value) -> Value:
        s = S[at] * factor
        return s if score is None else cast(score(s, *at), wide)

    A = compute(S.shape_ints, seen, name=f"{name}_seen", axes=axes)
    P = masked_softmax(A, name=f"{name}_softmax")
    if wide is not Q.dtype:  # an operand as matrix instructions take it
        narrow = P
        P = compute(
            P.shape_ints, lambda *at: cast(narrow[at], Q.dtype), name=f"{name}_weights", axes=axes
        )

    def out(b: Value, h: Value, i: Value, d: Value) -> Value:
        return sum_over(cast(P[b, h, i, j], wide) * cast(V[b, group(h), j, d], wide), axis=j)

    shape = (batch, heads, queries, values)
    if wide is Q.dtype:
        return compute(shape, out, name=name, axes=("b", "h", "i", "d"))
    sums = compute(shape, out, name=f"{name}_sums", axes=("b", "h", "i", "d"))
    return compute(shape, lambda *at: cast(sums[at], Q.dtype), name=name)


@operator
def softcap(X: Tensor, limit: float, name: str = "softcap") -> Tensor:
    """limit * tanh(x / limit): scores brought into (-limit, limit) without a kink."""
    if not limit > 0:
        raise ExpressionError(f"limit is {limit}; it must be above 0")

    def body(*i: Value) -> Value:
        return cast(tanh(widen(X[i]) * (1 / limit)) * limit, X.dtype)

    return compute(X.shape_ints, body, name=name)


@operator
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
    need_tensor("S", S, "batch heads queries keys")
    tensors = list(given)
    counts = tensors.pop() if lengths else None
    mask = tensors.pop() if tensors else None
    if counts is not None:
        need_tensor("lengths", counts, "batch")
        need_equal("the extent of lengths", counts.shape_ints[0], S.shape_ints[0], "S has")
    if mask is not None:
        need_tensor("mask", mask)
        if broadcast_shape(S.shape_ints, mask.shape_ints) != S.shape_ints:
            raise ExpressionError(f"a mask of shape {mask.shape} does not fit S {S.shape}")
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

    return compute(S.shape_ints, body, name=name, axes=("b", "h", "i", "j"))


@operator
def masked_softmax(X: Tensor, name: str = "masked_softmax") -> Tensor:
    """softmax along the last axis, where a row of nothing but -inf gives 0 and not NaN."""
    if not X.dtype.is_float or X.ndim < 1:
        raise ExpressionError(f"X is {X!r}; it must be of floats, and have rows")
    row, columns = X.shape_ints[:-1], X.shape_ints[-1]
    k, r = reduce_axis(columns, name="k"), reduce_axis(columns, name="k")
    top = compute(row, lambda *i: amax(X[*i, k], axis=k), name=f"{name}_max")

    def shifted(*i: Value) -> Value:
        t = widen(top[i[:-1]])
        return exp(widen(X[i]) - where(t == _NOTHING, 0.0, t))

    e = compute(X.shape_ints, shifted, name=f"{name}_exp")
    total = compute(row, lambda *i: sum_over(e[*i, r], axis=r), name=f"{name}_sum")

    def body(*i: Value) -> Value:
        t = total[i[:-1]]
        return cast(e[i] * (1 / where(t == 0.0, 1.0, t)), X.dtype)

    return compute(X.shape_ints, body, name=name)


@operator
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
    need_tensor("X", X, "batch heads sequence dim")
    dim = fixed("the last extent of X", X.shape_ints[3])
    turned = width or dim
    if axis not in (1, 2):
        raise ExpressionError(f"axis is {axis}; the sequence is dimension 1 or 2")
    if turned % 2 or not 0 < turned <= dim:
        raise ExpressionError(f"{turned} of {dim} elements cannot be turned in pairs")
    half = turned // 2
    words = "positions half" if positions else "batch sequence half"
    for what, t in (("cos", cos), ("sin", sin)):
        need_tensor(what, t, words)
        if fixed(f"the last extent of {what}", t.shape_ints[-1]) != half:
            raise ExpressionError(f"{what} has shape {t.shape}; its last extent must be {half}")
    for what, t in (("positions", positions[0]),) if positions else (("cos", cos), ("sin", sin)):
        need_tensor(what, t, "batch sequence" if positions else words)
        for d, own in ((0, 0), (1, axis)):
            need_equal(f"dimension {d} of {what}", t.shape_ints[d], X.shape_ints[own], "X has")

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

    return compute(X.shape_ints, body, name=name)


@operator
def swiglu(A: Tensor, B: Tensor, alpha: float = 1.0, name: str = "swiglu") -> Tensor:
    """a * sigmoid(alpha * a) * b."""
    if A.shape_ints != B.shape_ints or A.dtype is not B.dtype:
        raise ExpressionError(f"A is {A!r} and B is {B!r}; they must agree")

    def body(*i: Value) -> Value:
        a = widen(A[i])
        return cast(a * sigmoid(a if alpha == 1 else a * alpha) * widen(B[i]), A.dtype)

    return compute(A.shape_ints, body, name=name)


@operator
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
    for what, t in (("Q", Q), ("K", K), ("V", V)):
        need_tensor(what, t, "batch sequence heads size")
    need_tensor("S", S, "batch heads keys values")
    if T.ndim or not T.dtype.is_int:
        raise ExpressionError(f"T is {T!r}; it must be one whole number, of rank 0")
    step = T[()]
    batch, _, heads, size = K.shape_ints
    values = V.shape_ints[3]
    shape = (batch, heads, size, values)
    for d in range(4):
        need_equal(f"dimension {d} of S", S.shape_ints[d], shape[d], "K and V have")
    need_equal("the size of Q", Q.shape_ints[3], size, "K has")
    groups = fixed("the heads of K", heads)
    shared, left = divmod(fixed("the heads of Q", Q.shape_ints[2]), max(groups, 1))
    if left or len(given) != decay + beta:
        raise ExpressionError(
            f"Q has {Q.shape[2]} heads for {groups} of K, and there are {len(given)} more "
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

    F = compute(shape, faded, name=f"{name}_faded")
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

    state = compute(shape, updated, name=f"{name}_state")
    n = reduce_axis(size, name="k")

    def read(b: Value, t: Value, h: Value, v: Value) -> Value:
        total = sum_over(cast(Q[b, step, h, n], S.dtype) * state[b, h // shared, n, v], axis=n)
        return cast(total * scale, Q.dtype)

    out = compute((batch, 1, Q.shape_ints[2], values), read, name=name)
    return out, state
