"""Profile: the seconds of every kernel and host step of a model, in place, as a table and as a
trace for ui.perfetto.dev or chrome://tracing.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

from tilesmith.base.dataclass import dataclass
from tilesmith.base.whole_file import write_whole
from tilesmith.graph.executor import Executor
from tilesmith.graph.graph import Array
from tilesmith.graph.open_plan import OpenStep
from tilesmith.graph.plan import Step
from tilesmith.graph.program import Feeds, HostStep, Runner
from tilesmith.graph.stages import CompiledStage, StagedRun, run_host
from tilesmith.runtime.chain import CLOCK_MONOTONIC, CLOCK_THREAD_CPUTIME_ID
from tilesmith.task.describe import has_words, module_path, place_text, shapes_text


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


@dataclass(frozen=True, slots=True)
class Span:
    """A step of the last run. `start` counts from the beginning of the run, without the time
    between steps. `seconds` of a step on the host include the kernels of its bodies.
    """

    step: KernelTime | HostTime
    start: float
    seconds: float


@dataclass(frozen=True)
class Profile:
    """`spans` are the steps of the last run in their order; those in the body of a loop are there
    several times.
    """

    kernels: tuple[KernelTime, ...]
    host: tuple[HostTime, ...] = ()
    spans: tuple[Span, ...] = ()

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
        kernels = [k for k in self.kernels if has_words(text, k.name, k.shapes, *k.nodes)]
        host = [h for h in self.host if has_words(text, h.op, h.name)]
        kept = {id(step) for step in (*kernels, *host)}
        spans = (s for s in self.spans if id(s.step) in kept)
        return Profile(tuple(kernels), tuple(host), tuple(spans))

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the last run as a trace, which https://ui.perfetto.dev and chrome://tracing show:
        every kernel and host step, inside of the modules of the model that it belongs to.

        Example:

            model.profile(feeds).save_trace("trace.json")
        """
        events = [*_module_events(self.spans), *map(_event, self.spans)]
        # Of two slices with the same times, viewers take the first as the outer one.
        events.sort(key=lambda e: (e["ts"], -e["dur"], e["args"].get("depth", inf)))
        write_whole(Path(path), json.dumps({"displayTimeUnit": "ns", "traceEvents": events}))

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


def _event(span: Span) -> dict[str, Any]:
    match span.step:
        case KernelTime() as k:
            rate = k.flops / span.seconds / 1e9 if span.seconds else 0.0
            details = {
                "shapes": k.shapes, "nodes": place_text(k.nodes), "GFLOP/s": round(rate, 2),
                "bytes": k.nbytes, "median us": round(k.seconds * 1e6, 3),
            }  # fmt: skip
            return _slice(k.name, "kernel", span.start, span.seconds, details)
        case h:
            return _slice(h.op, "host", span.start, span.seconds, {"node": h.name})


def _slice(
    name: str, kind: str, start: float, seconds: float, details: dict[str, Any]
) -> dict[str, Any]:
    """A complete event of the Trace Event Format, whose times are in microseconds. Those of one
    thread that lie within each other are drawn below each other.
    """
    begin, end = round(start * 1e9), round((start + seconds) * 1e9)
    return {
        "name": name, "cat": kind, "ph": "X", "ts": begin / 1e3, "dur": (end - begin) / 1e3,
        "pid": 1, "tid": 1, "args": details,
    }  # fmt: skip


def _module_events(spans: Sequence[Span]) -> Iterator[dict[str, Any]]:
    """A slice for each module, around its steps that follow one another."""
    open_: list[tuple[str, float]] = []
    end = 0.0
    for span in (*spans, None):
        step = None if span is None else span.step
        path = module_path(step.nodes)[:-1] if isinstance(step, KernelTime) else ()
        same = 0
        while same < min(len(path), len(open_)) and open_[same][0] == path[same]:
            same += 1
        for depth in range(len(open_), same, -1):
            name, start = open_.pop()
            yield _slice(name, "module", start, end - start, {"depth": depth})
        if span is not None:
            open_ += [(name, span.start) for name in path[same:]]
            end = span.start + span.seconds


def node_names(step: Step | OpenStep) -> tuple[str, ...]:
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

    kernels = {}
    for key, step in last.steps.items():
        flops, nbytes = step.func.flops * last.calls[key], step.func.nbytes * last.calls[key]
        record = last.records[key]
        calls = last.calls[key]
        kernels[key] = KernelTime(
            step.func.name, node_names(step), median(key), flops, nbytes,
            None if record is None else record * calls, shapes_text(step.func),
        )  # fmt: skip
    host = {key: HostTime(h.op, h.name, median(key)) for key, h in last.hosts.items()}
    every = kernels | host
    spans = (Span(every[key], start, seconds) for key, start, seconds in last.spans)
    return Profile(tuple(kernels.values()), tuple(host.values()), tuple(spans))


class _Clock:
    """What one call spent where. The body of a loop runs several times: that adds up."""

    def __init__(self, processor_time: bool) -> None:
        self.clock = CLOCK_THREAD_CPUTIME_ID if processor_time else CLOCK_MONOTONIC
        self.spent: dict[tuple[int, int], float] = {}
        self.calls: dict[tuple[int, int], int] = {}
        self.steps: dict[tuple[int, int], Step] = {}
        self.hosts: dict[tuple[int, int], HostStep] = {}
        self.records: dict[tuple[int, int], float | None] = {}
        self.spans: list[tuple[tuple[int, int], float, float]] = []  # start and seconds
        self._now = 0.0

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
        self.spans.append((key, self._now, seconds))
        self._now += seconds

    def _graph(self, done: CompiledStage, feeds: Feeds) -> dict[str, Array]:
        return self.run(done.run, feeds) if isinstance(done.run, Executor) else done.run(feeds)

    def _host(self, done: CompiledStage, live: Feeds) -> dict[str, Array]:
        host = done.stage.host
        assert host is not None
        at, start = len(self.spans), self._now
        began = time.perf_counter()
        out = run_host(host, live, self._bodies(done.bodies))
        seconds = time.perf_counter() - began - (self._now - start)
        self.hosts[id(done), -1] = host
        key = id(done), -1
        self._add(key, max(0.0, seconds))
        self.spans.pop()
        self.spans.insert(at, (key, start, self._now - start))  # before the kernels inside of it
        return out

    def _bodies(self, bodies: Sequence[Runner]) -> list[Runner]:
        def timed(body: Runner) -> Runner:
            if not isinstance(body, StagedRun):
                return body
            return lambda feeds: self.staged(body, feeds)

        return [timed(b) for b in bodies]
