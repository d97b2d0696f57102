"""compute_at and reverse_compute_at: at every legal place, and why not at the others."""

from __future__ import annotations

import pytest
from cases import (
    argmax,
    assert_kept,
    bytes_matmul,
    chain,
    chained_matmuls,
    conv,
    diamond,
    gather,
    matmul_relu,
    refuse,
    refused,
    softmax,
    stencil,
)

import tilesmith as ts
from tests.support.traces import places
from tilesmith.schedule.location import ComputeAt, ReverseComputeAt
from tilesmith.schedule.schedule import Schedule

PROGRAMS = {
    "matmul_relu": matmul_relu(),
    "softmax": softmax(),
    "conv": conv(5, channels=1),
    "strided conv": conv(7, stride=3, pad=2, channels=1),
    "dilated conv": conv(6, dilation=2, stride=1, channels=1),
    "diamond": diamond(4, 3),
    "stencil": stencil(),
    "chain": chain(),
    "gather": gather(),
    "bytes": bytes_matmul(2, 3, 4),
    "chained": chained_matmuls(2, 3, 4, 2),
}


# compute_at
def test_compute_at(golden):
    sch = Schedule(stencil())
    sch.split("C.i", [None, 4])
    sch.compute_at("P", "C.i.0")
    golden(sch.func)
    assert_kept(sch)


def test_compute_at_of_a_halo(golden):
    sch = Schedule(conv(dilation=2))
    sch.split("Y.h", [None, 2])
    sch.compute_at("P", "Y.h.0")
    golden(sch.func)
    assert_kept(sch)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_legal_place(name):
    """Each block at each loop that takes it, in both directions, before and after tiling."""
    naive = Schedule(PROGRAMS[name])
    tiled = Schedule(PROGRAMS[name])
    for block in tiled.blocks:
        for loop in tiled.loops(block)[:2]:
            tiled.split(loop, [None, 2])
    tried = 0
    for sch in (naive, tiled):
        for block in sch.blocks:
            for step in places(sch.func, block):
                one = Schedule(sch.origin)
                for s in (*sch.trace, step):
                    one.apply(s)
                assert_kept(one)
                tried += 1
    assert tried >= 3


def test_compute_at_of_a_chain_of_stages():
    sch = Schedule(softmax())
    sch.compute_at("total", "out.i")
    sch.compute_at("E", "out.i")
    sch.compute_at("top", "out.i")
    assert [sch.loops(b)[0] for b in sch.blocks] == ["out.i"] * 4
    sch.parallel("out.i")
    assert_kept(sch)


def test_compute_at_from_a_loop_that_hosts_others_takes_a_new_name():
    """E leaves its loops to `top`, which still lies in them, and gets others."""
    sch = Schedule(softmax())
    sch.compute_at("top", "E.i")
    sch.compute_at("total", "out.i")
    sch.compute_at("E", "out.i")
    assert sch.loops("top") == ("E.i", "top.i", "top.r")
    assert sch.loops("E") == ("out.i", "E.i_1", "E.j")
    assert_kept(sch)


def test_compute_at_of_a_reduction_inside_a_reduction():
    sch = Schedule(chained_matmuls())
    sch.compute_at("C", "E.q")
    assert sch.extent("C.j") == 1
    assert_kept(sch)


def test_compute_at_of_two_outputs_at_once():
    a = ts.placeholder((4, 5), name="A")
    k = ts.reduce_axis(5, name="k")
    at, best = ts.compute((4,), lambda i: ts.argmax(a[i, k], axis=k), name="M")
    o = ts.compute((3,), lambda i: best[i] + ts.cast(at[i + 1], "float32"), name="O")
    sch = Schedule(ts.function([a, o]))
    sch.compute_at("M", "O.i")
    assert sch.extent("M.i") == 2
    assert_kept(sch)


def test_compute_at_computes_all_that_a_gather_may_read():
    sch = Schedule(gather())
    sch.compute_at("P", "G.i")
    assert sch.extent("P.i") == 6
    assert_kept(sch)


def test_compute_at_of_rank_0():
    v = ts.placeholder((5,), name="V")
    k = ts.reduce_axis(5, name="k")
    s = ts.compute((), lambda: ts.sum(v[k], axis=k), name="S")
    o = ts.compute((5,), lambda i: v[i] / s[()], name="O")
    sch = Schedule(ts.function([v, o]))
    sch.compute_at("S", "O.i")
    assert_kept(sch)


def test_compute_at_refuses():
    f = matmul_relu()
    refuse(f, lambda s: s.compute_at("Z", "D.i"), "no block 'Z' in matmul_relu", "C, D")
    refuse(f, lambda s: s.compute_at("C", "D.x"), "no loop 'D.x'")
    refuse(f, lambda s: s.compute_at("D", "C.i"), "compute_at D", "D is an output")
    refuse(f, lambda s: s.compute_at("C", "C.i"), "compute_at C at loop C.i", "its own loop")
    refuse(diamond(), lambda s: s.compute_at("P", "R.i"), "P at loop R.i", "L reads P outside")

    def unit(s):
        s.blockize("C.k")
        s.compute_at("C", "D.i")

    refuse(f, unit, "compute_at C", "it is a unit", "before blockize")

    def two_writers(s):
        s.decompose_reduction("C", "C.k")
        s.compute_at("C", "D.i")

    refuse(f, two_writers, "compute_at C", "also written by C.init", "before decompose_reduction")

    def vector(s):
        s.vectorize("D.j")
        s.compute_at("C", "D.j")

    refuse(f, vector, "compute_at C at loop D.j", "D.j is vectorized")


def test_compute_at_refuses_what_its_operands_are_not_ready_for():
    # B lies in the loop C.i, which C is to leave: it stays behind and is there when C needs it
    sch = Schedule(chain())
    sch.compute_at("B", "C.i")
    sch.compute_at("C", "D.j")
    assert_kept(sch)
    # B is made inside of D.j, so C cannot be made before that loop
    sch = Schedule(chain())
    sch.compute_at("C", "D.j")
    sch.compute_at("B", "D.j")
    with pytest.raises(ts.ScheduleError, match="C reads B, which B computes later"):
        sch.compute_at("C", "D.i")


def test_compute_at_refuses_a_part_that_differs_between_iterations():
    x = ts.placeholder((4, 6), name="X")
    p = ts.compute((4, 6), lambda i, j: x[i, j] * 2, name="P")
    c = ts.compute((24,), lambda i: p[i // 6, i % 6], name="C")

    def act(s):
        s.split("C.i", [None, 4])
        s.compute_at("P", "C.i.0")

    refuse(ts.function([x, c]), act, "cannot place P at loop C.i.0", "how much of i", "differs")


def test_compute_at_refuses_loops_it_left_behind():
    sch = Schedule(chain())
    sch.reverse_compute_at("C", "B.i")  # B.i now holds B and C
    sch.reverse_compute_at("B", "A.i")
    assert sch.loops("C")[0] == "B.i"
    with pytest.raises(
        ts.ScheduleError, match=r"compute_at B at loop B\.i: B\.i is a loop that it left"
    ):
        sch.compute_at("B", "B.i")


# reverse_compute_at
def test_reverse_compute_at(golden):
    sch = Schedule(matmul_relu())
    sch.split("C.i", [None, 4])
    sch.split("C.j", [None, 4])
    sch.reorder("C.i.0", "C.j.0", "C.i.1", "C.j.1", "C.k")
    sch.reverse_compute_at("D", "C.j.0")
    golden(sch.func)
    assert_kept(sch)


def test_reverse_compute_at_with_a_reduction_of_its_own():
    """The sum of a row of E belongs to the iteration that makes the row."""
    sch = Schedule(softmax())
    sch.reverse_compute_at("total", "E.i")
    assert sch.loops("total") == ("E.i", "total.i", "total.q")
    sch.reverse_compute_at("out", "E.i")
    sch.parallel("E.i")
    assert_kept(sch)


def test_reverse_compute_at_takes_the_guards_of_the_loop():
    """A part of the loop that is never alive makes nothing, and the consumer must not read it."""
    sch = Schedule(chain())
    _, inner = sch.split("A.i", [None, 4])
    sch.split(inner, [None, 3])
    sch.reverse_compute_at("B", "A.i.1.1")
    (block,) = (line for line in str(sch.func).splitlines() if line.strip().startswith("B("))
    assert "-3*A.i.1.0 - A.i.1.1 + 3 >= 0" in block
    assert_kept(sch)


def test_reverse_compute_at_refuses_a_box_with_holes():
    """With i.1 outside, one iteration makes every fourth row."""

    def act(s):
        s.split("A.i", [None, 4])
        s.reorder("A.i.1", "A.i.0")
        s.reverse_compute_at("B", "A.i.1")

    refuse(chain(), act, "B at loop A.i.1", "A does not make a box of A without holes")


def test_reverse_compute_at_clips_a_tail_inside_a_tail():
    """4*i.0 + 3*i.1.0 + i.1.1 reaches past the four rows of one iteration; B must not."""
    sch = Schedule(chain(9, 2))
    _, inner = sch.split("A.i", [None, 4])
    sch.split(inner, [None, 3])
    sch.reverse_compute_at("B", "A.i.0")
    assert sch.extent("B.i") == 4
    sch.parallel("A.i.0")
    assert_kept(sch)


def test_reverse_compute_at_refuses():
    f = matmul_relu()
    refuse(f, lambda s: s.reverse_compute_at("Z", "C.i"), "no block 'Z'")
    refuse(f, lambda s: s.reverse_compute_at("D", "C.x"), "no loop 'C.x'")
    refuse(f, lambda s: s.reverse_compute_at("D", "D.i"), "D at loop D.i", "there already")
    refuse(
        f,
        lambda s: s.reverse_compute_at("D", "C.k"),
        "D at loop C.k",
        "C is not finished inside loop C.k",
    )
    refuse(
        f,
        lambda s: s.reverse_compute_at("C", "D.i"),
        "C at loop D.i",
        "nothing it reads is produced",
    )
    refuse(stencil(), lambda s: s.reverse_compute_at("C", "P.i"), "C at loop P.i", "P at i")
    refuse(
        chained_matmuls(),
        lambda s: s.reverse_compute_at("E", "C.j"),
        "E at loop C.j",
        "it reduces over q",
    )
    refuse(
        softmax(), lambda s: s.reverse_compute_at("out", "E.i"), "out at loop E.i", "total", "later"
    )
    refuse(
        diamond(),
        lambda s: (s.compute_at("R", "O.i"), s.reverse_compute_at("L", "R.i")),
        "L at loop R.i",
        "nothing it reads",
    )

    def two_writers(s):
        s.decompose_reduction("C", "C.k")
        s.reverse_compute_at("D", "C.i")

    refuse(f, two_writers, "D at loop C.i", "behind C", "C.init")

    def unit(s):
        s.blockize("D.j")
        s.reverse_compute_at("D", "C.i")

    refuse(f, unit, "reverse_compute_at D", "it is a unit")


def test_reverse_compute_at_refuses_reads_that_are_not_element_for_element():
    x = ts.placeholder((4, 4), name="X")
    p = ts.compute((4, 4), lambda i, j: x[i, j] * 2, name="P")

    def read(body):
        return ts.function([x, ts.compute((4, 4), body, name="C")])

    def act(s):
        s.reverse_compute_at("C", "P.i")

    refuse(read(lambda i, j: p[3 - i, j]), act, "C at loop P.i", "P at -i + 3, not element")
    refuse(
        read(lambda i, j: p[0, j] + x[i, j]), act, "C at loop P.i", "P at 0 from every iteration"
    )
    both = read(lambda i, j: p[i, j] + p[j, i])
    refuse(both, act, "C at loop P.i", "P at two places that move apart")


def test_reverse_compute_at_of_a_crop():
    """It is computed only where it exists."""
    x = ts.placeholder((4, 4), name="X")
    p = ts.compute((4, 4), lambda i, j: x[i, j] * 2, name="P")
    sch = Schedule(ts.function([x, ts.compute((3, 4), lambda i, j: p[i, j], name="C")]))
    sch.reverse_compute_at("C", "P.i")
    assert sch.loops("C")[0] == "P.i"
    assert_kept(sch)


def test_reverse_compute_at_refuses_operands_that_come_later():
    x = ts.placeholder((4,), name="X")
    a = ts.compute((4,), lambda i: x[i] + 1, name="A")
    b = ts.compute((4,), lambda i: x[i] * 2, name="B")
    c = ts.compute((4,), lambda i: a[i] * b[i], name="C")
    sch = Schedule(ts.function([x, c]))
    first, second, _ = sch.blocks
    with refused(f"C at loop {first}.i", f"{second}, which it reads, is computed later"):
        sch.reverse_compute_at("C", f"{first}.i")
    sch.reverse_compute_at("C", f"{second}.i")
    assert_kept(sch)


def test_steps_compare_by_value():
    assert ComputeAt("C", "D.i") == ComputeAt("C", "D.i")
    assert ComputeAt("C", "D.i") != ReverseComputeAt("C", "D.i")
    assert str(ComputeAt("C", "D.i")) == "compute_at(block='C', loop='D.i')"


def test_a_refused_step_leaves_no_trace():
    sch = Schedule(matmul_relu())
    with pytest.raises(ts.ScheduleError):
        sch.compute_at("D", "C.i")
    assert len(sch.trace) == 0
    assert sch.func is sch.origin


def test_argmax_cannot_leave_its_outputs():
    refuse(argmax(), lambda s: s.compute_at("M", "M.i"), "compute_at M", "M_0 is an output")
