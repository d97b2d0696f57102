"""Kernels are built while the oracle evaluates a task, if that takes long."""

from __future__ import annotations

import threading
from typing import Any

import planted
import pytest
from test_slow_builds import Workers, jobs

import tilesmith as ts
from tilesmith.base.errors import MeasureError
from tilesmith.measure.messages import Exit, Prepare
from tilesmith.measure.parent import worker_pool
from tilesmith.measure.parent.build_and_run import Builders, Runner
from tilesmith.task.task import Task
from tilesmith.workers.pool import Worker
from tilesmith.workers.wire import Channel, pair


class Server(Workers):
    """Its oracle answers when the test says so."""

    def start(self, message: Any) -> Worker:
        if not isinstance(message, Prepare):
            return super().start(message)
        ours, theirs = pair()
        self.oracle = Channel(theirs)
        return Worker(99, ours)

    def reap(self, worker: Worker, kill: bool = False) -> Exit:
        assert worker.pid == 99, f"worker {worker.pid} was ended"
        return Exit(0, True)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(worker_pool, "ForkServer", lambda module: Server())
    return Server()


def pool() -> worker_pool.WorkerPool:
    return worker_pool.WorkerPool(60.0, 0, 0, False, (0, 1))


def evaluate(server: Any, builders: Builders, wanted: dict[str, Any]) -> None:
    workers, task = pool(), planted.task()
    workers._builders = builders
    workers._begin(server, task, {})
    workers._evaluate(server, builders, task, wanted, float("inf"))


def test_kernels_are_built_while_the_oracle_works(server: Any) -> None:
    builders = Builders(server, (0, 1), 60.0, 0)
    built: list[str] = []

    def work() -> None:
        """The oracle answers only after two kernels were built, and two more were begun."""
        for number in (0, 1):
            built.append(server.answer(number))
        begun = [(end, end.receive()) for end in server.ends[:2]]
        server.oracle.send(None)
        for end, job in begun:
            end.send(job)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    wanted = jobs("a", "b", "c", "d", "e")
    evaluate(server, builders, wanted)
    thread.join(300)
    assert sorted(built) == ["a", "b"]
    assert not builders.channels  # on the processor, cores are chosen by timing: none builds
    builders.want(wanted)
    done = [taken[0] for _ in range(4) if (taken := builders.take(60)) is not None]
    assert sorted(done) == ["a", "b", "c", "d"]


def test_nothing_is_built_beside_an_oracle_that_is_quick(server: Any) -> None:
    builders = Builders(server, (0, 1), 60.0, 0)
    start = server.start

    def at_once(message: Prepare) -> Worker:
        worker: Worker = start(message)
        server.oracle.send(None)
        return worker

    server.start = at_once
    evaluate(server, builders, jobs("a"))
    assert not builders.channels


def test_an_oracle_that_cannot_evaluate_says_why(server: Any) -> None:
    builders = Builders(server, (0, 1), 60.0, 0)
    threading.Thread(
        target=lambda: (server.answer(0), server.oracle.send("no")), daemon=True
    ).start()
    with pytest.raises(MeasureError, match="cannot be evaluated to check kernels: no"):
        evaluate(server, builders, jobs("a"))


def test_the_first_kernels_are_built_beside_what_a_gpu_needs_itself(server: Any) -> None:
    """The reference kernel's build waits until a candidate was begun by the other worker."""
    builders, task = Builders(server, (0, 1), 60.0, 0), planted.task()
    on_gpu = Task(task.func, ts.Target.named("nvidia-h200"))
    begun: list[Any] = []

    def work() -> None:
        begun.append(server.ends[1].receive())
        server.answer(0)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    workers = pool()
    workers._build_reference(builders, on_gpu, jobs("a", "b"))
    thread.join(300)
    built: Any = workers._references[on_gpu.target.fingerprint]
    assert b"build_support" in built.builder
    assert begun == ["a"]
    builders.want(jobs("a", "b"))  # goes on with what was begun
    builders.allow((0, 1), ())
    server.ends[1].send("a")
    assert builders.take(60) == ("a", "a")


def test_a_gpu_is_opened_while_kernels_are_built(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    builders, task = Builders(server, (0, 1), 60.0, 0), planted.task()
    on_gpu = Task(task.func, ts.Target.named("nvidia-h200"))
    workers_of, seen = pool(), list[Any]()
    monkeypatch.setattr(workers_of, "_references", {on_gpu.target.fingerprint: "known"})
    monkeypatch.setattr(Runner, "start", lambda self: seen.append(len(builders.channels)))
    workers_of._start_gpu(server, builders, on_gpu, jobs("a", "b", "c"))
    assert seen == [2]
