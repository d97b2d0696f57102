"""The transposed convolution (upsampling).

Outputs whose positions are equal modulo the stride use the same elements of the kernel. So each of
these phases is a plain convolution with a part of the kernel, and a last stage interleaves them.
Where the stride does not divide the kernel, some phases have an element less: a stage puts zeros
there, which schedules leave out of the sum. With dilation or without a stride, it is one
convolution with the flipped kernel over a stage that spreads the input, with zeros in between.
Either way the sum has affine indices.
"""

from __future__ import annotations

from tilesmith.base.dtype import DType
from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, compute, reduce_axis
from tilesmith.expr.ints import Int, of
from tilesmith.expr.reductions import sum as sum_over
from tilesmith.expr.values import Axis, Value, cast, where
from tilesmith.ops.arguments import (
    Padding,
    PerDim,
    fixed,
    layout_axes,
    need_tensor,
    operator,
    pad_pairs,
    per_dim,
    sum_dtypes,
)

_LETTERS = "DHW"


@operator
def conv1d_transpose(
    X: Tensor, W: Tensor, stride: PerDim = 1, padding: Padding = 0, output_padding: PerDim = 0,
    dilation: PerDim = 1, groups: int = 1, layout: str = "NCW",
    out_dtype: str | DType | None = None, name: str = "conv1d_transpose",
) -> Tensor:  # fmt: skip
    """NCW with weights (I, O/groups, KW) as in PyTorch, or NWC with (KW, I, O/groups)."""
    return _transposed(
        1, X, W, stride, padding, output_padding, dilation, groups, layout, out_dtype, name
    )


@operator
def conv2d_transpose(
    X: Tensor, W: Tensor, stride: PerDim = 1, padding: Padding = 0, output_padding: PerDim = 0,
    dilation: PerDim = 1, groups: int = 1, layout: str = "NCHW",
    out_dtype: str | DType | None = None, name: str = "conv2d_transpose",
) -> Tensor:  # fmt: skip
    """NCHW with weights (I, O/groups, KH, KW) as in PyTorch, or NHWC with (KH, KW, I, O/groups)."""
    return _transposed(
        2, X, W, stride, padding, output_padding, dilation, groups, layout, out_dtype, name
    )


@operator
def conv3d_transpose(
    X: Tensor, W: Tensor, stride: PerDim = 1, padding: Padding = 0, output_padding: PerDim = 0,
    dilation: PerDim = 1, groups: int = 1, layout: str = "NCDHW",
    out_dtype: str | DType | None = None, name: str = "conv3d_transpose",
) -> Tensor:  # fmt: skip
    """NCDHW with weights (I, O/groups, KD, KH, KW), or NDHWC with (KD, KH, KW, I, O/groups)."""
    return _transposed(
        3, X, W, stride, padding, output_padding, dilation, groups, layout, out_dtype, name
    )


def _transposed(
    count: int, X: Tensor, W: Tensor, stride: PerDim, padding: Padding,
    output_padding: PerDim, dilation: PerDim, groups: int, layout: str,
    out_dtype: str | DType | None, name: str,
) -> Tensor:  # fmt: skip
    channel, spatial = layout_axes(layout, count)
    letters = _LETTERS[3 - count :]
    first = channel == 1
    need_tensor("X", X, " ".join(layout))
    kernel_words = [f"K{c}" for c in letters]
    words = ["I", "O/groups", *kernel_words] if first else [*kernel_words, "I", "O/groups"]
    need_tensor("W", W, " ".join(words))
    w = [fixed(f"dimension {d} of W", e) for d, e in enumerate(W.shape_ints)]
    (inputs, per_group), kernel = (w[:2], w[2:]) if first else (w[count:], w[:count])
    channels = fixed("the channels of X", X.shape_ints[channel])
    (groups,) = per_dim("groups", groups, 1)
    if inputs != channels:
        raise ExpressionError(
            f"W has {inputs} input channels, but X has {channels}; they must agree "
            f"(weights are ({', '.join(words)}))"
        )
    if channels % groups:
        raise ExpressionError(
            f"groups={groups} does not divide the {channels} input channels; it must"
        )
    strides = per_dim("stride", stride, count)
    dilations = per_dim("dilation", dilation, count)
    extra = per_dim("output_padding", output_padding, count, least=0)
    pads = pad_pairs(padding, count)
    sizes = [X.shape_ints[d] for d in spatial]
    before: list[int] = []
    spread, extents = list[Int](), list[Int]()
    for k in range(count):
        if sizes[k].const == 0 or kernel[k] < 1:
            raise ExpressionError(f"X and the kernel need at least 1 element in {letters[k]}")
        if extra[k] >= max(strides[k], dilations[k]):
            raise ExpressionError(
                f"output_padding {extra[k]} in {letters[k]} must be below the stride "
                f"{strides[k]} or the dilation {dilations[k]}"
            )
        reach = dilations[k] * (kernel[k] - 1)
        before.append(reach - pads[k][0])
        spread.append((sizes[k] - 1) * strides[k] + 1 + 2 * reach - sum(pads[k]) + extra[k])
        extents.append(spread[k] - reach)
        if (n := extents[k].const) is not None and n < 1:
            raise ExpressionError(
                f"padding {pads[k]} in {letters[k]} leaves {extents[k]} elements of output; "
                "make it smaller"
            )
    acc, result = sum_dtypes(X.dtype, W.dtype, out_dtype)
    each = channels // groups
    left = [p for p, _ in pads]
    if max(strides) > 1 and max(dilations) == 1:
        return _phases(X, W, channel, spatial, strides, left, kernel, extents, groups, result, name)
    P = _spread(X, spatial, strides, before, spread)
    rc = reduce_axis(each, name="rc")
    window = _window(letters, kernel)

    def body(*index: Value) -> Value:
        f = index[channel]
        c: Value = rc if groups == 1 else f // per_group * each + rc
        column = f if groups == 1 else f % per_group
        at = list(index)
        at[channel] = c
        for d, r, dil in zip(spatial, window, dilations, strict=True):
            at[d] = index[d] + r * dil
        turned = [k - 1 - r for k, r in zip(kernel, window, strict=True)]
        weight = W[c, column, *turned] if first else W[*turned, c, column]
        axes = (rc, *window) if first else (*window, rc)
        return cast(sum_over(cast(P[tuple(at)], acc) * cast(weight, acc), axis=axes), result)

    shape = [X.shape_ints[0], *extents]
    shape.insert(channel, of(per_group * groups))
    labels = ["n", *letters.lower()]
    labels.insert(channel, "f")
    return compute(shape, body, name=name, axes=labels)


def _window(letters: str, kernel: list[int]) -> list[Axis]:
    return [reduce_axis(k, name=f"r{c.lower()}") for c, k in zip(letters, kernel, strict=True)]


def _spread(
    X: Tensor, spatial: tuple[int, ...], strides: tuple[int, ...],
    before: list[int], extents: list[Int],
) -> Tensor:  # fmt: skip
    """X with stride-1 zeros between its elements and `before` zeros in front; negative crops."""
    shape = list(X.shape_ints)
    moved = []
    for d, s, b, n in zip(spatial, strides, before, extents, strict=True):
        if s > 1 or b != 0 or X.shape_ints[d] != n:
            moved.append((d, s, b))
            shape[d] = n
    if not moved:
        return X

    def body(*index: Value) -> Value:
        at = list(index)
        inside: Value | None = None
        for d, s, b in moved:
            t = index[d] - b
            # Divided only inside of the guard, which says that the division is exact.
            at[d] = t // s
            last = (X.shape_ints[d] - 1) * s
            fits = (t >= 0) & (t <= last)
            if s > 1:
                fits = fits & (t % s == 0)
            inside = fits if inside is None else inside & fits
        assert inside is not None
        return where(inside, X[tuple(at)], 0)

    name = "dilate" if max(strides) > 1 else "pad"
    return compute(shape, body, name=name)


def _phases(
    X: Tensor, W: Tensor, channel: int, spatial: tuple[int, ...],
    strides: tuple[int, ...], pads: list[int], kernel: list[int], extents: list[Int], groups: int,
    result: DType, name: str,
) -> Tensor:  # fmt: skip
    """Output s*q + p, of phase p, sums over t the input at q + (p + pad) // s - t times the kernel
    at (p + pad) % s + s*t. Of a stride of 2 that is affine in p. Of a larger one it is if the
    stride divides the padding, so zeros in front of the kernel make both larger by as much.
    """
    first = channel == 1
    front = [-pad % s if s > 2 else 0 for pad, s in zip(pads, strides, strict=True)]
    pads = [pad + f for pad, f in zip(pads, front, strict=True)]
    taps = [-(-(k + f) // s) for k, f, s in zip(kernel, front, strides, strict=True)]
    odd = [pad % s for pad, s in zip(pads, strides, strict=True)]  # 0, or 1 if s is 2
    places = [(n + (s - 1)) // s for n, s in zip(extents, strides, strict=True)]
    before = [t - 1 - pad // s for t, pad, s in zip(taps, pads, strides, strict=True)]
    padded = [n + t - 1 + o for n, t, o in zip(places, taps, odd, strict=True)]
    count = len(spatial)
    ones = (1,) * count
    P = _spread(X, spatial, ones, before, padded)
    acc, _ = sum_dtypes(X.dtype, W.dtype, None)
    letters = _LETTERS[3 - count :]
    channels = W.shape_ints[0 if first else count]
    per_group = W.shape_ints[1 if first else count + 1]
    each = channels // groups
    whole = [of(t * s) for t, s in zip(taps, strides, strict=True)]
    W = _spread(W, tuple(range(2, 2 + count) if first else range(count)), ones, front, whole)
    rc = reduce_axis(each, name="rc")
    window = _window(letters, taps)

    def body(*index: Value) -> Value:
        n, phase, rest = index[0], index[1 : 1 + count], (index[0], *index[1 + count :])
        f = rest[channel]
        at = [n, *rest[1:]]
        at[channel] = rc if groups == 1 else f // per_group * each + rc
        column = f if groups == 1 else f % per_group
        where_in_kernel = []
        for d, r, p, s, t, o in zip(spatial, window, phase, strides, taps, odd, strict=True):
            at[d] = rest[d] + (p + r if o else r)
            where_in_kernel.append((1 - p if o else p) + s * (t - 1 - r))
        c = at[channel]
        weight = W[c, column, *where_in_kernel] if first else W[*where_in_kernel, c, column]
        axes = (rc, *window) if first else (*window, rc)
        return cast(sum_over(cast(P[tuple(at)], acc) * cast(weight, acc), axis=axes), result)

    labels = ["n", *letters.lower()]
    labels.insert(channel, "f")
    shape = [X.shape_ints[0], *places]
    shape.insert(channel, per_group * groups)
    parts = compute(
        (shape[0], *strides, *shape[1:]), body, name=f"{name}_phases",
        axes=(labels[0], *"pqs"[:count], *labels[1:]),
    )  # fmt: skip

    def together(*index: Value) -> Value:
        at = list(index)
        phase = []
        for d, s in zip(spatial, strides, strict=True):
            phase.append(index[d] % s)
            at[d] = index[d] // s
        return parts[at[0], *phase, *at[1:]]

    for d, n in zip(spatial, extents, strict=True):
        shape[d] = n
    return compute(shape, together, name=name, axes=labels)
