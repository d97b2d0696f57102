"""The build worker: answers Build messages with Built kernels or Failures, until the parent closes
the channel.

It may crash, hang or run out of memory. The parent notices and starts another one.
"""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from functools import partial
from typing import Any

from tilesmith.base.errors import ScheduleError, TraceError, VerifyError
from tilesmith.codegen.artifact import Artifact
from tilesmith.codegen.c.backends import CudaBackend
from tilesmith.codegen.c.nvrtc import Store
from tilesmith.measure.messages import Build, Built
from tilesmith.runtime.build import compile_function
from tilesmith.schedule.rounding import rounds_in
from tilesmith.task.task import Failure
from tilesmith.workers.wire import Channel


def serve(channel: Channel, store: Store | None = None) -> None:
    while True:
        channel.send(build(channel.receive(), store))


def build(job: Build, store: Store | None = None) -> Built | Failure:
    """The `store` has what other workers have compiled for GPUs."""
    start = time.perf_counter()
    stage = "schedule"
    try:
        func = job.func
        way = ""
        if job.trace is not None:
            trace = pickle.loads(job.trace)
            way = rounds_in(trace.steps)
            func = trace.apply(func)
        stage = "build"
        builder: Any = pickle.loads(job.builder)
        backend = builder.keywords.get("backend") if isinstance(builder, partial) else None
        if builder is compile_function and job.target.kind == CudaBackend.kind:
            backend = CudaBackend()
        if isinstance(backend, CudaBackend):
            builder = partial(compile_function, backend=replace(backend, store=store))
        artifact: Artifact = builder(func, job.target)
    except MemoryError as error:
        return Failure("memory", f"while building: {first_line(error)}")
    except (ScheduleError, TraceError, VerifyError) as error:
        return Failure("schedule", first_line(error))
    except Exception as error:  # the failure of a candidate is a value, whatever its cause
        return Failure(stage, first_line(error))
    # Without the source, which nobody reads here and which is many times as large as the code.
    without_source = replace(artifact, source="")
    return Built(without_source, func.params, time.perf_counter() - start, way)


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    name = type(error).__name__
    return f"{name}: {lines[0]}" if lines else name
