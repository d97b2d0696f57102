"""A cost model of one's own: ridge regression on the logarithms of all decisions. It passes the
suite in `tilesmith.testing.models` and is given to a strategy like a built-in one.
"""

from dataclasses import dataclass

import numpy as np

import tilesmith as ts


@dataclass(frozen=True)
class Ridge:
    penalty: float = 1e-2

    def fit(self, measurements):
        groups = ts.groups_of(measurements)  # by variant; labels are shares of the best speed
        if not groups:
            return None
        names = sorted({c for g in groups for c in g.variant.columns})
        form = Parabola(names, [g.variant.trace for g in groups])
        x = np.concatenate([form.terms(g.variant, g.rows) for g in groups])
        y = np.concatenate([g.labels for g in groups])
        weights = np.linalg.solve(x.T @ x + self.penalty * np.eye(x.shape[1]), x.T @ y)
        return Parabola(form.names, form.traces, weights)


@dataclass(frozen=True)
class Parabola:
    names: list
    traces: list  # of the variants, so that each has an offset of its own
    weights: np.ndarray | None = None

    def terms(self, variant, rows):
        logs = dict(zip(variant.columns, np.log2(np.maximum(rows, 1)).T, strict=True))
        known = [logs.get(name, np.zeros(len(rows))) for name in self.names]
        own = [np.full(len(rows), float(t == variant.trace)) for t in self.traces]
        return np.stack([np.ones(len(rows)), *known, *(x * x for x in known), *own], axis=1)

    def predict(self, variant, rows):
        return self.terms(variant, rows) @ self.weights


def main(n: int = 64) -> None:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    func = ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="matmul")
    strategy = ts.Annealing(cost_model=Ridge(), plan=12, iterations=50)
    result = ts.tune(func, strategy=strategy, budget=ts.Budget(trials=16), quiet=True)
    print(f"{result.gflops:.1f} GFLOP/s after {result.trials} trials")


if __name__ == "__main__":
    main()
