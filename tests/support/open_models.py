"""ONNX models with open sizes, compiled once, and compared with the oracle at a length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.parser

import tilesmith as ts
from tilesmith.graph.open_executor import OpenExecutor
from tilesmith.graph.open_run import OpenRun
from tilesmith.graph.oracle import evaluate_program
from tilesmith.runtime.dispatch import Region
from tilesmith.runtime.kernel import Origin
from tilesmith.runtime.open_kernel import OpenKernel, PortfolioKernel, layouts_of
from tilesmith.tune.open_build import limits_of, plain_kernel

RNG = np.random.default_rng(0)
Feeds = dict[str, np.ndarray[Any, Any]]


def program(text: str, **weights: tuple[int, ...]) -> Any:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    for name, shape in weights.items():
        a = RNG.standard_normal(shape).astype(np.float32) / 4
        model.graph.initializer.append(onnx.numpy_helper.from_array(a, name))
    return ts.load_onnx(model)


def compiled(model: Any, sizes: Mapping[str, Any], **settings: Any) -> ts.Model:
    target = settings.pop("target", ts.cpu(1))
    made = ts.compile_model(model, target, sizes=sizes, cache=None, **settings)
    assert isinstance(made._run, OpenRun), made.summary()
    return made


def feeds_of(model: Any, **lengths: int) -> Feeds:
    shapes = {
        s.name: [lengths[d] if isinstance(d, str) else d for d in s.dims] for s in model.inputs
    }
    kinds = {s.name: s.dtype.numpy for s in model.inputs}
    return {
        n: RNG.integers(0, 9, shape).astype(kinds[n]) if kinds[n].kind == "i"
        else RNG.standard_normal(shape).astype(kinds[n])
        for n, shape in shapes.items()
    }  # fmt: skip


def check(made: ts.Model, model: Any, **lengths: int) -> None:
    feeds = feeds_of(model, **lengths)
    want = evaluate_program(model, feeds)
    for _ in range(2):
        got = made(feeds)
        assert list(got) == list(want)
        for name, a in want.items():
            assert (got[name].shape, got[name].dtype) == (a.shape, a.dtype)
            np.testing.assert_allclose(got[name], a, rtol=2e-4, atol=2e-5)


def with_portfolios(made: ts.Model) -> ts.Model:
    """The same model; every kernel with open sizes is two, of which the size chooses one."""
    run = made._run
    assert isinstance(run, OpenRun)
    plan, pairs = run.executor.plan, {}
    for step, kernel in zip(plan.steps, run.executor.kernels, strict=True):
        if isinstance(kernel, OpenKernel) and id(kernel) not in pairs:
            other = plain_kernel(step.func, kernel.artifact.target, None, Origin("naive"))
            assert isinstance(other, OpenKernel)
            members = [kernel, other]
            if layouts_of(kernel) != layouts_of(other):
                members = [kernel, kernel]
            limits = limits_of(step.func)
            ends = (dict.fromkeys(limits, 1), {n: high for n, (_, high) in limits.items()})
            regions = [Region(tuple(at.items()), 1 - k, 1e-6 + k, 1.0) for k, at in enumerate(ends)]
            pairs[id(kernel)] = PortfolioKernel(members, regions, limits)
    kernels = [pairs.get(id(k), k) for k in run.executor.kernels]
    smallest = {n: low for n, (low, _) in run.trusted.items()}
    executor = OpenExecutor(plan, kernels)
    again = OpenRun(run.program, executor, run._verify, run._compile, smallest)
    return ts.Model(run.program, run._compile, opened=again)  # type: ignore[arg-type]


class Case(NamedTuple):
    """A model, the ranges of its sizes, and lengths in them to compare it at."""

    text: str
    weights: Mapping[str, tuple[int, ...]]
    sizes: Mapping[str, tuple[int, int]]
    lengths: tuple[tuple[int, ...], ...]

    def program(self) -> Any:
        return program(self.text, **self.weights)

    def feeds(self, model: Any) -> Iterator[Feeds]:
        for lengths in self.lengths:
            yield feeds_of(model, **dict(zip(self.sizes, lengths, strict=True)))


# Several outputs, one of rank 0, one whose length is half of a size; tables that are cut on one
# side and on both; indices that are checked; two names for one value.
TAGGER = Case(
    """tagger (int64[batch, seq] ids, float[batch, seq, 8] more) =>
        (float[batch, seq, 10] y, float[batch, half, 10] even, float total,
         float[batch, seq, 8] few, float[batch, seq, 10] again)
    <int64[1] zero = {0}, int64 one = {1}, int64[1] one1 = {1}, int64[1] two1 = {2},
     int64[1] far = {9999}>
    {found = Gather (table, ids)
     s = Shape(ids) n = Gather (s, one) n1 = Unsqueeze(n, zero)
     place = Slice(positions, zero, n1)
     part = Slice(mask, zero, n1, zero) both = Slice(part, zero, n1, one1)
     e = Add(found, place) h = Add(e, more)
     few = MatMul(both, h)
     g = MatMul(h, w) r = Add(g, b) y = Softmax(r)
     even = Slice(y, zero, far, one1, two1)
     total = ReduceSum<keepdims = 0>(g)
     again = Identity(y)}""",
    {"table": (9, 8), "positions": (40, 8), "mask": (40, 40), "w": (8, 10), "b": (10,)},
    {"batch": (1, 3), "seq": (1, 40)},
    ((1, 1), (2, 7), (3, 16), (1, 39), (3, 40)),
)
# Sizes that follow from others, padding, a sum over open axes.
IMAGE = Case(
    """image (float[batch, 3, height, width] x) => (float[batch, 6] y, float[batch, 8, h, w] small)
    {c = Conv <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x, first)
     r = Relu(c)
     m = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (r)
     d = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (m, second)
     small = Add(d, m)
     p = GlobalAveragePool(small) f = Flatten(p) y = MatMul(f, last)}""",
    {"first": (8, 3, 3, 3), "second": (8, 8, 3, 3), "last": (8, 6)},
    {"batch": (1, 2), "height": (8, 30), "width": (8, 40)},
    ((1, 8, 8), (2, 9, 23), (1, 30, 40), (2, 17, 8)),
)
# Outputs that no kernel writes: an input, a constant, a part of another array. A range from 0.
COPIES = Case(
    """copies (float[rows, 4] x) => (float[flat] y, float[5] c, float[rows, 4] r, float[rows, 4] z)
    <int64[1] minus = {-1}>
    {y = Reshape(x, minus) c = Identity(five) z = Relu(x) r = Identity(x)}""",
    {"five": (5,)},
    {"rows": (0, 20)},
    ((0,), (1,), (3,), (20,)),
)
CASES = {"tagger": TAGGER, "image": IMAGE, "copies": COPIES}
