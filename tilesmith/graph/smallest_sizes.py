"""From which sizes on an open model is trusted: below the sizes that it was generalised from, the
model may be another one. An importer cuts numbers off at 0, as the start of the last eight rows,
and leaves out what does nothing at a size of 1.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilesmith.base.errors import TilesmithError
from tilesmith.graph.graph import Array, Graph
from tilesmith.graph.open_executor import OpenExecutor, SizedExecutor
from tilesmith.graph.opening import Opening
from tilesmith.graph.oracle import evaluate_graph

_SLACK = 1e-3  # of the largest value: far more than roundings, far less than other elements


def smallest_trusted(opening: Opening, executor: OpenExecutor) -> dict[str, int]:
    """The low end of a range where the model there is the same as elsewhere, or computes the same;
    else the smallest value that the model was generalised from. By the names of sizes.
    """
    first = opening.first
    low = {n: min(max(s.limits[0], 1), first[n]) for n, s in zip(first, opening.sizes, strict=True)}
    found = {
        n: low[n] if _is_same(opening, executor, first | {n: low[n]}) else first[n] for n in first
    }
    lower = [n for n in first if found[n] < first[n]]
    if len(lower) > 1 and not _is_same(opening, executor, found):
        return dict(first)
    return {n: min(v, s.limits[0]) if v == low[n] else v
            for (n, v), s in zip(found.items(), opening.sizes, strict=True)}  # fmt: skip


def _is_same(opening: Opening, executor: OpenExecutor, sizes: Mapping[str, int]) -> bool:
    if sizes == opening.first:
        return True
    try:
        graph = opening.imported(sizes)
        if opening.difference(sizes, graph) is None or opening.has_same_results(graph, sizes):
            return True
        feeds = _drawn(graph)
        want = evaluate_graph(graph, feeds)
        got = SizedExecutor(executor, sizes, None)(feeds)
    except (TilesmithError, ValueError):  # a part of an array would begin before it
        return False
    return all(_is_near(got[n], a) for n, a in want.items())


def _drawn(graph: Graph) -> dict[str, Array]:
    """Small numbers: indices must be valid in every table."""
    rng = np.random.default_rng(0)
    found = {}
    for name in graph.inputs:
        v = graph.values[name]
        whole = v.dtype.numpy.kind in "iub"
        drawn = rng.integers(0, 2, v.shape) if whole else rng.standard_normal(v.shape)
        found[name] = np.asarray(drawn).astype(v.dtype.numpy)
    return found


def _is_near(a: Array, b: Array) -> bool:
    if a.shape != b.shape:
        return False
    x, y = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(y)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return False
    most = float(np.abs(y[finite]).max(initial=0.0))
    return bool(np.all(np.abs(x[finite] - y[finite]) <= _SLACK * most))
