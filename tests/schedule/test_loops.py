"""split, fuse and reorder: what they make of a nest, and what they refuse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cases import (
    argmax,
    assert_kept,
    chain,
    conv,
    gather,
    matmul_relu,
    refuse,
    row_sum,
    total,
)

import tilesmith as ts
from tilesmith.schedule.schedule import Schedule
from tilesmith.schedule.trace import Trace


# split
def test_split(golden):
    sch = Schedule(matmul_relu())
    i, _, k = sch.loops("C")
    assert sch.split(i, [None, 4]) == ("C.i.0", "C.i.1")
    sch.split(k, [5, 1], exact=True)
    golden(sch.func)
    assert_kept(sch)


@pytest.mark.parametrize(
    ("factors", "extents"),
    [
        ([None, 4], (3, 4)),
        ([None, 11], (1, 11)),
        ([None, 100], (1, 100)),
        ([4, None], (4, 3)),
        ([2, None, 2], (2, 3, 2)),
        ([None], (11,)),
        ([12], (12,)),
        ([3, 5], (3, 5)),
        ([None, 1, 1], (11, 1, 1)),
    ],
)
def test_split_extents(factors, extents):
    sch = Schedule(row_sum())
    parts = sch.split("S.k", factors)
    assert tuple(map(sch.extent, parts)) == extents
    assert_kept(sch)


def test_split_again_of_a_part_with_a_tail():
    sch = Schedule(row_sum())
    _, inner = sch.split("S.k", [None, 4])
    sch.split(inner, [None, 3])
    assert_kept(sch)


@pytest.mark.parametrize("size", [0, 1])
def test_split_of_small_extents(size):
    sch = Schedule(matmul_relu(m=size, n=1, k=3))
    sch.split("C.i", [None, 4])
    sch.split("D.i", [2, None])
    assert_kept(sch)


def test_split_takes_sizes_as_variables():
    sch = Schedule(row_sum())
    parts = sch.split("S.k", [ts.size("x"), ts.size("y")], exact=True)
    assert tuple(map(str, map(sch.extent, parts))) == ("#x", "#y")
    assert [str(f.extent) for f in sch.func.facts] == ["11"]


@pytest.mark.parametrize(
    ("factors", "exact", "words"),
    [
        ([], False, ("loop S.k", "at least one factor")),
        ([None, 0], False, ("loop S.k by 0", "at least 1")),
        ([None, -2], False, ("loop S.k by -2", "at least 1")),
        ([None, None], False, ("loop S.k", "only one factor may be None")),
        ([2, 5], False, ("loop S.k", "cover 10 of its 11", "put None")),
        ([None, 4], True, ("loop S.k", "exact", "multiply to 12, not 11")),
        ([None, "y"], False, ("loop S.k by 'y'", "begins with #")),
        ([4, "#y"], False, ("loop S.k", "outermost factor be None or a size variable")),
    ],
)
def test_split_refuses_factors(factors, exact, words):
    refuse(row_sum(), lambda s: s.split("S.k", factors, exact=exact), *words)


def test_split_refuses_unknown_and_marked_loops():
    refuse(row_sum(), lambda s: s.split("S.x", [None, 2]), "no loop 'S.x' in row_sum", "S.i, S.k")

    def parallel_first(s):
        s.parallel("S.i")
        s.split("S.i", [None, 2])

    refuse(row_sum(), parallel_first, "cannot split loop S.i", "already parallel")

    def note_first(s):
        s.annotate("S.i", "unroll_depth", 1)
        s.split("S.i", [None, 2])

    refuse(
        row_sum(), note_first, "cannot split loop S.i", "'unroll_depth'", "before it is annotated"
    )


def test_split_by_a_computed_factor():
    n = ts.size("x")
    sch = Schedule(row_sum())
    sch.split("S.k", [None, n * 2])
    sch.split("S.i", [None, n + 1])
    assert Trace.from_json(sch.trace.to_json()) == sch.trace
    plain = Schedule(row_sum())
    plain.split("S.k", [None, 4])
    plain.split("S.i", [None, 3])
    assert sch.trace.decide({"#x": 2}).apply(sch.origin) == plain.func
    row = {"#x": 2, "#S.k.0": 3, "#S.i.0": 2}
    assert replace(ts.instantiate(sch.func, row), facts=()) == plain.func


def test_split_refuses_a_computed_factor_that_may_be_zero():
    n = ts.size("x")
    why = "at least 1 for all sizes"
    refuse(row_sum(), lambda s: s.split("S.k", [None, n - 1]), "split of loop S.k by #x - 1", why)
    refuse(row_sum(), lambda s: s.split("S.k", [None, n // 2]), "split of loop S.k", why)
    refuse(row_sum(), lambda s: s.split("S.k", ["#a", n * 2], exact=True), "not exact")


# fuse
def test_fuse(golden):
    sch = Schedule(matmul_relu())
    sch.split("C.i", [None, 4])
    assert sch.fuse("C.i.1", "C.j") == "C.i.1+j"
    assert sch.fuse("D.i", "D.j") == "D.i+j"
    golden(sch.func)
    assert_kept(sch)


def test_fuse_of_three_loops_then_split():
    sch = Schedule(conv())
    assert sch.fuse("P.c", "P.y", "P.z") == "P.c+y+z"
    sch.split("P.c+y+z", [None, 7])
    assert sch.fuse("Y.c", "Y.r", "Y.s") == "Y.c+r+s"
    assert_kept(sch)


def test_fuse_names_parts_of_one_loop_in_full():
    sch = Schedule(row_sum())
    sch.split("S.k", [None, 4])
    assert sch.fuse("S.k.0", "S.k.1") == "S.k.0+k.1"
    assert_kept(sch)


def test_fuse_refuses():
    f = matmul_relu()
    refuse(f, lambda s: s.fuse("C.i"), "fuse needs two loops", "C.i")
    refuse(f, lambda s: s.fuse("C.i", "C.x"), "no loop 'C.x'")
    refuse(f, lambda s: s.fuse("C.i", "C.k"), "cannot fuse loop C.k", "not directly inside C.i")
    refuse(f, lambda s: s.fuse("C.i", "D.i"), "cannot fuse loop D.i", "not directly inside C.i")

    def marked(s):
        s.unroll("D.j")
        s.fuse("D.i", "D.j")

    refuse(f, marked, "cannot fuse loop D.j", "already unroll")


def test_fuse_refuses_to_join_a_sum_with_what_it_is_for():
    # The start of each sum would be lost: only one iteration of the fused loop is the first.
    refuse(matmul_relu(), lambda s: s.fuse("C.j", "C.k"), "C.k and C.j", "C reduces over C.k only")


def test_fuse_refuses_a_loop_of_its_own_with_a_neighbours():
    sch = Schedule(chain())
    sch.compute_at("A", "B.i")
    sch.inline("B")  # leaves A in the loop B.i
    assert sch.loops("A") == ("B.i", "A.i", "A.j")
    with pytest.raises(ts.ScheduleError, match=r"A\.i and B\.i: the first was made for A"):
        sch.fuse("B.i", "A.i")


# reorder
def test_reorder(golden):
    sch = Schedule(matmul_relu())
    sch.split("C.i", [None, 4])
    sch.reorder("C.k", "C.j", "C.i.1")  # C.i.0 stays
    golden(sch.func)
    assert sch.loops("C") == ("C.i.0", "C.k", "C.j", "C.i.1")
    assert_kept(sch)


@pytest.mark.parametrize("func", [argmax(), total(), row_sum(), gather(), conv()])
def test_reorder_puts_reducing_loops_first(func):
    sch = Schedule(func)
    for block in sch.blocks:
        loops = sch.loops(block)
        if loops:
            sch.reorder(*reversed(loops))
    assert_kept(sch)


def test_reorder_of_one_loop_changes_nothing():
    sch = Schedule(row_sum())
    sch.reorder("S.i")
    assert sch.func == sch.origin


def test_reorder_keeps_kinds_with_their_loops():
    sch = Schedule(matmul_relu())
    sch.parallel("D.i")
    sch.unroll("D.j")
    sch.reorder("D.j", "D.i")
    kinds = [line.split("#")[-1].strip() for line in str(sch.func).splitlines() if "for D." in line]
    assert kinds == ["unroll", "parallel"]
    assert_kept(sch)


def test_reorder_refuses():
    f = matmul_relu()
    refuse(f, lambda s: s.reorder(), "reorder needs the loops")
    refuse(f, lambda s: s.reorder("C.i", "C.i"), "loop C.i is named twice")
    refuse(f, lambda s: s.reorder("C.i", "C.x"), "no loop 'C.x'")
    refuse(f, lambda s: s.reorder("C.i", "D.i"), "cannot reorder D.i with C.i", "not one nest")

    def two_inside(s):
        s.reverse_compute_at("D", "C.i")
        s.reorder("C.j", "C.i")

    refuse(f, two_inside, "cannot reorder C.j with C.i", "the body of C.i is not a single loop")


def test_reorder_refuses_what_the_kinds_forbid():
    def act(s):
        s.vectorize("D.j")
        s.parallel("D.i")
        s.reorder("D.j", "D.i")

    refuse(
        matmul_relu(), act, "cannot reorder D.j, D.i", "parallel loop D.i", "vectorized loop D.j"
    )


def test_reorder_refuses_a_sum_around_the_loop_it_is_computed_anew_in():
    # L is computed for each row of O; with its reducing loop outside, rows would be added twice.
    x = ts.placeholder((4, 5), name="X")
    q = ts.reduce_axis(5, name="q")
    s = ts.compute((4,), lambda i: ts.sum(x[i, q], axis=q), name="S")
    p = ts.compute((3,), lambda i: s[i] + s[i + 1], name="P")
    o = ts.compute((3,), lambda i: p[i] * 2, name="O")
    f = ts.function([x, o])
    sch = Schedule(f)
    sch.compute_at("S", "P.i")
    sch.compute_at("P", "O.i")
    assert sch.loops("S") == ("P.i", "S.i", "S.q")
    sch.reorder("S.i", "P.i")
    assert_kept(sch)
    with pytest.raises(ts.ScheduleError, match=r"S is computed anew in each iteration of P\.i"):
        sch.reorder("S.q", "P.i")


def test_the_outermost_part_of_an_empty_loop_may_be_empty():
    a = ts.placeholder((0, 4), name="A")
    func = ts.function([a, ts.compute((0, 4), lambda i, j: a[i, j], name="B")])
    sch = ts.Schedule(func)
    i, j = sch.loops("B")
    sch.split(i, [0, 3], exact=True)
    assert ts.interpret(sch.func, np.zeros((0, 4), np.float32)).shape == (0, 4)
    for factors in ([3, 0], [0, None], [None, 0], [-1, 3]):
        with pytest.raises(ts.ScheduleError, match="a factor is at least 1"):
            ts.Schedule(func).split("B.i", factors)
    with pytest.raises(ts.ScheduleError, match="a factor is at least 1"):
        sch.split(j, [0, 4])
