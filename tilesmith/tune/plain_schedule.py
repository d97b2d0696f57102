"""The schedule for Functions that no rule schedules: it always applies, and is slow.

On a CPU it is the plain loop nest. On a GPU, each thread computes one element of every stage:

    for i in 100:                 for i_j.0 in 16:  # blockIdx.x
      for j in 20:          ->      for i_j.1 in 128:  # threadIdx.x
        for k in 30:                  for k in 30:
"""

from __future__ import annotations

from math import prod

from tilesmith.base.errors import ScheduleError
from tilesmith.base.target import Target
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import walk
from tilesmith.schedule.schedule import Schedule

_THREADS = 128


def plain_schedule(func: Function, target: Target) -> Function:
    if target.kind == "cpu":
        return func
    schedule = Schedule(func)
    for path, block in walk(func.body):
        spatial = []
        for loop in path:
            if loop.name in block.reducing_loops or loop.kind != "serial":
                break
            spatial.append(loop)
        elements = prod(loop.trips for loop in spatial)
        if elements == 1:
            continue
        try:
            _spread(schedule, [loop.name for loop in spatial], min(elements, _THREADS))
        except ScheduleError:  # loops that several blocks share: one thread computes it
            continue
    return schedule.func


def _spread(schedule: Schedule, loops: list[str], threads: int) -> None:
    one = schedule.fuse(*loops) if len(loops) > 1 else loops[0]
    outer, inner = schedule.split(one, [None, threads])
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(inner, "threadIdx.x")
