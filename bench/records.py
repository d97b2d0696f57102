"""The database under load: how fast records go in, and how soon answers come out of a million."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import tilesmith as ts
from bench.table import Row, arguments, finish
from tilesmith.records.database import Database
from tilesmith.schedule.schedule import Schedule
from tilesmith.schedule.trace import Trace
from tilesmith.task.task import Candidate, Failure, Measurement, Task


def task_of(size: int) -> Task:
    a, b = ts.placeholder((size, 64), name="A"), ts.placeholder((64, size), name="B")
    return Task(ts.function([a, b, ts.ops.matmul(a, b, name="C")]), ts.Target.named("zen3"))


def trace_of(number: int) -> Trace:
    """A trace of the length that tuners make, another one for each number."""
    sch = Schedule(task_of(512).func)
    i, j, k = sch.loops("C")
    i0, i1, i2, i3 = sch.split(i, [None, 4, 2, 1 + number % 97])
    j0, j1, j2, j3 = sch.split(j, [None, 2, 4, 1 + number // 97 % 101])
    k0, k1 = sch.split(k, [None, 1 + number // 9797])
    sch.reorder(i0, j0, i1, j1, k0, i2, j2, k1, i3, j3)
    sch.parallel(i0)
    sch.unroll(i3)
    sch.vectorize(j3)
    return sch.trace


def measurement(task: Task, trace: Trace, number: int) -> Measurement:
    if number % 10 == 0:
        return Measurement(Candidate(task, trace), (), Failure("wrong", "differs by 0.5 at (0, 0)"))
    cost = 1e-3 + (number * 7919 % 10007) * 1e-7
    samples = tuple(cost * (1 + s / 100) for s in range(10))
    return Measurement(Candidate(task, trace), samples, contended=number % 17 == 0)


def seconds(call: Callable[[], object], times: int = 20) -> float:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def fill(db: Database, tasks: list[Task], count: int, batch: int) -> float:
    """Records a second, as a tuner adds them."""
    traces = [trace_of(k) for k in range(200)]
    spent = 0.0
    for start in range(0, count, batch):
        task = tasks[start // batch % len(tasks)]
        chunk = [measurement(task, traces[k % 200], k) for k in range(start, start + batch)]
        begin = time.perf_counter()
        db.add(chunk)
        spent += time.perf_counter() - begin
    return count / spent


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--count", type=int, default=1_000_000, help="records in the database")
    parser.add_argument("--place", help="a file or a URL instead of a temporary file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = options.place or f"{folder}/records.db"
        tasks = [task_of(64 + 8 * k) for k in range(100)]
        with ts.open_database(place) as db:
            rows = [Row("records added, 64 at a time", fill(db, tasks, 6400, 64), "/s")]
            rate = fill(db, tasks, max(0, options.count - 6400), 1000)
            rows.append(Row("records added, 1000 at a time", rate, "/s"))
            total = db.count()
            name = f"of {total:,} records"
            best = [seconds(lambda t=t: db.best(t), 5) for t in tasks]  # type: ignore[misc]
            rows.append(Row(f"best(task) {name}", 1e3 * statistics.median(best), "ms"))
            rows.append(Row(f"best(task) {name}, slowest task", 1e3 * max(best), "ms"))
            known = db.count(tasks[0])
            rows.append(
                Row(f"of(task), {known:,} {name}", seconds(lambda: db.of(tasks[0]), 3), "s")
            )
            rows.append(Row(f"tasks() {name}", seconds(db.tasks, 3), "s"))
            rows.append(Row(f"count() {name}", seconds(db.count, 3), "s"))
        if Path(place).is_file():
            rows.append(Row("size of the file", Path(place).stat().st_size / 1e9, "GB"))
            start = time.perf_counter()
            with ts.open_database(place) as db:
                db.best(tasks[-1])
            rows.append(
                Row("open, and the first best()", 1e3 * (time.perf_counter() - start), "ms")
            )
    finish(rows, options)


if __name__ == "__main__":
    main()
