"""The nursery: a process of its own, started as `python -m tilesmith.measure.worker FD`, that forks
build and run workers on request.

It has one thread and runs no candidate itself, so that forking it is safe and takes milliseconds;
everything that workers need is loaded before the first of them is born.
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
from pathlib import Path
from typing import NoReturn

from tilesmith.base.target import cpu
from tilesmith.codegen.artifact import Artifact
from tilesmith.codegen.llvm.compiler import compile_ir
from tilesmith.codegen.llvm.emit import emit_function
from tilesmith.measure import building, faults
from tilesmith.measure.faults import Report
from tilesmith.measure.messages import Exit, Limits, Prepare, Reap, Spawn
from tilesmith.measure.reference import reference_source
from tilesmith.measure.running import RunWorker, allocators
from tilesmith.measure.store import Store
from tilesmith.measure.wire import Channel, Gone, adopt
from tilesmith.runtime.loader import Library, pool

Work = Callable[[Channel, Report], None]

_PR_SET_PDEATHSIG = 1
_WORDS_NBYTES = 4096
_emit = emit_function  # named, because it is imported to be there when workers are forked


@dataclass(slots=True)
class _Child:
    report: Report
    words: int  # a file in memory that takes the error stream


class Keeper:
    def __init__(self, control: Channel) -> None:
        self._control = control
        self._children: dict[int, _Child] = {}
        self._store: Store | None = None
        self._reference: Artifact | None = None
        self._cold_nbytes = 0
        pool()
        made = compile_ir("faults", faults.SOURCE, cpu(), ())
        self._faults = Library("faults", made.code, faults.EXPORTS, {})

    def serve(self) -> None:
        parent = os.getppid()
        # A second is how long we may outlive a parent whose socket a child of its holds open.
        self._control.sock.settimeout(1.0)
        while True:
            try:
                message, fds = self._control.receive_with_fds()
            except TimeoutError:
                if os.getppid() != parent:
                    return
                continue
            match message:
                case Prepare():
                    self._control.send(self._prepare(message, fds[0]))
                case Spawn():
                    self._control.send(self._spawn(message, fds[0]))
                case Reap():
                    self._control.send(self._reap(message))

    def close(self) -> None:
        for pid in list(self._children):
            self._reap(Reap(pid, True))

    def _prepare(self, task: Prepare, fd: int) -> int:
        if self._store is not None:
            self._store.close()
        self._store = store = Store(task.func)
        self._cold_nbytes = 2 * max(task.target.l3_nbytes, task.target.l2_nbytes)
        here = cpu(task.target.num_cores)
        source, threaded = reference_source(here), here.num_cores > 1
        self._reference = compile_ir("reference", source, here, (), 0, threaded)
        seed = int(task.func.digest[:8], 16)
        return self._fork(fd, task.limits, lambda c, _: c.send(store.fill(seed)))

    def _spawn(self, message: Spawn, fd: int) -> int:
        if message.kind == "build":
            return self._fork(fd, message.limits, lambda c, _: building.serve(c))
        store, reference = self._store, self._reference
        assert store is not None, "a run worker before its task"
        assert reference is not None
        cold = self._cold_nbytes if message.cold else 0

        def run(channel: Channel, report: Report) -> None:
            addresses = self._faults.addresses
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(addresses[faults.REPORT_TO])(report.address)
            faults.install(addresses[faults.FAULT])
            store.protect()
            RunWorker(store, reference, report, allocators(addresses), cold).serve(channel)

        return self._fork(fd, message.limits, run)

    def _fork(self, fd: int, limits: Limits, work: Work) -> int:
        report, words = Report(), os.memfd_create("words")
        nursery = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._control.close()
            os.dup2(words, 2)
            _live(nursery, fd, limits, report, work)
        os.close(fd)
        self._children[pid] = _Child(report, words)
        return pid

    def _reap(self, message: Reap) -> Exit:
        child = self._children.pop(message.pid)
        # One that ends by itself closes its socket a moment before it can be waited for.
        patience = time.monotonic() + (0.0 if message.kill else 1.0)
        killed = False
        while (ended := os.waitpid(message.pid, os.WNOHANG))[0] == 0:
            if time.monotonic() >= patience:
                killed = True
                _kill_group(message.pid)
                ended = os.waitpid(message.pid, 0)
                break
            time.sleep(0.0005)
        status = ended[1]
        # What it started may have outlived it.
        _kill_group(message.pid)
        words = os.pread(child.words, _WORDS_NBYTES, 0).decode(errors="replace")
        os.close(child.words)
        end = child.report.read(status, killed, words)
        child.report.close()
        return end


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _live(nursery: int, fd: int, limits: Limits, report: Report, work: Work) -> NoReturn:
    """A worker's life, from the fork to its exit."""
    status = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != nursery:  # it died before we could ask to be told
            os._exit(1)
        os.setsid()
        with suppress(OSError):  # cores may have gone off line
            os.sched_setaffinity(0, limits.cores)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # Of memory that can be written, which leaves out guards and what is shared.
        most = _data_nbytes() + limits.nbytes
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        work(adopt(fd), report)
        status = 0
    except Gone:
        status = 0
    except MemoryError:
        status = faults.NO_MEMORY
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(status)


def _data_nbytes() -> int:
    text = Path("/proc/self/status").read_text()
    found = re.search(r"^VmData:\s*(\d+) kB", text, re.MULTILINE)
    return int(found[1]) << 10 if found else 1 << 30


def main(fd: int) -> None:
    # Ctrl-C is for the process that measures; it tells us what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = adopt(fd)
    keeper = Keeper(control)
    gc.collect()
    gc.freeze()  # so that collecting in a child does not copy the pages of its parent
    with suppress(Gone):  # perhaps before there was anything to do
        control.send(os.getpid())
        keeper.serve()
    keeper.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
