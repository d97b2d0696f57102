"""Correct candidates: checks, equal code, layouts, threads, steps that workers cannot import."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import planted
import pytest

import tilesmith as ts
from tilesmith.codegen.llvm.compiler import host_cpu
from tilesmith.ir.function import Function
from tilesmith.measure.local import LocalRun
from tilesmith.measure.parent.timing import TimingRules
from tilesmith.measure.this_machine import difference, share_out, to_probe
from tilesmith.schedule.step import Step
from tilesmith.task.task import Candidate, Task


def matmul_task(n: int = 32, dtype: str = "float32", num_cores: int = 1) -> Task:
    a, b = ts.placeholder((n, n), dtype, name="A"), ts.placeholder((n, n), dtype, name="B")
    c = ts.ops.matmul(a, b)
    return Task(ts.function([a, b, c], name="product"), ts.cpu(num_cores))


@pytest.fixture(scope="module")
def run() -> Iterator[LocalRun]:
    """For tests that need nothing of their own: it measures candidates of any task."""
    with ts.LocalMeasurer(confirm=False).open(planted.task()) as opened:
        yield opened


def test_equal_code_is_measured_once() -> None:
    task = planted.task()
    plain = planted.good(8)
    noted = Candidate(task, ts.Trace((*plain.trace.steps, Note("x"))))
    with ts.LocalMeasurer().open(task) as run:
        first, second = run.measure([plain, noted])
        (third,) = run.measure([Candidate(task, ts.Trace((*plain.trace.steps, Note("y"))))])
    assert first.seconds == second.seconds == third.seconds
    assert second.candidate == noted


@dataclass(frozen=True, slots=True)
class Note(Step):
    """Changes nothing."""

    name: ClassVar[str] = "note"
    text: str

    def apply(self, func: Function) -> Function:
        return func


def test_steps_that_only_this_process_knows(run: LocalRun) -> None:
    @dataclass(frozen=True, slots=True)
    class Hidden(Step):
        name: ClassVar[str] = "hidden"
        fails: bool

        def apply(self, func: Function) -> Function:
            if self.fails:
                raise ValueError("first\nsecond")
            return func

    task = planted.task()
    candidates = [Candidate(task, ts.Trace((Hidden(fails),))) for fails in (False, True)]
    good, bad = run.measure(candidates)
    assert good.seconds
    assert bad.failure is not None
    assert (bad.failure.kind, bad.failure.text) == ("schedule", "ValueError: first")


def test_parameters_in_another_layout(run: LocalRun) -> None:
    task = matmul_task(20)
    sch = ts.Schedule(task.func)
    sch.transform_layout("B", lambda i, j: [j // 8, i, j % 8])
    relaid = Candidate(task, sch.trace)
    measured = run.measure([relaid, Candidate(task, ts.Trace())])
    assert [m.failure for m in measured] == [None, None]


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int8", "int32"])
def test_element_types(run: LocalRun, dtype: str) -> None:
    task = matmul_task(33, dtype)
    (m,) = run.measure([Candidate(task, ts.Trace())])
    assert m.failure is None


def test_threads() -> None:
    task = matmul_task(64, num_cores=min(2, ts.cpu().num_cores))
    out = task.func.outputs[0].name
    sch = ts.Schedule(task.func)
    sch.parallel(sch.loops(out)[0])
    with ts.LocalMeasurer().open(task) as run:
        measured = run.measure([Candidate(task, sch.trace), Candidate(task, ts.Trace())])
        assert all(m.seconds for m in measured)
        (again,) = run.measure([planted.good(4)])  # another task, on one core
        assert again.seconds


def test_roots_and_logarithms_get_numbers_they_can_take(run: LocalRun) -> None:
    x = ts.placeholder((50,), name="X")
    y = ts.compute((50,), lambda i: ts.log(x[i]) + ts.rsqrt(x[i]), name="Y")
    task = Task(ts.function([x, y], name="roots"), ts.cpu(1))
    (m,) = run.measure([Candidate(task, ts.Trace())])
    assert m.seconds


def test_integers_that_index_stay_inside(run: LocalRun) -> None:
    table, ids = ts.placeholder((7, 5), name="T"), ts.placeholder((9,), "int32", name="I")
    y = ts.compute((9, 5), lambda i, j: table[ids[i], j], name="Y")
    task = Task(ts.function([table, ids, y], name="rows"), ts.cpu(1))
    (m,) = run.measure([Candidate(task, ts.Trace())])
    assert m.seconds


HERE = ts.cpu()
OTHER_ARCH = "haswell" if HERE.arch == "aarch64" else "cortex-a53"
ELSEWHERE = [
    (ts.Target.named(OTHER_ARCH), "the architectures differ"),
    (replace(HERE, model="Other 9000"), "the models differ [(]Other 9000, "),
    (replace(HERE, cpu="other-9000", model=""), "the processors differ [(]other-9000, "),
    (replace(HERE, features=HERE.features | {"antigravity"}), "has no antigravity"),
    (HERE.with_cores(4096), "has 4096 cores, and this process may use"),
]


@pytest.mark.parametrize(("target", "why"), ELSEWHERE)
def test_targets_that_are_elsewhere_are_refused(run: LocalRun, target: ts.Target, why: str) -> None:
    task = Task(planted.task().func, target)
    with pytest.raises(ts.MeasureError, match=f"on this machine .*{HERE.arch}.*{why}"):
        ts.LocalMeasurer().open(task)
    with pytest.raises(ts.MeasureError, match=why):
        run.measure([Candidate(task, ts.Trace())])


def test_a_gpu_that_is_not_here_is_refused() -> None:
    task = Task(planted.task().func, replace(ts.Target.named("nvidia-v100"), model="Pretend 9"))
    with pytest.raises(ts.MeasureError, match=r"the target is Pretend 9 \(sm_70\)"):
        ts.LocalMeasurer().open(task)


@pytest.mark.parametrize("name", ["cortex-a53", "skylake-avx512"])
def test_tune_stores_nothing_for_a_machine_that_is_elsewhere(name: str, tmp_path: Path) -> None:
    if difference(ts.Target.named(name).with_cores(1), HERE) is None:
        pytest.skip(f"this is a {name}")
    with ts.open_database(tmp_path / "t.db") as db:
        with pytest.raises(ts.MeasureError, match="on this machine"):
            ts.tune(
                planted.task().func, ts.Target.named(name), budget=ts.Budget(trials=4),
                database=db, quiet=True,
            )  # fmt: skip
        assert db.count() == 0


def test_targets_that_are_this_machine() -> None:
    fewer = replace(HERE, features=frozenset(list(HERE.features)[1:]), num_cores=1)
    named = replace(HERE, cpu=host_cpu(), model="", num_cores=1)
    for target in (HERE, HERE.with_cores(1), fewer, named):
        assert difference(target, HERE) is None
    task = Task(planted.task().func, named)
    with ts.LocalMeasurer().open(task) as run:
        (m,) = run.measure([Candidate(task, ts.Trace())])
    assert m.seconds


def test_best_is_the_incumbent() -> None:
    task = planted.task()
    with ts.LocalMeasurer(rules=TimingRules(margin=0.0)).open(task) as run:
        assert run.best(task) is None
        measured = run.measure([planted.good(n) for n in (1, 3, 8)])
        best = run.best(task)
    assert best is not None
    assert best in measured


def test_cold_caches() -> None:
    task = planted.task()
    with ts.LocalMeasurer(cold=True).open(task) as run:
        measured = run.measure([planted.good(4), planted.good(8)])
    assert all(m.seconds for m in measured)


def test_cores_are_shared_out() -> None:
    assert share_out(1, {0}, {}).free == ()
    both = share_out(2, {0, 1}, {})
    assert (both.run, both.free) == ((0, 1), ())
    assert set(share_out(3, {0, 1}, {}).all) == {0, 1}
    assert to_probe(2, {0, 1}) == []
    assert to_probe(1, {0, 1}) == [0, 1]
    cores = {9000, 9001, 9002, 9003}  # without siblings in /sys
    quiet = share_out(1, cores, {9000: 1.0, 9001: 1.01, 9002: 1.8, 9003: 1.2})
    assert (quiet.run, quiet.free) == ((9001,), (9000, 9002, 9003))
    assert share_out(3, cores, {9002: 2.0}).run == (9001, 9002, 9003)
