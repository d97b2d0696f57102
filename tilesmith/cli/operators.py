"""Operators by name: the words of a command line in, a Function out. Shapes are numbers in the
order in which the operator suite lists them; those that know two layouts take one by keyword.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import tilesmith.ops as ops
from tilesmith.base.errors import ArgumentError
from tilesmith.expr.dsl import compute, placeholder, reduce_axis
from tilesmith.expr.dsl import sum as sum_over
from tilesmith.expr.values import Tensor
from tilesmith.ir.function import Function
from tilesmith.ir.lower import function

Tensors = tuple[Tensor, ...]  # inputs, then the output
_WEIGHTS = ("W", "bias", "scale", "shift")


def _matmul(N: int, M: int, K: int, B: int = 1) -> Tensors:
    lead = () if B == 1 else (B,)
    a, b = placeholder((*lead, N, K), name="A"), placeholder((*lead, K, M), name="B")
    return a, b, (ops.batch_matmul if lead else ops.matmul)(a, b, name="C")


def _matmul_relu(N: int, M: int, K: int) -> Tensors:
    a, b = placeholder((N, K), name="A"), placeholder((K, M), name="B")
    return a, b, ops.relu(ops.matmul(a, b, name="C"), name="D")


def _matmul_chain(N: int, M: int, K: int, L: int) -> Tensors:
    a, b, c = (
        placeholder(shape, name=name)
        for shape, name in (((N, K), "A"), ((K, M), "B"), ((M, L), "C"))
    )
    return a, b, c, ops.matmul(ops.matmul(a, b, name="AB"), c, name="ABC")


def _images(
    layout: str, N: int, CI: int, CO: int, sizes: Sequence[int], kernel: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """X and W, where NHWC stands for all layouts with the channels last."""
    if layout == "NCHW":
        return placeholder((N, CI, *sizes), name="X"), placeholder((CO, CI, *kernel), name="W")
    return placeholder((N, *sizes, CI), name="X"), placeholder((*kernel, CI, CO), name="W")


def _square(layout: str, H: int, CI: int, CO: int, K: int, N: int) -> tuple[Tensor, Tensor]:
    return _images(layout, N, CI, CO, (H, H), (K, K))


def _conv1d(
    L: int, CI: int, CO: int, K: int, S: int, P: int, N: int = 1, *, layout: str = "NCHW"
) -> Tensors:
    x, w = _images(layout, N, CI, CO, (L,), (K,))
    return x, w, ops.conv1d(x, w, stride=S, padding=P, layout=layout, name="Y")


def _conv2d(
    H: int, CI: int, CO: int, K: int, S: int, P: int, N: int = 1, *, layout: str = "NCHW"
) -> Tensors:
    x, w = _square(layout, H, CI, CO, K, N)
    return x, w, ops.conv2d(x, w, stride=S, padding=P, layout=layout, name="Y")


def _conv3d(
    H: int, CI: int, CO: int, K: int, S: int, P: int, D: int = 16, N: int = 1,
    *, layout: str = "NCHW",
) -> Tensors:  # fmt: skip
    x, w = _images(layout, N, CI, CO, (D, H, H), (K, K, K))
    return x, w, ops.conv3d(x, w, stride=S, padding=P, layout=layout, name="Y")


def _group_conv2d(
    H: int, CI: int, CO: int, K: int, S: int, P: int, G: int = 4, N: int = 1,
    *, layout: str = "NCHW",
) -> Tensors:  # fmt: skip
    x, _ = _square(layout, H, CI, CO, K, N)
    _, w = _square(layout, H, CI // G, CO, K, N)
    return x, w, ops.conv2d(x, w, stride=S, padding=P, groups=G, layout=layout, name="Y")


def _dilated_conv2d(
    H: int, CI: int, CO: int, K: int, S: int, P: int, N: int = 1, *, layout: str = "NCHW"
) -> Tensors:
    x, w = _square(layout, H, CI, CO, K, N)
    return x, w, ops.conv2d(x, w, stride=S, padding=P, dilation=2, layout=layout, name="Y")


def _depthwise_conv2d(
    H: int, C: int, K: int, S: int, P: int, N: int = 1, *, layout: str = "NCHW"
) -> Tensors:
    x, _ = _square(layout, H, C, C, K, N)
    _, w = _square(layout, H, 1, C, K, N)
    return x, w, ops.depthwise_conv2d(x, w, stride=S, padding=P, layout=layout, name="Y")


def _conv2d_transpose(
    H: int, CI: int, CO: int, K: int, S: int, P: int, N: int = 1, *, layout: str = "NCHW"
) -> Tensors:
    x, _ = _square(layout, H, CI, CO, K, N)
    shape = (CI, CO, K, K) if layout == "NCHW" else (K, K, CI, CO)
    w = placeholder(shape, name="W")
    return x, w, ops.conv2d_transpose(x, w, stride=S, padding=P, layout=layout, name="Y")


def _capsule_conv2d(
    H: int, CI: int, CO: int, K: int, S: int, P: int, CAP: int = 4, N: int = 1
) -> Tensors:
    x = placeholder((N, H, H, CAP, CAP, CI), name="X")
    w = placeholder((K, K, CAP, CAP, CI, CO), name="W")
    return x, w, ops.capsule_conv2d(x, w, stride=S, padding=P, name="Y")


def _norm(M: int, N: int, B: int = 1) -> Tensors:
    x = placeholder((M, N) if B == 1 else (B, M, N), name="X")
    return x, ops.norm(x, name="Y")


def _softmax(M: int, N: int, B: int = 1) -> Tensors:
    x = placeholder((B * M, N), name="X")
    return x, ops.softmax(x, name="Y")


def _conv2d_bn_relu(
    H: int, CI: int, CO: int, K: int, S: int, P: int, N: int = 1, *, layout: str = "NCHW"
) -> Tensors:
    x, w = _square(layout, H, CI, CO, K, N)
    bias, scale, shift = (placeholder((CO,), name=name) for name in ("bias", "scale", "shift"))
    axis = 1 if layout == "NCHW" else -1
    y = ops.conv2d(x, w, stride=S, padding=P, layout=layout, name="Y")
    y = ops.bias_add(y, bias, axis=axis, name="biased")
    y = ops.scale_shift(y, scale, shift, axis=axis, name="normal")
    return x, w, bias, scale, shift, ops.relu(y, name="Z")


def _transpose_batch_matmul(SEQ: int, HEADS: int, DIM: int, N: int = 1) -> Tensors:
    q, k = (placeholder((N, SEQ, HEADS, DIM), name=name) for name in ("Q", "K"))
    return q, k, ops.transpose_batch_matmul(q, k, name="S")


def _max_pool2d(H: int, C: int, K: int, S: int, P: int, N: int = 1) -> Tensors:
    x = placeholder((N, C, H, H), name="X")
    return x, ops.max_pool2d(x, K, stride=S, padding=P, name="Y")


def _sum(N: int) -> Tensors:
    x, k = placeholder((N,), name="X"), reduce_axis(N, name="k")
    return x, compute((), lambda: sum_over(x[k], axis=k), name="Y")


def _gelu(M: int, N: int) -> Tensors:
    x = placeholder((M, N), name="X")
    return x, ops.gelu(x, name="Y")


OPERATORS: dict[str, Callable[..., Tensors]] = {
    "matmul": _matmul,
    "matmul-relu": _matmul_relu,
    "matmul-chain": _matmul_chain,
    "conv1d": _conv1d,
    "conv2d": _conv2d,
    "conv3d": _conv3d,
    "group-conv2d": _group_conv2d,
    "dilated-conv2d": _dilated_conv2d,
    "depthwise-conv2d": _depthwise_conv2d,
    "conv2d-transpose": _conv2d_transpose,
    "capsule-conv2d": _capsule_conv2d,
    "norm": _norm,
    "softmax": _softmax,
    "conv2d-bn-relu": _conv2d_bn_relu,
    "transpose-batch-matmul": _transpose_batch_matmul,
    "max-pool2d": _max_pool2d,
    "sum": _sum,
    "gelu": _gelu,
}


def usage(name: str) -> str:
    """`conv3d H CI CO K S P [D=16] [N=1]`"""
    return " ".join(
        [name, *(p.name if p.default is p.empty else f"[{p.name}={p.default}]" for p in _of(name))]
    )


def _of(name: str) -> list[inspect.Parameter]:
    """The numbers that an operator takes."""
    if name not in OPERATORS:
        raise ArgumentError(f"unknown operator {name!r}; known are {', '.join(OPERATORS)}")
    found = inspect.signature(OPERATORS[name]).parameters.values()
    return [p for p in found if p.kind is not p.KEYWORD_ONLY]


def layouts(name: str) -> tuple[str, ...]:
    """What `operator` takes as a layout; empty where there is one way only."""
    return ("NCHW", "NHWC") if "layout" in inspect.signature(OPERATORS[name]).parameters else ()


def numbers(name: str, shape: Sequence[int]) -> dict[str, int]:
    """The shape with the names of its numbers, those that were left out included."""
    parameters = _of(name)
    least = sum(p.default is p.empty for p in parameters)
    if not least <= len(shape) <= len(parameters):
        raise ArgumentError(f"{name} got {len(shape)} numbers; it is written {usage(name)}")
    for p, n in zip(parameters, shape, strict=False):
        if n < 0 or (n == 0 and p.name != "P"):
            raise ArgumentError(f"{name}: {p.name} is {n}; it must be at least 1")
    defaults = {p.name: int(p.default) for p in parameters if p.default is not p.empty}
    return defaults | {p.name: n for p, n in zip(parameters, shape, strict=False)}


def with_batch(name: str, shape: Sequence[int], batch: int) -> tuple[int, ...]:
    """The shape with the last of its numbers, how many at once, set."""
    if batch == 1:
        return tuple(shape)
    last = _of(name)[-1]
    if last.default != 1:
        raise ArgumentError(f"{name} has no batch; it is written {usage(name)}")
    values = numbers(name, shape) | {last.name: batch}
    return tuple(values[p.name] for p in _of(name))


def operator(
    name: str, shape: Sequence[int], layout: str | None = None, prepared: bool = False
) -> Function:
    """The Function of a named operator; what is in brackets in its usage may be left out. With
    `prepared`, weights are constant: they may be packed ahead.
    """
    numbers(name, shape)
    if layout is not None and layout not in layouts(name):
        known = ", ".join(layouts(name)) or "one way only"
        raise ArgumentError(f"{name} has no layout {layout!r}; it knows {known}")
    chosen = {} if layout is None else {"layout": layout}
    words = "_".join([name.replace("-", "_"), *map(str, shape), *chosen.values()])
    tensors = OPERATORS[name](*shape, **chosen)
    constants = [t for t in tensors if prepared and t.name in _WEIGHTS]
    return function(tensors, name=words, constants=constants)
