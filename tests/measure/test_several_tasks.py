"""One run measures candidates of several tasks by turns: inputs and expected outputs of each are
made once and kept, up to a bound on their memory.
"""

from __future__ import annotations

from pathlib import Path

import planted
import pytest

import tilesmith as ts
from tilesmith.measure.local import LocalRun
from tilesmith.task.inputs import kept_nbytes
from tilesmith.task.task import Candidate, Task

MIB = 1 << 20


def product(n: int) -> Task:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    return Task(ts.function([a, b, ts.ops.matmul(a, b, name="C")], name=f"product{n}"), ts.cpu(1))


def doubled(nbytes: int, factor: int = 2, name: str = "X") -> Task:
    """Its input and its output take `nbytes` together."""
    n = nbytes // 8
    x = ts.placeholder((n,), name=name)
    y = ts.compute((n,), lambda i: x[i] * factor, name="Y")
    return Task(ts.function([x, y], name=f"times{factor}"), ts.cpu(1))


def tiled(task: Task, part: int) -> Candidate:
    sch = ts.Schedule(task.func)
    out = task.func.outputs[0].name
    sch.split(sch.loops(out)[0], [None, part])
    return Candidate(task, sch.trace)


def shared_memory(run: LocalRun) -> list[tuple[int, int]]:
    """Begins and ends of the memory that the fork server shares with its workers."""
    server = run._pool.fork_server
    assert server is not None
    lines = Path(f"/proc/{server.pid}/maps").read_text().splitlines()
    spans = [x.split()[0].split("-") for x in lines if "/dev/zero" in x]  # anonymous, but shared
    return [(int(low, 16), int(high, 16)) for low, high in spans]


def test_alternating_tasks_are_evaluated_once_each() -> None:
    tasks = [product(24), planted.task()]
    with ts.LocalMeasurer().open(tasks[0]) as run:
        for part in (2, 3, 4):
            for task in tasks:
                batch = [tiled(task, part), tiled(task, part + 8)]
                measured = run.measure(batch)
                assert [m.candidate for m in measured] == batch
                assert all(m.seconds for m in measured), measured
        # Results are still compared with those of the right task.
        (wrong,) = run.measure([planted.bad("lie", tasks[1])])
        assert wrong.failure is not None
        assert wrong.failure.kind == "wrong"
        assert "of 1000 elements" in wrong.failure.text
        assert run.spent.evaluations == 2
        for task in tasks:
            best = run.best(task)
            assert best is not None
            assert best.candidate.task == task


def test_a_batch_of_several_tasks_is_evaluated_once_each() -> None:
    tasks = [product(n) for n in (8, 12, 16)]
    with ts.LocalMeasurer().open(tasks[0]) as run:
        for part in (2, 4):
            batch = [tiled(t, part) for t in tasks]
            measured = run.measure(batch)
            assert [m.candidate for m in measured] == batch
            assert all(m.seconds for m in measured)
        assert run.spent.evaluations == 3


def test_the_task_used_longest_ago_is_dropped_when_memory_runs_out() -> None:
    a, b, c = (doubled(MIB, k) for k in (2, 3, 4))
    each = kept_nbytes(a.func)
    with ts.LocalMeasurer(arrays_nbytes=2 * each).open(a) as run:
        counts, held = [], []
        for task in (a, b, a, c, a, b):
            (m,) = run.measure([tiled(task, 5 + len(counts))])
            assert m.seconds
            counts.append(run.spent.evaluations)
            held.append(sum(high - low for low, high in shared_memory(run)))
        assert counts == [1, 2, 2, 3, 3, 4]  # c took the place of b
        assert held[1] == held[0] + each
        assert max(held) == held[1]


def test_the_task_being_measured_is_kept_whatever_it_takes() -> None:
    a, b = doubled(MIB, 2), doubled(MIB, 3)
    with ts.LocalMeasurer(arrays_nbytes=0).open(a) as run:
        for task in (a, a, b, a):
            (m,) = run.measure([tiled(task, 4)])
            assert m.seconds
        assert run.spent.evaluations == 3


def test_tasks_that_differ_in_names_only_do_not_meet() -> None:
    """They have one key, but the kernel of one has other parameters than that of the other."""
    a, b = doubled(4000, name="X"), doubled(4000, name="U")
    assert a.key == b.key
    with ts.LocalMeasurer().open(a) as run:
        (first,) = run.measure([tiled(a, 4)])
        (second,) = run.measure([tiled(b, 8)])
        assert first.seconds
        assert second.seconds
        assert run.best(a) == first
        assert run.best(b) == second


def test_kernels_cannot_change_the_arrays_of_another_task() -> None:
    """All workers are forked from one process, so they share memory at the same addresses."""
    first, second = doubled(MIB), planted.task()
    with ts.LocalMeasurer().open(first) as run:
        run.measure([tiled(first, 4)])
        run.measure([planted.good(4, second)])
        (begin,) = (low for low, high in shared_memory(run) if high - low >= MIB)
        for address in (begin, begin + MIB // 2):  # of the input, of the expected output
            (m,) = run.measure([planted.poke(address, second)])
            assert m.failure is not None
            assert m.failure.kind == "crash"
            assert f"{address:#x}" in m.failure.text
        (m,) = run.measure([tiled(first, 8)])
        assert m.seconds
        assert run.spent.evaluations == 2


@pytest.mark.parametrize("order", [(0, 1, 0), (1, 0, 1)])
def test_measuring_goes_on_after_the_processes_were_lost(order: tuple[int, ...]) -> None:
    tasks = [product(8), planted.task()]
    with ts.LocalMeasurer().open(tasks[0]) as run:
        for k in order:
            (m,) = run.measure([tiled(tasks[k], 2)])
            assert m.seconds
        server = run._pool.fork_server
        assert server is not None
        server.kill()
        for k in order:
            (m,) = run.measure([tiled(tasks[k], 4)])
            assert m.seconds
        assert run.spent.evaluations == 4
