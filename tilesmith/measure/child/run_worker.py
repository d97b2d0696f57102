"""The run worker: checks the results of kernels and times them, on the device that its KernelRunner
is for.

It runs machine code that may crash. Before each call it writes into a report which kernel will run;
the fork server reads the report if the worker dies.
"""

from __future__ import annotations

from typing import Protocol

from tilesmith.base.errors import DeviceError
from tilesmith.measure.child.fault_handler import Report
from tilesmith.measure.messages import Broken, Built, Check, Drop, Load, Sample, Time, Verify
from tilesmith.runtime.devices.cuda_driver import ADDRESS_FAULTS
from tilesmith.task.task import Failure
from tilesmith.workers.wire import Channel


class KernelRunner(Protocol):
    """What is particular to a device. Kernels are known by slot number. A DeviceError of the kind
    "fault" means that the device runs nothing any more in this process.
    """

    def load(self, slot: int, built: Built) -> Failure | None: ...

    def check(self, slot: int) -> float | Failure:
        """The seconds of a first call, if its results were right."""

    def verify(self, slot: int, calls: int, timed: bool) -> Failure | None:
        """Whether so many calls give the right results, and those `timed` just before."""

    def time(self, slot: int, calls: int) -> Sample: ...

    def drop(self, slot: int) -> None: ...


def serve(runner: KernelRunner, report: Report, channel: Channel) -> None:
    while True:
        message = channel.receive()
        running = getattr(message, "slot", 0)
        report.set_slot(running)
        answer: object = None
        try:
            match message:
                case Load(slot=slot, built=built):
                    answer = runner.load(slot, built)
                case Check(slot=slot):
                    answer = runner.check(slot)
                case Verify(slot=slot, calls=calls, timed=timed):
                    answer = runner.verify(slot, calls, timed)
                case Time(order=order):
                    samples = []
                    for running, calls in order:
                        report.set_slot(running)
                        samples.append(runner.time(running, calls))
                    answer = samples
                case Drop(slots=slots):
                    for slot in slots:
                        runner.drop(slot)
        except DeviceError as error:
            channel.send(Broken(running, failure_of(error)))
            return
        channel.send(answer)
        report.set_slot(0)  # a worker that is ended while idle ran no kernel


def failure_of(error: DeviceError) -> Failure:
    text = str(error)
    if error.kind == "memory":
        return Failure("memory", text)
    if error.kind == "refused":
        return Failure("build", text)
    kind = "bounds" if text.startswith(ADDRESS_FAULTS) else "crash"
    return Failure(kind, text)
