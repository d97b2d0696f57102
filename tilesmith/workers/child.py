"""The side of `workers/pool.py` that runs in the processes: `python -m tilesmith.workers.child FD
CORES MODULE ARGS` calls `main(channel, *args)` of the module. A fork server has its Forks here.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from tilesmith.base.dataclass import dataclass
from tilesmith.base.process import few_collections
from tilesmith.workers.pool import NO_MEMORY, UNLIMITED, Limits
from tilesmith.workers.wire import Channel, Gone, adopt, ready

E = TypeVar("E")

_PR_SET_PDEATHSIG = 1
_STDERR_NBYTES = 4096


def serve(channel: Channel, answer: Callable[[Any, list[int]], object]) -> None:
    """Answers each message, with the descriptors that came with it, until the owner closes the
    channel or ends. Another child of the owner may hold the socket open after the owner has ended,
    so that is looked for once a second.
    """
    owner = os.getppid()
    with suppress(Gone):
        while os.getppid() == owner:
            if ready([channel], 1.0):
                channel.send(answer(*channel.receive_with_fds()))


@dataclass(frozen=True, slots=True)
class _Child(Generic[E]):
    ended: Callable[[int, bool, str], E]
    stderr: int  # descriptor of a file in memory that receives the error stream


class Forks(Generic[E]):
    """The workers of a fork server. It has one thread and runs no job itself, so that forking it is
    safe and takes milliseconds: all that workers need is loaded before the first fork.
    """

    def __init__(self, control: Channel) -> None:
        self._control = control
        self._children: dict[int, _Child[E]] = {}

    def fork(
        self, fd: int, limits: Limits, work: Callable[[Channel], None],
        ended: Callable[[int, bool, str], E],
    ) -> int:  # fmt: skip
        """Starts a worker on the socket `fd`. When it has ended, `ended` makes the answer to Reap
        of its status, whether it was killed here, and what it wrote to its error stream.
        """
        stderr, server = os.memfd_create("stderr"), os.getpid()
        pid = os.fork()
        if pid == 0:
            self._control.close()
            os.dup2(stderr, 2)
            _run(server, fd, limits, work)
        os.close(fd)
        self._children[pid] = _Child(ended, stderr)
        return pid

    def reap(self, pid: int, kill: bool) -> E:
        child = self._children.pop(pid)
        # A worker that ends by itself closes its socket shortly before waitpid reports it.
        deadline = time.monotonic() + (0.0 if kill else 1.0)
        killed = False
        while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
            if time.monotonic() >= deadline:
                killed = True
                _kill_group(pid)
                ended = os.waitpid(pid, 0)
                break
            time.sleep(0.0005)
        # Processes that the worker started may have outlived it.
        _kill_group(pid)
        stderr = os.pread(child.stderr, _STDERR_NBYTES, 0).decode(errors="replace")
        os.close(child.stderr)
        return child.ended(ended[1], killed, stderr)

    def close(self) -> None:
        for pid in list(self._children):
            self.reap(pid, kill=True)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _run(server: int, fd: int, limits: Limits, work: Callable[[Channel], None]) -> NoReturn:
    """The worker's code from the fork to its exit."""
    status = 1
    try:
        end_with_parent()
        if os.getppid() != server:  # the server ended before that
            os._exit(1)
        os.setsid()
        with suppress(OSError):  # cores may be offline now
            os.sched_setaffinity(0, limits.cores)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if limits.nbytes != UNLIMITED:
            # RLIMIT_DATA counts private writable memory, without guard pages and shared arrays.
            most = _data_nbytes() + limits.nbytes
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        work(adopt(fd))
        status = 0
    except Gone:
        status = 0
    except MemoryError:
        status = NO_MEMORY
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(status)


def end_with_parent() -> None:
    """The system kills this process when the thread that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _data_nbytes() -> int:
    text = Path("/proc/self/status").read_text()
    match = re.search(r"^VmData:\s*(\d+) kB", text, re.MULTILINE)
    return int(match[1]) << 10 if match else 1 << 30


def main(fd: str, cores: str, module: str, *args: str) -> None:
    # Ctrl-C is handled by the owner, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if cores:
        os.sched_setaffinity(0, map(int, cores.split(",")))
    with few_collections():
        loaded = import_module(module)
    loaded.main(adopt(int(fd)), *args)


if __name__ == "__main__":
    main(*sys.argv[1:])
