"""Packed operands of products: factors loaded together, and prefetched as a stream."""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.codegen.llvm.emit import emit_function
from tilesmith.schedule.cache import CacheRead
from tilesmith.schedule.kinds import PrefetchStreams
from tilesmith.space.spaces import SketchSpace

N1, SKYLAKE = ts.Target.named("neoverse-n1"), ts.Target.named("skylake-avx512")


def product(rows: int = 8, *, packed: bool = True, unrolled: int = 2) -> ts.Schedule:
    """A register tile of `rows` x 12 over a packed panel of the left operand."""
    a, b = ts.placeholder((2 * rows, 48), name="a"), ts.placeholder((48, 24), name="b")
    sch = ts.Schedule(ts.function([a, b, ts.ops.matmul(a, b, name="c")]))
    copy = sch.cache_read("c", "a", "local") if packed else ""
    i, j, k = sch.loops("c")
    i0, i1 = sch.split(i, [None, rows])
    j0, j1 = sch.split(j, [None, 12])
    k0, k1 = sch.split(k, [None, unrolled])
    sch.reorder(i0, j0, k0, k1, i1, j1)
    sch.unroll(k1)
    sch.unroll(i1)
    sch.vectorize(j1)
    if packed:
        sch.transform_layout(copy, (f"d0 // {rows}", "d1", f"d0 % {rows}"))
        sch.compute_at(copy, i0)
    return sch


def text(sch: ts.Schedule, target: ts.Target) -> str:
    return emit_function(sch.func, target).source


def test_factors_of_a_packed_panel_are_lanes_of_vectors() -> None:
    lines = text(product(), N1)
    assert lines.count("extractelement <4 x float>") == 16  # 8 rows in 2 steps, 4 loads
    assert "extractelement" not in text(product(), SKYLAKE)


def test_rows_that_lie_apart_are_joined_only_while_registers_last() -> None:
    assert "extractelement" not in text(product(8, packed=False, unrolled=4), N1)
    assert text(product(2, packed=False, unrolled=4), N1).count("extractelement") == 8


def test_a_tile_that_takes_all_registers_joins_nothing() -> None:
    assert "extractelement" not in text(product(9), N1)  # 27 sums


@pytest.mark.parametrize("rows", [4, 6, 8, 16])
def test_the_product_is_right(rows: int) -> None:
    sch = product(rows)
    sch.apply(PrefetchStreams("c", 512))
    rng = np.random.default_rng(0)
    a, b = rng.random((2 * rows, 48), np.float32), rng.random((48, 24), np.float32)
    np.testing.assert_allclose(ts.build(sch, ts.cpu(1))(a, b), a @ b, rtol=1e-5)


def test_streams_are_prefetched_and_nothing_else() -> None:
    sch = product()
    plain = text(sch, N1).count("@llvm.prefetch")
    sch.apply(PrefetchStreams("c", 512))
    fetched = [x for x in text(sch, N1).splitlines() if "call void @llvm.prefetch" in x]
    assert plain == 0
    # An iteration reads 64 bytes of the panel, one line; b is read in rows 96 bytes apart.
    assert len(fetched) == 1


def test_sketches_pack_factors_where_products_take_lanes() -> None:
    a, b = ts.placeholder((128, 256), name="a"), ts.placeholder((256, 512), name="b")
    func = ts.function([a, b, ts.ops.matmul(a, b, name="c")])

    def packs(target: ts.Target) -> bool:
        sketches = SketchSpace().sketches(ts.Task(func, target))
        return any(isinstance(s, CacheRead) and s.buffer == "a" for t in sketches for s in t)

    assert packs(N1)
    assert not packs(SKYLAKE)
