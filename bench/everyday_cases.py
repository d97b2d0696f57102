"""Draws operators as models have them, with sizes that nobody chose: families take turns, so that a
few dozen cases cover all of them, and each case depends on the seed and its number alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any

import numpy as np

Rng = np.random.Generator


@dataclass(frozen=True)
class Input:
    """An array of normal numbers, or of integers below `below`."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    below: int = 0

    def array(self, rng: Rng) -> Any:
        """float16 and bfloat16 are drawn as float32; whoever uses them rounds."""
        if self.dtype == "bool":
            return rng.random(self.shape, np.float32) < 1e-3
        if self.below:
            return rng.integers(0, self.below, self.shape).astype(self.dtype)
        return rng.standard_normal(self.shape, np.float32)


@dataclass(frozen=True)
class Case:
    """An operator of `everyday_modules.OPERATORS` with its settings. The first `num_given` inputs
    are given in each call; the others are weights, which are known ahead.
    """

    family: str
    operator: str
    inputs: tuple[Input, ...]
    num_given: int
    work: float  # operations, roughly
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def dtype(self) -> str:
        return self.inputs[0].dtype

    @property
    def name(self) -> str:
        shapes = " ".join("x".join(map(str, i.shape)) or "()" for i in self.inputs)
        told = {k: v for k, v in self.settings.items() if v is not False and v != ""}
        own = " ".join(k if v is True else f"{k}={v}" for k, v in told.items())
        return f"{self.operator} {self.dtype} {shapes} {own}".strip()

    def arrays(self) -> list[Any]:
        rng = np.random.default_rng(1)
        return [i.array(rng) for i in self.inputs]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Case:
        inputs = (Input(tuple(i["shape"]), i["dtype"], i["below"]) for i in data["inputs"])
        return cls(**{**data, "inputs": tuple(inputs)})


@dataclass(frozen=True)
class Limits:
    """What a machine is asked for at most: operations, and elements of an array."""

    work: float
    elements: float
    dtypes: tuple[str, ...]


CPU = Limits(4e9, 3e7, ("float32",))
GPU = Limits(5e11, 1e8, ("float32", "float16", "bfloat16", "float16"))


def size(rng: Rng, low: int, high: int) -> int:
    """Evenly on a logarithmic scale; half of them multiples of 8, a quarter odd."""
    n = round(float(np.exp(rng.uniform(np.log(low), np.log(high)))))
    kind = rng.integers(4)
    if kind < 2 and n > 4:
        n = max(8, (n + 4) // 8 * 8)
    elif kind == 2:
        n |= 1
    return int(min(max(n, low), high))


def chosen(rng: Rng, *values: Any) -> Any:
    return values[rng.integers(len(values))]


def some_axes(rng: Rng, rank: int) -> list[int]:
    """Any subset but the empty one."""
    count = int(rng.integers(1, rank + 1))
    return sorted(int(a) for a in rng.permutation(rank)[:count])


def some_shape(rng: Rng, limits: Limits, least: float = 1e3) -> tuple[int, ...]:
    """A shape of rank 1 to 5 with elements evenly on a logarithmic scale."""
    rank = int(rng.integers(1, 6))
    elements = float(np.exp(rng.uniform(np.log(least), np.log(limits.elements))))
    shares = rng.dirichlet(np.ones(rank) * 2)
    return tuple(
        size(rng, max(1, int(elements**s * 0.8)), int(elements**s * 1.2) + 2) for s in shares
    )


def dtype_of(rng: Rng, limits: Limits) -> str:
    return str(chosen(rng, *limits.dtypes))


EPILOGUES = ("bias", "bias gelu", "bias relu", "residual", "bias residual", "scale", "bias silu")


def product(rng: Rng, limits: Limits) -> Case:
    dtype = dtype_of(rng, limits)
    m, n, k = (size(rng, 16, 8192) for _ in range(3))
    return _product("product", rng, dtype, 1, m, n, k)


def thin_product(rng: Rng, limits: Limits) -> Case:
    """One of the sizes is small: a matrix-vector product, few rows, a short sum."""
    sizes = [size(rng, 64, 8192) for _ in range(3)]
    sizes[rng.integers(3)] = size(rng, 1, 16)
    return _product("thin product", rng, dtype_of(rng, limits), 1, *sizes)


def batched_product(rng: Rng, limits: Limits) -> Case:
    m, n, k = (size(rng, 8, 1024) for _ in range(3))
    return _product("batched product", rng, dtype_of(rng, limits), size(rng, 2, 256), m, n, k)


def _product(family: str, rng: Rng, dtype: str, batch: int, m: int, n: int, k: int) -> Case:
    left, right = bool(rng.integers(2)), bool(rng.integers(2))
    lead = (batch,) if batch > 1 else ()
    a = Input(lead + ((k, m) if left else (m, k)), dtype)
    b = Input(lead + ((n, k) if right else (k, n)), dtype)
    settings = {"left_transposed": left, "right_transposed": right}
    return Case(family, "product", (a, b), 2, 2.0 * batch * m * n * k, settings)


def dense(rng: Rng, limits: Limits) -> Case:
    dtype, epilogue = dtype_of(rng, limits), str(chosen(rng, *EPILOGUES))
    m, n, k = size(rng, 1, 4096), size(rng, 16, 8192), size(rng, 16, 8192)
    given = [Input((m, k), dtype)] + [Input((m, n), dtype)] * ("residual" in epilogue)
    weights = [Input((n, k), dtype)] + [Input((n,), dtype)] * ("bias" in epilogue)
    work = 2.0 * m * n * k
    return Case("dense", "dense", (*given, *weights), len(given), work, {"epilogue": epilogue})


def convolution(rng: Rng, limits: Limits) -> Case:
    return _convolution("convolution", rng, limits, groups=1)


def grouped_convolution(rng: Rng, limits: Limits) -> Case:
    return _convolution("grouped convolution", rng, limits, groups=int(chosen(rng, 2, 4, 8, 32)))


def depthwise(rng: Rng, limits: Limits) -> Case:
    return _convolution("depthwise", rng, limits, groups=0)


def transposed_convolution(rng: Rng, limits: Limits) -> Case:
    return _convolution("transposed convolution", rng, limits, groups=1, transposed=True)


def _convolution(
    family: str, rng: Rng, limits: Limits, groups: int, transposed: bool = False
) -> Case:
    dims = int(chosen(rng, 1, 2, 2, 2, 2, 3))
    kernel = int(chosen(rng, 1, 3, 3, 5, 7)) if dims < 3 else int(chosen(rng, 1, 3))
    kernel = int(chosen(rng, 2, 3, 4)) if transposed else kernel
    stride = int(chosen(rng, 1, 1, 2)) if not transposed else int(chosen(rng, 1, 2, 2))
    dilation = int(chosen(rng, 1, 1, 1, 2)) if kernel > 1 and not transposed else 1
    padding = int(chosen(rng, 0, dilation * (kernel // 2), dilation * (kernel // 2)))
    extent = size(rng, *{1: (16, 2048), 2: (7, 224), 3: (4, 32)}[dims])
    extents = [max(extent + int(rng.integers(-1, 2)), dilation * kernel) for _ in range(dims)]
    if groups:
        ci, co = (groups * size(rng, 3 if groups == 1 else 4, 512 // groups) for _ in range(2))
    else:
        groups = ci = co = size(rng, 8, 1024)
    batch = size(rng, 1, 32)
    last = dims == 2 and bool(rng.integers(2))
    dtype = dtype_of(rng, limits)
    bias = bool(rng.integers(2))
    outer = (ci, co // groups) if transposed else (co, ci // groups)
    weights = [Input((*outer, *[kernel] * dims), dtype)] + [Input((co,), dtype)] * bias
    made = [(e + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1 for e in extents]
    points = prod(extents if transposed else made)
    settings = {
        "stride": stride, "padding": padding, "dilation": dilation, "groups": groups,
        "transposed": transposed, "channels_last": last, "relu": bool(rng.integers(2)),
    }  # fmt: skip
    shape = (batch, *extents, ci) if last else (batch, ci, *extents)
    work = 2.0 * batch * co * points * kernel**dims * (ci // groups)
    return Case(family, "convolution", (Input(shape, dtype), *weights), 1, work, settings)


def pooling(rng: Rng, limits: Limits) -> Case:
    kind = str(chosen(rng, "max", "avg", "global"))
    kernel = int(chosen(rng, 2, 3, 3, 5))
    extent = size(rng, 7, 224)
    shape = (size(rng, 1, 32), size(rng, 3, 1024), extent, extent)
    settings = {"kind": kind, "kernel": kernel, "stride": int(chosen(rng, 1, 2, 2))}
    work = float(prod(shape) * (1 if kind == "global" else kernel**2))
    return Case("pooling", "pooling", (Input(shape, dtype_of(rng, limits)),), 1, work, settings)


def reduction(rng: Rng, limits: Limits) -> Case:
    kind = str(chosen(rng, "sum", "max", "mean", "var", "argmax", "any"))
    shape = some_shape(rng, limits)
    axes = some_axes(rng, len(shape))
    axes = axes[:1] if kind == "argmax" else axes
    dtype = "bool" if kind == "any" else dtype_of(rng, limits)
    settings = {"kind": kind, "axes": axes}
    return Case("reduction", "reduction", (Input(shape, dtype),), 1, float(prod(shape)), settings)


def running_sum(rng: Rng, limits: Limits) -> Case:
    shape = some_shape(rng, limits)
    settings = {"axis": int(rng.integers(len(shape)))}
    inputs = (Input(shape, dtype_of(rng, limits)),)
    return Case("running sum", "running_sum", inputs, 1, float(prod(shape)), settings)


def softmax(rng: Rng, limits: Limits) -> Case:
    shape = some_shape(rng, limits)
    settings = {"axis": int(rng.integers(len(shape))), "log": bool(rng.integers(2))}
    inputs = (Input(shape, dtype_of(rng, limits)),)
    return Case("softmax", "softmax", inputs, 1, 5.0 * prod(shape), settings)


def norm(rng: Rng, limits: Limits) -> Case:
    kind = str(chosen(rng, "layer", "rms", "group", "instance"))
    dtype = dtype_of(rng, limits)
    if kind in ("layer", "rms"):
        shape: tuple[int, ...] = (size(rng, 1, 64), size(rng, 1, 1024), size(rng, 64, 4096))
        weights = [Input(shape[-1:], dtype)] * (2 if kind == "layer" else 1)
        settings: dict[str, Any] = {"kind": kind}
    else:
        groups = int(chosen(rng, 4, 8, 32))
        extent = size(rng, 7, 112)
        shape = (size(rng, 1, 16), groups * size(rng, 1, 32), extent, extent)
        weights = [Input((shape[1],), dtype)] * 2
        settings = {"kind": kind, "groups": groups}
    inputs = (Input(shape, dtype), *weights)
    return Case("norm", "norm", inputs, 1, 6.0 * prod(shape), settings)


def transpose(rng: Rng, limits: Limits) -> Case:
    shape = some_shape(rng, limits, 1e4)
    while len(shape) == 1:
        shape = some_shape(rng, limits, 1e4)
    order = [int(a) for a in rng.permutation(len(shape))]
    while order == sorted(order):  # nobody copies that
        order = [int(a) for a in rng.permutation(len(shape))]
    inputs = (Input(shape, dtype_of(rng, limits)),)
    return Case("transpose", "transpose", inputs, 1, float(prod(shape)), {"order": order})


def concatenation(rng: Rng, limits: Limits) -> Case:
    shape = some_shape(rng, limits)
    axis, dtype = int(rng.integers(len(shape))), dtype_of(rng, limits)
    parts = [size(rng, 1, max(2, shape[axis])) for _ in range(int(rng.integers(2, 5)))]
    inputs = tuple(Input((*shape[:axis], p, *shape[axis + 1 :]), dtype) for p in parts)
    work = float(sum(prod(i.shape) for i in inputs))
    return Case("concatenation", "concatenation", inputs, len(inputs), work, {"axis": axis})


def pad(rng: Rng, limits: Limits) -> Case:
    shape = some_shape(rng, limits)
    axes = int(rng.integers(1, min(3, len(shape)) + 1))
    widths = [int(rng.integers(0, 4)) for _ in range(2 * axes)]
    inputs = (Input(shape, dtype_of(rng, limits)),)
    return Case("pad", "pad", inputs, 1, float(prod(shape)), {"widths": widths})


def gather(rng: Rng, limits: Limits) -> Case:
    kind = str(chosen(rng, "embedding", "index_select", "gather"))
    rows, width = size(rng, 64, 50000), size(rng, 16, 1024)
    count = size(rng, 1, 8192)
    table = Input((rows, width), dtype_of(rng, limits))
    shape = (count, width) if kind == "gather" else (count,)
    inputs = (table, Input(shape, "int64", rows))
    return Case("gather", "gather", inputs, 2, float(count * width), {"kind": kind})


def scatter(rng: Rng, limits: Limits) -> Case:
    rows, width = size(rng, 64, 50000), size(rng, 16, 512)
    count = size(rng, 1, 4096)
    dtype = "float32"
    table, values = Input((rows, width), dtype), Input((count, width), dtype)
    inputs = (table, Input((count, width), "int64", rows), values)
    return Case(
        "scatter", "scatter", inputs, 3, float(rows * width), {"add": bool(rng.integers(2))}
    )


def elementwise(rng: Rng, limits: Limits) -> Case:
    shape = some_shape(rng, limits)
    kept = [bool(rng.integers(2)) for _ in shape]
    other = tuple(n if k else 1 for n, k in zip(shape, kept, strict=True))
    dtype = dtype_of(rng, limits)
    kind = str(chosen(rng, "add", "mul gelu", "sub relu", "add silu", "mul tanh", "where"))
    inputs = (Input(shape, dtype), Input(other, dtype))
    work = 2.0 * prod(shape)
    return Case("element-wise", "elementwise", inputs, 2, work, {"kind": kind})


def attention(rng: Rng, limits: Limits) -> Case:
    heads, width = size(rng, 1, 32), int(chosen(rng, 32, 64, 64, 80, 128))
    queries = int(chosen(rng, 1, size(rng, 16, 4096), size(rng, 16, 4096)))
    keys = size(rng, 16, 4096) if queries == 1 else queries
    batch, dtype = size(rng, 1, 8), dtype_of(rng, limits)
    q = Input((batch, heads, queries, width), dtype)
    k = Input((batch, heads, keys, width), dtype)
    causal = queries > 1 and bool(rng.integers(2))
    work = 4.0 * batch * heads * queries * keys * width
    return Case("attention", "attention", (q, k, k), 3, work, {"causal": causal})


FAMILIES: dict[str, Callable[[Rng, Limits], Case]] = {
    "product": product,
    "thin product": thin_product,
    "batched product": batched_product,
    "dense": dense,
    "convolution": convolution,
    "grouped convolution": grouped_convolution,
    "depthwise": depthwise,
    "transposed convolution": transposed_convolution,
    "pooling": pooling,
    "reduction": reduction,
    "running sum": running_sum,
    "softmax": softmax,
    "norm": norm,
    "transpose": transpose,
    "concatenation": concatenation,
    "pad": pad,
    "gather": gather,
    "scatter": scatter,
    "element-wise": elementwise,
    "attention": attention,
}


def draw(seed: int, count: int, limits: Limits, families: tuple[str, ...] = ()) -> Iterator[Case]:
    """Those that are too large for the machine are drawn again."""
    names = families or tuple(FAMILIES)
    for number in range(count):
        name = names[number % len(names)]
        rng = np.random.default_rng([seed, number, tuple(FAMILIES).index(name)])
        while True:
            case = FAMILIES[name](rng, limits)
            most = max(prod(i.shape) for i in case.inputs)
            if case.work <= limits.work and most <= limits.elements:
                yield case
                break
