"""The problems that peers solve: maps an operator with its arrays to one of a few problems that
every library has a function for. Weights are prepared ahead of time, as each side may.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ArgumentError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Convolution:
    """NCHW with weights OIHW, of one to three spatial dimensions; IOHW if transposed."""

    x: Array
    w: Array
    stride: int
    padding: int
    dilation: int = 1
    groups: int = 1
    transposed: bool = False
    bias: Array | None = None
    relu: bool = False

    @property
    def num_spatial(self) -> int:
        return self.x.ndim - 2


@dataclass(frozen=True, eq=False)
class Plain:
    """`kind` is matmul, norm, softmax or scores; see the peers for what each means."""

    kind: str
    inputs: tuple[Array, ...]


Problem = Convolution | Plain
_PLAIN = {
    "matmul": "matmul", "norm": "norm", "softmax": "softmax", "transpose-batch-matmul": "scores",
}  # fmt: skip
_CONVOLUTIONS = (
    "conv1d", "conv2d", "conv3d", "group-conv2d", "dilated-conv2d", "depthwise-conv2d",
    "conv2d-transpose", "conv2d-bn-relu",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Question:
    """A problem, and the function that restores its answer to the operator's own shape."""

    problem: Problem
    restore: Callable[[Array], Array]


def question_of(operator: str, numbers: Mapping[str, int], arrays: Sequence[Array]) -> Question:
    """`arrays` are the operator's inputs, channels first."""
    if operator in _PLAIN:
        return Question(Plain(_PLAIN[operator], tuple(arrays)), np.asarray)
    if operator == "capsule-conv2d":
        return _capsules(numbers, *arrays)
    if operator not in _CONVOLUTIONS:
        operators = ", ".join([*_PLAIN, *_CONVOLUTIONS, "capsule-conv2d"])
        raise ArgumentError(f"no peer is asked for {operator!r}; known are {operators}")
    x, w, *rest = arrays
    bias = None
    if rest:  # the normalisation is folded into the weights
        bias, scale, shift = rest
        w, bias = w * scale[:, None, None, None], bias * scale + shift
    depthwise = operator == "depthwise-conv2d"
    return Question(
        Convolution(
            x,
            w,
            numbers["S"],
            numbers["P"],
            dilation=2 if operator == "dilated-conv2d" else 1,
            groups=numbers["C"] if depthwise else numbers.get("G", 1),
            transposed=operator == "conv2d-transpose",
            bias=bias,
            relu=bool(rest),
        ),
        np.asarray,
    )


def _capsules(numbers: Mapping[str, int], x: Array, w: Array) -> Question:
    """A row of capsules is an image with channels (inner, channel): a plain convolution."""
    n, h, width, rows, inner, ci = x.shape
    kh, kw, _, columns, _, co = w.shape
    images = x.transpose(0, 3, 4, 5, 1, 2).reshape(n * rows, inner * ci, h, width)
    weights = w.transpose(3, 5, 2, 4, 0, 1).reshape(columns * co, inner * ci, kh, kw)

    def restore(y: Array) -> Array:
        out = y.reshape(n, rows, columns, co, *y.shape[2:])
        return out.transpose(0, 4, 5, 1, 2, 3)

    problem = Convolution(
        np.ascontiguousarray(images),
        np.ascontiguousarray(weights),
        numbers["S"],
        numbers["P"],
    )
    return Question(problem, restore)


def to_layout(operator: str, layout: str | None, arrays: Sequence[Array]) -> list[Array]:
    """Inputs with channels first, converted for a Function of another layout."""
    if layout != "NHWC":
        return list(arrays)
    x, w, *rest = arrays
    spatial = range(2, w.ndim)
    order = (*spatial, 0, 1) if operator == "conv2d-transpose" else (*spatial, 1, 0)
    return [
        np.ascontiguousarray(np.moveaxis(x, 1, -1)),
        np.ascontiguousarray(w.transpose(order)),
        *rest,
    ]


def from_layout(layout: str | None, y: Array) -> Array:
    return np.moveaxis(y, -1, 1) if layout == "NHWC" else y


def disagreement(a: Array, b: Array) -> str | None:
    """Why two answers are not equal up to rounding; None if they are."""
    if a.shape != b.shape:
        return f"shapes {list(a.shape)} and {list(b.shape)}"
    worst = float(np.max(np.abs(a - b), initial=0.0))
    allowed = 1e-3 * float(np.max(np.abs(b), initial=0.0))
    return None if worst <= allowed else f"differ by {worst:.3g}, allowed are {allowed:.3g}"
