"""A measurer of one's own: it lets the machine cool down before each batch, so that a laptop or a
board without a fan does not throttle its clock, and leaves the measuring to another measurer. It
passes the suite in `tilesmith.testing.measurers` and is used like a built-in one.
"""

import time
from dataclasses import dataclass

import tilesmith as ts


@dataclass(frozen=True)
class CoolDown:
    """Waits `pause` seconds before each batch."""

    inner: ts.LocalMeasurer
    pause: float = 0.05

    def open(self, task):
        return CoolDownRun(self.inner.open(task), self.pause)


class CoolDownRun:
    def __init__(self, inner, pause):
        self.inner, self.pause = inner, pause

    def measure(self, candidates, upcoming=None, seconds=None):
        """`upcoming` gives the next batch, to be built ahead; after `seconds` the time is up."""
        pause = self.pause if seconds is None else max(0.0, min(self.pause, seconds))
        time.sleep(pause)
        left = None if seconds is None else seconds - pause
        return self.inner.measure(candidates, upcoming, left)

    def best(self, task):  # optional: the winner of races side by side
        return self.inner.best(task)

    def report_to(self, listener):  # optional: stores measurements before their batch is done
        self.inner.report_to(listener)

    def close(self):
        self.inner.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


def main(n: int = 64) -> None:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    func = ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="matmul")
    measurer: ts.Measurer = CoolDown(ts.LocalMeasurer(), pause=0.02)
    result = ts.tune(func, measurer=measurer, budget=ts.Budget(trials=16), quiet=True)
    print(f"{result.gflops:.1f} GFLOP/s after {result.trials} trials")


if __name__ == "__main__":
    main()
