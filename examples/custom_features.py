"""A feature extractor of one's own: the innermost tile sizes of a program, given to the built-in
trees in place of their features of statements.
"""

from dataclasses import dataclass

import numpy as np

import tilesmith as ts


@dataclass(frozen=True)
class TileShape:
    """log2 of the innermost `levels` factors of the first `loops` tiled loops."""

    loops: int = 6
    levels: int = 2

    def extract(self, variant, rows):
        """Shape (rows, 1, width): one line for the whole program, as wide for every variant."""
        out = np.zeros((len(rows), 1, self.loops * self.levels), np.float32)
        tiles = [s for d, s in zip(variant.domains, variant.spans, strict=True) if d.tile]
        for k, span in enumerate(tiles[: self.loops]):
            inner = np.log2(rows[:, span][:, ::-1][:, : self.levels])
            out[:, 0, k * self.levels : k * self.levels + inner.shape[1]] = inner
        return out


def main(n: int = 64) -> None:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    func = ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="matmul")
    strategy = ts.Evolution(cost_model=ts.Gbdt(features=TileShape(), fewest=12))
    result = ts.tune(func, strategy=strategy, budget=ts.Budget(trials=32), quiet=True)
    print(f"{result.gflops:.1f} GFLOP/s after {result.trials} trials")


if __name__ == "__main__":
    main()
