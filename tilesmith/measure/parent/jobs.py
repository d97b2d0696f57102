"""What a build worker is asked to do for a candidate: its schedule, and the back end of its task,
as far as another process can import them.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial

from tilesmith.base.portable import packed
from tilesmith.measure.messages import Build, ready_artifact
from tilesmith.runtime.build import compile_for, compile_function
from tilesmith.schedule.unit import Tensorize
from tilesmith.task.task import Candidate, Failure, Task

_BUILT_IN = pickle.dumps(compile_function)


def job_of(c: Candidate, given: bytes | None = None) -> Build | Failure:
    """`given` is a packed builder for this candidate alone, in place of its task's."""
    func, target = c.task.func, c.task.target
    builder = given or _builder_of(c.task)
    units = [s.intrinsic for s in c.trace if isinstance(s, Tensorize)]
    if builder is None or packed([[*unit.emitters.values()] for unit in units]) is None:
        return _built_here(c)
    trace = packed(c.trace)
    if trace is None:  # other processes cannot import its steps
        try:
            func = c.trace.apply(func)
        except Exception as error:
            return _failure("schedule", error)
    return Build(func, target, trace, builder)


def _builder_of(task: Task) -> bytes | None:
    """Packed; None if other processes cannot import it."""
    own = None if task.parts is None else task.parts.backend(task.target.kind)
    return _BUILT_IN if own is None else packed(partial(compile_function, backend=own))


def _built_here(c: Candidate) -> Build | Failure:
    """A job for a kernel that only this process can build: the other only loads it."""
    target, stage = c.task.target, "schedule"
    try:
        func = c.trace.apply(c.task.func)
        stage = "build"
        artifact = compile_for(c.task, func)
    except Exception as error:  # the failure of a candidate is a value, whatever its cause
        return _failure(stage, error)
    ready = pickle.dumps(partial(ready_artifact, artifact))
    return Build(replace(func, body=()), target, None, ready)


def _failure(stage: str, error: Exception) -> Failure:
    return Failure(stage, f"{type(error).__name__}: {error}".splitlines()[0])
