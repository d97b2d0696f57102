"""Loops over exp, erf and their like: how they are cut on aarch64, what their machine code has per
element, and what they compute at every length around the groups of registers.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from lowered import lower

import tilesmith as ts
from tilesmith.base.target import Target
from tilesmith.codegen.passes.stage_functions import stage_functions
from tilesmith.codegen.passes.strip_vectors import lanes_at_once
from tilesmith.ir.nodes import For, Store, Write, statements

N1, AVX512 = Target.named("neoverse-n1"), Target.named("skylake-avx512")
LENGTHS = (1, 3, 32, 63, 71, 130)


def over(n: int, dtype: str, f: Any) -> ts.Schedule:
    x = ts.placeholder((n,), dtype, name="x")
    sch = ts.Schedule(ts.function([x, ts.compute((n,), lambda i: f(x[i]), name="y")]))
    sch.vectorize("y.i")
    return sch


def innermost(sch: ts.Schedule) -> list[str]:
    """The instructions of the only loop."""
    text = ts.build(sch, N1).assembly
    (found,) = re.findall(
        r"^(\.LBB\d+_\d+):\n(.*?)^\s+b\.\w+\s+\1$", text, re.MULTILINE | re.DOTALL
    )
    return [line.strip() for line in found[1].splitlines()]


# the steps of the polynomials, of the argument's reduction, and of what joins the two
@pytest.mark.parametrize(("name", "steps"), [("exp", 10), ("erf", 17)])
def test_constants_are_not_copied_before_each_step(name: str, steps: int) -> None:
    """Neon's multiply-add overwrites its addend. Eight registers at once hide its latency."""
    lines = innermost(over(4096, "float32", getattr(ts, name)))
    assert sum(line.startswith("fmla") for line in lines) == 8 * steps
    assert not [line for line in lines if re.match(r"mov\s+v\d+\.16b", line)]
    vectors = [line for line in lines if re.search(r"\bv\d+\.(4s|16b)", line)]
    assert len(vectors) <= 8 * (steps + 8)


def loop_of(e: ts.Schedule) -> Any:
    (loop,) = e.func.body
    (block,) = loop.body
    return (Store(tuple(Write(w.buffer, w.index, w.value) for w in block.writes)),)


def test_groups_of_registers_are_for_functions_on_aarch64() -> None:
    def lanes(dtype: str, f: Any, target: Target = N1) -> int:
        return lanes_at_once(loop_of(over(512, dtype, f)), target)

    assert lanes("float32", ts.exp) == 32
    assert lanes("float32", lambda v: v * ts.erf(v + 1)) == 32
    assert lanes("float64", ts.tanh) == 16
    assert lanes("float16", ts.exp) == lanes("bfloat16", ts.exp) == 32
    assert lanes("float32", lambda v: v + 1) == lanes("float32", ts.sqrt) == 4
    assert lanes("float32", ts.exp, AVX512) == 16


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_length(dtype: str) -> None:
    rng = np.random.default_rng(0)
    for n in LENGTHS:
        a = rng.uniform(-6, 6, n).astype(ts.dtype(dtype).numpy)
        sch = over(n, dtype, lambda v: v / 2 * (1 + ts.erf(v)) + ts.sigmoid(v) * ts.exp(v))
        got, want = ts.build(sch, ts.cpu(1))(a), ts.evaluate(sch.func, a)
        close = {"float16": 3e-3, "bfloat16": 3e-2, "float32": 2e-6, "float64": 1e-14}[dtype]
        got, want = got.astype(np.float64), want.astype(np.float64)
        np.testing.assert_allclose(got, want, rtol=close, atol=close)


@pytest.mark.parametrize("n", LENGTHS)
def test_sums_and_guards(n: int) -> None:
    """Sums keep partial results in registers; behind a guard, not all lanes may be read."""
    a = np.random.default_rng(1).uniform(-6, 6, (3, n)).astype(np.float32)
    x, k = ts.placeholder((3, n), name="x"), ts.reduce_axis(n, name="k")
    total = ts.compute((3,), lambda i: ts.sum(ts.exp(x[i, k]), axis=k), name="total")
    shifted = ts.compute(
        (3, n + 5),
        lambda i, j: ts.exp(ts.where((j >= 2) & (j < n + 2), x[i, j - 2], 0.0)) / total[i],
        name="y",
    )
    sch = ts.Schedule(ts.function([x, shifted]))
    sch.compute_at("total", sch.loops("y")[0])
    for block in sch.blocks:
        sch.vectorize(sch.loops(block)[-1])
    got = ts.build(sch, ts.cpu(1))(a)
    np.testing.assert_allclose(got, ts.evaluate(sch.func, a), rtol=1e-5, atol=1e-7)
    wide = np.exp(np.pad(a.astype(np.float64), ((0, 0), (2, 3))))
    want = wide / np.exp(a.astype(np.float64)).sum(1, keepdims=True)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def rows(count: int, n: int, f: Any, kind: str = "serial") -> ts.Schedule:
    """A product, and a function of its tile."""
    a, b = ts.placeholder((count, 5), name="a"), ts.placeholder((5, n), name="b")
    k = ts.reduce_axis(5, name="k")
    c = ts.compute((count, n), lambda i, j: ts.sum(a[i, k] * b[k, j], axis=k), name="c")
    sch = ts.Schedule(
        ts.function([a, b, ts.compute((count, n), lambda i, j: f(c[i, j], i, j), name="y")])
    )
    sch.vectorize("y.j")
    if kind == "unroll":
        sch.unroll("y.i")
    return sch


def staged(sch: ts.Schedule, target: Target = N1) -> list[For]:
    found = stage_functions(lower(sch.func), target).body
    return [s for s in statements(found) if isinstance(s, For) and s.name.endswith(".lane")]


@pytest.mark.parametrize("kind", ["serial", "unroll"])
@pytest.mark.parametrize(("count", "n"), [(16, 12), (19, 12), (3, 4), (2, 30), (5, 7)])
def test_functions_of_short_rows(count: int, n: int, kind: str) -> None:
    sch = rows(count, n, lambda v, i, j: v * (1 + ts.erf(v * 0.7)) + i, kind)
    (loop,) = staged(sch)
    together = min(count, 8) if (count, n) != (5, 7) else 5
    assert loop.extent.const == together * n
    rng = np.random.default_rng(2)
    arrays = [rng.normal(size=size).astype(np.float32) for size in ((count, 5), (5, n))]
    got = ts.build(sch, ts.cpu(1))(*arrays)
    np.testing.assert_allclose(got, ts.evaluate(sch.func, *arrays), rtol=1e-5, atol=1e-5)


def test_rows_that_are_not_staged() -> None:
    assert not staged(rows(16, 32, lambda v, i, j: ts.exp(v)))  # a group by itself
    assert not staged(rows(16, 12, lambda v, i, j: ts.sqrt(v)))
    assert not staged(rows(16, 12, lambda v, i, j: ts.exp(v) + ts.erf(v)))
    assert not staged(rows(16, 12, lambda v, i, j: ts.where(j < 3, ts.exp(v), 0.0)))
    assert not staged(rows(1, 12, lambda v, i, j: ts.exp(v)))
    assert not staged(rows(16, 12, lambda v, i, j: ts.exp(v)), AVX512)
