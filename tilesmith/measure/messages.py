"""Messages between the processes of a measurer, as plain records. The parent sends requests; the
fork server and its workers answer each with one message. How a worker ended is explained as the
failure of its candidate.
"""

from __future__ import annotations

import os
import signal

from tilesmith.base.dataclass import dataclass
from tilesmith.base.target import Target
from tilesmith.codegen.artifact import Artifact
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Buffer
from tilesmith.task.task import Failure
from tilesmith.workers.pool import NO_MEMORY, Limits

FORK_SERVER = "tilesmith.measure.child.fork_server"  # the module that answers these
REFERENCE = -1  # the slot of the reference kernel

FAULTED = 97  # exit status of a worker with a fault that the handler recorded
STACK = "the stack"  # the name of the stack among the regions of an Exit


# To the fork server.
@dataclass(frozen=True, slots=True)
class Prepare:
    """Start a worker that fills the inputs and expected outputs of a task. It sends None, or the
    text of the error. The arrays stay until they are discarded.
    """

    task: str  # the task's statement key
    func: Function
    target: Target
    limits: Limits


@dataclass(frozen=True, slots=True)
class Preload:
    """Import what workers of a kind of target need, so that each of them starts quickly; the answer
    is None.
    """

    kind: str


@dataclass(frozen=True, slots=True)
class Discard:
    """Free the arrays of a task; the answer is None."""

    task: str


@dataclass(frozen=True, slots=True)
class SpawnBuilder:
    limits: Limits


@dataclass(frozen=True, slots=True)
class SpawnRunner:
    """Start a worker that runs kernels on the arrays of a task, with `cold` caches if set."""

    task: str
    limits: Limits
    cold: bool


@dataclass(frozen=True, slots=True)
class Exit:
    """How a worker ended."""

    status: int  # as waitpid returns it
    killed: bool  # by the fork server
    fault: tuple[int, int, int] = (0, 0, 0)  # signal, code, address
    slot: int = 0  # the kernel it was running
    # Name, start of the guard before, start and end of the array, end of the guard after it.
    regions: tuple[tuple[str, int, int, int, int], ...] = ()
    stderr: str = ""  # the first 4096 bytes


# To a build worker.
@dataclass(frozen=True, slots=True)
class Build:
    """Build a kernel; the answer is a Built or a Failure. `trace` is a pickled Trace to apply to
    the function, or None if that is done already.
    """

    func: Function
    target: Target
    trace: bytes | None
    builder: bytes  # a pickled callable


def ready_artifact(artifact: Artifact, _: Function, __: Target) -> Artifact:
    """A builder for a kernel that is built already."""
    return artifact


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel with its parameters, whose layouts the schedule may have changed."""

    artifact: Artifact
    params: tuple[Buffer, ...]
    seconds: float  # build time
    way: str = ""  # in which it rounds otherwise than is stated (schedule/rounding.py)


# To a run worker.
@dataclass(frozen=True, slots=True)
class Load:
    """Link a kernel under a slot number; the answer is None or a Failure."""

    slot: int
    built: Built


@dataclass(frozen=True, slots=True)
class Check:
    """Call a kernel once on each draw of inputs, in guarded memory, and compare the results with
    what is expected. The answer is the seconds of the last call, or a Failure.
    """

    slot: int


@dataclass(frozen=True, slots=True)
class Verify:
    """Compare what a kernel that was `timed` just before has left, and the results of so many more
    `calls`, each by itself. The answer is None or a Failure.
    """

    slot: int
    calls: int
    timed: bool


@dataclass(frozen=True, slots=True)
class Time:
    """Take one sample for each (slot, calls), in this order; the answer is a list of Samples."""

    order: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Unload kernels; the answer is None."""

    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Broken:
    """An answer of a run worker whose device can run nothing any more, and the kernel that did
    that. The worker ends.
    """

    slot: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Sample:
    seconds: float  # wall-clock time of one call
    share: float  # share of that time in which the thread had the processor
    drift: float = 1.0  # time of the reference kernel just before, over its usual time
    reference: float = 0.0  # recent seconds of the reference kernel; 0 if it did not run


def explain(end: Exit, doing: str = "") -> Failure:
    """For a worker that was not asked to end; `doing` is appended to the reason."""
    if os.WIFEXITED(end.status):
        code = os.WEXITSTATUS(end.status)
        if code == NO_MEMORY:
            return Failure("memory", "the kernel was refused memory beyond the limit")
        if code == FAULTED:
            return _explain_fault(end)
        return Failure("crash", f"the process exited with status {code}{doing}{_last_words(end)}")
    number = os.WTERMSIG(end.status)
    if "out of memory" in end.stderr or "bad_alloc" in end.stderr:
        return Failure("memory", _first_line(end.stderr))
    if number == signal.SIGKILL:
        return Failure("memory", f"killed by the system{doing}, probably for want of memory")
    return Failure("crash", f"{signal.Signals(number).name}{doing}{_last_words(end)}")


def was_killed(end: Exit) -> bool:
    """Whether SIGKILL ended it: sent by a process, or by the system when memory ran out."""
    return os.WIFSIGNALED(end.status) and os.WTERMSIG(end.status) == signal.SIGKILL


def _explain_fault(end: Exit) -> Failure:
    """Names the array whose guard pages hold the address of the fault."""
    number, _, address = end.fault
    for name, guard, begin, stop, guard_end in end.regions:
        if name == STACK:
            if guard <= address < guard_end:
                return Failure("crash", "the stack overflowed")
        elif begin <= address < stop:
            return Failure("bounds", f"wrote to {name}, which is read-only")
        elif guard <= address < begin:
            return Failure("bounds", f"touched {name} {begin - address} bytes before its begin")
        elif stop <= address < guard_end:
            return Failure("bounds", f"touched {name} {address - stop} bytes past its end")
    return Failure("crash", f"{signal.Signals(number).name} at address {address:#x}")


def _last_words(end: Exit) -> str:
    line = _first_line(end.stderr)
    return f": {line}" if line else ""


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
