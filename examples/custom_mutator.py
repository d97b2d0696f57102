"""A mutator of one's own: larger register tiles. Evolution applies it after its own small changes.
A row that it moves out of the space stays as it was.
"""

from dataclasses import dataclass

import numpy as np

import tilesmith as ts


@dataclass(frozen=True)
class GrowInnermost:
    """Doubles the innermost factor of one tiled loop, in a random `share` of the rows."""

    share: float = 0.2

    def mutate(self, variant, rng, rows):
        tiles = [
            (d, s)
            for d, s in zip(variant.domains, variant.spans, strict=True)
            if d.tile and len(d.columns) > 1
        ]
        new = rows.copy()
        for i in np.flatnonzero(rng.random(len(rows)) < self.share) if tiles else ():
            domain, span = tiles[rng.integers(len(tiles))]
            factors = new[i, span]  # outermost first; a view of the new row
            factors[-1] *= 2
            factors[0] = -(-domain.extent // factors[1:].prod())
        return new


def main(n: int = 64) -> None:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    func = ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="matmul")
    strategy = ts.Evolution(mutators=(ts.ChangeDecisions(), GrowInnermost()))
    result = ts.tune(func, strategy=strategy, budget=ts.Budget(trials=16), quiet=True)
    print(f"{result.gflops:.1f} GFLOP/s after {result.trials} trials")


if __name__ == "__main__":
    main()
