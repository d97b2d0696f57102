"""The recorded data set of the tests: programs of several operators, drawn at random as `ts.Random`
draws them, measured here, and written as one compressed file of JSON lines for each task.

    python -m bench.dataset --minutes 25

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
from tilesmith.measure.parent.timing import TimingRules
from tilesmith.measure.this_machine import siblings, usable_cores
from tilesmith.records.lines import write_lines
from tilesmith.records.rows import Entry, record_row, task_row

DATA = Path(__file__).parent.parent / "tests" / "data"
BATCH = 32
TURN = 96  # programs of a task that one process measures at a time
# Processor time, as the machine may have other work; and a first call, which is timed by the clock
# on the wall, decides nothing.
QUICK = TimingRules(
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


def load(folder: Path = DATA) -> dict[str, list[ts.Measurement]]:
    """The data set by the names of its tasks."""
    found = {path.name.split(".")[0]: ts.read_records(path) for path in folder.glob("*.jsonl.xz")}
    return {name: found[name] for name in sorted(found)}


@dataclass(frozen=True)
class Turn:
    """Work for one process: candidates to measure again, or else to be drawn by this number."""

    name: str
    number: int
    again: tuple[ts.Candidate, ...] = ()
    until: float = float("inf")


def measure(turn: Turn) -> tuple[Turn, list[ts.Measurement]]:
    if time.time() >= turn.until:
        return turn, []
    task = tasks()[turn.name]
    rng = np.random.default_rng([turn.number, int(task.key[:8], 16)])
    search = ts.Random().start(task, ts.SketchSpace().sketches(task), rng)
    out: list[ts.Measurement] = []
    with ts.LocalMeasurer(rules=QUICK, confirm=False, timeout=20.0).open(task) as run:
        while time.time() < turn.until:
            at = slice(len(out), min(len(out) + BATCH, TURN))
            asked = turn.again[at] if turn.again else search.ask(at.stop - at.start)
            if not asked:
                break
            found = run.measure(asked)
            out += found
    return replace(turn, again=()), out


def tasks() -> dict[str, ts.Task]:
    return {
        name: ts.Task(ts.function(tensors, name=name), ts.cpu(1))
        for name, tensors in OPERATORS.items()
    }


class Collection:
    """All that was measured, by task, and the processes that measure more."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder, self.tasks = folder, {name: tasks()[name] for name in names}
        self.found: dict[str, list[ts.Measurement]] = {}
        for name, task in self.tasks.items():
            path = folder / f"{name}.jsonl.xz"
            known = ts.read_records(path) if path.exists() else []
            # those of another machine are another task's
            self.found[name] = [m for m in known if m.candidate.task == task]

    def size(self, name: str) -> int:
        return len({m.candidate.key for m in self.found[name]})

    def draw(self, size: int, processes: int, until: float) -> None:
        """Until every task has so many programs; all tasks grow alike."""
        known = {name: -(-self.size(name) // TURN) for name in self.tasks}
        turns = [
            Turn(name, k, until=until)
            for k in range(-(-size // TURN)) for name in self.tasks if k >= known[name]
        ]  # fmt: skip
        self._run(turns, processes)

    def again(self, passes: int, processes: int, until: float) -> None:
        """Fast programs, and what was disturbed, once more."""
        turns = []
        for name, known in self.found.items():
            counts = {m.candidate: 0 for m in known}
            for m in known:
                counts[m.candidate] += not m.contended
            limit = AGAIN_WITHIN * min((m.cost for m in known), default=0.0)
            near = {m.candidate for m in known if m.cost <= limit}
            todo = [c for c, n in counts.items() if n < (passes if c in near else 1)]
            parts = range(0, len(todo), TURN)
            turns += [Turn(name, k, tuple(todo[k : k + TURN]), until) for k in parts]
        self._run(sorted(turns, key=lambda turn: turn.number), processes)

    def _run(self, turns: Iterable[Turn], processes: int) -> None:
        groups = list(dict.fromkeys(frozenset(siblings(c)) for c in usable_cores()))
        start = multiprocessing.get_context("spawn")
        free = start.SimpleQueue()
        for group in groups[-processes:]:  # the first one has the system's chores
            free.put(group)
        began = time.monotonic()
        with ProcessPoolExecutor(min(processes, len(groups)), start, _pin, (free,)) as pool:
            for turn, measured in pool.map(measure, turns):
                self.found[turn.name] += measured
                seconds, count = time.monotonic() - began, self.size(turn.name)
                print(f"{seconds:5.0f} s  {turn.name}: {count} programs", flush=True)
        self.export()

    def export(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, measurements in self.found.items():
            rows = [
                Entry(task_row(self.tasks[name]), record_row(m)) for m in condensed(measurements)
            ]
            if rows:  # on another machine, or not yet: what is there stays
                write_lines(self.folder / f"{name}.jsonl.xz", rows)


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
        references=(),  # of single calls, which are left out
        failure=None if m.failure is None else ts.Failure(m.failure.kind, m.failure.text[:80]),
        build_seconds=0.0,
        when=float(int(m.when // 3600 * 3600)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--size", type=int, default=1440, help="programs of each task")
    parser.add_argument("--passes", type=int, default=3, help="of the fast ones")
    parser.add_argument("--processes", type=int, default=len(usable_cores()))
    parser.add_argument("--tasks", nargs="+", choices=[*OPERATORS], default=[*OPERATORS])
    parser.add_argument("--to", type=Path, default=DATA)
    args = parser.parse_args()
    start = time.time()
    known = Collection(args.to, args.tasks)

    def share(of_time: float) -> float:
        return float(start + 60 * args.minutes * of_time)

    known.draw(args.size, args.processes, share(0.75))
    for k in range(2, args.passes + 1):
        known.again(k, max(1, args.processes // 2), share(0.75 + 0.25 * (k - 1) / args.passes))
    for path in sorted(args.to.glob("*.jsonl.xz")):
        print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
