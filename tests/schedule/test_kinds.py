"""parallel, vectorize, unroll, bind, annotate and pipeline: which loops may be marked how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
from cases import (
    argmax,
    assert_kept,
    chain,
    conv,
    diamond,
    matmul_relu,
    refuse,
    row_sum,
    softmax,
    stencil,
)

import tilesmith as ts
from tilesmith.schedule.schedule import Schedule


# parallel
def test_parallel(golden):
    sch = Schedule(matmul_relu())
    sch.parallel("C.i", "C.j")
    sch.parallel("D.i")
    golden(sch.func)
    assert_kept(sch)


def test_parallel_over_private_buffers():
    """What only one iteration uses is its own, even if the iterations compute the same elements."""
    sch = Schedule(conv())
    sch.compute_at("P", "Y.h")
    sch.parallel("Y.o", "Y.h")
    assert_kept(sch)


def test_parallel_with_a_fused_consumer():
    sch = Schedule(matmul_relu())
    sch.split("C.i", [None, 4])
    sch.reverse_compute_at("D", "C.i.0")
    sch.parallel("C.i.0")
    assert_kept(sch)


def test_parallel_refuses_reductions():
    f = matmul_relu()
    refuse(f, lambda s: s.parallel("C.k"), "parallelize loop C.k", "C reduces over C.k", "rfactor")
    refuse(f, lambda s: s.parallel("C.x"), "no loop 'C.x'")


def test_parallel_refuses_twice():
    def act(s):
        s.parallel("C.i")
        s.parallel("C.i")

    refuse(matmul_relu(), act, "cannot parallelize loop C.i", "already parallel")


@pytest.mark.parametrize("order", [("C.i", "C.j"), ("C.j", "C.i")])
def test_parallel_refuses_nests_that_are_not_direct(order):
    def act(s):
        s.split("C.i", [None, 2])
        s.reverse_compute_at("D", "C.i.0")
        s.parallel("C.i.0" if order[0] == "C.i" else "C.j")
        s.parallel("C.j" if order[0] == "C.i" else "C.i.0")

    refuse(matmul_relu(), act, "parallel loop C.j", "parallel loop C.i.0", "not directly")


def test_parallel_refuses_elements_that_every_iteration_writes():
    def act(s):
        s.compute_at("P", "C.i")
        s.compute_at("C", "D.i")
        s.parallel("C.i")

    # P stays under C.i, which C has left: neighbouring iterations write the same element of it
    x = ts.placeholder((8,), name="X")
    p = ts.compute((8,), lambda i: x[i] * 2, name="P")
    c = ts.compute((7,), lambda i: p[i] + p[i + 1], name="C")
    d = ts.compute((7,), lambda i: c[i] * 2, name="D")
    refuse(ts.function([x, d]), act, "parallelize loop C.i", "two iterations of C.i", "of P in P")


def test_parallel_refuses_what_does_not_move_with_the_loop():
    sch = Schedule(diamond())
    sch.compute_at("L", "O.j")
    sch.parallel("O.j")  # L is its own in each iteration
    assert_kept(sch)

    x = ts.placeholder((3, 4), name="X")
    a = ts.compute((3,), lambda i: x[i, 0], name="A")
    b = ts.compute((3, 4), lambda i, j: a[i] + x[i, j], name="B")
    f = ts.function([x, b])
    sch = Schedule(f)
    sch.compute_at("A", "B.j")
    sch.reorder("B.j", "B.i")
    sch.parallel("B.j")
    assert_kept(sch)
    # with B gone from the loop, A is read outside of it
    c = ts.compute((3, 4), lambda i, j: b[i, j] * 2, name="C")
    sch = Schedule(ts.function([x, c]))
    sch.compute_at("A", "B.j")
    sch.compute_at("B", "C.i")
    assert sch.loops("A")[:2] == ("B.i", "B.j")
    with pytest.raises(
        ts.ScheduleError, match=r"every iteration of B\.j writes the same elements of A"
    ):
        sch.parallel("B.j")


def test_moving_a_reader_out_of_a_parallel_loop_is_refused():
    def act(s):
        s.compute_at("P", "C.i")
        s.parallel("C.i")
        s.compute_at("C", "D.i")

    x = ts.placeholder((8,), name="X")
    p = ts.compute((8,), lambda i: x[i] * 2, name="P")
    c = ts.compute((7,), lambda i: p[i] + p[i + 1], name="C")
    d = ts.compute((7,), lambda i: c[i] * 2, name="D")
    refuse(ts.function([x, d]), act, "compute_at C at loop D.i", "two iterations of C.i")


# vectorize
def test_vectorize(golden):
    sch = Schedule(matmul_relu())
    sch.split("C.j", [None, 4])
    sch.reorder("C.k", "C.j.1")
    sch.vectorize("C.j.1")
    sch.vectorize("D.j")
    golden(sch.func)
    assert_kept(sch)


def test_vectorize_a_sum():
    sch = Schedule(row_sum())
    sch.split("S.k", [None, 4])
    sch.vectorize("S.k.1")
    assert_kept(sch)


def test_vectorize_a_loop_around_loops():
    sch = Schedule(matmul_relu())
    sch.reorder("C.j", "C.i", "C.k")
    sch.vectorize("C.j")
    sch.unroll("C.i")
    assert_kept(sch)


def test_vectorize_refuses():
    f = matmul_relu()
    refuse(f, lambda s: s.vectorize("D.x"), "no loop 'D.x'")

    def twice(s):
        s.vectorize("D.j")
        s.vectorize("D.i")

    refuse(f, twice, "vectorize loop D.i", "vectorize loop D.j", "inside the vectorized loop D.i")

    def around_parallel(s):
        s.parallel("D.j")
        s.vectorize("D.i")

    refuse(f, around_parallel, "vectorize loop D.i", "the parallel loop D.j")

    def around_unit(s):
        s.blockize("D.j")
        s.vectorize("D.i")

    refuse(f, around_unit, "vectorize loop D.i", "D,", "is a unit")

    def unrolled(s):
        s.unroll("D.j")
        s.vectorize("D.j")

    refuse(f, unrolled, "cannot vectorize loop D.j", "already unroll")


def test_vectorize_refuses_sums_it_cannot_join():
    refuse(
        argmax(),
        lambda s: s.vectorize("M.k"),
        "vectorize loop M.k",
        "M reduces",
        "combiner of its own",
    )

    def not_alone(s):
        s.cache_read("S", "A")
        s.compute_at("A.local", "S.k")
        s.vectorize("S.k")

    refuse(row_sum(), not_alone, "vectorize loop S.k", "S reduces over S.k", "not alone")


# unroll
def test_unroll(golden):
    sch = Schedule(matmul_relu())
    sch.unroll("C.j", "C.k")
    golden(sch.func)
    assert_kept(sch)


def test_unroll_refuses():
    def act(s):
        s.unroll("C.k")
        s.unroll("C.k")

    refuse(matmul_relu(), act, "cannot unroll loop C.k", "already unroll")
    refuse(matmul_relu(), lambda s: s.unroll("C.x"), "no loop 'C.x'")


# bind
def test_bind(golden):
    sch = Schedule(matmul_relu())
    sch.bind("C.i", "blockIdx.x")
    sch.bind("C.j", "threadIdx.x")
    sch.bind("D.i", "blockIdx.x")
    sch.bind("D.j", "vthread")
    golden(sch.func)
    assert_kept(sch)


def test_bind_refuses():
    f = matmul_relu()
    refuse(
        f, lambda s: s.bind("C.i", "threadIdx.w"), "bind loop C.i", "'threadIdx.w'", "threadIdx.x"
    )
    refuse(f, lambda s: s.bind("C.k", "threadIdx.x"), "bind loop C.k to threadIdx.x", "C reduces")
    refuse(f, lambda s: s.bind("C.x", "threadIdx.x"), "no loop 'C.x'")

    def twice(s):
        s.bind("C.i", "blockIdx.x")
        s.bind("C.i", "blockIdx.y")

    refuse(f, twice, "cannot bind loop C.i", "already blockIdx.x")


# annotate
@dataclass(frozen=True, slots=True)
class Hint(ts.Note):
    key: ClassVar[str] = "hint"
    what: str | int


def test_annotate(golden):
    sch = Schedule(matmul_relu())
    sch.annotate("C.k", "prefetch", ["A", 8])
    sch.annotate("C.k", Hint("hot"))
    sch.annotate("C.k", Hint(3))  # the last one counts
    sch.prefetch("D.i", "C", 2)
    golden(sch.func)
    assert_kept(sch, ts.Parts(notes=(Hint,)))


@pytest.mark.parametrize("value", ["A", 3, ("A",), ("A", -1), ("A", "far")])
def test_annotate_refuses_a_prefetch_that_says_too_little(value):
    refuse(
        matmul_relu(),
        lambda s: s.annotate("C.k", "prefetch", value),
        "prefetch on loop C.k is (buffer, distance)",
    )


def test_annotate_refuses():
    f = matmul_relu()
    refuse(f, lambda s: s.prefetch("C.k", "Z", 4), "prefetch on loop C.k", "'Z'", "A, B, D, C")
    refuse(f, lambda s: s.annotate("C.x", Hint(1)), "no loop 'C.x'")


# pipeline
def test_pipeline(golden):
    sch = Schedule(matmul_relu())
    sch.split("C.k", [None, 2])
    sch.cache_read("C", "A", "shared")
    sch.reorder("C.k.0", "C.i", "C.j", "C.k.1")
    sch.compute_at("A.shared", "C.k.0")
    sch.pipeline("C.k.0", 3)
    golden(sch.func)
    assert_kept(sch)


def test_pipeline_refuses():
    f = matmul_relu()
    refuse(
        f, lambda s: s.pipeline("C.k"), "cannot pipeline loop C.k", "copied first and used later"
    )
    refuse(f, lambda s: s.pipeline("C.k", 1), "pipeline of loop C.k with 1 stages", "2 or more")
    refuse(f, lambda s: s.pipeline("C.x"), "no loop 'C.x'")


@pytest.mark.parametrize("func", [softmax(), chain(), stencil(), diamond()])
def test_every_outer_loop_may_be_parallel(func):
    sch = Schedule(func)
    for block in sch.blocks:
        sch.parallel(sch.loops(block)[0])
    assert_kept(sch)
