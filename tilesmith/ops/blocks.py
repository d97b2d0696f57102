"""Operators that cut images into blocks or put blocks together, and compute little or nothing."""

from __future__ import annotations

from collections.abc import Sequence

from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, compute, reduce_axis
from tilesmith.expr.ints import IntLike, nonnegative, of
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
    widen,
)
from tilesmith.ops.window import output_extent


@operator
def depth_to_space(
    X: Tensor, block: int, channel_last: bool = False, layout: str = "NCHW",
    name: str = "depth_to_space",
) -> Tensor:  # fmt: skip
    """block x block channels become a block of pixels. Which of them a channel stands for is its
    slowest part, or with `channel_last` its fastest (known as DCR and CRD).
    """
    at = image_layout(X, layout, 2)
    (block,) = per_dim("block", block, 1)
    channels = fixed("the channels of X", X.shape_ints[at.channel])
    area = block * block
    if channels % area:
        raise ExpressionError(
            f"X has {channels} channels, which block={block} does not divide by {area}"
        )
    left = channels // area
    y, x = at.spatial

    def body(*index: Value) -> Value:
        place = list(index)
        part = index[y] % block * block + index[x] % block
        c = index[at.channel]
        place[at.channel] = c * area + part if channel_last else part * left + c
        place[y], place[x] = index[y] // block, index[x] // block
        return X[tuple(place)]

    shape: list[object] = list(X.shape_ints)
    shape[at.channel] = left
    for d in at.spatial:
        shape[d] = X.shape_ints[d] * block
    return compute(shape, body, name=name, axes=at.labels)


@operator
def space_to_depth(
    X: Tensor, block: int, channel_last: bool = False, layout: str = "NCHW",
    name: str = "space_to_depth",
) -> Tensor:  # fmt: skip
    """The way back from depth_to_space."""
    at = image_layout(X, layout, 2)
    (block,) = per_dim("block", block, 1)
    sizes = [X.shape_ints[d] for d in at.spatial]
    if any((n % block).const for n in sizes):
        raise ExpressionError(f"block={block} does not divide the {sizes} pixels of X")
    channels = fixed("the channels of X", X.shape_ints[at.channel])
    area, between = block * block, max(1, channels)
    y, x = at.spatial

    def body(*index: Value) -> Value:
        place = list(index)
        f = index[at.channel]
        part = f % area if channel_last else f // between
        place[at.channel] = f // area if channel_last else f % between
        place[y] = index[y] * block + part // block
        place[x] = index[x] * block + part % block
        return X[tuple(place)]

    shape: list[object] = list(X.shape_ints)
    shape[at.channel] = channels * area
    shape[y], shape[x] = (n // block for n in sizes)
    return compute(shape, body, name=name, axes=at.labels)


@operator
def col2im(
    X: Tensor, image: PerDim, block: PerDim, stride: PerDim = 1, padding: Padding = 0,
    dilation: PerDim = 1, name: str = "col2im",
) -> Tensor:  # fmt: skip
    """The image (N, C, *image) whose element is the sum of what X (N, C * block, places) holds for
    it: column l of X is the block at place l of a sliding window.
    """
    need_tensor("X", X, "N C*block places")
    if not isinstance(image, Sequence):
        raise ExpressionError(f"image is {image!r}; it must have one extent per dimension")
    count = len(image)
    sizes, kernel = per_dim("image", image, count), per_dim("block", block, count)
    strides, dilations = (
        per_dim(what, v, count) for what, v in (("stride", stride), ("dilation", dilation))
    )
    pads = pad_pairs(padding, count)
    area, places = 1, []
    for d, (n, k, s, p, dil) in enumerate(
        zip(sizes, kernel, strides, pads, dilations, strict=True)
    ):
        area *= k
        places.append(output_extent(f"dimension {d}", n, k, s, p, dil))
    total = 1
    for n in places:
        total *= n
    need_equal("the number of columns of X", X.shape_ints[2], of(total), "the window has")
    rows = fixed("dimension 1 of X", X.shape_ints[1])
    if rows % area:
        raise ExpressionError(f"X has {rows} rows, which the {area} of a block do not divide")
    window = [reduce_axis(k, name=f"r{d}") for d, k in enumerate(kernel)]

    def body(n: Value, c: Value, *index: Value) -> Value:
        row: Value = c
        column: Value | int = 0
        inside: Value | None = None
        for d, r in enumerate(window):
            row = row * kernel[d] + r
            t = index[d] + pads[d][0] - r * dilations[d]
            s = strides[d]
            fits = (t >= 0) & (t < places[d] * s)
            if s > 1:
                fits = fits & (t % s == 0)
            inside = fits if inside is None else inside & fits
            column = t // s + column * places[d]
        assert inside is not None
        value = widen(where(inside, X[n, row, column], 0))
        return cast(sum_over(value, axis=window), X.dtype)

    labels = ["n", "c", *(f"o{d}" for d in range(count))]
    shape = (X.shape_ints[0], rows // area, *sizes)
    return compute(shape, body, name=name, axes=labels)


@operator
def crop_or_pad(
    X: Tensor, starts: Sequence[int], shape: Sequence[IntLike], name: str = "crop_or_pad"
) -> Tensor:
    """The part of X of this shape that begins at `starts`; zeros where it lies outside of X."""
    if len(starts) != X.ndim or len(shape) != X.ndim:
        raise ExpressionError(
            f"X has rank {X.ndim}; give as many starts ({len(starts)}) and extents ({len(shape)})"
        )

    def body(*index: Value) -> Value:
        at = list(index)
        inside: Value | None = None
        for d, (start, n, size) in enumerate(zip(starts, shape, X.shape_ints, strict=True)):
            at[d] = index[d] + start
            past = not nonnegative(size - n - start)
            for leaves, fits in ((start < 0, at[d] >= 0), (past, at[d] < size)):
                if leaves:
                    inside = fits if inside is None else inside & fits
        value = X[tuple(at)]
        return value if inside is None else where(inside, value, 0)

    return compute(shape, body, name=name)
