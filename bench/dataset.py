"""The recorded data set of the tests: programs of several operators drawn and evolved, measured
here, and written as one compressed file of JSON lines for each task.

    taskset -c 1 python -m bench.dataset --minutes 25

Half of each task's programs are random, the other half comes of an evolution that knows them, in
turns, so that good regions are dense. Fast programs are measured in several passes, minutes apart,
and the fastest pass counts: what disturbs a machine only ever makes a program slower. All that was
measured is in a database at once; another run goes on where one ended, or where the files are, and
measures again what was disturbed.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import tilesmith as ts
from tilesmith.measure.timing import Rules
from tilesmith.records.lines import write_lines
from tilesmith.records.rows import record_row, task_row
from tilesmith.records.sql import SqlDatabase

DATA = Path(__file__).parent.parent / "tests" / "data"
BATCH = 32
TURN = 64  # programs of a task, before it is the next one's turn
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
AGAIN_WITHIN = 2.0  # of the best, programs are measured in all passes


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


def turn(task: ts.Task, database: SqlDatabase, size: int, passes: int, deadline: float) -> bool:
    """Some more measurements of a task; whether there is more to do."""
    known = database.of(task)
    clean = {m.candidate: 0 for m in known}
    for m in known:
        clean[m.candidate] += not m.contended
    rng = np.random.default_rng(len(known))
    again: list[ts.Candidate] = []
    search = None
    if len(clean) < size:
        strategy = ts.Evolution(cost_model=None) if len(clean) // TURN % 2 else ts.Random()
        search = strategy.start(task, ts.SketchSpace().sketches(task), rng)
        search.tell(known)
    else:
        best = min(m.cost for m in known)
        near = {m.candidate for m in known if m.cost <= AGAIN_WITHIN * best}
        again = [c for c, n in clean.items() if n < (passes if c in near else 1)]
        again = [again[k] for k in rng.permutation(len(again))[:TURN]]
        if not again:
            return False
    with ts.LocalMeasurer(rules=QUICK, confirm=False, timeout=20.0).open(task) as run:
        done = 0
        while done < TURN and time.monotonic() < deadline:
            candidates = again[done : done + BATCH] if search is None else search.ask(BATCH)
            if not candidates:
                break
            measured = run.measure(candidates)
            database.add(measured)
            if search is not None:
                search.tell(measured)
            done += len(measured)
    return done > 0


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


def export(database: SqlDatabase, tasks: dict[str, ts.Task], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, task in tasks.items():
        rows = [(task_row(task), record_row(m)) for m in condensed(database.of(task))]
        if not rows:  # on another machine, or not yet: what is there stays
            continue
        path = folder / f"{name}.jsonl.xz"
        write_lines(path, rows)
        print(f"{path}: {len(rows)} programs, {path.stat().st_size / 1024:.0f} KiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--size", type=int, default=600, help="programs of each task")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--database", default="dataset.db", help="where all measurements are kept")
    parser.add_argument("--to", type=Path, default=DATA)
    args = parser.parse_args()
    deadline = time.monotonic() + 60 * args.minutes
    tasks = {
        name: ts.Task(ts.function(tensors, name=name), ts.cpu(1))
        for name, tensors in OPERATORS.items()
    }
    with ts.open_database(args.database) as database:
        for path in args.to.glob("*.jsonl.xz"):
            database.import_(path)
        todo = dict(tasks)
        while todo and time.monotonic() < deadline:
            name = min(todo, key=lambda name: database.count(tasks[name]))
            start, before = time.monotonic(), database.count(tasks[name])
            if not turn(tasks[name], database, args.size, args.passes, deadline):
                del todo[name]
            count = database.count(tasks[name])
            rate = (count - before) / (time.monotonic() - start)
            print(f"{name}: {count} measurements, {rate:.1f}/s", flush=True)
        export(database, tasks, args.to)


if __name__ == "__main__":
    main()
