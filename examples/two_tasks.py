"""Tunes two tasks with one measurer. A scheduler of our own chooses, batch by batch, which of them
is worth the time: `python examples/two_tasks.py [seconds]`, by default 20.
"""

import sys
import time
from collections.abc import Callable, Sequence

import tilesmith as ts

Scheduler = Callable[[Sequence[ts.TaskTuner]], ts.TaskTuner | None]


def greedy(tuners: Sequence[ts.TaskTuner]) -> ts.TaskTuner | None:
    """The task that takes longest, divided by the trials spent on it; None when all are done."""
    left = [t for t in tuners if not t.finished]
    return max(left, key=lambda t: t.best_cost / (1 + t.trials), default=None)


def tune_tasks(
    tuners: Sequence[ts.TaskTuner], scheduler: Scheduler, measurer: ts.Measurer, seconds: float
) -> None:
    until = time.monotonic() + seconds
    with measurer.open(tuners[0].task) as measuring:
        current = scheduler(tuners)
        while current is not None and time.monotonic() < until:
            following = scheduler(tuners)  # its search runs while `current` is measured
            measured = current.step(measuring, until=until, following=following)
            if not measured and not current.finished:
                break  # too little time is left for another batch
            current = following


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    a, b = ts.placeholder((256, 256), name="A"), ts.placeholder((256, 256), name="B")
    matmul = ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="matmul")
    x = ts.placeholder((256, 1000), name="X")
    softmax = ts.function([x, ts.ops.softmax(x, name="Y")], name="softmax")
    with ts.open_database(":memory:") as db:
        tasks = [ts.Task(func, ts.cpu(num_cores=1)) for func in (matmul, softmax)]
        tuners = [ts.TaskTuner(task, database=db) for task in tasks]
        tune_tasks(tuners, greedy, ts.LocalMeasurer(), seconds)
    for t in tuners:
        print(f"{t.task.func.name:8} {t.trials:4} trials in {t.seconds:5.1f} s: ", end="")
        print(f"{t.best_cost * 1e6:.1f} us")


if __name__ == "__main__":
    main()
