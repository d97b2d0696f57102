"""The recorded data set of the tests: programs of several operators, measured here and written as
compressed files of JSON lines.

    python -m bench.dataset --minutes 25

`<task>.jsonl.xz` are programs drawn at random as `ts.Random` draws them, and nothing else: what a
model knows of them, and how soon a search finds the best of them, is judged on these. With
`<task>.evolved.jsonl.xz`, which evolutions without a learned model came by, good regions are dense
enough for a simulator of the machine.

Each process has a physical core of its own. Fast programs are measured in several passes, the last
ones by half as many processes, and the fastest pass counts: what disturbs a machine only ever makes
a program slower. Another run goes on from the files.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import tilesmith as ts
from tilesmith.measure.cores import siblings, usable_cores
from tilesmith.measure.timing import Rules
from tilesmith.records.lines import write_lines
from tilesmith.records.rows import record_row, task_row
from tilesmith.search.protocol import Strategy

DATA = Path(__file__).parent.parent / "tests" / "data"
BATCH = 32
TURN = 96  # programs of a task that one process measures at a time
DRAWN, EVOLVED = "", ".evolved"  # in the names of files
# Processor time, as the machine may have other work; and a first call, which is timed by the clock
# on the wall, decides nothing.
QUICK = Rules(
    min_seconds=0.003,
    max_seconds=0.05,
    first_cutoff=1e9,
    race_within=1.0,
    max_drift=2.0,
    processor_time=True,
)
Tensors = tuple[ts.Tensor, ...]  # inputs, then the output
AGAIN_WITHIN = 1.6  # of the best, programs are measured in all passes


def _matmul(n: int, m: int, k: int) -> Tensors:
    a, b = ts.placeholder((n, k), name="A"), ts.placeholder((k, m), name="B")
    return a, b, ts.ops.matmul(a, b, name="C")


def _conv2d(size: int, channels: int, filters: int) -> Tensors:
    x = ts.placeholder((1, size, size, channels), name="X")
    w = ts.placeholder((3, 3, channels, filters), name="W")
    return x, w, ts.ops.conv2d(x, w, padding=1, layout="NHWC", name="Y")


def _depthwise(size: int, channels: int) -> Tensors:
    x = ts.placeholder((1, size, size, channels), name="X")
    w = ts.placeholder((3, 3, 1, channels), name="W")
    return x, w, ts.ops.depthwise_conv2d(x, w, padding=1, layout="NHWC", name="Y")


def _softmax(m: int, n: int) -> Tensors:
    x = ts.placeholder((m, n), name="X")
    return x, ts.ops.softmax(x, name="Y")


def _scores(length: int, heads: int, dim: int) -> Tensors:
    q, k = (ts.placeholder((1, length, heads, dim), name=name) for name in ("Q", "K"))
    return q, k, ts.ops.transpose_batch_matmul(q, k, name="S")


OPERATORS = {
    "matmul_512": _matmul(512, 512, 512),
    "matmul_384_768_256": _matmul(384, 768, 256),
    "conv2d_28_64_64": _conv2d(28, 64, 64),
    "conv2d_14_128_256": _conv2d(14, 128, 256),
    "depthwise_56_64": _depthwise(56, 64),
    "depthwise_28_160": _depthwise(28, 160),
    "softmax_512_1024": _softmax(512, 1024),
    "softmax_256_768": _softmax(256, 768),
    "scores_128_12_64": _scores(128, 12, 64),
    "scores_96_8_48": _scores(96, 8, 48),
}


def load(folder: Path = DATA, evolved: bool = False) -> dict[str, list[ts.Measurement]]:
    """The data set by the names of its tasks: what was drawn, or with what was evolved as well."""
    found: dict[str, list[ts.Measurement]] = defaultdict(list)
    for path in sorted(folder.glob("*.jsonl.xz")):
        if evolved or EVOLVED not in path.name:
            found[path.name.split(".")[0]] += ts.read_records(path)
    return {name: found[name] for name in sorted(found)}


@dataclass(frozen=True)
class Turn:
    """Work for one process: candidates to measure again, or else to be found. Evolution is told
    what is `known`; drawing needs no more than a number.
    """

    name: str
    kind: str
    number: int
    again: tuple[ts.Candidate, ...] = ()
    known: tuple[ts.Measurement, ...] = ()
    until: float = float("inf")


def measure(turn: Turn) -> tuple[Turn, list[ts.Measurement]]:
    if time.time() >= turn.until:
        return turn, []
    task = tasks()[turn.name]
    strategy: Strategy = ts.Evolution(cost_model=None) if turn.kind == EVOLVED else ts.Random()
    rng = np.random.default_rng([turn.number, int(task.key[:8], 16)])
    search = strategy.start(task, ts.SketchSpace().sketches(task), rng)
    search.tell(turn.known)
    out: list[ts.Measurement] = []
    with ts.LocalMeasurer(rules=QUICK, confirm=False, timeout=20.0).open(task) as run:
        while time.time() < turn.until:
            at = slice(len(out), min(len(out) + BATCH, TURN))
            asked = turn.again[at] if turn.again else search.ask(at.stop - at.start)
            if not asked:
                break
            found = run.measure(asked)
            search.tell(found)
            out += found
    return replace(turn, again=(), known=()), out


def tasks() -> dict[str, ts.Task]:
    return {
        name: ts.Task(ts.function(tensors, name=name), ts.cpu(1))
        for name, tensors in OPERATORS.items()
    }


class Collection:
    """All that was measured, by task and kind, and the processes that measure more."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder, self.tasks = folder, {name: tasks()[name] for name in names}
        self.found: dict[tuple[str, str], list[ts.Measurement]] = {}
        for name, task in self.tasks.items():
            for kind in (DRAWN, EVOLVED):
                path = folder / f"{name}{kind}.jsonl.xz"
                known = ts.read_records(path) if path.exists() else []
                # on another machine they would be another task's
                self.found[name, kind] = [m for m in known if m.candidate.task == task]

    def size(self, name: str, kind: str) -> int:
        return len({m.candidate.key for m in self.found[name, kind]})

    def collect(self, kind: str, size: int, processes: int, until: float) -> None:
        """Until every task has so many programs."""
        most = -(-size // TURN)
        numbers = {n: -(-self.size(n, kind) // TURN) for n in self.tasks}
        rounds = range(min(numbers.values()), most)
        turns = [
            Turn(name, kind, k, known=self._known(name, kind), until=until)
            for k in rounds for name in self.tasks if k >= numbers[name]
        ]  # fmt: skip
        self._run(turns, processes)

    def _known(self, name: str, kind: str) -> tuple[ts.Measurement, ...]:
        """Evolutions know what was drawn, and differ by their numbers."""
        return tuple(self.found[name, DRAWN]) if kind == EVOLVED else ()

    def again(self, passes: int, processes: int, until: float) -> None:
        """Fast programs, and what was disturbed, once more."""
        turns = []
        for (name, kind), known in self.found.items():
            counts = {m.candidate: 0 for m in known}
            for m in known:
                counts[m.candidate] += not m.contended
            costs = [m.cost for k in (DRAWN, EVOLVED) for m in self.found[name, k]]
            limit = AGAIN_WITHIN * min(costs, default=0.0)
            near = {m.candidate for m in known if m.cost <= limit}
            todo = [c for c, n in counts.items() if n < (passes if c in near else 1)]
            parts = range(0, len(todo), TURN)
            turns += [Turn(name, kind, k, tuple(todo[k : k + TURN]), until=until) for k in parts]
        turns.sort(key=lambda turn: turn.number)
        self._run(turns, processes)

    def _run(self, turns: Iterable[Turn], processes: int) -> None:
        groups = list(dict.fromkeys(frozenset(siblings(c)) for c in usable_cores()))
        start = multiprocessing.get_context("fork")
        free = start.SimpleQueue()
        for group in groups[-processes:]:  # the first one has the system's chores
            free.put(group)
        began = time.monotonic()
        with ProcessPoolExecutor(min(processes, len(groups)), start, _pin, (free,)) as pool:
            for turn, measured in pool.map(measure, turns):
                self.found[turn.name, turn.kind] += measured
                count = self.size(turn.name, turn.kind)
                seconds = time.monotonic() - began
                print(f"{seconds:5.0f} s  {turn.name}{turn.kind}: {count} programs", flush=True)
        self.export()

    def export(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for (name, kind), measurements in self.found.items():
            rows = [(task_row(self.tasks[name]), record_row(m)) for m in condensed(measurements)]
            if rows:  # on another machine, or not yet: what is there stays
                write_lines(self.folder / f"{name}{kind}.jsonl.xz", rows)


def _pin(free: multiprocessing.SimpleQueue[frozenset[int]]) -> None:
    os.sched_setaffinity(0, free.get())


def condensed(measurements: Sequence[ts.Measurement]) -> list[ts.Measurement]:
    """Each program once: the fastest of its passes, undisturbed ones first, with numbers as exact
    as they deserve.
    """
    found: dict[ts.Candidate, list[ts.Measurement]] = defaultdict(list)
    for m in measurements:
        found[m.candidate].append(m)
    return [_short(min(ms, key=lambda m: (m.contended, m.cost))) for ms in found.values()]


def _short(m: ts.Measurement) -> ts.Measurement:
    return replace(
        m,
        seconds=(float(f"{m.cost:.4g}"),) if m.seconds else (),
        failure=None if m.failure is None else ts.Failure(m.failure.kind, m.failure.text[:80]),
        build_seconds=0.0,
        when=float(int(m.when // 3600 * 3600)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--size", type=int, default=1200, help="programs drawn of each task")
    parser.add_argument("--evolved", type=int, default=384, help="programs evolved of each task")
    parser.add_argument("--passes", type=int, default=3, help="of the fast ones")
    parser.add_argument("--processes", type=int, default=len(usable_cores()))
    parser.add_argument("--tasks", nargs="+", choices=[*OPERATORS], default=[*OPERATORS])
    parser.add_argument("--to", type=Path, default=DATA)
    args = parser.parse_args()
    start = time.time()
    known = Collection(args.to, args.tasks)

    def share(of_time: float) -> float:
        return float(start + 60 * args.minutes * of_time)

    known.collect(DRAWN, args.size, args.processes, share(0.6))
    known.collect(EVOLVED, args.evolved, args.processes, share(0.75))
    for k in range(2, args.passes + 1):
        known.again(k, max(1, args.processes // 2), share(0.75 + 0.25 * (k - 1) / args.passes))
    for path in sorted(args.to.glob("*.jsonl.xz")):
        print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
