"""The fork server: starts and ends workers on request. Requests come in on a socket; it answers
with process ids of workers, and with Exits that say how they ended.

It is started as `python -m tilesmith.measure.child.fork_server FD`. It has one thread and runs no
candidate itself, so forking it is safe and takes milliseconds. Everything that workers need is
loaded before the first fork.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NoReturn

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
from tilesmith.measure.child.task_arrays import TaskArrays
from tilesmith.measure.messages import (
    NO_MEMORY,
    UNLIMITED,
    Discard,
    Exit,
    Limits,
    Preload,
    Prepare,
    Reap,
    SpawnBuilder,
    SpawnRunner,
)
from tilesmith.measure.wire import Channel, Gone, adopt
from tilesmith.runtime.devices.open import open_device
from tilesmith.runtime.loader import Library, pool

Work = Callable[[Channel, Report], None]

_PR_SET_PDEATHSIG = 1
_STDERR_NBYTES = 4096
# Builders take all cores. The search, the oracle and the process that feeds a GPU go first: if they
# are late, builders have nothing to do.
_NICENESS = 5
_emit = emit_function  # imported so that it is loaded before workers are forked


@dataclass(frozen=True, slots=True)
class _Child:
    report: Report
    stderr: int  # descriptor of a file in memory that receives the error stream


@dataclass(frozen=True, slots=True)
class _Task:
    """The data with which run workers of a task start."""

    target: Target
    arrays: TaskArrays
    reference: Artifact | None  # of a CPU; the parent loads that of a GPU
    cold_nbytes: int  # bytes to read to flush the caches


class ForkServer:
    def __init__(self, control: Channel) -> None:
        self._control = control
        self._children: dict[int, _Child] = {}
        self._tasks: dict[str, _Task] = {}
        self._code = SharedCode()
        pool()
        artifact = compile_ir("fault_handler", fault_handler.SOURCE, cpu(), ())
        self._faults = Library("fault_handler", artifact.code, fault_handler.EXPORTS, {})

    def serve(self) -> None:
        parent = os.getppid()
        # Another child of the parent may hold the socket open after the parent has ended. So the
        # parent is checked once a second.
        self._control.sock.settimeout(1.0)
        while True:
            try:
                message, fds = self._control.receive_with_fds()
            except TimeoutError:
                if os.getppid() != parent:
                    return
                continue
            match message:
                case Preload(kind=kind):
                    _preload(kind)
                    self._control.send(None)
                case Prepare():
                    self._control.send(self._prepare(message, fds[0]))
                case Discard(task=task):
                    self._tasks.pop(task).arrays.close()
                    self._control.send(None)
                case SpawnBuilder(limits=limits):
                    self._control.send(self._fork(fds[0], limits, self._build))
                case SpawnRunner():
                    self._control.send(self._spawn_runner(message, fds[0]))
                case Reap():
                    self._control.send(self._reap(message))

    def close(self) -> None:
        for pid in list(self._children):
            self._reap(Reap(pid, True))

    def _build(self, channel: Channel, report: Report) -> None:
        os.nice(_NICENESS)
        build_worker.serve(channel, self._code)

    def _prepare(self, message: Prepare, fd: int) -> int:
        func, target = message.func, message.target
        reference = None
        if target.kind == "cpu":
            host = cpu(target.num_cores)
            source, threaded = reference_source(host), host.num_cores > 1
            reference = compile_ir("reference", source, host, (), 0, threaded)
        arrays = TaskArrays(func)
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
        report, stderr = Report(), os.memfd_create("stderr")
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._control.close()
            os.dup2(stderr, 2)
            _run_child(server, fd, limits, report, work)
        os.close(fd)
        self._children[pid] = _Child(report, stderr)
        return pid

    def _reap(self, message: Reap) -> Exit:
        child = self._children.pop(message.pid)
        # A worker that ends by itself closes its socket shortly before waitpid reports it.
        deadline = time.monotonic() + (0.0 if message.kill else 1.0)
        killed = False
        while (ended := os.waitpid(message.pid, os.WNOHANG))[0] == 0:
            if time.monotonic() >= deadline:
                killed = True
                _kill_group(message.pid)
                ended = os.waitpid(message.pid, 0)
                break
            time.sleep(0.0005)
        status = ended[1]
        # Processes that the worker started may have outlived it.
        _kill_group(message.pid)
        stderr = os.pread(child.stderr, _STDERR_NBYTES, 0).decode(errors="replace")
        os.close(child.stderr)
        end = child.report.read(status, killed, stderr)
        child.report.close()
        return end


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _run_child(server: int, fd: int, limits: Limits, report: Report, work: Work) -> NoReturn:
    """The worker's code from the fork to its exit."""
    status = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:  # the server ended before prctl was called
            os._exit(1)
        os.setsid()
        with suppress(OSError):  # cores may be offline now
            os.sched_setaffinity(0, limits.cores)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if limits.nbytes != UNLIMITED:
            # RLIMIT_DATA counts private writable memory, without guard pages and shared arrays.
            most = _data_nbytes() + limits.nbytes
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        work(adopt(fd), report)
        status = 0
    except Gone:
        status = 0
    except MemoryError:
        status = NO_MEMORY
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(status)


def _preload(kind: str) -> None:
    """Importing starts no threads and opens no device: both would be lost in a fork."""
    modules = {"cuda": ("cuda.bindings.nvrtc",), "opencl": ("pyopencl",)}
    for name in modules.get(kind, ()):
        with suppress(ImportError):  # whoever needs it says what is missing
            import_module(name)


def _data_nbytes() -> int:
    text = Path("/proc/self/status").read_text()
    match = re.search(r"^VmData:\s*(\d+) kB", text, re.MULTILINE)
    return int(match[1]) << 10 if match else 1 << 30


def main(fd: int) -> None:
    # Ctrl-C is handled by the process that measures, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = adopt(fd)
    server = ForkServer(control)
    gc.collect()
    gc.freeze()  # so that a collection in a child does not copy the pages of this process
    with suppress(Gone):  # the parent may end before it asks for anything
        control.send(os.getpid())
        server.serve()
    server.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
