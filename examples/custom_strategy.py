"""A strategy of one's own: small changes of the best program so far, and some at random. It passes
the suite in `tilesmith.testing.strategies` and is used like a built-in one.
"""

from dataclasses import dataclass
from itertools import islice

import numpy as np

import tilesmith as ts


@dataclass(frozen=True)
class Climb:
    """`share` of what it proposes is near the best; the rest is random."""

    share: float = 0.75

    def start(self, task, sketches, rng):
        return ClimbSearch(self.share, ts.Catalogue(task, sketches), rng)


class ClimbSearch:
    def __init__(self, share, catalogue, rng):
        self.share, self.catalogue, self.rng = share, catalogue, rng
        self.random = ts.RandomSearch(catalogue, rng)
        self.best, self.cost = None, float("inf")

    def ask(self, n):
        near = list(islice(self.neighbours(2 * n), int(self.share * n)))
        return near + self.random.ask(n - len(near))

    def neighbours(self, n):
        if self.best is None:
            return
        variant = self.catalogue.variant(self.best.variant)
        rows = np.array([self.best.row] * n, np.int32)
        for _ in range(4):  # one change, then two, ...
            rows = variant.mutate(self.rng, rows)
            proposed = (self.catalogue.propose(self.best.variant, row) for row in rows)
            yield from (c for c in proposed if c is not None)  # None: it was proposed before

    def tell(self, measurements):
        for m in measurements:
            who = self.catalogue.adopt(m.candidate)
            if who is not None and m.failure is None and m.cost < self.cost:
                self.best, self.cost = who, m.cost


def main(n: int = 64) -> None:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    func = ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="matmul")
    result = ts.tune(func, strategy=Climb(), budget=ts.Budget(trials=16), quiet=True)
    print(f"{result.gflops:.1f} GFLOP/s after {result.trials} trials")


if __name__ == "__main__":
    main()
