"""A simulator of a machine, fitted to recorded measurements of one task: predicts the seconds of
any candidate of the recorded variants.

It is a Gaussian process over the logarithms of the decisions. The cost models that are compared on
it are of other families, so it favours none of them. At a record it predicts the recorded time with
the noise smoothed out. Far from all records it predicts their mean, so a search gains nothing where
nothing was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.schedule.trace import Trace
from tilesmith.space.domains import Matrix
from tilesmith.space.variant import Variant

Array = np.ndarray[Any, np.dtype[np.float64]]

# Candidate hyperparameters; those with the smallest leave-one-out error are used.
_LENGTHS = (1.5, 3.0, 6.0, 12.0)
_NOISES = (0.003, 0.01, 0.03, 0.1, 0.3)
_KINSHIPS = (0.5, 0.9)  # correlation of equal decisions in different variants


@dataclass(frozen=True, eq=False)
class Simulator:
    """`points` are the coordinates of recorded rows, `kind` the numbers of their variants.
    `left_out` are the leave-one-out predictions of each record's seconds.
    """

    columns: Mapping[str, int]
    kinds: Mapping[Trace, int]
    points: Array
    kind: Array
    seconds: Array
    length: float
    kinship: float
    noise: float
    weights: Array
    left_out: Array

    def predict(self, variant: Variant, rows: Matrix) -> Array:
        """Seconds, clipped to the range of the records."""
        kind = np.full(len(rows), float(self.kinds.get(variant.trace, -1)))
        at = coordinates(variant, rows, self.columns)
        k = kernel(at, kind, self.points, self.kind, self.length, self.kinship)
        predicted = np.exp(np.log(self.seconds).mean() + k @ self.weights)
        return np.asarray(np.clip(predicted, self.seconds.min(), self.seconds.max()))

    @property
    def error(self) -> float:
        """Leave-one-out: the mean square of the logarithm of predicted over recorded seconds."""
        return float(np.square(np.log(self.left_out / self.seconds)).mean())


def simulate(groups: Sequence[tuple[Variant, Matrix, Array]]) -> Simulator:
    """Fitted to groups of (variant, rows of decisions, their seconds)."""
    columns: dict[str, int] = {}
    for v, _, _ in groups:
        for c in v.columns:
            columns.setdefault(c, len(columns))
    kinds = {v.trace: n for n, (v, _, _) in enumerate(groups)}
    points = np.concatenate([coordinates(v, rows, columns) for v, rows, _ in groups])
    kind = np.concatenate([np.full(len(rows), float(kinds[v.trace])) for v, rows, _ in groups])
    seconds = np.concatenate([s for _, _, s in groups])
    logs = np.log(seconds)
    fits = []
    for length, kinship in product(_LENGTHS, _KINSHIPS):
        values, vectors = np.linalg.eigh(kernel(points, kind, points, kind, length, kinship))
        for noise in _NOISES:
            inverse = 1 / (np.maximum(values, 0.0) + noise)
            weights = vectors @ (inverse * (vectors.T @ (logs - logs.mean())))
            # Leave-one-out predictions in closed form.
            left_out = np.exp(logs - weights / (np.square(vectors) @ inverse))
            fits.append(
                Simulator(
                    columns, kinds, points, kind, seconds, length, kinship, noise, weights, left_out
                )
            )
    return min(fits, key=lambda s: s.error)


def coordinates(variant: Variant, rows: Matrix, columns: Mapping[str, int]) -> Array:
    """For each column its log2, and for each tile size also the log2 of its product with the tiles
    inside of it, because that product has to fit a cache or the registers.
    """
    logs = np.log2(np.maximum(rows, 1))
    out = np.zeros((len(rows), 2 * len(columns)))
    at = [columns.get(c, -1) for c in variant.columns]
    shared = [k for k, a in enumerate(at) if a >= 0]
    out[:, [at[k] for k in shared]] = logs[:, shared]
    for d, span in zip(variant.domains, variant.spans, strict=True):
        if d.tile:
            within = np.cumsum(logs[:, span][:, ::-1], axis=1)[:, ::-1]
            for k, c in enumerate(d.columns):
                if c in columns:
                    out[:, len(columns) + columns[c]] = within[:, k]
    return out


def kernel(
    a: Array, a_kind: Array, b: Array, b_kind: Array, length: float, kinship: float
) -> Array:
    squares = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * a @ b.T
    distance = np.sqrt(np.maximum(squares, 0.0)) / length
    alike = np.where(a_kind[:, None] == b_kind[None, :], 1.0, kinship)
    # Matérn 3/2: differentiable only once, because times change in steps.
    near = (1 + np.sqrt(3) * distance) * np.exp(-np.sqrt(3) * distance)
    return np.asarray(alike * near)
