"""The windows of a pooling in any number of dimensions: where they lie, and the padded tensor that
they read.
"""

from __future__ import annotations

from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, reduce_axis
from tilesmith.expr.functions import maximum, minimum
from tilesmith.expr.values import Axis, Value
from tilesmith.ops.arguments import Padding, PerDim, fixed, image_layout, pad_pairs, per_dim
from tilesmith.ops.window import output_extent, padded


class Windows:
    """`count` is the number of spatial dimensions, where an operator has just one."""

    def __init__(
        self, op: str, X: Tensor, kernel: PerDim, stride: PerDim | None, padding: Padding,
        dilation: PerDim, ceil_mode: bool, layout: str | None, fill: float,
        count: int | None = None,
    ) -> None:  # fmt: skip
        self.layout = image_layout(op, X, layout, count)
        self.spatial, words = self.layout.spatial, self.layout.words
        rank = len(self.spatial)
        self.kernel = per_dim(op, "kernel", kernel, rank)
        self.stride = self.kernel if stride is None else per_dim(op, "stride", stride, rank)
        self.dilation = per_dim(op, "dilation", dilation, rank)
        self.pads = pad_pairs(op, padding, rank)
        self.sizes = [fixed(op, f"extent {words[d]} of X", X.shape_ints[d]) for d in self.spatial]
        around: dict[int, tuple[int, int]] = {}
        shape: list[object] = list(X.shape_ints)
        for k, d in enumerate(self.spatial):
            size, pad, s = self.sizes[k], self.pads[k], self.stride[k]
            reach = self.dilation[k] * (self.kernel[k] - 1) + 1
            if max(pad) >= reach:
                raise ExpressionError(
                    f"{op}: padding {pad} in {words[d]} is as large as the kernel, which reaches "
                    f"over {reach} elements; a window would hold nothing but padding"
                )
            n = output_extent(op, words[d], size, self.kernel[k], s, pad, self.dilation[k])
            # One window more where some are left over, if it still begins in front of the end.
            left_over = (size + sum(pad) - reach) % s
            if ceil_mode and left_over and n * s < size + pad[0]:
                n += 1
            end = (n - 1) * s + reach
            around[d] = (pad[0], max(pad[1], end - size - pad[0]))
            shape[d] = n
        self.before = {d: p[0] for d, p in around.items()}
        self.input = padded(X, around, fill)
        self.shape = shape
        names = self.layout.window_labels
        self.axes: tuple[Axis, ...] = tuple(
            reduce_axis(k, name=n) for k, n in zip(self.kernel, names, strict=True)
        )

    def place(self, index: tuple[Value, ...]) -> tuple[Value, ...]:
        """Where the window at `index` reads the padded input."""
        at = list(index)
        for d, s, dil, r in zip(self.spatial, self.stride, self.dilation, self.axes, strict=True):
            at[d] = index[d] * s + r * dil
        return tuple(at)

    def read(self, index: tuple[Value, ...]) -> Value:
        return self.input[self.place(index)]

    def count(self, index: tuple[Value, ...], include_pad: bool) -> Value | int:
        """How many elements the window at `index` counts."""
        total: Value | int = 1
        for k, d in enumerate(self.spatial):
            size, (before, after) = self.sizes[k], self.pads[k]
            low, high = (-before, size + after) if include_pad else (0, size)
            places = self.shape[d]
            assert isinstance(places, int)
            taps, step = self.kernel[k], self.dilation[k]
            last = (places - 1) * self.stride[k] - before + step * (taps - 1) + 1
            start = index[d] * self.stride[k] - before
            if low <= -before and last <= high:
                total = total * taps
            elif step == 1:
                total = total * (minimum(start + taps, high) - maximum(start, low))
            else:  # tap t counts if low <= start + step*t < high
                ends = minimum((high - start + (step - 1)) // step, taps)
                total = total * (ends - maximum((low - start + (step - 1)) // step, 0))
        return total
