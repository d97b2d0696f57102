"""OpenSizes: the sizes of a model's inputs, and those that follow from them, such as the height
behind a convolution.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilesmith.expr.ints import Int, var
from tilesmith.expr.sizes import OpenSize
from tilesmith.graph.size_fit import value_at

_MOST_SAMPLES = 8  # of a size that follows from others


class OpenSizes:
    """Names have their #. `points` are the values of all sizes at which the model is known."""

    def __init__(self, sizes: Sequence[OpenSize], points: Sequence[dict[str, int]]) -> None:
        self.declared = {f"#{s.name}": s for s in sizes}
        self.base = tuple(self.declared)
        self.points = points
        self.derived: dict[str, Int] = {}
        self._named: dict[Int, str] = {}

    def extent(self, e: Int) -> Int:
        """The extent itself, or a size of its own where it is more than a polynomial."""
        if e.plain:
            return e
        name = self._named.get(e)
        if name is None:
            stem = sorted(e.names)[0].split(".")[0]
            name = f"{stem}.{sum(n.startswith(f'{stem}.') for n in self.derived) + 1}"
            self._derive(name, e)
            self._named[e] = name
        return var(name)

    def _derive(self, name: str, e: Int) -> None:
        self.derived[name] = e
        for point in self.points:
            point[name] = value_at(e, point)
        self.declared[name] = self._declared(name, e)

    def _declared(self, name: str, e: Int) -> OpenSize:
        """The range and the samples of a size that follows from others."""
        parts = [self.declared[n] for n in sorted(e.names)]
        low, high = (
            max(0, value_at(e, {f"#{s.name}": s.limits[k] for s in parts})) for k in (0, 1)
        )
        weights: dict[int, float] = {}
        most = max(len(s.weights) for s in parts)
        for k in range(most):  # all sizes grow together
            chosen = [[*s.weights.items()] for s in parts]
            some = [w[k * len(w) // most] for w in chosen]
            at = {f"#{s.name}": v for s, (v, _) in zip(parts, some, strict=True)}
            v = min(max(1, low, value_at(e, at)), max(1, high))
            weights[v] = weights.get(v, 0.0) + float(np.prod([w for _, w in some]))
        step = -(-len(weights) // _MOST_SAMPLES)
        kept = sorted(weights)[::-1][::step]
        limits = min(low, high), max(1, low, high)
        return OpenSize(
            name.removeprefix("#"), limits, tuple((v, weights[v]) for v in sorted(kept))
        )

    def declared_of(self, e: Int, name: str) -> OpenSize:
        found = self.declared.get(name)
        return self._declared(name, e) if found is None else found

    def dependent(self, names: Sequence[str]) -> str | None:
        """A derived size that another one of these has something in common with."""
        order = [*self.derived]
        derived = sorted((n for n in names if n in self.derived), key=order.index, reverse=True)
        for n in derived:
            own = self._sources(n)
            if any(own & self._sources(m) for m in names if m != n):
                return n
        return None

    def _sources(self, name: str) -> frozenset[str]:
        if name not in self.derived:
            return frozenset({name})
        return frozenset({name}).union(*map(self._sources, self.derived[name].names))
