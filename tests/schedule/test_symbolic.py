"""Sketches: schedules with size variables, which commute with putting in numbers.

`instantiate(sketch, row)` is what the same trace with the numbers of the row gives, and it means
what the naive program does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from cases import chained_matmuls, conv, matmul_relu, refuse, refused, row_sum, softmax

import tilesmith as ts
from tests.support.meaning import assert_same_meaning
from tests.support.thorough import drawn
from tests.support.traces import random_sizes, work
from tilesmith.ir.function import Function
from tilesmith.ir.verify import verify
from tilesmith.schedule.schedule import Schedule


def tile(s: Schedule, loop: str, parts: int, exact: bool) -> tuple[str, ...]:
    """A loop in parts, each with its own size; the outermost is inferred unless `exact`."""
    sizes: list[str | None] = [f"#{loop}.{k}" for k in range(parts)]
    if not exact:
        sizes[0] = None
    return s.split(loop, sizes, exact=exact)


def tile_ssrsrs(s: Schedule, block: str, spatial: str, reduce: str, exact: bool) -> list[str]:
    """Spatial, spatial, reduce, spatial, reduce, spatial: the nest of a CPU sketch."""
    space = [tile(s, f"{block}.{n}", 4, exact) for n in spatial]
    red = [tile(s, f"{block}.{n}", 2, exact) for n in reduce]
    order = [
        *(p[0] for p in space), *(p[1] for p in space), *(p[0] for p in red),
        *(p[2] for p in space), *(p[1] for p in red), *(p[3] for p in space),
    ]  # fmt: skip
    s.reorder(*order)
    return order


def matmul_fused(s: Schedule, exact: bool, level: int) -> None:
    order = tile_ssrsrs(s, "C", "ij", "k", exact)
    s.reverse_compute_at("D", order[2 * level - 1])
    s.parallel(*order[:2])
    s.vectorize(order[-1])


def matmul_cached(s: Schedule, exact: bool) -> None:
    s.cache_write("C", "local")
    s.inline("C")
    order = tile_ssrsrs(s, "C.local", "ij", "k", exact)
    s.reverse_compute_at("D", order[3])
    for buffer in "AB":
        s.cache_read("C.local", buffer, "local")
        s.compute_at(f"{buffer}.local", order[4])
    s.decompose_reduction("C.local", order[4])
    s.unroll(order[-2])


def conv_at(s: Schedule, exact: bool, position: int | None) -> None:
    order = tile_ssrsrs(s, "Y", "ohv", "crs", exact)
    if position is None:
        s.inline("P")
    else:
        s.compute_at("P", order[position])
        tile(s, "P.y", 2, exact=False)  # the halo, cut again
    s.parallel(*order[:3])


def softmax_at(s: Schedule, exact: bool, part: int) -> None:
    i = tile(s, "out.i", 2, exact)
    s.compute_at("total", i[part])
    s.compute_at("E", i[part])
    s.compute_at("top", i[part])
    q = tile(s, "total.q", 2, exact)
    s.vectorize(q[1])
    s.parallel(i[0])


def softmax_behind(s: Schedule, exact: bool) -> None:
    i = tile(s, "E.i", 2, exact)
    s.compute_at("top", i[0])
    s.reverse_compute_at("total", i[0])
    s.reverse_compute_at("out", i[0])
    s.parallel(i[0])


def rfactored(s: Schedule, exact: bool, part: int) -> None:
    k = tile(s, "S.k", 2, exact)
    s.rfactor(k[part])
    i = tile(s, "S.i", 2, exact)
    s.compute_at("S.rf", i[0])
    s.parallel(i[0])


def chained(s: Schedule, exact: bool, position: int) -> None:
    order = tile_ssrsrs(s, "E", "ij", "q", exact)
    s.compute_at("C", order[position])
    tile(s, "C.k", 3, exact)
    tile(s, "C.j", 2, exact=False)


Sketch = tuple[Function, Callable[[Schedule, bool], None]]
SKETCHES: dict[str, Sketch] = {
    "matmul fused at 1": (matmul_relu(12, 8, 6), lambda s, x: matmul_fused(s, x, 1)),
    "matmul fused at 2": (matmul_relu(12, 8, 6), lambda s, x: matmul_fused(s, x, 2)),
    "matmul odd": (matmul_relu(7, 5, 3), lambda s, x: matmul_fused(s, x, 2)),
    "matmul of one row": (matmul_relu(1, 5, 1), lambda s, x: matmul_fused(s, x, 2)),
    "matmul cached": (matmul_relu(6, 8, 4), matmul_cached),
    **{
        f"conv, zeros at {p}": (conv(6, channels=2), lambda s, x, p=p: conv_at(s, x, p))
        for p in (None, 2, 5, 8, 11, 14)
    },
    "dilated conv": (conv(8, dilation=2, stride=1, channels=1), lambda s, x: conv_at(s, x, 5)),
    "softmax at 0": (softmax(6, 8), lambda s, x: softmax_at(s, x, 0)),
    "softmax at 1": (softmax(6, 8), lambda s, x: softmax_at(s, x, 1)),
    "softmax behind": (softmax(6, 4), softmax_behind),
    "rfactor 0": (row_sum(4, 12), lambda s, x: rfactored(s, x, 0)),
    "rfactor 1": (row_sum(4, 12), lambda s, x: rfactored(s, x, 1)),
    **{
        f"chained at {p}": (chained_matmuls(4, 6, 4, 2), lambda s, x, p=p: chained(s, x, p))
        for p in (1, 3, 4)
    },
}


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "ceil"])
@pytest.mark.parametrize("name", SKETCHES)
def test_sketches_commute_with_their_numbers(name, exact):
    func, build = SKETCHES[name]
    sketch = Schedule(func)
    build(sketch, exact)
    verify(sketch.func)
    assert sketch.func.sizes
    rng = np.random.default_rng(0)
    ran = 0
    for k in range(drawn(6, 12)):
        row = random_sizes(sketch.func, rng)
        assert set(row) >= set(sketch.func.sizes)
        instance = ts.instantiate(sketch.func, row)
        decided = sketch.trace.decide(row).apply(func)
        assert replace(instance, facts=()) == replace(decided, facts=()), row
        assert instance.facts == ()
        if k < drawn(2, 3) and work(instance) < 20_000:
            assert_same_meaning(func, instance)
            ran += 1
    assert ran


def test_a_sketch(golden):
    sch = Schedule(matmul_relu())
    i = tile(sch, "C.i", 3, True)
    j = tile(sch, "C.j", 2, False)
    sch.reorder(i[0], j[0], i[1], "C.k", i[2], j[1])
    sch.reverse_compute_at("D", j[0])
    golden(sch.func)


def test_names_given_to_all_sizes_round_up_too():
    """The outermost size may have a name of its own without `exact`: ceil(extent / the rest)."""
    sch = Schedule(row_sum(4, 11))
    sch.split("S.k", ["#a", "#b"])
    done = ts.instantiate(sch.func, {"#a": 3, "#b": 4})
    assert sch.trace.decide({"#a": 3, "#b": 4}).apply(sch.origin) == done
    assert_same_meaning(sch.origin, done)


def test_two_ceil_splits_may_share_an_inner_size():
    sch = Schedule(matmul_relu())
    sch.split("C.i", [None, "#t"])
    sch.split("C.j", [None, "#t"])
    row = random_sizes(sch.func, np.random.default_rng(1))
    done = ts.instantiate(sch.func, row)
    assert sch.trace.decide(row).apply(sch.origin) == done
    assert_same_meaning(sch.origin, done)


def test_a_size_is_decided_once():
    def exact(s):
        s.split("C.i", ["#a", "#b"], exact=True)
        s.split("C.j", ["#c", "#b"], exact=True)

    refuse(matmul_relu(), exact, "split of loop C.j", "the size #b is decided by another split")

    def outermost(s):
        s.split("C.i", ["#a", "#b"])
        s.split("C.j", ["#a", "#c"])

    refuse(matmul_relu(), outermost, "split of loop C.j", "the size #a is decided by another split")
    refuse(
        matmul_relu(), lambda s: s.split("C.i", ["#a", "#a"], exact=True), "loop C.i", "the size #a"
    )


def test_a_part_of_given_sizes_is_split_into_these():
    """A producer has the register tile of its consumer: no size is decided anew."""
    sch = Schedule(chained_matmuls())
    tile, *_ = sch.split("E.i", [None, "#n", "#r"])
    sch.compute_at("C", tile)
    facts = len(sch.func.facts)
    inner = sch.split("C.i", ["#n", "#r"])
    assert [str(sch.extent(x)) for x in inner] == ["#n", "#r"]
    assert len(sch.func.facts) == facts
    for n, r in ((1, 3), (2, 2), (5, 4)):
        row = {"#n": n, "#r": r, f"#{tile}": -(-4 // (n * r))}
        done = ts.instantiate(sch.func, row)
        assert sch.trace.decide(row).apply(sch.origin) == done
        assert_same_meaning(sch.origin, done)


def test_an_inferred_size_gets_a_new_name_where_its_own_is_taken():
    sch = Schedule(softmax())
    sch.split("E.i", [None, "#t"])
    sch.compute_at("total", "out.i")
    sch.compute_at("E", "out.i")
    sch.split("E.i", [None, "#u"])
    assert [str(f.sizes[0]) for f in sch.func.facts] == ["#E.i.0", "#E.i.0_1"]


def test_facts_cancel_loops_in_exact_tiles():
    """The box of one tile is a tile: the product of the parts is replaced by the extent."""
    sch = Schedule(matmul_relu(8, 8, 8))
    sch.split("C.k", ["#k0", "#k1"], exact=True)
    sch.cache_read("C", "A")
    sch.compute_at("A.local", "C.i")
    assert str(sch.extent("A.local.ax1")) == "8"


def test_instantiate_reaches_units_layouts_and_operands():
    sch = Schedule(matmul_relu())
    sch.split("C.j", [None, "#v"])
    sch.reorder("C.k", "C.j.1")
    sch.blockize("C.j.1")
    sch.transform_layout("C", ["d1 // #v", "d0", "d1 % #v"])
    assert sch.func.sizes == ("#C.j.0", "#v")
    done = ts.instantiate(sch.func, {"#v": 4, "#C.j.0": 2})
    assert done.sizes == ()
    assert "#" not in str(done).replace("  # ", "")
    assert sch.trace.decide({"#v": 4}).apply(sch.origin) == done
    assert_same_meaning(sch.origin, done)


# dynamic extents
def dynamic_matmul(m: object) -> Function:
    a, b = ts.placeholder((m, 4), name="A"), ts.placeholder((4, 6), name="B")
    k = ts.reduce_axis(4, name="k")
    c = ts.compute((m, 6), lambda i, j: ts.sum(a[i, k] * b[k, j], axis=k), name="C")
    d = ts.compute((m, 6), lambda i, j: ts.maximum(c[i, j], 0), name="D")
    return ts.function([a, b, d], name="dynamic")


@pytest.mark.parametrize("m", [1, 2, 7, 8, 9])
def test_dynamic_extents(m):
    """Scheduled once for every M; with M it is what was scheduled for that M."""

    def build(s: Schedule) -> None:
        s.split("C.i", [None, 4])
        s.split("C.j", [None, "#t"])
        s.reorder("C.i.0", "C.j.0", "C.i.1", "C.j.1", "C.k")
        s.reverse_compute_at("D", "C.j.0")
        s.cache_read("C", "A")
        s.compute_at("A.local", "C.i.0")
        s.parallel("C.i.0")

    open_ = Schedule(dynamic_matmul(ts.size("M")))
    build(open_)
    assert open_.func.sizes[0] == "#M"
    known = Schedule(dynamic_matmul(m))
    build(known)
    row = {"#M": m, "#C.i.0": -(-m // 4), "#t": 3, "#C.j.0": 2}
    instance = ts.instantiate(open_.func, row)
    assert instance == known.trace.decide(row).apply(known.origin)
    assert_same_meaning(known.origin, instance)


def test_a_dynamic_extent_is_not_exact_by_a_number():
    with refused("split of loop C.i", "outermost factor be None"):
        Schedule(dynamic_matmul(ts.size("M"))).split("C.i", [4, 2])
    sch = Schedule(dynamic_matmul(ts.size("M")))
    sch.split("C.i", [None, 4], exact=True)  # promised: M is a multiple of 4
    assert [(str(f.extent), f.exact) for f in sch.func.facts] == [("#M", True)]
