"""Long vectorized loops: how they are cut, and where a sum over one is kept meanwhile."""

from __future__ import annotations

import numpy as np
import pytest
from lowered import lower

import tilesmith as ts
from tilesmith.base.target import Target
from tilesmith.codegen.passes.lower_blocks import resolve_notes
from tilesmith.codegen.passes.strip_vectors import strip_vectors
from tilesmith.ir.nodes import Alloc, For, Store, statements

TARGET = Target.named("skylake-avx512")


def row_sums(n: int) -> ts.Schedule:
    x = ts.placeholder((5, n), name="x")
    k = ts.reduce_axis(n, name="k")
    y = ts.compute((5,), lambda i: ts.sum(x[i, k], axis=k), name="y")
    sch = ts.Schedule(ts.function([x, y]))
    sch.vectorize("y.k")
    return sch


def test_a_long_sum_is_kept_in_lanes() -> None:
    done = strip_vectors(lower(row_sums(200).func), TARGET)
    (part,) = [s.buffer for s in statements(done.body) if isinstance(s, Alloc)]
    assert [e.const for e in part.shape] == [64]
    (strips,) = [s for s in statements(done.body) if isinstance(s, For) and s.name == "y.k.strip"]
    inside = [s for s in statements(strips.body) if isinstance(s, Store)]
    assert [w.buffer for s in inside for w in s.writes] == [part.name]
    joined = [s for s in statements(done.body) if isinstance(s, Store)]
    # the start, the start of the lanes, the strips, across the lanes, the rest
    wrote = [w.buffer for s in joined for w in s.writes]
    assert wrote == ["y", part.name, part.name, "y", "y"]


def test_a_short_sum_needs_no_lanes_of_its_own() -> None:
    done = strip_vectors(lower(row_sums(100).func), TARGET)
    assert not any(isinstance(s, Alloc) for s in statements(done.body))


def test_long_vectors_are_not_written_out_a_thousand_times() -> None:
    """256 rows of 128 lanes are 2048 instructions, more than a depth of 512 allows."""
    x = ts.placeholder((256, 128), name="X")
    k = ts.reduce_axis(256, name="k")
    y = ts.compute((128,), lambda j: ts.sum(x[k, j], axis=k), name="Y")
    func = ts.function([x, y])
    kinds = {}
    for lanes in (16, 128):
        sch = ts.Schedule(func)
        outer, inner = sch.split("Y.j", [None, lanes])
        sch.reorder(outer, "Y.k", inner)
        sch.vectorize(inner)
        sch.annotate("Y.k", "unroll_depth", 512)
        loops = [s for s in statements(resolve_notes(sch.func, TARGET).body) if isinstance(s, For)]
        kinds[lanes] = next(s.kind for s in loops if s.name == "Y.k")
    assert kinds == {16: "unroll", 128: "serial"}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("n", [16, 37, 300])
def test_extremes_across_lanes_hand_on_a_nan(dtype: str, n: int) -> None:
    """Wherever it stands, and only if it is there; infinities are numbers."""
    x = ts.placeholder((n, n), dtype, name="x")
    k = ts.reduce_axis(n, name="k")
    for op, reference in ((ts.amax, np.max), (ts.amin, np.min)):
        y = ts.compute((n,), lambda i, op=op: op(x[i, k], axis=k), name="y")
        sch = ts.Schedule(ts.function([x, y]))
        sch.vectorize("y.k")
        rng = np.random.default_rng(n)
        a = rng.standard_normal((n, n)).astype(x.dtype.numpy)
        for i in range(0, n, 2):
            a[i, i] = np.nan
        a[1] = np.inf
        a[3, ::2], a[3, 1::2] = -np.inf, np.inf
        want = reference(a.astype(np.float64), axis=1)
        got = ts.build(sch, ts.cpu(1))(a).astype(np.float64)
        np.testing.assert_array_equal(got, want)
