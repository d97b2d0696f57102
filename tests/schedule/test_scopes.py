"""Scopes and bound loops: whatever the order of the steps, threads that would race are refused."""

from __future__ import annotations

from itertools import permutations

import pytest
from cases import assert_kept, matmul_relu, refuse

import tilesmith as ts
from tests.support.strict import races
from tilesmith.ir.dependence import check_scopes
from tilesmith.ir.function import Function
from tilesmith.schedule.schedule import Schedule


def row_sums() -> Function:
    """C[i, j] = S[i] + j, where S is a sum: at j, every thread needs the same S[i]."""
    a, k = ts.placeholder((6, 5), name="A"), ts.reduce_axis(5, name="k")
    s = ts.compute((6,), lambda i: ts.sum(a[i, k], axis=k), name="S")
    c = ts.compute((6, 4), lambda i, j: s[i] + ts.cast(j, "float32"), name="C")
    return ts.function([a, c])


def accepted(func: Function, steps) -> Schedule | None:
    sch = Schedule(func)
    try:
        for step in steps:
            step(sch)
    except ts.ScheduleError:
        return None
    return sch


THREADS = ["threadIdx.x", "threadIdx.z", "vthread"]


@pytest.mark.parametrize("axis", THREADS)
def test_no_order_of_the_steps_lets_threads_race(axis):
    steps = [
        lambda s: s.compute_at("S", "C.j"),
        lambda s: s.bind("C.j", axis),
        lambda s: s.set_scope("S", "shared"),
    ]
    for order in permutations(steps):
        assert accepted(row_sums(), order) is None


@pytest.mark.parametrize("axis", THREADS)
def test_no_order_with_a_cache_lets_threads_race(axis):
    """The sum is in a copy that is shared, and computed by each thread."""
    steps = [
        lambda s: s.cache_write("S", "shared"),
        lambda s: s.compute_at("S.shared", "C.j"),
        lambda s: s.compute_at("S", "C.j"),
        lambda s: s.bind("C.j", axis),
        lambda s: s.decompose_reduction("S.shared", s.loops("S.shared")[-1]),
    ]
    for length in (4, 5):
        for order in permutations(steps, length):
            sch = accepted(row_sums(), order)
            if sch is not None and "S.shared" in sch.blocks:
                assert races(sch.func) == [], str(sch.func)
                assert_kept(sch)
                inside = "C.j" in sch.loops("S.shared")
                assert not (inside and f"# {axis}" in str(sch.func)), str(sch.func)


def test_the_message_names_the_loop_the_buffer_and_a_way_out():
    def act(sch: Schedule) -> None:
        sch.compute_at("S", "C.j")
        sch.bind("C.j", "threadIdx.x")
        sch.set_scope("S", "shared")

    refuse(row_sums(), act, "set the scope of S to shared", "thread of C.j", "local to a thread")


def test_threads_may_add_to_elements_of_their_own():
    sch = Schedule(row_sums())
    sch.bind("S.i", "threadIdx.x")
    sch.set_scope("S", "shared")
    assert races(sch.func) == []
    assert_kept(sch)
    sch = Schedule(row_sums())
    sch.compute_at("S", "C.i")
    sch.bind("C.i", "threadIdx.x")
    sch.set_scope("S", "shared")
    assert races(sch.func) == []
    assert_kept(sch)


def test_threads_may_fill_a_shared_copy_together():
    """All of them store the same values."""
    for act in (lambda s: s.bind("C.j", "threadIdx.x"), lambda s: None):
        sch = Schedule(matmul_relu())
        act(sch)
        sch.cache_read("C", "A", "shared")
        sch.compute_at("A.shared", "C.j")
        if sch.func.body and "threadIdx" not in str(sch.func):
            sch.bind("C.j", "threadIdx.x")
        assert_kept(sch)


@pytest.mark.parametrize(("scope", "axis"), [("local", "threadIdx.x"), ("local", "blockIdx.y"),
                                             ("shared", "blockIdx.x")])  # fmt: skip
def test_private_memory_is_not_read_from_outside(scope, axis):
    """S is made by threads (blocks) that each have their own, and read by others."""

    def scope_last(sch: Schedule) -> None:
        sch.bind("S.i", axis)
        sch.set_scope("S", scope)

    def bind_last(sch: Schedule) -> None:
        sch.set_scope("S", scope)
        sch.bind("S.i", axis)

    def bind_reader(sch: Schedule) -> None:
        sch.set_scope("S", scope)
        sch.bind("C.i", axis)

    def cached(sch: Schedule) -> None:
        sch.bind("S.i", axis)
        sch.cache_write("S", scope)

    for act in (scope_last, bind_last, bind_reader, cached):
        refuse(row_sums(), act, f"is {scope}", f"({axis})", "outside of that loop")


def test_a_copy_that_is_left_outside_is_found_in_the_end():
    """cache_read comes before compute_at; until then the copy stands outside of the threads."""
    sch = Schedule(row_sums())
    sch.bind("S.i", "blockIdx.x")
    sch.cache_read("S", "A", "shared")
    with pytest.raises(ts.ScheduleError, match=r"cannot emit: A\.shared is shared"):
        check_scopes(sch.func, "emit")
    sch.compute_at("A.shared", "S.i")
    check_scopes(sch.func, "emit")


@pytest.mark.parametrize("scope", ["local", "shared", "global"])
def test_parallel_loops_on_a_cpu_share_memory_of_any_scope(scope):
    """One thread's copy is another's to read: scopes matter among the threads of a GPU."""
    sch = Schedule(row_sums())
    sch.set_scope("S", scope)
    sch.parallel("S.i")
    sch.parallel("C.i")
    assert races(sch.func) == []
    assert_kept(sch)


@pytest.mark.parametrize("scope", ["local", "shared", "global"])
def test_a_sum_in_each_iteration_of_a_parallel_loop_is_private(scope):
    steps = [
        lambda s: s.compute_at("S", "C.j"),
        lambda s: s.parallel("C.i", "C.j"),
        lambda s: s.set_scope("S", scope),
    ]
    for order in permutations(steps):
        sch = accepted(row_sums(), order)
        if sch is not None:
            assert races(sch.func) == []
            assert_kept(sch)
