"""The best cost of a run over time: one point for every improvement."""

from __future__ import annotations

from collections.abc import Iterable

from tilesmith.task.ranking import Ranking
from tilesmith.task.task import Measurement

Curve = tuple[tuple[float, int, float], ...]


def curve_of(measurements: Iterable[Measurement]) -> Curve:
    """(seconds, trials, best cost) at every improvement, from the measurements of one run in their
    order. Candidates known before the run and measured again are points at 0 s.

    All costs are scaled to the machine's speed when the last best was measured. Measurements of
    another scale (see Measurement) are left out, and so are candidates that failed later.
    """
    ranking = Ranking()
    bests: list[tuple[float, int, Measurement]] = []
    for m in measurements:
        if m.moment is None:
            continue
        ranking.add(m)
        if m.failure is not None:
            bests = [b for b in bests if b[2].candidate.key != m.candidate.key]
        best = ranking.best
        if best is not None and (not bests or bests[-1][2] is not best):
            seconds = m.moment.seconds if m.moment.trial else 0.0
            bests.append((seconds, m.moment.trial, best))
    if not bests:
        return ()
    last = bests[-1][2]
    speed = last.cost / last.normal_cost
    return tuple(
        (seconds, trial, m.normal_cost * speed)
        for seconds, trial, m in bests
        if m.is_normal is last.is_normal
    )
