"""The worker processes of a run: builders on all cores, a runner on the least disturbed ones, and
the arrays that the oracle has filled.

Arrays of several tasks are kept, so that a run can alternate between tasks and evaluate each of
them once. Only the task being measured has a run worker.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping
from math import inf

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import MeasureError
from tilesmith.measure.gpu_support import build_support
from tilesmith.measure.messages import (
    FORK_SERVER,
    REFERENCE,
    Build,
    Built,
    Discard,
    Exit,
    Preload,
    Prepare,
)
from tilesmith.measure.parent.build_and_run import Builders, KernelFailed, Runner
from tilesmith.measure.this_machine import Cores, share_out, to_probe, usable_cores
from tilesmith.task.inputs import kept_nbytes
from tilesmith.task.task import Failure, Task
from tilesmith.workers.pool import UNLIMITED, ForkServer, Limits, Worker
from tilesmith.workers.wire import Gone, ready, time_left

_ORACLE_SECONDS = 600.0
_GRACE_SECONDS = 3.0  # a run whose time is up still waits this long for the oracle
_SOON_SECONDS = 0.05  # builds do not begin for an oracle that takes less
# A GPU's worker compares results on one core, some 200 MB a second. OpenCL drivers compile kernels
# when they first run.
_CHECK_RATE = 200e6
_REFERENCE_SECONDS = 60.0
_PROBE_CALLS = 200  # calls of the reference kernel: some 10 ms, long enough to detect interruptions


@dataclass(slots=True)
class TaskWorkers:
    task: Task
    cores: Cores
    builders: Builders
    runner: Runner
    # Whether much of the last batch was contended. Then nothing else runs during measurements,
    # which would push other users of the machine onto the core that measures.
    crowded: bool = False

    @property
    def may_share(self) -> bool:
        """Whether cores that do not run kernels may be used while kernels run."""
        return bool(self.cores.free) and not self.crowded


class WorkerPool:
    """`builder_cores` build, by default all cores. `arrays_nbytes` bounds the arrays that are kept;
    the task used longest ago is dropped first.
    The task being measured is always kept.
    """

    def __init__(
        self, timeout: float, memory_nbytes: int, arrays_nbytes: int, cold: bool,
        builder_cores: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        self._timeout, self._memory_nbytes, self._cold = timeout, memory_nbytes, cold
        self._builder_cores = list(builder_cores) or usable_cores()
        self._arrays_nbytes = arrays_nbytes
        self.fork_server: ForkServer[Exit] | None = ForkServer(FORK_SERVER)
        self._builders: Builders | None = None
        self._references: dict[str, Built] = {}  # of GPUs, by fingerprint of the target
        self._tasks: dict[str, TaskWorkers] = {}  # by statement key, the last used at the end
        self._oracles: dict[str, Worker] = {}  # those that evaluate tasks, by statement key
        self.evaluations = 0  # number of tasks evaluated by the oracle

    def serve(self, task: Task, jobs: Mapping[str, Build], until: float = inf) -> TaskWorkers:
        """The workers of a task. Raises a MeasureError if they are not ready by the moment `until`
        of time.monotonic(), give or take a second. If the oracle takes long, jobs of the next batch
        are built meanwhile.
        """
        if self.fork_server is None:
            self.fork_server = ForkServer(FORK_SERVER)
        last = next(reversed(self._tasks.values()), None)
        if last is not None and last.task != task:
            last.runner.renew()
        workers = self._tasks.pop(task.statement, None)
        if workers is None:
            return self._start(self.fork_server, task, jobs, until)
        self._tasks[task.statement] = workers
        if workers.crowded and task.target.kind == "cpu":  # another core may be less disturbed now
            self._choose_cores(workers)
        return workers

    def begin(self, task: Task) -> None:
        """Begins what takes long when a task starts, unless it has been begun."""
        if self.fork_server is None:
            self.fork_server = ForkServer(FORK_SERVER)
        if task.statement not in self._tasks:
            self._begin(self.fork_server, task, {})

    def _begin(self, server: ForkServer[Exit], task: Task, jobs: Mapping[str, Build]) -> Builders:
        """Makes the oracle fill the task's arrays, and a GPU's reference kernel be built."""
        if task.target.kind != "cpu":
            server.ask(Preload(task.target.kind))
        if self._builders is None:
            cores = self._builder_cores
            self._builders = Builders(server, cores, self._timeout, self._memory_nbytes)
        if task.statement not in self._oracles:
            self._drop_for(server, task)
            limits = Limits(tuple(usable_cores()), 8 * task.func.nbytes + (16 << 30))
            message = Prepare(task.statement, task.func, task.target, limits)
            self._oracles[task.statement] = server.start(message)
        if task.target.kind != "cpu":
            self._build_reference(self._builders, task, jobs)
        return self._builders

    def _start(
        self, server: ForkServer[Exit], task: Task, jobs: Mapping[str, Build], until: float
    ) -> TaskWorkers:
        last = next(reversed(self._tasks.values()), None)
        builders = self._begin(server, task, jobs)
        self._evaluate(server, builders, task, jobs, until)
        target, nbytes = task.target, task.func.nbytes
        if target.kind != "cpu":
            return self._start_gpu(server, builders, task, jobs)
        # Arrays, aligned copies and copies in other layouts; thread stacks; the flushing buffer.
        own = 8 * nbytes + target.num_cores * (16 << 20) + 4 * target.l3_nbytes
        cores = share_out(target.num_cores, usable_cores(), {})
        limits = Limits(cores.run, own + self._memory_nbytes)
        runner = Runner(server, task.statement, limits, self._cold, builders)
        workers = self._tasks[task.statement] = TaskWorkers(task, cores, builders, runner)
        others = (t.num_cores for t in [last.task.target] if t.kind == "cpu") if last else ()
        if last is None or last.crowded or [*others] != [target.num_cores]:
            self._choose_cores(workers)
        else:  # the cores that were good for the last task are good for this one
            workers.cores = last.cores
            runner.move(last.cores.run)
        return workers

    def _start_gpu(
        self, server: ForkServer[Exit], builders: Builders, task: Task, jobs: Mapping[str, Build]
    ) -> TaskWorkers:
        """One worker for the GPU. All cores may build, but for one that feeds the GPU. They begin
        while the worker opens the GPU.
        """
        target, usable = task.target, self._builder_cores
        cores = Cores((), tuple(usable[1:] if len(usable) > 2 else usable))
        slack = task.func.nbytes / _CHECK_RATE
        if target.kind == "opencl":
            slack += self._timeout
        reference = self._references[target.fingerprint]
        limits = Limits(tuple(usable_cores()), UNLIMITED)
        runner = Runner(server, task.statement, limits, self._cold, builders, slack, reference)
        builders.want(jobs)
        builders.allow(cores.all, ())
        runner.start()
        workers = self._tasks[task.statement] = TaskWorkers(task, cores, builders, runner)
        return workers

    def _build_reference(self, builders: Builders, task: Task, jobs: Mapping[str, Build]) -> None:
        """Has a build worker build what a run worker of this GPU needs itself, once. The others
        begin jobs of the next batch.
        """
        if task.target.fingerprint in self._references:
            return
        name = "the reference kernel"
        builders.want({name: Build(task.func, task.target, None, pickle.dumps(build_support))})
        builders.begin(jobs)
        builders.allow(self._builder_cores, self._builder_cores)
        taken = builders.take(_REFERENCE_SECONDS)
        outcome = Failure("timeout", "no answer") if taken is None else taken[1]
        if isinstance(outcome, Failure):
            raise MeasureError(f"{name} of {task.target.arch} cannot be built: {outcome.text}")
        self._references[task.target.fingerprint] = outcome

    def _drop_for(self, server: ForkServer[Exit], task: Task) -> None:
        """Drops tasks until the arrays of this one fit."""
        total = sum(kept_nbytes(t.func) for t in (task, *(w.task for w in self._tasks.values())))
        for statement, workers in list(self._tasks.items()):
            if total <= self._arrays_nbytes:
                break
            total -= kept_nbytes(workers.task.func)
            workers.runner.renew()
            server.ask(Discard(statement))
            del self._tasks[statement]

    def _evaluate(
        self, server: ForkServer[Exit], builders: Builders, task: Task, jobs: Mapping[str, Build],
        until: float,
    ) -> None:  # fmt: skip
        """Waits until the oracle has filled the task's arrays. Kernels are built meanwhile."""
        self.evaluations += 1
        name, now = task.func.name, time.monotonic()
        left = max(0.0, until - now) + _GRACE_SECONDS
        end = now + min(_ORACLE_SECONDS, left)
        oracle = self._oracles.pop(task.statement)
        try:
            is_slow = not ready([oracle.channel], min(_SOON_SECONDS, time_left(end)))
            if is_slow:
                builders.want(jobs)
                builders.allow(self._builder_cores, ())
            while oracle.channel not in (
                readable := ready([oracle.channel, *builders.channels], time_left(end))
            ):
                if readable:
                    builders.serve()
                elif left < _ORACLE_SECONDS:
                    raise MeasureError(
                        f"the time is up before {name!r} was evaluated once with NumPy, which "
                        "kernels are checked against; give a budget of more seconds"
                    )
                else:
                    raise MeasureError(
                        f"{name!r} cannot be checked: evaluating it with NumPy took more than "
                        f"{_ORACLE_SECONDS:.0f} s; measure it with smaller sizes"
                    )
            why: str | None = oracle.channel.receive()
        except Gone:
            why = "the process that evaluated it ended"
        finally:
            server.reap(oracle, kill=True)
        if why is not None:
            raise MeasureError(f"{name!r} cannot be evaluated to check kernels: {why}")
        if is_slow and task.target.kind == "cpu":  # cores are chosen next, by timing a kernel
            builders.rest(until)

    def _choose_cores(self, workers: TaskWorkers) -> None:
        """Moves the runner to the cores where the reference kernel is fastest."""
        threads, usable = workers.task.target.num_cores, usable_cores()
        probes: dict[int, float] = {}
        for core in to_probe(threads, usable):
            workers.runner.move((core,))
            try:
                samples = workers.runner.times([(REFERENCE, _PROBE_CALLS)] * 2, self._timeout)
            except KernelFailed:
                continue
            probes[core] = max(s.seconds for s in samples)
        workers.cores = share_out(threads, usable, probes)
        workers.runner.move(workers.cores.run)

    def abandon(self) -> None:
        """Ends all processes; the next task gets new ones."""
        self._tasks.clear()
        self._oracles.clear()
        self._builders = None
        if self.fork_server is not None:
            self.fork_server.close()
            self.fork_server = None
