"""Notes of loops: those that change how a program runs are checked like the primitives that do the
same, whoever wrote the trace, and those that passes leave to each other cannot be set.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from cases import assert_kept, matmul_relu, refuse, row_sum

import tilesmith as ts
from tests.support.meaning import assert_close
from tests.support.programs import random_inputs
from tilesmith.codegen.passes.lower_blocks import resolve_notes
from tilesmith.ir.nodes import walk
from tilesmith.ir.notes import NOTES, KeepSteps, PassNote, UnrollDepth
from tilesmith.ir.rename import Names, renamed
from tilesmith.schedule.kinds import AutoParallel, AutoVectorize
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


@pytest.mark.parametrize("key", [".hold_result", ".transpose", ".fetch", ".stream", ".step"])
def test_notes_of_passes_cannot_be_set(key):
    refuse(matmul_relu(), lambda s: s.annotate("C.k", key, 1), f"{key} on loop C.k", "dot")
    refuse(matmul_relu(), lambda s: s.annotate("C.k", KeepSteps()), ".step on loop C.k", "dot")


@pytest.mark.parametrize("key", ["hint", "transpose", "step", "cooperative"])
def test_an_unknown_note_is_an_error(key):
    refuse(
        matmul_relu(), lambda s: s.annotate("C.k", key, 1),
        f"unknown note {key!r} on loop C.k", "known are cluster, fetch_ahead", "ts.Note",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Swizzle(ts.Note):
    """A note of a user's own, with a buffer, a number that may be open, and text."""

    key: ClassVar[str] = "swizzle"
    buffer: str
    bits: int | str
    pattern: str = "xor"


def swizzled() -> Schedule:
    sch = Schedule(matmul_relu())
    sch.annotate("C.k", Swizzle("A", "#bits"))
    return sch


def test_a_note_of_a_users_own_is_stored_and_read_with_its_class():
    sch, parts = swizzled(), ts.Parts(notes=(Swizzle,))
    (loop,) = (f for path, _ in walk(sch.func.body) for f in path if f.notes)
    assert loop.note(Swizzle) == Swizzle("A", "#bits")
    assert "# swizzle=('A', '#bits', 'xor')" in str(sch.func)
    trace, func = sch.trace.to_json(), ts.function_to_json(sch.func)
    assert Trace.from_json(trace, parts) == sch.trace
    assert ts.function_from_json(func, notes=parts.all_notes) == sch.func
    with pytest.raises(ts.TraceError, match=r"unknown note 'swizzle'; known are cluster, .*Parts"):
        Trace.from_json(trace)
    with pytest.raises(ts.TraceError, match=r"unknown note 'swizzle'; known are cluster, .*Parts"):
        ts.function_from_json(func)
    with pytest.raises(ts.TraceError, match=r"annotate: swizzle is \(buffer, bits, pattern\)"):
        Trace.from_json(trace.replace(', "xor"', ""), parts)


def test_the_fields_of_a_users_note_are_decided_and_renamed():
    sch = swizzled()
    (decided,) = sch.trace.decide({"#bits": 3}).steps
    assert decided.values_by_name["value"] == ("A", 3, "xor")
    func = ts.instantiate(sch.func, {"bits": 3})
    named = renamed(func, Names(buffers={"A": "left", "xor": "B"}))
    (loop,) = (f for path, _ in walk(named.body) for f in path if f.notes)
    assert loop.notes == (Swizzle("left", 3),)


def test_parts_refuse_what_is_no_new_note():
    for wrong, why in [
        (Swizzle("A", 1), "no note"), (int, "no note"), (ts.Note, "no note"),
        (UnrollDepth, "'unroll_depth' is a built-in one"),
    ]:  # fmt: skip
        with pytest.raises(ts.ArgumentError, match=why):
            ts.Parts(notes=(wrong,))


def test_retired_notes_of_old_records_are_read_again():
    step = ["annotate", {"loop": "C.k", "key": "cooperative", "value": "threadIdx.x"}]
    text = json.dumps({"version": 1, "steps": [step]})
    trace = Trace.from_json(text)
    assert trace.to_json() == text
    func = trace.apply(matmul_relu())
    assert ts.function_from_json(ts.function_to_json(func)) == func


@pytest.mark.parametrize("kind", NOTES, ids=lambda kind: kind.key)
def test_each_note_says_who_writes_and_reads_it(kind):
    assert re.search(r"[Ww]ritten by .*read by\s", kind.__doc__, re.DOTALL)
    assert issubclass(kind, PassNote) == kind.key.startswith(".")


@pytest.mark.parametrize("key", ["hold", "pipeline", "fetch_width", "resident", "in_flight"])
def test_notes_for_another_target_change_nothing(key):
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
