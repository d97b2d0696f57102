"""Model: a compiled graph or program. Arrays by name go in, arrays by name come out."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilesmith.base.errors import GraphError
from tilesmith.graph.executor import Executor
from tilesmith.graph.graph import Array, Graph
from tilesmith.graph.program import HostStep, Program, Signature
from tilesmith.graph.stages import StagedRun, checked_feeds
from tilesmith.task.network import ModelTuning

CompileGraph = Callable[[Graph], Executor]


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel of a model and its seconds in place, the median of several runs."""

    name: str
    nodes: tuple[str, ...]
    seconds: float
    flops: int
    nbytes: int

    @property
    def gflops(self) -> float:
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0


@dataclass(frozen=True)
class Profile:
    kernels: tuple[KernelTime, ...]

    @property
    def seconds(self) -> float:
        return sum(k.seconds for k in self.kernels)

    def __str__(self) -> str:
        total = self.seconds or 1.0
        lines = [f"{'us':>10} {'share':>6} {'GFLOP/s':>8}  kernel"]
        for k in sorted(self.kernels, key=lambda k: -k.seconds):
            share = 100 * k.seconds / total
            lines.append(f"{k.seconds * 1e6:10.1f} {share:5.1f}% {k.gflops:8.1f}  {k.name}")
        lines.append(f"{self.seconds * 1e6:10.1f}  total of {len(self.kernels)} kernels")
        return "\n".join(lines)


class Model:
    """Calls may come from several threads at once."""

    def __init__(self, source: Graph | Program, compile_graph: CompileGraph) -> None:
        self.name = source.name
        self.tuning: ModelTuning | None = None  # how it got faster, if ts.tune_model made it
        if isinstance(source, Graph):
            values = (source.values[x] for x in source.inputs)
            self.inputs = tuple(Signature(v.name, v.dtype, v.shape) for v in values)
            self.outputs = tuple(n for n, _ in source.outputs)
            self._run: Any = compile_graph(source)
        else:
            self.inputs, self.outputs = source.inputs, source.outputs
            self._run = StagedRun(source, compile_graph)

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        given = checked_feeds(self.inputs, feeds, self.name)
        try:
            result: dict[str, Array] = self._run(given)
        except MemoryError:
            raise GraphError(f"there is not enough memory to run {self.name}") from None
        return result

    @property
    def executors(self) -> tuple[Executor, ...]:
        """What has been compiled: of an open model, what its calls needed so far."""
        if isinstance(self._run, Executor):
            return (self._run,)
        return tuple(_executors(self._run))

    @property
    def host_steps(self) -> tuple[HostStep, ...]:
        if isinstance(self._run, Executor):
            return ()
        return tuple(s.stage.host for s in self._run.known_stages() if s.stage.host is not None)

    def profile(self, feeds: Mapping[str, Any], runs: int = 5) -> Profile:
        """The seconds of every kernel, in place: the median of some runs after a first one."""
        given = checked_feeds(self.inputs, feeds, self.name)
        self._run(given)
        if not isinstance(self._run, Executor):
            return Profile(())
        rows = [self._run.timed(given) for _ in range(runs)]
        return Profile(tuple(_times(self._run, rows)))

    def summary(self) -> str:
        lines = [f"{self.name}: inputs {', '.join(map(str, self.inputs))}"]
        for e in self.executors:
            arena = e.plan.arena
            lines.append(
                f"{len(e.kernels)} kernels, {arena.nbytes} bytes of arena "
                f"(at least {arena.lower_bound} are alive at once)"
            )
            for step, kernel in zip(e.plan.steps, e.kernels, strict=True):
                lines.append(f"  {step.func.name}: {kernel.origin}")
        lines += [f"on the host: {h.op} {h.name!r}: {h.reason}" for h in self.host_steps]
        return "\n".join(lines)

    def __repr__(self) -> str:
        given = ", ".join(map(str, self.inputs))
        return f"<Model {self.name}({given}) -> {', '.join(self.outputs)}>"


def _executors(run: StagedRun) -> Iterator[Executor]:
    for stage in run.known_stages():
        if isinstance(stage.run, Executor):
            yield stage.run
        for body in stage.bodies:
            if isinstance(body, StagedRun):
                yield from _executors(body)


def _times(executor: Executor, rows: Sequence[Sequence[float]]) -> Iterator[KernelTime]:
    for k, step in enumerate(executor.plan.steps):
        seconds = statistics.median(row[k] for row in rows)
        nodes = tuple(n.origin or n.name for n in step.group.nodes)
        yield KernelTime(step.func.name, nodes, seconds, step.func.flops, step.func.nbytes)
