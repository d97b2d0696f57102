"""Contestants run in processes of their own, with their threads and cores set before they start."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.measure.this_machine import usable_cores
from tilesmith_contest.compare import Contestants, our_contestants
from tilesmith_contest.pairs import Turns
from tilesmith_contest.peer import Contestant
from tilesmith_contest.problems import Array, Plain, Question
from tilesmith_contest.process import ContestantProcess, Make, cores_for


def environment() -> list[Contestant]:
    """What the process was started with, as an answer."""

    def answer() -> Array:
        threads = [int(os.environ[n]) for n in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")]
        return np.array([os.getpid(), *threads, *sorted(os.sched_getaffinity(0))])

    return [Contestant("environment", lambda: None, answer)]


def spinner() -> list[Contestant]:
    """A library whose thread keeps spinning after a call, as OpenMP's do."""

    def spin() -> None:
        while True:
            sum(range(1000))

    threading.Thread(target=spin, daemon=True).start()
    return [Contestant("spinner", lambda: time.sleep(0.001), lambda: np.zeros(1))]


def two_threads() -> list[Contestant]:
    """A library that takes no notice of its number of threads."""

    def work() -> None:
        np.linalg.svd(np.ones((300, 300)))  # leaves Python's lock

    def twice() -> None:
        for t in pool:
            t.go.release()
        for t in pool:
            t.done.acquire()

    pool = [Worker(work) for _ in range(2)]
    return [Contestant("two", twice, lambda: np.zeros(1))]


class Worker:
    def __init__(self, work: object) -> None:
        self.go, self.done = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._loop, args=(work,), daemon=True).start()

    def _loop(self, work: object) -> None:
        while True:
            self.go.acquire()
            work()  # type: ignore[operator]
            self.done.release()


def suicide() -> list[Contestant]:
    def run() -> None:
        print("the last words")
        os.kill(os.getpid(), signal.SIGKILL)

    return [Contestant("suicide", run, lambda: np.zeros(1))]


def broken() -> list[Contestant]:
    raise ValueError("no such convolution")


def test_threads_and_cores_are_set_before_it_starts() -> None:
    cores = cores_for(1)
    with ContestantProcess("a library", cores) as p:
        assert p.make(Make(environment)) == ["environment"]
        pid, omp, blas, *where = p.answer("environment").tolist()
    assert pid != os.getpid()
    assert (omp, blas) == (1, 1)
    assert where == cores
    with pytest.raises(ts.MeasureError, match="threads do not fit"):
        cores_for(len(usable_cores()) + 1)


def processor_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_process_is_stopped_while_others_run() -> None:
    with ContestantProcess("a library", cores_for(1)) as p:
        p.make(Make(spinner))
        timing = p.sampler("spinner")(3)
        assert timing.seconds >= 0.001
        pid = p._process.pid
        before = processor_seconds(pid)
        time.sleep(0.3)
        assert processor_seconds(pid) - before <= 0.02  # one tick may be under way
        p.sampler("spinner")(100)
        assert processor_seconds(pid) - before > 0.02


def test_threads_that_work_are_counted() -> None:
    with ContestantProcess("a library", cores_for(1)) as p:
        p.make(Make(two_threads))
        p.sampler("two")(20)
        assert p.busy_threads() == 2


def test_a_process_that_dies_or_cannot_says_so_and_starts_again() -> None:
    with ContestantProcess("a library", cores_for(1)) as p:
        with pytest.raises(ts.MeasureError, match="a library: ValueError: no such convolution"):
            p.make(Make(broken))
        p.make(Make(suicide))
        with pytest.raises(ts.MeasureError, match="the process of a library ended"):
            p.sampler("suicide")(1)
        assert p.make(Make(environment)) == ["environment"]


def test_a_contest_of_processes_and_an_answer_that_differs() -> None:
    n = 24
    A, B = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    func = ts.function([A, B, ts.ops.matmul(A, B)], name="matmul")
    kernel = ts.build(func, ts.cpu(1))
    a, b = np.random.default_rng(0).standard_normal((2, n, n), dtype=np.float32)
    question = Question(Plain("matmul", (a, b)), np.asarray)
    turns = Turns(rounds=5, sample_seconds=0.001)
    with Contestants(["numpy"], 1) as contestants:
        result, _ = contestants.contest(kernel.artifact, [a, b], None, question, turns)
        assert result.duels[0].peer == "numpy"
        assert result.ours > 0
        assert set(result.shares) == set(result.disturbance) == {"", "numpy"}
        wrong = Question(Plain("matmul", (a, 2 * b)), np.asarray)
        with pytest.raises(ts.MeasureError, match="ours and numpy: differ by"):
            contestants.contest(kernel.artifact, [a, b], None, wrong, turns)
    (ours,) = our_contestants(kernel.artifact, [a, b], None)
    np.testing.assert_allclose(ours.answer(), a @ b, rtol=1e-4, atol=1e-4)
