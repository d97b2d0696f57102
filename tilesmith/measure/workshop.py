"""The processes that serve a task: builders on all cores, a runner on the quietest, and inputs and
outputs that the oracle has made.

A workshop serves one task at a time; going over to another costs one evaluation of it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import inf

from tilesmith.base.errors import MeasureError
from tilesmith.measure.builders import Builders
from tilesmith.measure.cores import Cores, share_out, to_probe, usable_cores
from tilesmith.measure.messages import REFERENCE, Limits
from tilesmith.measure.nursery import Nursery
from tilesmith.measure.runner import Broken, Runner
from tilesmith.measure.wire import Gone, ready
from tilesmith.task.task import Task

_ORACLE_SECONDS = 600.0
_GRACE = 3.0  # seconds that a run whose time is up may still wait for the oracle
_PROBE_CALLS = 200  # of the reference kernel: some 10 ms, long enough to be interrupted


@dataclass(slots=True)
class Crew:
    task: Task
    cores: Cores
    builders: Builders
    runner: Runner
    # Whether much of the last batch was disturbed. Then nothing is done beside measuring: that
    # would push whoever else uses the machine onto the core that measures.
    crowded: bool = False

    @property
    def may_share(self) -> bool:
        """Whether others may work on cores that do not run kernels while kernels run."""
        return bool(self.cores.free) and not self.crowded


class Workshop:
    def __init__(self, timeout: float, memory_nbytes: int, cold: bool) -> None:
        self._timeout, self._memory_nbytes, self._cold = timeout, memory_nbytes, cold
        self.nursery: Nursery | None = Nursery()
        self._crew: Crew | None = None

    def serve(self, task: Task, until: float = inf) -> Crew:
        """Processes for this task: those of last time, if that was the same one. They are ready
        by the moment `until` of time.monotonic(), give or take a second, or there is an error.
        """
        if self.nursery is None:
            self.nursery = Nursery()
        crew = self._crew
        if crew is None or crew.task != task:
            crew = self._crew = self._hire(self.nursery, task, crew, until)
        elif crew.crowded:  # perhaps another core is quieter by now
            self._settle(crew)
        return crew

    def _hire(self, nursery: Nursery, task: Task, before: Crew | None, until: float) -> Crew:
        if before is None:
            builders = Builders(nursery, usable_cores(), self._timeout, self._memory_nbytes)
        else:
            before.runner.renew()
            builders = before.builders
        self._ask_oracle(nursery, task, until)
        target, nbytes = task.target, task.func.nbytes
        # Arrays, their aligned twins and relaid copies; a stack per thread; the flushing buffer.
        own = 8 * nbytes + target.num_cores * (16 << 20) + 4 * target.l3_nbytes
        cores = share_out(target.num_cores, usable_cores(), {})
        limits = Limits(cores.run, own + self._memory_nbytes)
        crew = Crew(task, cores, builders, Runner(nursery, limits, self._cold, builders))
        self._settle(crew)
        return crew

    def _ask_oracle(self, nursery: Nursery, task: Task, until: float) -> None:
        name = task.func.name
        left = max(0.0, until - time.monotonic()) + _GRACE
        limits = Limits(tuple(usable_cores()), 8 * task.func.nbytes + (16 << 30))
        oracle = nursery.prepare(task.func, task.target, limits)
        try:
            if not ready([oracle.channel], min(_ORACLE_SECONDS, left)):
                if left < _ORACLE_SECONDS:
                    raise MeasureError(
                        f"the time is up before {name!r} was evaluated once with NumPy, which "
                        "kernels are checked against; give a budget of more seconds"
                    )
                raise MeasureError(f"no answer to {name!r} in {_ORACLE_SECONDS:.0f} s")
            why: str | None = oracle.channel.receive()
        except Gone:
            why = "the process that evaluated it died"
        finally:
            nursery.reap(oracle, kill=True)
        if why is not None:
            raise MeasureError(f"{name!r} cannot be evaluated to check kernels: {why}")

    def _settle(self, crew: Crew) -> None:
        """Moves the runner to the cores where the reference kernel is fastest."""
        threads, usable = crew.task.target.num_cores, usable_cores()
        probes: dict[int, float] = {}
        for core in to_probe(threads, usable):
            crew.runner.move((core,))
            try:
                samples = crew.runner.times([(REFERENCE, _PROBE_CALLS)] * 2, self._timeout)
            except Broken:
                continue
            probes[core] = max(s.seconds for s in samples)
        crew.cores = share_out(threads, usable, probes)
        crew.runner.move(crew.cores.run)

    def abandon(self) -> None:
        """Ends all processes; the next task has new ones."""
        self._crew = None
        if self.nursery is not None:
            self.nursery.close()
            self.nursery = None
