"""The deformable convolution: an input, weights and offsets of every tap in, the output out.

One stage gathers and interpolates the input of each tap; the sum over it is an ordinary one.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, compute, reduce_axis
from tilesmith.expr.functions import maximum, minimum
from tilesmith.expr.ints import of
from tilesmith.expr.reductions import sum as sum_over
from tilesmith.expr.values import Value, cast, where
from tilesmith.ops.arguments import (
    Padding,
    PerDim,
    fixed,
    image_layout,
    need_equal,
    need_tensor,
    operator,
    pad_pairs,
    per_dim,
    show_shape,
    sum_dtypes,
)
from tilesmith.ops.sample import mixed
from tilesmith.ops.window import output_extent


@operator
def deform_conv(
    X: Tensor, W: Tensor, offset: Tensor, mask: Tensor | None = None, stride: PerDim = 1,
    padding: Padding = 0, dilation: PerDim = 1, groups: int = 1, offset_groups: int = 1,
    name: str = "deform_conv",
) -> Tensor:  # fmt: skip
    """X (N, C, spatial...) and weights (O, C/groups, kernel...), where tap t of the output at o
    reads X beside its place by offset (N, offset_groups * taps * count, out...), and counts as
    much as mask (N, offset_groups * taps, out...) says.
    """
    at = image_layout(X, None)
    count = len(at.spatial)
    need_tensor("W", W, " ".join(("O", "I/groups", *(f"K{k}" for k in range(count)))))
    need_tensor("offset", offset, " ".join(at.words))
    strides, dilations = (
        per_dim(what, v, count) for what, v in (("stride", stride), ("dilation", dilation))
    )
    pads = pad_pairs(padding, count)
    w = [fixed(f"dimension {d} of W", e) for d, e in enumerate(W.shape_ints)]
    kernel, taps = w[2:], 1
    for k in kernel:
        taps *= k
    sizes = [fixed(f"extent {at.words[d]} of X", X.shape_ints[d]) for d in at.spatial]
    channels = fixed("the channels of X", X.shape_ints[1])
    (groups,) = per_dim("groups", groups, 1)
    (offset_groups,) = per_dim("offset_groups", offset_groups, 1)
    if w[1] * groups != channels or w[0] % groups or channels % offset_groups:
        raise ExpressionError(
            f"X has {channels} channels and W is {show_shape(W.shape)}; they do not fit "
            f"groups={groups} and offset_groups={offset_groups}"
        )
    extents = [
        output_extent(at.words[d], n, k, s, p, dil)
        for d, n, k, s, p, dil in zip(
            at.spatial, sizes, kernel, strides, pads, dilations, strict=True
        )
    ]
    for what, t, each in (("offset", offset, count), ("mask", mask, 1)):
        if t is not None:
            need_tensor(what, t, " ".join(at.words))
            wanted = (X.shape_ints[0], of(offset_groups * taps * each), *map(of, extents))
            for d, (found, e) in enumerate(zip(t.shape_ints, wanted, strict=True)):
                need_equal(f"dimension {d} of {what}", found, e, "it must be")
    acc, result = sum_dtypes(X.dtype, W.dtype, None)
    windows = [f"k{k}" for k in range(count)]
    labels = [f"o{k}" for k in range(count)]

    def tap(index: Sequence[Value]) -> Value | int:
        place: Value | int = 0
        for i, k in zip(index, kernel, strict=True):
            place = i + place * k
        return place

    # Where a tap reads is the same for all channels of an offset group: a stage per dimension.
    def place(d: int) -> Tensor:
        def body(n: Value, g: Value, *rest: Value) -> Value:
            ks, out = rest[:count], rest[count:]
            row = (g * taps + tap(ks)) * count + d
            fixed_part = out[d] * strides[d] + ks[d] * dilations[d] - pads[d][0]
            x = cast(offset[(n, row, *out)], acc) + cast(fixed_part, acc)
            return minimum(maximum(x, -4), sizes[d] + 3)  # far outside is outside

        shape = (X.shape_ints[0], offset_groups, *kernel, *extents)
        return compute(shape, body, name=f"{name}_at", axes=["n", "g", *windows, *labels])

    places = [place(d) for d in range(count)]
    per_offset = channels // offset_groups

    def gather(n: Value, c: Value, *rest: Value) -> Value:
        g = c // per_offset

        def read(spot: Sequence[Value]) -> Value:
            inside: Value | None = None
            for p, size in zip(spot, sizes, strict=True):
                fits = (p >= 0) & (p < size)
                inside = fits if inside is None else inside & fits
            assert inside is not None
            return cast(where(inside, X[(n, c, *spot)], 0), acc)

        value = mixed([t[(n, g, *rest)] for t in places], read)
        if mask is None:
            return value
        return value * cast(mask[(n, g * taps + tap(rest[:count]), *rest[count:])], acc)

    columns = compute(
        (X.shape_ints[0], channels, *kernel, *extents), gather, name=f"{name}_columns",
        axes=["n", "c", *windows, *labels],
    )  # fmt: skip
    each, per_group = w[1], w[0] // groups
    rc = reduce_axis(each, name="rc")
    window = [reduce_axis(k, name=f"r{label}") for k, label in zip(kernel, windows, strict=True)]

    def body(n: Value, f: Value, *out: Value) -> Value:
        c = rc if groups == 1 else f // per_group * each + rc
        product = columns[(n, c, *window, *out)] * cast(W[(f, rc, *window)], acc)
        return cast(sum_over(product, axis=(rc, *window)), result)

    shape = (X.shape_ints[0], w[0], *extents)
    return compute(shape, body, name=name, axes=["n", "f", *labels])
