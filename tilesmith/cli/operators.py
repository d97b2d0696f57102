"""Operators by name: the words of a command line in, a Function out. Shapes are numbers in the
order in which the operator suite lists them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import tilesmith.ops as ops
from tilesmith.base.errors import ArgumentError
from tilesmith.expr.dsl import Tensor, compute, placeholder, reduce_axis
from tilesmith.expr.dsl import sum as sum_over
from tilesmith.ir.function import Function
from tilesmith.ir.lower import function

Tensors = tuple[Tensor, ...]  # inputs, then the output


def _matmul(N: int, M: int, K: int) -> Tensors:
    a, b = placeholder((N, K), name="A"), placeholder((K, M), name="B")
    return a, b, ops.matmul(a, b, name="C")


def _matmul_relu(N: int, M: int, K: int) -> Tensors:
    a, b = placeholder((N, K), name="A"), placeholder((K, M), name="B")
    return a, b, ops.relu(ops.matmul(a, b, name="C"), name="D")


def _matmul_chain(N: int, M: int, K: int, L: int) -> Tensors:
    a, b, c = (
        placeholder(shape, name=name)
        for shape, name in (((N, K), "A"), ((K, M), "B"), ((M, L), "C"))
    )
    return a, b, c, ops.matmul(ops.matmul(a, b, name="AB"), c, name="ABC")


def _conv1d(L: int, CI: int, CO: int, K: int, S: int, P: int, N: int = 1) -> Tensors:
    x, w = placeholder((N, CI, L), name="X"), placeholder((CO, CI, K), name="W")
    return x, w, ops.conv1d(x, w, stride=S, padding=P, name="Y")


def _images(H: int, CI: int, CO: int, K: int, N: int, groups: int = 1) -> tuple[Tensor, Tensor]:
    return placeholder((N, CI, H, H), name="X"), placeholder((CO, CI // groups, K, K), name="W")


def _conv2d(H: int, CI: int, CO: int, K: int, S: int, P: int, N: int = 1) -> Tensors:
    x, w = _images(H, CI, CO, K, N)
    return x, w, ops.conv2d(x, w, stride=S, padding=P, name="Y")


def _conv3d(H: int, CI: int, CO: int, K: int, S: int, P: int, D: int = 16, N: int = 1) -> Tensors:
    x, w = placeholder((N, CI, D, H, H), name="X"), placeholder((CO, CI, K, K, K), name="W")
    return x, w, ops.conv3d(x, w, stride=S, padding=P, name="Y")


def _group_conv2d(
    H: int, CI: int, CO: int, K: int, S: int, P: int, G: int = 4, N: int = 1
) -> Tensors:
    x, w = _images(H, CI, CO, K, N, groups=G)
    return x, w, ops.conv2d(x, w, stride=S, padding=P, groups=G, name="Y")


def _dilated_conv2d(H: int, CI: int, CO: int, K: int, S: int, P: int, N: int = 1) -> Tensors:
    x, w = _images(H, CI, CO, K, N)
    return x, w, ops.conv2d(x, w, stride=S, padding=P, dilation=2, name="Y")


def _depthwise_conv2d(H: int, C: int, K: int, S: int, P: int, N: int = 1) -> Tensors:
    x, w = _images(H, C, C, K, N, groups=C)
    return x, w, ops.depthwise_conv2d(x, w, stride=S, padding=P, name="Y")


def _conv2d_transpose(H: int, CI: int, CO: int, K: int, S: int, P: int, N: int = 1) -> Tensors:
    x, w = placeholder((N, CI, H, H), name="X"), placeholder((CI, CO, K, K), name="W")
    return x, w, ops.conv2d_transpose(x, w, stride=S, padding=P, name="Y")


def _capsule_conv2d(
    H: int, CI: int, CO: int, K: int, S: int, P: int, CAP: int = 4, N: int = 1
) -> Tensors:
    x = placeholder((N, H, H, CAP, CAP, CI), name="X")
    w = placeholder((K, K, CAP, CAP, CI, CO), name="W")
    return x, w, ops.capsule_conv2d(x, w, stride=S, padding=P, name="Y")


def _norm(M: int, N: int) -> Tensors:
    x = placeholder((M, N), name="X")
    return x, ops.norm(x, name="Y")


def _softmax(M: int, N: int) -> Tensors:
    x = placeholder((M, N), name="X")
    return x, ops.softmax(x, name="Y")


def _conv2d_bn_relu(H: int, CI: int, CO: int, K: int, S: int, P: int, N: int = 1) -> Tensors:
    x, w = _images(H, CI, CO, K, N)
    bias, scale, shift = (placeholder((CO,), name=name) for name in ("bias", "scale", "shift"))
    y = ops.bias_add(ops.conv2d(x, w, stride=S, padding=P, name="Y"), bias, name="biased")
    y = ops.scale_shift(y, scale, shift, name="normal")
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
    parameters = inspect.signature(OPERATORS[name]).parameters.values()
    return " ".join(
        [name, *(p.name if p.default is p.empty else f"[{p.name}={p.default}]" for p in parameters)]
    )


def operator(name: str, shape: Sequence[int]) -> Function:
    """The Function of a named operator; what is in brackets in its usage may be left out."""
    make = OPERATORS.get(name)
    if make is None:
        raise ArgumentError(f"unknown operator {name!r}; known are {', '.join(OPERATORS)}")
    parameters = inspect.signature(make).parameters.values()
    least = sum(p.default is p.empty for p in parameters)
    if not least <= len(shape) <= len(parameters):
        raise ArgumentError(f"{name} got {len(shape)} numbers; it is written {usage(name)}")
    for p, n in zip(parameters, shape, strict=False):
        if n < 0 or (n == 0 and p.name != "P"):
            raise ArgumentError(f"{name}: {p.name} is {n}; it must be at least 1")
    words = "_".join([name.replace("-", "_"), *map(str, shape)])
    return function(make(*shape), name=words)
