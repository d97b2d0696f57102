"""Rows that several threads reduce together, where the rows of a block or the elements of a row do
not fill its threads: all of them reach the barriers of a join.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tests.support.gpu_programs import OPENCL, GpuCheck, launch_form
from tilesmith.base.errors import BuildError
from tilesmith.codegen.c.backends import emit_launches
from tilesmith.codegen.c.dialect import CUDA
from tilesmith.ir.nodes import Join, statements
from tilesmith.schedule.schedule import Schedule

H200 = ts.Target.named("nvidia-h200")


@pytest.mark.parametrize("target", [H200, OPENCL], ids=lambda t: t.kind)
@pytest.mark.parametrize("n", [3, 8, 10])
@pytest.mark.parametrize("inner", [True, False])
def test_threads_without_a_row_join_in(n, inner, target):
    """Four rows to a block, and columns in tiles of 3: neither fills the last one."""
    x, w = ts.placeholder((n, 45), name="X"), ts.placeholder((45, 5), name="W")
    k = ts.reduce_axis(45, name="k")
    s = ts.compute((n, 5), lambda i, j: ts.sum(x[i, k] * w[k, j], axis=k), name="S")
    y = ts.compute((n, 5), lambda i, j: ts.exp(s[i, j]) + x[i, j], name="Y")
    func = ts.function([x, w, y])
    sch = Schedule(func)
    i0, i1 = sch.split("S.i", [None, 4])
    j0, j1 = sch.split("S.j", [None, 3])
    k0, k1 = sch.split("S.k", [None, 8])
    order = (i0, i1, j0, k0, k1, j1) if inner else (i0, j0, i1, k0, j1, k1)
    sch.reorder(*order)
    sch.bind(i0, "blockIdx.x")
    sch.bind(i1, "threadIdx.y")
    sch.annotate(k1, "reduce_across", "threadIdx.x")
    lowered = GpuCheck(func, target).run(sch.func)
    assert any(isinstance(s, Join) for s in statements(lowered.body))


@pytest.mark.parametrize("seed", range(12))
def test_rows_of_any_number_and_length(seed):
    """Sums, argmax and products of rows, in any tiles."""
    rng = np.random.default_rng([31, seed])
    n, m, rows, wide = (int(rng.integers(1, most)) for most in (14, 50, 6, 12))
    x, k = ts.placeholder((n, m), name="X"), ts.reduce_axis(m, name="k")
    if seed % 3:
        made = ts.compute((n,), lambda i: (ts.sum, ts.amax)[seed % 2](x[i, k], axis=k), name="S")
        func = ts.function([x, made])
    else:
        at, best = ts.compute((n,), lambda i: ts.argmax(x[i, k], axis=k), name="S")
        func = ts.function([x, at, best])
    sch = Schedule(func)
    i0, i1 = sch.split("S.i", [None, rows])
    _, k1 = sch.split("S.k", [None, wide])
    sch.bind(i0, "blockIdx.x")
    sch.bind(i1, "threadIdx.y" if seed % 2 else "threadIdx.x")
    sch.annotate(k1, "reduce_across", "threadIdx.x")
    GpuCheck(func, H200, seed).run(sch.func)


def test_a_sum_that_is_started_elsewhere_is_not_joined():
    x, k = ts.placeholder((6, 40), name="X"), ts.reduce_axis(40, name="k")
    func = ts.function([x, ts.compute((6,), lambda i: ts.sum(x[i, k], axis=k), name="S")])
    sch = Schedule(func)
    sch.split("S.k", [None, 8])
    sch.decompose_reduction("S", "S.k.0")
    sch.annotate("S.k.1", "reduce_across", "threadIdx.x")
    with pytest.raises(BuildError, match="started elsewhere"):
        launch_form(sch.func, H200)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "float32", "float16"])
@pytest.mark.parametrize("reduce", [ts.amax, ts.amin])
def test_every_lane_takes_part_in_a_shuffle(reduce, dtype):
    """An operator that leaves its second operand out would leave out the lane, too."""
    x, k = ts.placeholder((40, 47), dtype, name="X"), ts.reduce_axis(47, name="k")
    sch = Schedule(ts.function([x, ts.compute((40,), lambda i: reduce(x[i, k], axis=k), name="Y")]))
    i0, i1 = sch.split("Y.i", [None, 4])
    _, k1 = sch.split("Y.k", [None, 16])
    sch.bind(i0, "blockIdx.x")
    sch.bind(i1, "threadIdx.y")
    sch.annotate(k1, "reduce_across", "threadIdx.x")
    source = emit_launches(launch_form(sch.func, H200), CUDA).source
    lines = [line for line in source.splitlines() if "__shfl_xor_sync" in line]
    assert len(lines) == 4
    for line in lines:
        before = line[: line.index("__shfl_xor_sync")]
        assert not any(op in before for op in ("||", "&&", "?")), line
