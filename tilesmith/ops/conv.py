"""Convolutions of one to three spatial dimensions, and causal ones with a state.

Padding is a stage of its own in front of the sum; without padding there is none.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilesmith.base.dtype import DType
from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, compute, reduce_axis
from tilesmith.expr.ints import ZERO, Int, of
from tilesmith.expr.reductions import sum as sum_over
from tilesmith.expr.values import Number, Value, cast, where
from tilesmith.ops.arguments import (
    Padding,
    PerDim,
    fixed,
    layout_axes,
    need_equal,
    need_tensor,
    operator,
    pad_pairs,
    per_dim,
    sum_dtypes,
)
from tilesmith.ops.window import open_output_extent, output_extent, padded

_NAMES = ("d", "h", "w")


def _convolve(
    count: int, X: Tensor, W: Tensor, stride: PerDim, padding: Padding,
    dilation: PerDim, groups: int, layout: str, out_dtype: str | DType | None, fill: Number,
    name: str,
) -> Tensor:  # fmt: skip
    channel, spatial = layout_axes(layout, count)
    letters = _NAMES[3 - count :]
    need_tensor("X", X, " ".join(layout))
    channels_first = channel == 1
    kernel_words = " ".join(f"K{n.upper()}" for n in letters)
    wanted = f"O I/groups {kernel_words}" if channels_first else f"{kernel_words} I/groups O"
    need_tensor("W", W, wanted)
    strides = per_dim("stride", stride, count)
    dilations = per_dim("dilation", dilation, count)
    pads = pad_pairs(padding, count)
    sizes = [X.shape_ints[d] for d in spatial]
    first_k = 2 if channels_first else 0
    kernel = [fixed("a kernel extent of W", W.shape_ints[first_k + k]) for k in range(count)]
    filters = fixed("the number of output channels of W", W.shape_ints[0 if first_k else -1])
    each = fixed("the input channels of W", W.shape_ints[1 if first_k else -2])
    channels = fixed("the channels of X", X.shape_ints[channel])
    _check_groups(channels, filters, each, groups)
    extents = [
        open_output_extent(layout[d], n, k, s, p, dil)
        for d, n, k, s, p, dil in zip(spatial, sizes, kernel, strides, pads, dilations, strict=True)
    ]
    P = padded(X, dict(zip(spatial, pads, strict=True)), fill)
    acc, result = sum_dtypes(X.dtype, W.dtype, out_dtype)
    # With one input channel per group (depthwise), the sum runs over the kernel only.
    rc = reduce_axis(each, name="rc") if each != 1 else None
    window = [reduce_axis(k, name=f"r{n}") for n, k in zip(letters, kernel, strict=True)]
    per_group = filters // groups

    def body(*index: Value) -> Value:
        f = index[channel]
        c: Value | int = 0 if rc is None else rc
        at: list[Value | int] = list(index)
        at[channel] = c if groups == 1 else (f if per_group == 1 else f // per_group) * each + c
        for d, s, dil, r in zip(spatial, strides, dilations, window, strict=True):
            at[d] = index[d] * s + r * dil
        weight = W[f, c, *window] if channels_first else W[*window, c, f]
        axes = (rc, *window) if channels_first else (*window, rc)
        product = cast(P[tuple(at)], acc) * cast(weight, acc)
        return cast(sum_over(product, axis=[a for a in axes if a is not None]), result)

    shape = [X.shape_ints[0], *extents]
    shape.insert(channel, filters)
    labels = ["n", *letters]
    labels.insert(channel, "f")
    return compute(shape, body, name=name, axes=labels)


def _check_groups(channels: int, filters: int, each: int, groups: int) -> None:
    (groups,) = per_dim("groups", groups, 1)
    if channels % groups or filters % groups:
        raise ExpressionError(
            f"groups={groups} does not divide the {channels} input and {filters} output "
            "channels; it must divide both"
        )
    if each * groups != channels:
        raise ExpressionError(
            f"W has {each} input channels, but X has {channels} and groups is {groups}; "
            f"W must have {channels // groups}"
        )


@operator
def conv1d(
    X: Tensor, W: Tensor, stride: PerDim = 1, padding: Padding = 0, dilation: PerDim = 1,
    groups: int = 1, layout: str = "NCW", out_dtype: str | DType | None = None,
    fill: Number = 0, name: str = "conv1d",
) -> Tensor:  # fmt: skip
    """NCW with weights OIW, or NWC with weights WIO; I counts the input channels of a group.
    `fill` is what padding holds.
    """
    layout = {"NCHW": "NCW", "NHWC": "NWC"}.get(layout, layout)
    return _convolve(1, X, W, stride, padding, dilation, groups, layout, out_dtype, fill, name)


@operator
def conv2d(
    X: Tensor, W: Tensor, stride: PerDim = 1, padding: Padding = 0, dilation: PerDim = 1,
    groups: int = 1, layout: str = "NCHW", out_dtype: str | DType | None = None,
    fill: Number = 0, name: str = "conv2d",
) -> Tensor:  # fmt: skip
    """NCHW with weights OIHW, or NHWC with weights HWIO; I counts the input channels of a group.
    `fill` is what padding holds.
    """
    return _convolve(2, X, W, stride, padding, dilation, groups, layout, out_dtype, fill, name)


@operator
def conv3d(
    X: Tensor, W: Tensor, stride: PerDim = 1, padding: Padding = 0, dilation: PerDim = 1,
    groups: int = 1, layout: str = "NCDHW", out_dtype: str | DType | None = None,
    fill: Number = 0, name: str = "conv3d",
) -> Tensor:  # fmt: skip
    """NCDHW with weights OIDHW, or NDHWC with weights DHWIO; I as in conv2d."""
    layout = {"NCHW": "NCDHW", "NHWC": "NDHWC"}.get(layout, layout)
    return _convolve(3, X, W, stride, padding, dilation, groups, layout, out_dtype, fill, name)


@operator
def depthwise_conv2d(
    X: Tensor, W: Tensor, stride: PerDim = 1, padding: Padding = 0, dilation: PerDim = 1,
    layout: str = "NCHW", out_dtype: str | DType | None = None, fill: Number = 0,
    name: str = "depthwise_conv2d",
) -> Tensor:  # fmt: skip
    """One group per channel: NCHW with weights (C*m, 1, KH, KW), NHWC with (KH, KW, 1, C*m). `fill`
    is what padding holds.
    """
    channel, _ = layout_axes(layout, 2)
    need_tensor("X", X, " ".join(layout))
    groups = fixed("the channels of X", X.shape_ints[channel])
    return _convolve(2, X, W, stride, padding, dilation, groups, layout, out_dtype, fill, name)


@operator
def capsule_conv2d(
    X: Tensor, W: Tensor, stride: PerDim = 1, padding: Padding = 0, dilation: PerDim = 1,
    layout: str = "NHWC", out_dtype: str | DType | None = None, name: str = "capsule_conv2d",
) -> Tensor:  # fmt: skip
    """A convolution whose elements are small matrices, joined by matrix products.

    NHWC: X is (N, H, W, cap, cap, I) and W is (KH, KW, cap, cap, I, O), as in Ansor's suite.
    NCHW: X is (N, I, H, W, cap, cap) and W is (O, I, KH, KW, cap, cap).
    """
    channel, _ = layout_axes(layout, 2)
    first = channel == 1
    spatial = (2, 3) if first else (1, 2)
    need_tensor("X", X, "N I H W cap cap" if first else "N H W cap cap I")
    need_tensor("W", W, "O I KH KW cap cap" if first else "KH KW cap cap I O")
    x, w = X.shape_ints, W.shape_ints
    if first:
        (xi, rows, inner), (o, i, kh, kw, w_inner, columns) = (x[1], x[4], x[5]), w
    else:
        (xi, rows, inner), (kh, kw, w_inner, columns, i, o) = (x[5], x[3], x[4]), w
    need_equal("the input channels of W", i, xi, "X has")
    need_equal("the rows of a capsule of W", w_inner, inner, "a capsule of X has columns")
    strides, dilations = per_dim("stride", stride, 2), per_dim("dilation", dilation, 2)
    pads = pad_pairs(padding, 2)
    kernel = [fixed("a kernel extent of W", k) for k in (kh, kw)]
    extents = [
        output_extent(
            "HW"[k], fixed(f"spatial extent {'HW'[k]} of X", x[spatial[k]]),
            kernel[k], strides[k], pads[k], dilations[k],
        )
        for k in range(2)
    ]  # fmt: skip
    P = padded(X, dict(zip(spatial, pads, strict=True)), 0)
    acc, result = sum_dtypes(X.dtype, W.dtype, out_dtype)
    rh, rw = reduce_axis(kernel[0], name="rh"), reduce_axis(kernel[1], name="rw")
    rk, rc = reduce_axis(inner, name="rk"), reduce_axis(i, name="rc")

    def place(h: Value, w: Value) -> Sequence[Value]:
        return h * strides[0] + rh * dilations[0], w * strides[1] + rw * dilations[1]

    def channels_first(n: Value, f: Value, h: Value, w: Value, p: Value, q: Value) -> Value:
        value = cast(P[n, rc, *place(h, w), p, rk], acc) * cast(W[f, rc, rh, rw, rk, q], acc)
        return cast(sum_over(value, axis=(rc, rh, rw, rk)), result)

    def channels_last(n: Value, h: Value, w: Value, p: Value, q: Value, f: Value) -> Value:
        value = cast(P[n, *place(h, w), p, rk, rc], acc) * cast(W[rh, rw, rk, q, rc, f], acc)
        return cast(sum_over(value, axis=(rh, rw, rk, rc)), result)

    shape = (x[0], o, *extents, rows, columns) if first else (x[0], *extents, rows, columns, o)
    return compute(shape, channels_first if first else channels_last, name=name)


@operator
def causal_conv1d(
    X: Tensor, W: Tensor, past: Tensor | None = None, name: str = "causal_conv1d"
) -> Tensor:
    """One kernel per channel: X (N, C, L) and W (C, 1, K). In front of X stands `past`
    (N, C, K - 1), or zeros.
    """
    need_tensor("X", X, "N C L")
    need_tensor("W", W, "C 1 K")
    taps = fixed("the kernel of W", W.shape_ints[2])
    need_equal("dimension 0 of W", W.shape_ints[0], X.shape_ints[1], "X has channels")
    need_equal("dimension 1 of W", W.shape_ints[1], of(1), "it must be")
    length = X.shape_ints[2]
    joined = _joined(X, past, ZERO, length + (taps - 1), taps - 1, f"{name}_input")
    acc, result = sum_dtypes(X.dtype, W.dtype, None)
    r = reduce_axis(taps, name="r")

    def body(n: Value, c: Value, w: Value) -> Value:
        product = cast(joined[n, c, w + r], acc) * cast(W[c, 0, r], acc)
        return cast(sum_over(product, axis=r), result)

    return compute(X.shape_ints, body, name=name)


@operator
def causal_state(
    X: Tensor, past: Tensor | None = None, kept: int = 0, name: str = "causal_state"
) -> Tensor:
    """The last `kept` positions of X with `past`, or zeros, in front."""
    need_tensor("X", X, "N C L")
    return _joined(X, past, X.shape_ints[2], of(kept), kept, name)


def _joined(
    X: Tensor, past: Tensor | None, start: Int, extent: Int, before: int, name: str
) -> Tensor:
    """`extent` positions from `start` on of X with `past`, of `before` positions, in front."""
    if past is not None:
        need_tensor("past", past, "N C K-1")
        need_equal("dimension 2 of past", past.shape_ints[2], of(before), "the kernel needs")

    def body(n: Value, c: Value, w: Value) -> Value:
        at = w + start
        here = X[n, c, at - before]
        if before == 0:
            return here
        return where(at >= before, here, 0 if past is None else past[n, c, at])

    return compute((*X.shape_ints[:2], extent), body, name=name)
