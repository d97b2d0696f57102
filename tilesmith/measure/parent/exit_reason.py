"""Explains why a worker process ended, as a Failure of the candidate it worked on."""

from __future__ import annotations

import os
import signal

from tilesmith.measure.messages import FAULTED, NO_MEMORY, STACK, Exit
from tilesmith.task.task import Failure


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
