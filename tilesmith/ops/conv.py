"""Convolutions of one to three spatial dimensions.

Padding is a stage of its own in front of the sum; without padding there is none.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilesmith.base.dtype import DType
from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, compute, reduce_axis
from tilesmith.expr.reductions import sum as sum_over
from tilesmith.expr.values import Number, Value, cast
from tilesmith.ops.arguments import (
    Padding,
    PerDim,
    fixed,
    layout_axes,
    need_equal,
    need_tensor,
    pad_pairs,
    per_dim,
)
from tilesmith.ops.precision import sum_dtypes
from tilesmith.ops.window import output_extent, padded

_NAMES = ("d", "h", "w")


def _convolve(
    op: str, count: int, X: Tensor, W: Tensor, stride: PerDim, padding: Padding,
    dilation: PerDim, groups: int, layout: str, out_dtype: str | DType | None, fill: Number,
    name: str,
) -> Tensor:  # fmt: skip
    channel, spatial = layout_axes(op, layout, count)
    letters = _NAMES[3 - count :]
    need_tensor(op, "X", X, " ".join(layout))
    channels_first = channel == 1
    kernel_words = " ".join(f"K{n.upper()}" for n in letters)
    wanted = f"O I/groups {kernel_words}" if channels_first else f"{kernel_words} I/groups O"
    need_tensor(op, "W", W, wanted)
    strides = per_dim(op, "stride", stride, count)
    dilations = per_dim(op, "dilation", dilation, count)
    pads = pad_pairs(op, padding, count)
    sizes = [fixed(op, f"spatial extent {layout[d]} of X", X.shape_ints[d]) for d in spatial]
    first_k = 2 if channels_first else 0
    kernel = [fixed(op, "a kernel extent of W", W.shape_ints[first_k + k]) for k in range(count)]
    filters = fixed(op, "the number of output channels of W", W.shape_ints[0 if first_k else -1])
    each = fixed(op, "the input channels of W", W.shape_ints[1 if first_k else -2])
    channels = fixed(op, "the channels of X", X.shape_ints[channel])
    _check_groups(op, channels, filters, each, groups)
    extents = [
        output_extent(op, layout[d], n, k, s, p, dil)
        for d, n, k, s, p, dil in zip(spatial, sizes, kernel, strides, pads, dilations, strict=True)
    ]
    P = padded(X, dict(zip(spatial, pads, strict=True)), fill)
    acc, result = sum_dtypes(op, X.dtype, W.dtype, out_dtype)
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
    out: Tensor = compute(shape, body, name=name, axes=labels)
    return out


def _check_groups(op: str, channels: int, filters: int, each: int, groups: int) -> None:
    (groups,) = per_dim(op, "groups", groups, 1)
    if channels % groups or filters % groups:
        raise ExpressionError(
            f"{op}: groups={groups} does not divide the {channels} input and {filters} output "
            "channels; it must divide both"
        )
    if each * groups != channels:
        raise ExpressionError(
            f"{op}: W has {each} input channels, but X has {channels} and groups is {groups}; "
            f"W must have {channels // groups}"
        )


def conv1d(
    X: Tensor, W: Tensor, stride: PerDim = 1, padding: Padding = 0, dilation: PerDim = 1,
    groups: int = 1, layout: str = "NCW", out_dtype: str | DType | None = None,
    fill: Number = 0, name: str = "conv1d",
) -> Tensor:  # fmt: skip
    """NCW with weights OIW, or NWC with weights WIO; I counts the input channels of a group.
    `fill` is what padding holds.
    """
    layout = {"NCHW": "NCW", "NHWC": "NWC"}.get(layout, layout)
    return _convolve(
        "conv1d", 1, X, W, stride, padding, dilation, groups, layout, out_dtype, fill, name
    )  # fmt: skip


def conv2d(
    X: Tensor, W: Tensor, stride: PerDim = 1, padding: Padding = 0, dilation: PerDim = 1,
    groups: int = 1, layout: str = "NCHW", out_dtype: str | DType | None = None,
    fill: Number = 0, name: str = "conv2d",
) -> Tensor:  # fmt: skip
    """NCHW with weights OIHW, or NHWC with weights HWIO; I counts the input channels of a group.
    `fill` is what padding holds.
    """
    return _convolve(
        "conv2d", 2, X, W, stride, padding, dilation, groups, layout, out_dtype, fill, name
    )  # fmt: skip


def conv3d(
    X: Tensor, W: Tensor, stride: PerDim = 1, padding: Padding = 0, dilation: PerDim = 1,
    groups: int = 1, layout: str = "NCDHW", out_dtype: str | DType | None = None,
    fill: Number = 0, name: str = "conv3d",
) -> Tensor:  # fmt: skip
    """NCDHW with weights OIDHW, or NDHWC with weights DHWIO; I as in conv2d."""
    layout = {"NCHW": "NCDHW", "NHWC": "NDHWC"}.get(layout, layout)
    return _convolve(
        "conv3d", 3, X, W, stride, padding, dilation, groups, layout, out_dtype, fill, name
    )  # fmt: skip


def depthwise_conv2d(
    X: Tensor, W: Tensor, stride: PerDim = 1, padding: Padding = 0, dilation: PerDim = 1,
    layout: str = "NCHW", out_dtype: str | DType | None = None, name: str = "depthwise_conv2d",
) -> Tensor:  # fmt: skip
    """One group per channel: NCHW with weights (C*m, 1, KH, KW), NHWC with (KH, KW, 1, C*m)."""
    op = "depthwise_conv2d"
    channel, _ = layout_axes(op, layout, 2)
    need_tensor(op, "X", X, " ".join(layout))
    groups = fixed(op, "the channels of X", X.shape_ints[channel])
    return _convolve(op, 2, X, W, stride, padding, dilation, groups, layout, out_dtype, 0, name)


def capsule_conv2d(
    X: Tensor, W: Tensor, stride: PerDim = 1, padding: Padding = 0, dilation: PerDim = 1,
    layout: str = "NHWC", out_dtype: str | DType | None = None, name: str = "capsule_conv2d",
) -> Tensor:  # fmt: skip
    """A convolution whose elements are small matrices, joined by matrix products.

    NHWC: X is (N, H, W, cap, cap, I) and W is (KH, KW, cap, cap, I, O), as in Ansor's suite.
    NCHW: X is (N, I, H, W, cap, cap) and W is (O, I, KH, KW, cap, cap).
    """
    op = "capsule_conv2d"
    channel, _ = layout_axes(op, layout, 2)
    first = channel == 1
    spatial = (2, 3) if first else (1, 2)
    need_tensor(op, "X", X, "N I H W cap cap" if first else "N H W cap cap I")
    need_tensor(op, "W", W, "O I KH KW cap cap" if first else "KH KW cap cap I O")
    x, w = X.shape_ints, W.shape_ints
    if first:
        (xi, rows, inner), (o, i, kh, kw, w_inner, columns) = (x[1], x[4], x[5]), w
    else:
        (xi, rows, inner), (kh, kw, w_inner, columns, i, o) = (x[5], x[3], x[4]), w
    need_equal(op, "the input channels of W", i, xi, "X has")
    need_equal(op, "the rows of a capsule of W", w_inner, inner, "a capsule of X has columns")
    strides, dilations = per_dim(op, "stride", stride, 2), per_dim(op, "dilation", dilation, 2)
    pads = pad_pairs(op, padding, 2)
    kernel = [fixed(op, "a kernel extent of W", k) for k in (kh, kw)]
    extents = [
        output_extent(
            op, "HW"[k], fixed(op, f"spatial extent {'HW'[k]} of X", x[spatial[k]]),
            kernel[k], strides[k], pads[k], dilations[k],
        )
        for k in range(2)
    ]  # fmt: skip
    P = padded(X, dict(zip(spatial, pads, strict=True)), 0)
    acc, result = sum_dtypes(op, X.dtype, W.dtype, out_dtype)
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
    out: Tensor = compute(shape, channels_first if first else channels_last, name=name)
    return out
