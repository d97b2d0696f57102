"""rfactor and decompose_reduction: sums in steps, and the sums that cannot be."""

from __future__ import annotations

import pytest
from cases import (
    argmax,
    assert_kept,
    conv,
    diamond,
    matmul_relu,
    refuse,
    row_sum,
    softmax,
    stencil,
    total,
)

import tilesmith as ts
from tilesmith.schedule.schedule import Schedule


# rfactor
def test_rfactor(golden):
    sch = Schedule(row_sum())
    sch.split("S.k", [None, 4])
    assert sch.rfactor("S.k.1") == "S.rf"
    golden(sch.func)
    assert_kept(sch)


@pytest.mark.parametrize(
    "func", [row_sum(), total(), argmax(), matmul_relu(), softmax(), diamond()]
)
@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("factors", [[None, 4], [None, 3], [2, None], [4, 4]])
def test_rfactor_of_either_part(func, part, factors):
    sch = Schedule(func)
    for block in sch.blocks:
        loops = [n for n in sch.loops(block) if n.rsplit(".", 1)[1] in ("k", "r", "q")]
        if loops and block in ("S", "M", "C", "top", "total", "L"):
            sch.split(loops[0], factors)
            sch.rfactor(f"{loops[0]}.{part}")
    assert_kept(sch)


def test_rfactor_of_a_whole_loop():
    sch = Schedule(row_sum())
    sch.rfactor("S.k")
    sch.parallel("S.rf.k")
    assert_kept(sch)


def test_rfactor_of_a_loop_with_more_iterations_than_needed():
    """Iterations that are never alive have no partial result; the last sum leaves them out."""
    sch = Schedule(row_sum())
    sch.split("S.k", [20])
    sch.rfactor("S.k.0")
    assert_kept(sch)


def test_rfactor_of_one_axis_of_several():
    sch = Schedule(conv())
    sch.rfactor("Y.r")
    assert_kept(sch)


def test_rfactor_again():
    sch = Schedule(row_sum(3, 13))
    sch.split("S.k", [None, 5])
    sch.rfactor("S.k.1")
    sch.split("S.rf.k.0", [None, 2])
    assert sch.rfactor("S.rf.k.0.1") == "S.rf.rf"
    assert_kept(sch)


def test_rfactor_again_over_what_was_left():
    """Now the guard of the split is about two axes of partial results."""
    sch = Schedule(row_sum(2, 7))
    sch.split("S.k", [None, 4])
    sch.rfactor("S.k.1")
    sch.rfactor("S.rf.k.0")
    assert_kept(sch)


def test_rfactor_then_vector_lanes():
    sch = Schedule(row_sum())
    sch.split("S.k", [None, 4])
    sch.rfactor("S.k.1")
    sch.reorder("S.rf.k.0", "S.rf.k.1")
    sch.vectorize("S.rf.k.1")
    sch.compute_at("S.rf", "S.i")
    assert_kept(sch)


def test_rfactor_with_a_copy_inside():
    sch = Schedule(matmul_relu())
    sch.split("C.k", [None, 2])
    sch.cache_read("C", "A")
    sch.reorder("C.i", "C.k.0", "C.j")
    sch.compute_at("A.local", "C.k.0")
    sch.rfactor("C.k.0")
    assert sch.loops("A.local")[:2] == ("C.rf.i", "C.rf.k.0")
    assert_kept(sch)


def test_rfactor_refuses():
    f = matmul_relu()
    refuse(f, lambda s: s.rfactor("C.x"), "no loop 'C.x'")
    refuse(f, lambda s: s.rfactor("C.i"), "cannot rfactor loop C.i", "no blocks reduce over it")

    def twice(s):
        s.rfactor("Y.r")
        s.rfactor("Y.r")

    refuse(conv(), twice, "there is a Y.rf already")

    def decomposed(s):
        s.decompose_reduction("C", "C.k")
        s.rfactor("C.k")

    refuse(f, decomposed, "cannot rfactor loop C.k of C", "also written by C.init")

    def unit(s):
        s.blockize("C.k")
        s.rfactor("C.k")

    refuse(f, unit, "no loop 'C.k'")

    def read_inside(s):
        s.reverse_compute_at("D", "C.i")
        s.rfactor("C.k")

    refuse(
        f,
        read_inside,
        "cannot rfactor loop C.k of C",
        "read inside the same loops",
        "before compute_at",
    )


def test_rfactor_refuses_guards_that_mix_loops():
    sch = Schedule(conv())
    sch.fuse("Y.r", "Y.s")
    sch.split("Y.r+s", [None, 4])
    sch.rfactor("Y.r+s.1")
    assert_kept(sch)


# decompose_reduction
def test_decompose_reduction(golden):
    sch = Schedule(matmul_relu())
    sch.split("C.i", [None, 4])
    sch.reorder("C.i.0", "C.k", "C.i.1")
    assert sch.decompose_reduction("C", "C.k") == "C.init"
    golden(sch.func)
    assert_kept(sch)


@pytest.mark.parametrize("func", [argmax(), total(), row_sum(), conv()])
def test_decompose_reduction_at_every_loop(func):
    block = Schedule(func).blocks[-1]
    for loop in Schedule(func).loops(block):
        sch = Schedule(func)
        try:
            sch.decompose_reduction(block, loop)
        except ts.ScheduleError:
            assert func.name == "conv"
            assert loop in ("Y.r", "Y.s")
            continue
        assert_kept(sch)


def test_decompose_reduction_of_a_unit():
    sch = Schedule(matmul_relu())
    sch.split("C.j", [None, 4])
    sch.reorder("C.k", "C.j.1")
    sch.blockize("C.j.1")
    sch.decompose_reduction("C", "C.k")
    assert_kept(sch)


def test_decompose_reduction_keeps_kinds():
    sch = Schedule(matmul_relu())
    sch.reorder("C.k", "C.i", "C.j")
    sch.vectorize("C.j")
    sch.decompose_reduction("C", "C.k")
    assert "for C.j.init in 7:  # vectorize" in str(sch.func)
    assert_kept(sch)


def test_decompose_reduction_refuses():
    f = matmul_relu()
    refuse(f, lambda s: s.decompose_reduction("Z", "C.k"), "no block 'Z'")
    refuse(f, lambda s: s.decompose_reduction("C", "D.i"), "decompose C at D.i", "C.i, C.j, C.k")
    refuse(f, lambda s: s.decompose_reduction("D", "D.i"), "decompose D", "not a reduction")

    def twice(s):
        s.decompose_reduction("C", "C.k")
        s.decompose_reduction("C", "C.k")

    refuse(f, twice, "decompose C", "not a reduction with its start inside")

    def too_far_in(s):
        s.reorder("C.k", "C.i", "C.j")
        s.decompose_reduction("C", "C.i")

    refuse(f, too_far_in, "decompose C at C.i", "reduces over C.k further out", "choose that loop")


def test_decompose_reduction_refuses_a_loop_in_which_the_sum_is_computed_anew():
    def act(s):
        s.compute_at("L", "O.j")
        s.decompose_reduction("L", "O.j")

    refuse(diamond(), act, "decompose L at O.j", "computed anew in each iteration of O.j")
    sch = Schedule(diamond())
    sch.compute_at("L", "O.j")
    sch.decompose_reduction("L", "L.i")
    assert_kept(sch)


def test_stencil_has_nothing_to_reduce():
    refuse(stencil(), lambda s: s.rfactor("C.i"), "rfactor loop C.i", "no blocks")
