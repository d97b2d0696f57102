"""From the tiles of a TVM log to candidates of ours: in every structure of the default space, the
row whose tiles are nearest. What was fast there is a place to begin with, never a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np

from tilesmith.base.errors import ScheduleError
from tilesmith.ir.nodes import Block, walk
from tilesmith.search.score_by_target import ScoreByTarget
from tilesmith.space.domains import Matrix
from tilesmith.space.spaces import SketchSpace, variants
from tilesmith.space.variant import Variant
from tilesmith.task.task import Candidate, Task

_ROWS = 64  # drawn for the decisions that the log says nothing of
_MOST_VARIANTS = 48  # looked at
_NEAR = 1.5  # the mean of |log2| of the ratios of two tiles, up to which they are alike


def seeds(
    task: Task, tiles: Mapping[int, Sequence[int]], count: int
) -> list[Candidate]:  # fmt: skip
    """The best candidates by the analytic score with about these tiles of the block that sums most;
    `tiles` are by the number of its axis, outermost factor first.
    """
    wanted = _by_axis(task, tiles)
    found: list[tuple[float, Candidate]] = []
    for variant in _some(task):
        rows = _rows(variant, wanted)
        if rows is None or not len(rows):
            continue
        scores = ScoreByTarget().predict(variant, rows)
        best = int(np.argmax(scores))
        found.append((float(scores[best]), variant.candidate(rows[best])))
    found.sort(key=lambda pair: -pair[0])
    return [c for _, c in dict.fromkeys(found)][:count]


def _some(task: Task) -> Iterator[Variant]:
    """Variants of all sketches in turns."""
    each = [iter(variants(task, s)) for s in SketchSpace().sketches(task)]
    left = _MOST_VARIANTS
    while each and left > 0:
        for one in list(each):
            try:
                variant = next(one, None)
            except ScheduleError:
                continue
            if variant is None:
                each.remove(one)
                continue
            left -= 1
            yield variant


def _work(b: Block) -> tuple[bool, int]:
    return b.combiner is not None, prod(i.extent.number for i in b.iters)


def _by_axis(task: Task, tiles: Mapping[int, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """By the beginning of a column's name, as "C.i"."""
    b = max((b for _, b in walk(task.func.body)), key=_work)
    axes = [*b.spatial, *b.reducing]
    out = {}
    for k, given in tiles.items():
        if k < len(axes) and given:
            inner = [max(1, int(n)) for n in given[1:]]
            outer = -(-axes[k].extent.number // prod(inner))
            out[f"{b.name}.{axes[k].name}"] = (outer, *inner)
    return out


def _rows(variant: Variant, wanted: Mapping[str, Sequence[int]]) -> Matrix | None:
    """Rows with the nearest tiles, and random other decisions; None if the variant has no such
    tiles.
    """
    places: list[tuple[slice, tuple[int, ...]]] = []
    for domain, span in zip(variant.domains, variant.spans, strict=True):
        axis = domain.columns[0][1:].rpartition(".")[0]
        own = wanted.get(axis.replace(".local", ""))
        if own is not None and len(domain.columns) > 1:
            places.append((span, _parts(own, len(domain.columns))))
    if not places:
        return None
    rows = variant.sample(np.random.default_rng(0), _ROWS)
    if not len(rows):
        return None
    for span, parts in places:
        rows[:, span] = parts
    adapted = variant.adapt(rows)
    if not len(adapted):
        return adapted
    far = np.zeros(len(adapted))
    for span, parts in places:
        inner = adapted[:, span][:, 1:]
        far += np.abs(np.log2(np.maximum(inner, 1) / np.maximum(parts[1:], 1))).mean(axis=1)
    return np.asarray(adapted[far <= max(_NEAR * len(places), float(far.min()))])


def _parts(factors: Sequence[int], count: int) -> tuple[int, ...]:
    """The factors as `count` of them: the inner ones stay, and what is left is outermost."""
    inner = list(factors[1:])[-(count - 1) :] if count > 1 else []
    rest = prod(factors) // max(1, prod(inner))
    return (rest, *(1,) * (count - 1 - len(inner)), *inner)
