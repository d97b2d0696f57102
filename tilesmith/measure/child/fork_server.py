"""The fork server: starts and ends workers on request. Requests come in on a socket; it answers
with process ids of workers, and with Exits that say how they ended.

Everything that workers need is loaded before the first fork.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module

from tilesmith.base.dataclass import dataclass
from tilesmith.base.target import Target, cpu
from tilesmith.codegen.artifact import Artifact
from tilesmith.codegen.llvm.compiler import compile_ir
from tilesmith.codegen.llvm.emit import emit_function
from tilesmith.measure.child import build_worker, fault_handler, run_worker
from tilesmith.measure.child.cpu_runner import CpuRunner, allocators
from tilesmith.measure.child.fault_handler import Report
from tilesmith.measure.child.gpu_runner import GpuRunner
from tilesmith.measure.child.reference_kernel import reference_source
from tilesmith.measure.child.shared_code import SharedCode
from tilesmith.measure.child.task_arrays import TaskArrays, ways_of
from tilesmith.measure.messages import Discard, Exit, Preload, Prepare, SpawnBuilder, SpawnRunner
from tilesmith.runtime.devices.open import open_device
from tilesmith.runtime.loader import Library, pool
from tilesmith.workers.child import Forks, serve
from tilesmith.workers.pool import Limits, Reap
from tilesmith.workers.wire import Channel, Gone

Work = Callable[[Channel, Report], None]

# Builders take all cores. The search, the oracle and the process that feeds a GPU go first: if they
# are late, builders have nothing to do.
_NICENESS = 5
_emit = emit_function  # imported so that it is loaded before workers are forked


@dataclass(frozen=True, slots=True)
class _Task:
    """The data with which run workers of a task start."""

    target: Target
    arrays: TaskArrays
    reference: Artifact | None  # of a CPU; the parent loads that of a GPU
    cold_nbytes: int  # bytes to read to flush the caches


class ForkServer:
    def __init__(self, control: Channel) -> None:
        self._forks: Forks[Exit] = Forks(control)
        self._tasks: dict[str, _Task] = {}
        self._code = SharedCode()
        pool()
        artifact = compile_ir("fault_handler", fault_handler.SOURCE, cpu(), ())
        self._faults = Library("fault_handler", artifact.code, fault_handler.EXPORTS, {})

    def answer(self, message: object, fds: list[int]) -> int | Exit | None:
        match message:
            case Preload(kind=kind):
                _preload(kind)
            case Prepare():
                return self._prepare(message, fds[0])
            case Discard(task=task):
                self._tasks.pop(task).arrays.close()
            case SpawnBuilder(limits=limits):
                return self._fork(fds[0], limits, self._build)
            case SpawnRunner():
                return self._spawn_runner(message, fds[0])
            case Reap(pid=pid, kill=kill):
                return self._forks.reap(pid, kill)
        return None

    def close(self) -> None:
        self._forks.close()

    def _build(self, channel: Channel, report: Report) -> None:
        os.nice(_NICENESS)
        build_worker.serve(channel, self._code)

    def _prepare(self, message: Prepare, fd: int) -> int:
        func, target = message.func, message.target
        reference = None
        if target.kind == "cpu":
            host = cpu().with_cores(target.num_cores)
            source, threaded = reference_source(host), host.num_cores > 1
            reference = compile_ir("reference", source, host, (), 0, threaded)
        arrays = TaskArrays(func, ways_of(func, target))
        cold_nbytes = 2 * max(target.l3_nbytes, target.l2_nbytes)
        self._tasks[message.task] = _Task(target, arrays, reference, cold_nbytes)
        seed = int(func.digest[:8], 16)
        return self._fork(fd, message.limits, lambda c, _: c.send(arrays.fill(seed)))

    def _spawn_runner(self, message: SpawnRunner, fd: int) -> int:
        task = self._tasks[message.task]
        cold_nbytes = task.cold_nbytes if message.cold else 0

        def run_on_gpu(channel: Channel, report: Report) -> None:
            os.environ["CUDA_MODULE_LOADING"] = "EAGER"  # not at the first launch, which is timed
            gpu = GpuRunner(task.arrays, open_device(task.target), message.cold)
            run_worker.serve(gpu, report, channel)

        def run(channel: Channel, report: Report) -> None:
            addresses = self._faults.addresses
            report_to = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(addresses[fault_handler.REPORT_TO])
            report_to(report.address)
            fault_handler.install(addresses[fault_handler.FAULT])
            for t in self._tasks.values():  # all tasks, because processes share their memory
                t.arrays.protect()
            imports = allocators(addresses)
            assert task.reference is not None
            runner = CpuRunner(task.arrays, task.reference, report, imports, cold_nbytes)
            run_worker.serve(runner, report, channel)

        return self._fork(fd, message.limits, run if task.target.kind == "cpu" else run_on_gpu)

    def _fork(self, fd: int, limits: Limits, work: Work) -> int:
        report = Report()
        return self._forks.fork(fd, limits, lambda channel: work(channel, report), report.ended)


def _preload(kind: str) -> None:
    """Importing starts no threads and opens no device: both would be lost in a fork."""
    modules = {"cuda": ("cuda.bindings.nvrtc",), "opencl": ("pyopencl",)}
    for name in modules.get(kind, ()):
        with suppress(ImportError):  # whoever needs it says what is missing
            import_module(name)


def main(control: Channel) -> None:
    server = ForkServer(control)
    gc.collect()
    gc.freeze()  # so that a collection in a child does not copy the pages of this process
    with suppress(Gone):  # the parent may end before it asks for anything
        control.send(os.getpid())
        serve(control, server.answer)
    server.close()
