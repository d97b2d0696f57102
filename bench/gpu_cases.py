"""The operator suite for GPUs, channels first, and other cases by name. It needs what
`import tilesmith` needs.
"""

from __future__ import annotations

import re

import tilesmith as ts
from tilesmith.cli.operators import numbers, operator, with_batch
from tilesmith.ir.function import Function
from tilesmith.runtime.devices.open import target_of
from tilesmith_contest.compare import Case
from tilesmith_contest.suite import SUITE

LAYER_NORM = "layer-norm"
# Products of M x K and K x N elements, with sums in float32.
HALF_PRODUCTS = {"matmul-float16": "float16", "matmul-bfloat16": "bfloat16"}
# Convolutions with channels last, or first: images, height, width, channels in and out, kernel,
# stride. What is padded keeps the size of the image.
HALF_CONVOLUTIONS = {
    "conv-float16": "float16", "conv-bfloat16": "bfloat16", "conv-first-float16": "float16",
}  # fmt: skip
_NAMED = (LAYER_NORM, *HALF_PRODUCTS, *HALF_CONVOLUTIONS)


def cases_of(ops: str = "", shapes: str = "", batch: int = 1) -> list[Case]:
    """Of the named operators, as GMM,C2D (all by default), the shapes of these numbers from 1."""
    picked = [int(n) for n in shapes.split(",")] if shapes else range(1, 100)
    return [
        case_of(op, shape, batch)
        for op in (ops.split(",") if ops else SUITE)
        for k, shape in enumerate(SUITE[op].shapes, 1)
        if k in picked
    ]


def case_of(op: str, shape: tuple[int, ...], batch: int = 1) -> Case:
    name = SUITE[op].operator
    return _case(op, name, with_batch(name, shape, batch), batch)


def named_cases(text: str) -> list[Case]:
    """Cases as "matmul 1024 1024 1024; matmul-float16 4096 4096 4096; layer-norm 8192 8192"."""
    words = [part.split() for part in text.split(";") if part.strip()]
    return [_case(name, name, tuple(map(int, shape)), 1) for name, *shape in words]


def _case(op: str, name: str, shape: tuple[int, ...], batch: int) -> Case:
    plain = function_of(name, shape, prepared=True)
    sizes = {} if name in _NAMED else numbers(name, shape)
    return Case(op, name, shape, batch, sizes, plain, {None: plain})


def function_of(name: str, shape: tuple[int, ...], prepared: bool = False) -> Function:
    """An operator of the command line, the layer norm of M rows of N elements, or a product or
    convolution in half precision. With `prepared`, weights are constant, as in a model.
    """
    if dtype := HALF_PRODUCTS.get(name):
        m, n, k = shape
        a, b = ts.placeholder((m, k), dtype, name="A"), ts.placeholder((k, n), dtype, name="B")
        return ts.function([a, b, ts.ops.matmul(a, b, name="C")], name=f"{dtype}_{m}_{n}_{k}")
    if dtype := HALF_CONVOLUTIONS.get(name):
        n, height, width, ci, co, kernel, stride = shape
        first = "first" in name
        image = (n, ci, height, width) if first else (n, height, width, ci)
        weights = (co, ci, kernel, kernel) if first else (kernel, kernel, ci, co)
        x, w = (ts.placeholder(e, dtype, name=k) for k, e in (("X", image), ("W", weights)))
        layout = "NCHW" if first else "NHWC"
        y = ts.ops.conv2d(x, w, stride, kernel // 2, layout=layout, name="Y")
        return ts.function([x, w, y], name="_".join(("conv", dtype, *map(str, shape))))
    if name != LAYER_NORM:
        return operator(name, shape, prepared=prepared)
    x = ts.placeholder(shape, name="X")
    gamma, beta = (ts.placeholder(shape[-1:], name=n) for n in ("gamma", "beta"))
    y = ts.ops.layer_norm(x, gamma, beta, name="Y")
    return ts.function([x, gamma, beta, y], name="_".join(("layer_norm", *map(str, shape))))


def device(text: str) -> ts.Target:
    """cuda, opencl, cuda:1 ..."""
    found = re.fullmatch(r"(cuda|opencl)(?::([0-9]+))?", text)
    if found is None:
        raise SystemExit(f"--target {text!r}: write cuda, opencl, or cuda:1 for the second GPU")
    return target_of(found.group(1), int(found.group(2) or 0))
