"""GPU programs that the system derives, in the SIMT interpreter against the oracle: candidates of
the operator suite by both sets of rules, sketches of random programs, random traces. Without a
barrier, the interpreter finds the race. bench/gpu_programs.py checks thousands.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilesmith as ts
from tests.support.gpu_programs import OPENCL, GpuCheck, launch_form, without_each_sync
from tests.support.gpu_suite import RULES, SHAPES, candidates
from tests.support.programs import random_program
from tests.support.traces import GPU_WEIGHTS, random_trace
from tests.support.wide_programs import random_wide_program
from tilesmith.base.errors import BuildError
from tilesmith.cli.operators import operator
from tilesmith.codegen.passes.accesses import accesses
from tilesmith.ir.nodes import Alloc, For, If, Join, Sync, statements
from tilesmith.schedule.schedule import Schedule

H200 = ts.Target.named("nvidia-h200")


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", SHAPES)
def test_a_candidate_for_small_blocks(name, rules):
    """test_gpu_suite.py has many candidates for a large GPU."""
    check = GpuCheck(operator(name, SHAPES[name]), OPENCL)
    (scheduled,) = candidates(check.func, OPENCL, rules, 1, np.random.default_rng(len(name)))
    check.run(scheduled)


@pytest.mark.parametrize("name", ["matmul", "depthwise-conv2d", "conv2d-bn-relu"])
@pytest.mark.parametrize("rules", RULES)
def test_every_barrier_is_needed_and_its_absence_found(name, rules):
    check = GpuCheck(operator(name, SHAPES[name]), H200)
    rng = np.random.default_rng(1)
    removed = found = 0
    for scheduled in candidates(check.func, H200, rules, 2, rng):
        for racy in without_each_sync(launch_form(scheduled, H200)):
            removed += 1
            found += "race" in check.race_without(scheduled, racy)
    assert removed
    assert found == removed


def program_of(seed):
    rng = np.random.default_rng(seed)
    return (random_wide_program if seed % 3 == 2 else random_program)(rng, 3), rng


@pytest.mark.parametrize("seed", range(6))
def test_sketches_of_random_programs(seed):
    func, rng = program_of(seed)
    target = OPENCL if seed % 2 else H200
    check = GpuCheck(func, target, seed)
    for rules in RULES:
        for scheduled in candidates(func, target, rules, 1, rng):
            check.run(scheduled)


def test_random_traces():
    """Some are refused, such as blocks inside of threads; all others compute the same."""
    right = 0
    for seed in range(40):
        func, rng = program_of(seed)
        weights = {**GPU_WEIGHTS, "bind": float(rng.choice([2, 8]))}
        sch = random_trace(func, rng, int(rng.integers(2, 12)), weights)
        try:
            GpuCheck(func, H200, seed).run(sch.func)
            right += 1
        except BuildError:
            continue
    assert right >= 30


# what the random programs found
def rows(n, m):
    x = ts.placeholder((n, m), name="X")
    k = ts.reduce_axis(m, name="k")
    return ts.function([x, ts.compute((n,), lambda i: ts.sum(x[i, k], axis=k), name="S")])


def launches(func):
    return [s for s in func.body if not isinstance(s, Alloc)]


def test_every_statement_at_the_top_is_one_launch_even_of_a_single_block():
    check = GpuCheck(operator("matmul", (6, 8, 4)), H200)
    sch = Schedule(check.func)
    (root,) = launches(check.run(sch.func))
    assert (root.kind, root.extent.const) == ("blockIdx.x", 1)
    sch.bind("C.i", "threadIdx.x")
    (root,) = launches(check.run(sch.func))
    assert (root.kind, root.extent.const) == ("blockIdx.x", 1)


def test_a_scalar_reduced_across_threads_is_one_launch():
    x = ts.placeholder((45,), name="X")
    k = ts.reduce_axis(45, name="k")
    func = ts.function([x, ts.compute((), lambda: ts.sum(x[k], axis=k), name="S")])
    sch = Schedule(func)
    sch.split("S.k", [None, 15])
    sch.annotate("S.k.1", "reduce_across", "threadIdx.x")
    lowered = GpuCheck(func, H200).run(sch.func)
    assert len(launches(lowered)) == 1
    (join,) = [s for s in statements(lowered.body) if isinstance(s, Join)]
    assert (join.extent, join.stride) == (15, 1)


def chain(n=4, m=6):
    x = ts.placeholder((n, m), name="X")
    a = ts.compute((n, m), lambda i, j: x[i, j] * 2.0, name="A")
    return ts.function([x, ts.compute((n, m), lambda i, j: a[n - 1 - i, j] + 1.0, name="B")])


def test_threads_beside_a_loop_do_not_repeat_its_writes():
    """A is computed inside of threadIdx.y only; all threads along x would write the same row."""
    func = chain()
    sch = Schedule(func)
    sch.compute_at("A", "B.i")
    sch.bind("B.i", "threadIdx.y")
    sch.bind("B.j", "threadIdx.x")
    GpuCheck(func, H200).run(sch.func)


@pytest.mark.parametrize("scope", ["local", "shared"])
def test_a_scope_that_is_too_narrow_is_widened(scope):
    """A is used in two launches, and then by other threads than those that wrote it."""
    func = chain()
    sch = Schedule(func)
    sch.set_scope("A", scope)
    lowered = GpuCheck(func, H200).run(sch.func)
    assert [s.buffer.scope for s in lowered.body if isinstance(s, Alloc)] == ["global"]


def test_a_virtual_thread_below_a_serial_loop_and_a_condition():
    func = rows(10, 6)
    sch = Schedule(func)
    sch.split("S.i", [None, 2, 3])
    sch.bind("S.i.1", "vthread")
    sch.bind("S.i.2", "threadIdx.x")
    lowered = GpuCheck(func, H200).run(sch.func)
    assert all(s.kind != "vthread" for s in statements(lowered.body) if isinstance(s, For))


def test_shared_memory_is_filled_once_where_sums_stay_in_global_memory():
    """Without a private accumulator, a nest fills shared and global memory."""
    check = GpuCheck(operator("matmul", (6, 10, 8)), H200)
    sch = Schedule(check.func)
    sch.split("C.k", [None, 4])
    sch.reorder("C.i", "C.j", "C.k.0", "C.k.1")
    for loop in ("C.i", "C.j"):
        sch.bind(loop, "threadIdx.x")
    sch.cache_read("C", "A", "shared")
    sch.compute_at("A.shared", "C.k.0")
    lowered = check.run(sch.func)
    assert any(isinstance(s, Sync) for s in statements(lowered.body))


def test_barriers_never_stand_below_a_condition_on_the_thread():
    """In what the passes give; the interpreter would also find it at run time."""
    rng = np.random.default_rng(3)
    for name in ("conv2d", "matmul"):
        func = operator(name, SHAPES[name])
        for scheduled in candidates(func, H200, "default", 1, rng):
            lowered = launch_form(scheduled, H200)
            threads = {
                s.name for s in statements(lowered.body)
                if isinstance(s, For) and s.kind == "threadIdx.x"
            }  # fmt: skip
            for s in statements(lowered.body):
                if isinstance(s, If) and any(
                    isinstance(t, Sync | Join) for t in statements(s.body)
                ):
                    assert not any(threads & p.names for p in s.conds)


def test_private_buffers_are_indexed_by_unrolled_loops():
    rng = np.random.default_rng(4)
    func = operator("matmul", SHAPES["matmul"])
    for scheduled in candidates(func, H200, "default", 4, rng):
        lowered = launch_form(scheduled, H200)
        local = {
            s.buffer.name for s in statements(lowered.body)
            if isinstance(s, Alloc) and s.buffer.scope == "local"
        }  # fmt: skip
        for a in accesses(lowered.body):
            if a.buffer in local:
                written_out = {f.name for f in a.path if f.kind in ("unroll", "vectorize")}
                assert all(p.names <= written_out for p in a.index)


def test_the_check_itself_fails_on_a_wrong_program():
    check = GpuCheck(chain(), H200)
    other = chain().body[1]
    wrong = replace(check.func, body=(check.func.body[0], other))
    check.run(wrong)  # the same program
    check.want = check.want + 1
    with pytest.raises(AssertionError):
        check.run(check.func)


def test_a_private_copy_that_virtual_threads_share():
    """The copy stands in the thread, outside of the virtual threads that read it."""
    x, w = ts.placeholder((6, 5), name="X"), ts.placeholder((3,), name="W")
    r = ts.reduce_axis(3, name="r")
    y = ts.compute((6, 3), lambda i, j: ts.sum(x[i, j + r] * w[r], axis=r), name="Y")
    func = ts.function([x, w, y])
    sch = Schedule(func)
    sch.cache_read("Y", "X", "global")
    sch.reorder("Y.j", "Y.i", "Y.r")
    sch.compute_at("X.global", "Y.j")
    sch.bind("Y.j", "threadIdx.x")
    sch.bind("Y.i", "vthread")
    lowered = GpuCheck(func, H200).run(sch.func)
    (copy,) = [s.buffer for s in statements(lowered.body) if isinstance(s, Alloc)]
    assert copy.scope == "local"


def windows():
    """Each thread reads what it and its neighbour wrote."""
    x = ts.placeholder((3, 9), name="X")
    a = ts.compute((3, 9), lambda b, i: x[b, i] * 2.0, name="A")
    y = ts.compute((3, 8), lambda b, i: a[b, i + 1] * a[b, i], name="Y")
    func = ts.function([x, y])
    sch = Schedule(func)
    sch.compute_at("A", "Y.b")
    sch.set_scope("A", "shared")
    sch.bind("Y.b", "blockIdx.x")
    sch.bind("Y.i", "threadIdx.x")
    sch.bind("A.i", "threadIdx.x")
    return func, sch.func


def test_a_barrier_between_neighbours():
    """They differ by a constant in the index, not in the loops."""
    func, scheduled = windows()
    lowered = GpuCheck(func, H200).run(scheduled)
    assert [s.scope for s in statements(lowered.body) if isinstance(s, Sync)] == ["shared"]


def test_a_barrier_names_the_memory_that_threads_meet_in():
    """Without loops over blocks, a stage in global memory belongs to one launch as well."""
    func, scheduled = windows()
    buffers = tuple(replace(b, scope="global") for b in scheduled.buffers)
    body = tuple(replace(s, kind="serial") for s in scheduled.body)
    lowered = GpuCheck(func, H200).run(replace(scheduled, buffers=buffers, body=body))
    scopes = {s.scope for s in statements(lowered.body) if isinstance(s, Sync)}
    assert scopes == {"global"}


def test_threads_that_share_a_copy_fill_it_once():
    """The copy has a loop over threads of its own, inside of one that it does not depend on."""
    x = ts.placeholder((2, 3), name="X")
    func = ts.function([x, ts.compute((2, 3), lambda i, j: x[1 - i, j] + 1.0, name="Y")])
    sch = Schedule(func)
    sch.cache_read("Y", "X", "shared")
    sch.compute_at("X.shared", "Y.i")
    sch.bind("Y.i", "threadIdx.x")
    GpuCheck(func, H200).run(sch.func)
    (inner, *_) = [f.name for f in statements(sch.func.body) if isinstance(f, For)][2:]
    sch.bind(inner, "threadIdx.x")
    GpuCheck(func, H200).run(sch.func)


def test_threads_whose_windows_overlap_in_shared_memory_are_refused():
    x = ts.placeholder((10,), name="X")
    func = ts.function([x, ts.compute((8,), lambda i: x[i] + x[i + 2], name="Y")])
    sch = Schedule(func)
    sch.cache_read("Y", "X", "shared")
    sch.split("Y.i", [None, 4])
    sch.compute_at("X.shared", "Y.i.1")
    sch.bind("Y.i.1", "threadIdx.x")
    with pytest.raises(BuildError, match=r"several threads write the same elements of X.shared"):
        launch_form(sch.func, H200)


def test_threads_that_only_a_guard_keeps_in_their_row_are_apart():
    """A tile of 9 x 2 that is stored the other way round: threads [f, h, w] write element
    [w, 6f + h] if there is one.
    """
    x = ts.placeholder((9, 6), name="X")
    y = ts.compute((9, 6, 2, 3), lambda f, h, w, b: x[8 - f, 2 * b + w] + 1.0, name="Y")
    func = ts.function([x, y])
    sch = Schedule(func)
    for loop in ("Y.f", "Y.h", "Y.w"):
        sch.bind(loop, "threadIdx.x")
    sch.cache_read("Y", "X", "shared")
    sch.compute_at("X.shared", "Y.b")
    sch.annotate("X.shared.ax0", "fetch_width", 1)
    sch.transform_layout("X.shared", ["d1", "d0"])
    lowered = GpuCheck(func, H200).run(sch.func)
    assert "X.shared[Y.w, 6*Y.f + Y.h] = " in str(lowered)


@pytest.mark.parametrize(("turns", "outer"), [(2, 1), (2, 3), (3, 1), (3, 2)])
def test_a_pipelined_loop(turns, outer):
    """Each thread adds up a row whose tiles all threads fetch, one tile ahead. Every barrier is
    needed, and their number is the least.
    """
    x = ts.placeholder((6, 3 * turns * outer), name="X")
    k = ts.reduce_axis(3 * turns * outer, name="k")
    func = ts.function([x, ts.compute((6,), lambda i: ts.sum(x[5 - i, k], axis=k), name="S")])
    sch = Schedule(func)
    sch.cache_write("S", "local")
    sch.compute_at("S.local", "S.i")
    sch.bind("S.i", "threadIdx.x")
    sch.split("S.local.k", [outer, turns, 3])
    sch.cache_read("S.local", "X", "shared")
    sch.compute_at("X.shared", "S.local.k.1")
    sch.annotate("S.local.k.1", "pipeline", 2)
    check = GpuCheck(func, H200)
    lowered = check.run(sch.func)
    (tile,) = [s.buffer for s in statements(lowered.body)
               if isinstance(s, Alloc) and s.buffer.scope == "shared"]  # fmt: skip
    assert tile.shape[0].const == 2
    loops = [f.name for f in statements(lowered.body) if isinstance(f, For)]
    assert ("S.local.k.1" in loops) == (turns > 2), "two turns are written out"
    racy = list(without_each_sync(lowered))
    # one per turn that is written; if the last tile lies where the next first one goes, one more
    assert len(racy) == (2 if turns == 2 else 1) + (turns > 2 and outer > 1)
    assert all("race" in check.race_without(sch.func, r) for r in racy)


def test_virtual_threads_keep_the_layout_of_a_private_buffer():
    x = ts.placeholder((7, 5), name="X")
    func = ts.function([x, ts.compute((7, 5), lambda i, j: x[i, j] * 2.0, name="Y")])
    sch = Schedule(func)
    sch.cache_write("Y", "local")
    sch.compute_at("Y.local", "Y.i")
    sch.bind("Y.i", "vthread")
    sch.transform_layout("Y.local", ["d0", "d1 // 3", "d1 % 3"])
    GpuCheck(func, H200).run(sch.func)


def test_virtual_threads_whose_windows_begin_outside():
    """The first window of each virtual thread begins before the buffer; a guard skips that part."""
    x = ts.placeholder((6, 3), name="X")
    a = ts.compute((6, 3), lambda i, j: x[i, j] * 2.0, name="A")
    r = ts.reduce_axis(3, name="r")
    y = ts.compute(
        (6, 3),
        lambda i, j: ts.sum(ts.where((j + r >= 1) & (j + r < 4), a[i, j + r - 1], 0.0), axis=r),
        name="Y",
    )
    func = ts.function([x, y])
    sch = Schedule(func)
    sch.split("Y.j", [None, 2])
    sch.reorder("Y.i", "Y.j.0", "Y.j.1", "Y.r")
    sch.compute_at("A", "Y.j.1")
    sch.set_scope("A", "local")
    sch.bind("Y.j.0", "vthread")
    GpuCheck(func, H200).run(sch.func)
