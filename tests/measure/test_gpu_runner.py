"""The run worker of a GPU on a pretended CUDA driver: what it checks, how it times, and what it
answers when the device fails.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import planted
import pytest

import tilesmith as ts
from tilesmith.codegen.artifact import Artifact, Entry, Launch, parameters_of
from tilesmith.measure.child import run_worker
from tilesmith.measure.child.gpu_runner import GpuRunner
from tilesmith.measure.child.task_arrays import TaskArrays
from tilesmith.measure.messages import Broken, Built, Check, Drop, Load, Time
from tilesmith.runtime.devices.cuda import CudaDevice
from tilesmith.task.task import Failure
from tilesmith.workers.wire import Gone

sys.path.append(str(Path(__file__).parents[1] / "runtime"))
from fake_cuda import FakeCuda, floats

N = planted.N


def right(x: int, y: int) -> None:
    floats(y, N)[:] = 2 * floats(x, N) + 1


def lie(x: int, y: int) -> None:
    right(x, y)
    floats(y, N)[7] = 3


def past(x: int, y: int) -> None:
    right(x, y)
    floats(y, N + 1)[N] = 3


def before(x: int, y: int) -> None:
    right(x, y)
    floats(y - 4, 1)[0] = 3


def into_the_input(x: int, y: int) -> None:
    lie(x, y)
    floats(x, N)[3] = 9


FUNCTIONS = {f.__name__: f for f in (right, lie, past, before, into_the_input)}


class Report:
    """Notes which kernel ran last."""

    def __init__(self) -> None:
        self.slots: list[int] = []

    def set_slot(self, slot: int) -> None:
        self.slots.append(slot)


class Messages:
    """A channel that has all its messages ahead."""

    def __init__(self, *messages: Any) -> None:
        self.messages, self.answers = [*messages], list[Any]()

    def receive(self) -> Any:
        if not self.messages:
            raise Gone("closed")
        return self.messages.pop(0)

    def send(self, answer: Any) -> None:
        self.answers.append(answer)


class Worker:
    def __init__(self, cold: bool = False) -> None:
        self.driver = FakeCuda(dict(FUNCTIONS))
        self.device = CudaDevice(self.driver, 0)
        self.func = planted.task().func
        arrays = TaskArrays(self.func)
        assert arrays.fill(0) is None
        self.runner = GpuRunner(arrays, self.device, cold)
        self.report = Report()

    def built(self, symbol: str, shared_nbytes: int = 0) -> Built:
        launch = Launch(symbol, 16, 64, ("X", "Y"), shared_nbytes)
        entry = Entry("double", "double", parameters_of(self.func), launches=(launch,))
        artifact = Artifact("double", self.device.target, (entry,), "", b"code", language="cuda")
        return Built(artifact, self.func.params, 0.0)

    def ask(self, *messages: Any) -> list[Any]:
        channel = Messages(*messages)
        try:
            run_worker.serve(self.runner, self.report, channel)  # type: ignore[arg-type]
        except Gone:
            return channel.answers
        return [*channel.answers, "ended"]


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_a_right_kernel_is_timed_in_graphs(worker: Worker) -> None:
    loaded, first, samples, dropped = worker.ask(
        Load(1, worker.built("right")), Check(1), Time(((1, 1), (1, 100), (1, 100))), Drop((1,))
    )
    assert (loaded, dropped) == (None, None)
    assert first == pytest.approx(1e-5)
    assert [s.seconds for s in samples] == pytest.approx([1e-5] * 3)
    graphs = [c for c in worker.driver.calls if c[0] == "graph"]
    assert graphs == [("graph", 34)]  # three runs of 34 calls are 100, and it is kept
    assert len([c for c in worker.driver.calls if c[0] == "launch graph"]) == 7
    assert ("unload",) in worker.driver.calls
    assert worker.report.slots[-1] == 0


@pytest.mark.parametrize(
    ("symbol", "kind", "text"),
    [
        ("lie", "wrong", "Y[7] is 3.0"),
        ("past", "bounds", "wrote past the end of Y"),
        ("before", "bounds", "wrote before the begin of Y"),
    ],
)
def test_wrong_kernels_are_failures(worker: Worker, symbol: str, kind: str, text: str) -> None:
    _, answer = worker.ask(Load(1, worker.built(symbol)), Check(1))
    assert isinstance(answer, Failure)
    assert answer.kind == kind
    assert text in answer.text


def test_what_a_bad_kernel_wrote_is_undone(worker: Worker) -> None:
    loads = [Load(k, worker.built(s)) for k, s in enumerate(("into_the_input", "past", "right"))]
    answers = worker.ask(*loads, Check(0), Check(2), Check(1), Check(2))[3:]
    assert [isinstance(a, Failure) for a in answers] == [True, False, True, False]


def test_a_fault_ends_the_worker(worker: Worker) -> None:
    worker.driver.fail = ts.DeviceError("CUDA_ERROR_ILLEGAL_ADDRESS (...) from cuEvent", "fault")
    worker.driver.fail_when = "wait"
    loaded, broken, ended = worker.ask(Load(5, worker.built("right")), Check(5))
    assert loaded is None
    assert broken == Broken(5, Failure("bounds", str(worker.driver.fail)))
    assert ended == "ended"


def test_what_the_device_refuses_is_a_failure_to_build(worker: Worker) -> None:
    (answer, other) = worker.ask(
        Load(1, worker.built("right", shared_nbytes=1 << 20)), Load(2, worker.built("right"))
    )
    assert isinstance(answer, Failure)
    assert (answer.kind, other) == ("build", None)


def test_cold_calls_rotate_between_buffers() -> None:
    worker = Worker(cold=True)
    _, first, (sample,) = worker.ask(Load(1, worker.built("right")), Check(1), Time(((1, 60),)))
    assert isinstance(first, float)
    assert sample.seconds == pytest.approx(1e-5)
    assert ("graph", 40) in worker.driver.calls
    assert len([c for c in worker.driver.calls if c[0] == "copy"]) == 40  # inputs of 40 sets
    assert ("free",) not in worker.driver.calls  # the sets are used as long as the kernel is
