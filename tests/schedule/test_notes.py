"""Notes of loops: those that change how a program runs are checked like the primitives that do the
same, whoever wrote the trace, and those that passes leave to each other cannot be set.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from cases import assert_kept, matmul_relu, refuse, row_sum

import tilesmith as ts
from tests.support.meaning import assert_close
from tests.support.programs import random_inputs
from tilesmith.codegen.passes.resolve_notes import resolve_notes
from tilesmith.schedule.automatic import AutoParallel, AutoVectorize
from tilesmith.schedule.schedule import Schedule
from tilesmith.schedule.trace import Trace


def test_a_note_that_makes_a_loop_parallel_is_checked_as_parallel_is():
    f = matmul_relu()
    refuse(f, lambda s: s.annotate("C.k", "parallel_depth", (1, 0)), "C reduces over C.k")
    refuse(f, lambda s: s.annotate("C.k", "parallel_depth", ("#p", 3)), "C reduces over C.k")
    sch = Schedule(f)
    sch.annotate("C.k", "parallel_depth", (0, 0))  # it stays serial
    sch.annotate("C.i", "parallel_depth", (2, 0))
    sch.annotate("C.j", "parallel_depth", (2, 1))
    assert_kept(sch)
    text = str(resolve_notes(sch.func, ts.cpu(2)))
    assert [line.split()[1] for line in text.splitlines() if "# parallel " in line] == [
        "C.i", "C.j"
    ]  # fmt: skip


def test_a_trace_from_elsewhere_is_checked():
    """The note stands in a record that somebody wrote by hand."""
    f = row_sum()
    step = ["annotate", {"loop": "S.k", "key": "parallel_depth", "value": [1, 0]}]
    trace = Trace.from_json(json.dumps({"version": 1, "steps": [step]}))
    with pytest.raises(ts.ScheduleError, match=r"S reduces over S\.k"):
        trace.apply(f)
    with pytest.raises(ts.ScheduleError, match=r"S reduces over S\.k"):
        ts.build(trace.apply(f), ts.cpu(2))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("parallel_depth", 1),
        ("parallel_depth", (1,)),
        ("parallel_depth", (1, -1)),
        ("parallel_depth", ("many", 0)),
        ("unroll_depth", -1),
        ("unroll_depth", "all"),
        ("unroll_depth", (2, 3)),
        ("pipeline", "C.k"),
        ("hold", (1, 2)),
        ("cluster", -2),
        ("reduce_across", "blockIdx.x"),
        ("reduce_across", 1),
        ("reduce_across", "parallel"),
    ],
)
def test_values_that_mean_nothing_are_refused(key, value):
    refuse(matmul_relu(), lambda s: s.annotate("C.k", key, value), f"{key} on loop C.k")


def test_threads_share_a_loop_only_if_it_is_reduced_over():
    f = matmul_relu()
    for key, value in (("reduce_across", "threadIdx.x"), ("cluster", 1)):
        Schedule(f).annotate("C.k", key, value)
        refuse(f, lambda s, k=key, v=value: s.annotate("C.j", k, v), "C does not reduce over")


@pytest.mark.parametrize("key", [".hold", ".transpose", ".fetch", ".stream", ".step"])
def test_notes_of_passes_cannot_be_set(key):
    refuse(matmul_relu(), lambda s: s.annotate("C.k", key, 1), f"{key} on loop C.k", "dot")


@pytest.mark.parametrize("key", ["hold", "transpose", "fetch", "stream", "step", "hint"])
def test_other_notes_change_nothing(key):
    """Also those that a code generator for another target reads."""
    f = matmul_relu()
    arrays = random_inputs(f, np.random.default_rng(0))
    for loop in ("C.i", "C.j", "C.k", "D.i"):
        sch = Schedule(f)
        sch.annotate(loop, key, 1)
        assert_close(ts.build(sch, ts.cpu(2))(*arrays), ts.evaluate(f, *arrays))


def test_steps_behind_auto_parallel_are_checked():
    def vectorized(s: Schedule) -> None:
        s.apply(AutoParallel(2))
        s.vectorize("D.i")

    refuse(matmul_relu(), vectorized, "the parallel loop D.j would lie inside", "D.i")

    def moved(s: Schedule) -> None:
        s.apply(AutoParallel(2))
        s.reverse_compute_at("D", "C.i")
        s.parallel("C.k")

    refuse(matmul_relu(), moved, "C reduces over C.k")
    sch = Schedule(matmul_relu())
    sch.apply(AutoParallel(2))
    sch.apply(AutoVectorize("D"))
    sch.reorder("C.k", "C.i")
    assert_kept(sch)
    arrays = random_inputs(sch.origin, np.random.default_rng(0))
    assert_close(ts.build(sch, ts.cpu(2))(*arrays), ts.evaluate(sch.origin, *arrays))


def test_numbers_that_do_not_cover_a_loop_are_refused():
    a = ts.placeholder((100,), name="A")
    f = ts.function([a, ts.compute((100,), lambda i: a[i] + 1, name="C")], name="more")
    sch = Schedule(f)
    sch.split("C.i", ["#a", "#b"], exact=True)
    for sizes in ({"a": 3, "b": 4}, {"a": 26, "b": 4}):
        with pytest.raises(ts.ArgumentError, match=r"a \* b is .* it is 100"):
            ts.instantiate(sch.func, sizes)
    ts.instantiate(sch.func, {"a": 25, "b": 4})
    sch = Schedule(f)
    sch.split("C.i", ["#a", "#b"])
    with pytest.raises(ts.ArgumentError, match="at least 100"):
        ts.instantiate(sch.func, {"a": 24, "b": 4})
    ts.instantiate(sch.func, {"a": 26, "b": 4})
    part = ts.instantiate(sch.func, {"b": 8})
    with pytest.raises(ts.ArgumentError, match="at least 100"):
        ts.instantiate(part, {"a": 12})
