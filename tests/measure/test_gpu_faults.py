"""GPU candidates that fail become Failures, and the next one is measured: on PoCL, which runs
OpenCL kernels on the processor.
"""

from __future__ import annotations

import os
import re
import signal
from dataclasses import replace

import planted_gpu
import pytest

import tilesmith as ts
from tilesmith.measure.parent.timing import TimingRules

QUICK = TimingRules(min_seconds=0.0, confirm_rounds=2, rounds=1)


@pytest.fixture(autouse=True)
def _needs_a_device() -> None:
    try:
        ts.opencl()
    except ts.TargetError as error:
        pytest.skip(str(error))


def measurer(**settings: object) -> ts.LocalMeasurer:
    return ts.LocalMeasurer(rules=QUICK, timeout=8.0, **settings)


def test_faults_are_failures_and_the_rest_is_measured() -> None:
    wanted = {
        "lie": ("wrong", r"Y\[7\] is 3.0"),
        "write past": ("bounds", "wrote past the end of Y"),
        "nonsense": ("build", "OpenCL"),
        "wide": ("build", "1048576 threads in a block"),
        "raise": ("build", "KeyError: 'what the builder says'"),
        "segfault": ("crash", "SIGSEGV"),
        "hang": ("timeout", "no answer after"),
    }
    of = planted_gpu.task()
    faults = [planted_gpu.bad(fault, of) for fault in wanted]
    candidates = [planted_gpu.good(32, of), *faults, planted_gpu.good(40, of)]
    with measurer().open(of) as run:
        measured = run.measure(candidates)
        best = run.best(of)
    by_key = {m.candidate.key: m for m in measured}
    assert len(by_key) == len(candidates)
    for c in candidates:
        (step,) = c.trace
        fault = step.fault
        failure = by_key[c.key].failure
        if fault.startswith("threads"):
            assert failure is None, fault
            assert all(s > 0 for s in by_key[c.key].seconds)
            assert by_key[c.key].references
        else:
            kind, text = wanted[fault]
            assert failure is not None, fault
            assert failure.kind == kind, (fault, failure)
            assert re.search(text, failure.text), (fault, failure)
    assert best is not None


def test_the_slower_one_does_not_win_and_a_killed_worker_is_replaced() -> None:
    of = planted_gpu.task()
    slow, quick = planted_gpu.bad("slow", of), planted_gpu.good(32, of)
    with measurer().open(of) as run:
        first, second = run.measure([slow, quick])
        assert first.failure is None
        assert second.failure is None
        assert first.cost > second.cost
        best = run.best(of)
        assert best is not None
        assert best.candidate == quick
        os.kill(run._pool._tasks[of.statement].runner._worker.pid, signal.SIGKILL)
        (third,) = run.measure([planted_gpu.good(33, of)])
        assert third.failure is None


def test_buffers_rotate_with_cold_caches() -> None:
    of = planted_gpu.task()
    with measurer(cold=True).open(of) as run:
        (m,) = run.measure([planted_gpu.good(32, of)])
    assert m.failure is None
    assert all(s > 0 for s in m.seconds)


def test_targets_of_other_machines_are_refused() -> None:
    of = planted_gpu.task()
    other = ts.Task(of.func, replace(of.target, model="another one"))
    with pytest.raises(ts.MeasureError, match=r"the target is another one.*Tune for ts.opencl"):
        ts.LocalMeasurer().open(other)
