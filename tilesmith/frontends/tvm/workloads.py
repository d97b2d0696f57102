"""What the logs of TVM's tuners say was tuned, as operators of ours: products and convolutions of
known shapes. Their axes come in TVM's order, which is also ours: those of the result, then those
that are summed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tilesmith.ops as ops
from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TilesmithError
from tilesmith.expr.dsl import Tensor, placeholder
from tilesmith.ir.function import Function
from tilesmith.ir.lower import function

Shape = tuple[int, ...]


class Unmapped(Exception):
    """Why a workload is no operator of ours; what is counted."""


@dataclass(frozen=True)
class Workload:
    """An operator, the shapes of its two inputs, its settings, and their dtype.

    `operator` is "matmul", "dense" (weights as [outputs, inputs]), "batch_matmul", "conv1d",
    "conv2d", "conv3d", "depthwise_conv2d" or "conv2d_transpose".
    """

    operator: str
    shapes: tuple[Shape, Shape]
    dtype: str = "float32"
    settings: tuple[tuple[str, Any], ...] = ()

    def function(self, constant: bool) -> Function:
        """With `constant`, the second input is one whose layout may be chosen."""
        product = self.operator in ("matmul", "dense", "batch_matmul")
        names = ("A", "B") if product else ("X", "W")
        x, w = (placeholder(s, self.dtype, name=n) for s, n in zip(self.shapes, names, strict=True))
        make = getattr(ops, self.operator)
        try:
            y: Tensor = make(x, w, **dict(self.settings), name="C" if product else "Y")
            sizes = "_".join(str(n) for shape in self.shapes for n in shape)
            name = f"{self.operator}_{sizes}"
            return function([x, w, y], name=name, constants=[w] if constant else [])
        except TilesmithError as error:
            raise Unmapped(f"an operator that is refused here: {error}") from None


def product(
    operator: str, a: Shape, b: Shape, dtype: str, transpose_b: bool = False
) -> Workload:  # fmt: skip
    if operator == "batch_matmul":
        if len(a) != 3 or len(b) != 3:
            raise Unmapped(f"a product of tensors of {len(a)} and {len(b)} dimensions")
        return Workload(operator, (a, b), dtype, (("transpose_b", transpose_b),))
    if len(a) != 2 or len(b) != 2:
        raise Unmapped(f"a product of tensors of {len(a)} and {len(b)} dimensions")
    return Workload("dense" if transpose_b else "matmul", (a, b), dtype)


def convolution(
    x: Shape, w: Shape, dtype: str, layout: str, stride: Any, padding: Any, dilation: Any = 1,
    operator: str = "", groups: int = 1,
) -> Workload:  # fmt: skip
    """`layout` is "NCHW" or "NHWC", for images of any rank; that of the weights goes with it."""
    rank = len(x) - 2
    if rank not in (1, 2, 3) or len(w) != len(x):
        raise Unmapped(f"a convolution of tensors of {len(x)} and {len(w)} dimensions")
    name = operator or f"conv{rank}d"
    sides = _sides(padding, rank)
    if any(low != high for low, high in sides) and name != f"conv{rank}d":
        raise Unmapped("padding that differs from side to side")
    settings: list[tuple[str, Any]] = [
        ("stride", _each(stride, rank)),
        ("padding", tuple(low for low, _ in sides) if all(a == b for a, b in sides) else sides),
        ("layout", layout),
    ]
    if _each(dilation, rank) != (1,) * rank:
        settings.append(("dilation", _each(dilation, rank)))
    if groups != 1:
        settings.append(("groups", groups))
    return Workload(name, (x, w), dtype, tuple(settings))


def _each(value: Any, rank: int) -> tuple[int, ...]:
    values = tuple(map(int, value)) if isinstance(value, list | tuple) else (int(value),) * rank
    return values if len(values) == rank else (values[0],) * rank


def _sides(padding: Any, rank: int) -> tuple[tuple[int, int], ...]:
    """(before, after) of each dimension: TVM gives one number, one for each dimension, or first all
    before and then all after.
    """
    values = list(map(int, padding)) if isinstance(padding, list | tuple) else [int(padding)]
    if len(values) == 2 * rank:
        return tuple(zip(values[:rank], values[rank:], strict=True))
    values = values if len(values) == rank else [values[0]] * rank
    return tuple((p, p) for p in values)


def inferred(
    spatial: Sequence[int], reduced: Sequence[int], shapes: Sequence[Shape], dtype: str
) -> Workload:
    """The operator whose result has these extents and which sums over those, of tensors of these
    shapes. A log that names neither the operator nor its settings still says that much.
    """
    out = tuple(spatial)
    inputs = [s for s in shapes if s]
    if len(reduced) == 1 and len(spatial) in (2, 3):
        return _inferred_product(out, reduced[0], inputs, dtype)
    if len(spatial) - len(reduced) in (1, 2) and len(reduced) in (2, 3, 4):
        return _inferred_convolution(out, tuple(reduced), inputs, dtype)
    raise Unmapped(f"a computation over {len(spatial)} axes that sums over {len(reduced)}")


def _inferred_product(out: Shape, k: int, inputs: list[Shape], dtype: str) -> Workload:
    *batch, m, n = out
    lead = tuple(batch)
    operator = "batch_matmul" if lead else "matmul"
    a = (*lead, m, k)
    for b, turned in (((*lead, k, n), False), ((*lead, n, k), True)):
        if not inputs or (a in inputs and b in [s for s in inputs if s is not a]):
            return product(operator, a, b, dtype, turned)
    raise Unmapped("a product whose operands are not plain matrices")


def _inferred_convolution(out: Shape, reduced: Shape, inputs: list[Shape], dtype: str) -> Workload:
    rank = len(out) - 2
    if rank < 1 or len(reduced) not in (rank, rank + 1):
        raise Unmapped(f"a computation over {len(out)} axes that sums over {len(reduced)}")
    deep = len(reduced) == rank + 1  # otherwise one filter for each channel
    for layout in ("NHWC", "NCHW"):
        images = out[1:-1] if layout == "NHWC" else out[2:]
        channels = out[-1] if layout == "NHWC" else out[1]
        if deep:
            kernel = reduced[:-1] if layout == "NHWC" else reduced[1:]
            depth = reduced[-1] if layout == "NHWC" else reduced[0]
        else:
            kernel, depth = reduced, channels
        own = depth if deep else 1
        w = (*kernel, own, channels) if layout == "NHWC" else (channels, own, *kernel)
        if w not in inputs and (*kernel, channels) not in inputs:
            continue
        for x in inputs:
            if len(x) != len(out) or x[0] != out[0]:
                continue
            sizes, found = (x[1:-1], x[-1]) if layout == "NHWC" else (x[2:], x[1])
            if found != depth or x == w:
                continue
            how = [_window(*d) for d in zip(sizes, images, kernel, strict=True)]
            if all(how):
                strides, pads = zip(*[h for h in how if h], strict=True)
                operator = "" if deep else "depthwise_conv2d"
                if not deep and rank != 2:
                    raise Unmapped("a depthwise convolution of other than images")
                return convolution(x, w, dtype, layout, strides, pads, 1, operator)
    raise Unmapped("a convolution whose settings cannot be told from its sizes")


def _window(size: int, result: int, kernel: int) -> tuple[int, int] | None:
    """The stride and the padding with which windows over `size` elements give so many results; the
    usual one of several.
    """
    for stride in sorted({max(1, round(size / result)), 1, 2}, key=lambda s: s == 1):
        pads = sorted(range(kernel), key=lambda p: p != (kernel - 1) // 2)
        for p in pads:
            if size + 2 * p >= kernel and (size + 2 * p - kernel) // stride + 1 == result:
                return stride, p
    return None
