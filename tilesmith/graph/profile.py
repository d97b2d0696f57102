"""Profile: the seconds of every kernel and host step of a model, in place."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tilesmith.graph.executor import Executor
from tilesmith.graph.graph import Array
from tilesmith.graph.plan import Step
from tilesmith.graph.program import Feeds, HostStep, Runner
from tilesmith.graph.stages import CompiledStage, StagedRun, run_host
from tilesmith.runtime.chain import CLOCK_MONOTONIC, CLOCK_THREAD_CPUTIME_ID
from tilesmith.task.describe import has_words, place_text, shapes_text


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel of a model and its seconds in one call, the median of several. `nodes` names the
    nodes of the model that it computes. `record` is what its record in a database says, if it has
    one. `shapes` are those of its inputs and outputs, with layout and dtype.
    """

    name: str
    nodes: tuple[str, ...]
    seconds: float
    flops: int
    nbytes: int
    record: float | None = None
    shapes: str = ""

    @property
    def gflops(self) -> float:
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class HostTime:
    """One step on the host, without the kernels of its bodies."""

    op: str
    name: str
    seconds: float


@dataclass(frozen=True)
class Profile:
    kernels: tuple[KernelTime, ...]
    host: tuple[HostTime, ...] = ()

    @property
    def seconds(self) -> float:
        return sum(k.seconds for k in self.kernels) + sum(h.seconds for h in self.host)

    @property
    def recorded(self) -> float | None:
        """What the records of all kernels add up to; None if one has none."""
        times = [k.record for k in self.kernels]
        return None if not times or None in times else sum(t for t in times if t)

    def matching(self, text: str) -> Profile:
        """The part about kernels and host steps in whose name, shapes or nodes all words of a text
        occur.

        Example:

            print(model.profile(feeds).matching("conv2d features.3"))
        """
        kernels = (k for k in self.kernels if has_words(text, k.name, k.shapes, *k.nodes))
        return Profile(tuple(kernels), tuple(h for h in self.host if has_words(text, h.op, h.name)))

    def __str__(self) -> str:
        total = self.seconds or 1.0
        names = max((len(f"{k.name} {k.shapes}") for k in self.kernels), default=0)
        rows = [
            (
                k.seconds,
                f"{k.gflops:8.1f}  {f'{k.name} {k.shapes}':{names}}  {place_text(k.nodes)}",
            )
            for k in self.kernels
        ]
        rows += [(h.seconds, f"{'host':>8}  {h.op} {h.name!r}") for h in self.host]
        lines = [f"{'us':>10} {'share':>6} {'GFLOP/s':>8}  {'kernel':{names}}  nodes"]
        for seconds, text in sorted(rows, key=lambda r: -r[0]):
            lines.append(f"{seconds * 1e6:10.1f} {100 * seconds / total:5.1f}% {text}")
        steps = f" and {len(self.host)} on the host" if self.host else ""
        lines.append(f"{self.seconds * 1e6:10.1f}  total of {len(self.kernels)} kernels{steps}")
        if self.recorded:
            in_place = sum(k.seconds for k in self.kernels)
            over = f"{100 * (in_place / self.recorded - 1):+.1f} %"
            lines.append(f"{self.recorded * 1e6:10.1f}  sum of their records: in place {over}")
        return "\n".join(lines)


def node_names(step: Step) -> tuple[str, ...]:
    """The nodes of the model that a kernel computes, each once."""
    return step.origins or tuple(dict.fromkeys(n.origin or n.op for n in step.group.nodes))


def profile(
    run: Executor | StagedRun, feeds: Feeds, runs: int, processor_time: bool = False
) -> Profile:
    """The median of some runs after a first one. `processor_time` counts that of the calling
    thread in kernels instead of time.
    """
    run(feeds)
    clocks = [_Clock(processor_time) for _ in range(max(1, runs))]
    for clock in clocks:
        if isinstance(run, Executor):
            clock.run(run, feeds)
        else:
            clock.staged(run, feeds)
    last = clocks[-1]

    def median(key: tuple[int, int]) -> float:
        return statistics.median(c.spent.get(key, 0.0) for c in clocks)

    kernels = []
    for key, step in last.steps.items():
        flops, nbytes = step.func.flops * last.calls[key], step.func.nbytes * last.calls[key]
        record = last.records[key]
        calls = last.calls[key]
        kernels.append(
            KernelTime(
                step.func.name, node_names(step), median(key), flops, nbytes,
                None if record is None else record * calls, shapes_text(step.func),
            )
        )  # fmt: skip
    host = [HostTime(h.op, h.name, median(key)) for key, h in last.hosts.items()]
    return Profile(tuple(kernels), tuple(host))


class _Clock:
    """What one call spent where. The body of a loop runs several times: that adds up."""

    def __init__(self, processor_time: bool) -> None:
        self.clock = CLOCK_THREAD_CPUTIME_ID if processor_time else CLOCK_MONOTONIC
        self.spent: dict[tuple[int, int], float] = {}
        self.calls: dict[tuple[int, int], int] = {}
        self.steps: dict[tuple[int, int], Step] = {}
        self.hosts: dict[tuple[int, int], HostStep] = {}
        self.records: dict[tuple[int, int], float | None] = {}

    def run(self, executor: Executor, feeds: Feeds) -> dict[str, Array]:
        results, times = executor.timed(feeds, self.clock)
        for k, seconds in enumerate(times):
            self.steps[id(executor), k] = executor.plan.steps[k]
            self.records[id(executor), k] = executor.kernels[k].origin.seconds
            self._add((id(executor), k), seconds)
        return results

    def staged(self, run: StagedRun, feeds: Feeds) -> dict[str, Array]:
        return run.run(feeds, self._graph, self._host)

    def _add(self, key: tuple[int, int], seconds: float) -> None:
        self.spent[key] = self.spent.get(key, 0.0) + seconds
        self.calls[key] = self.calls.get(key, 0) + 1

    def _graph(self, done: CompiledStage, feeds: Feeds) -> dict[str, Array]:
        return self.run(done.run, feeds) if isinstance(done.run, Executor) else done.run(feeds)

    def _host(self, done: CompiledStage, live: Feeds) -> dict[str, Array]:
        host = done.stage.host
        assert host is not None
        inside = sum(self.spent.values())
        began = time.perf_counter()
        out = run_host(host, live, self._bodies(done.bodies))
        seconds = time.perf_counter() - began - (sum(self.spent.values()) - inside)
        self.hosts[id(done), -1] = host
        self._add((id(done), -1), max(0.0, seconds))
        return out

    def _bodies(self, bodies: Sequence[Runner]) -> list[Runner]:
        def timed(body: Runner) -> Runner:
            if not isinstance(body, StagedRun):
                return body
            return lambda feeds: self.staged(body, feeds)

        return [timed(b) for b in bodies]
