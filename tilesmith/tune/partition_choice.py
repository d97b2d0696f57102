"""Which partition of a graph is faster, by records: a group as one kernel or as several.

A database that knows both ways decides; so compile_model takes what tune_model found without being
told. Without records of all kernels involved, the rule of `graph/partition.py` stands; for groups
that were joined from others, the way that has records, or else the one with the better drafts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.identity import digest
from tilesmith.base.target import Target
from tilesmith.graph.alternatives import parts_of
from tilesmith.graph.graph import Graph
from tilesmith.graph.group_function import group_function
from tilesmith.graph.joined_groups import JoinedGroups
from tilesmith.graph.partition import Group, Partition, partition
from tilesmith.ir.function import Function, instantiate
from tilesmith.records.database import Database, likely_best
from tilesmith.schedule.trace import Parts, Trace
from tilesmith.search.cpu_score import CpuScore
from tilesmith.space.sets import is_one_launch
from tilesmith.space.variant import reopen
from tilesmith.task.task import Candidate, Task
from tilesmith.tune.build_request import (
    PLAIN_POINTS,
    drafts_of,
    points,
    sketches_for_open_sizes,
)
from tilesmith.tune.cache import Cache, code_digest
from tilesmith.tune.open_build import drafted_sizes
from tilesmith.tune.portfolio import weighted_mean
from tilesmith.tune.stored_portfolio import stored_portfolio

# Two kernels are taken only if they win by so much: the value between them goes through memory,
# which a warm measurement does not see entirely.
WIN = 0.98


@dataclass(frozen=True)
class Rivals:
    """A task, and the tasks that together compute the same."""

    whole: Task
    parts: tuple[Task, ...]


@dataclass(frozen=True)
class Decision:
    """Whether a group was divided. Of a `joined` one, the rule alone would not know."""

    rivals: Rivals
    is_joined: bool
    is_divided: bool


@dataclass(frozen=True)
class RecordedPartition:
    """The groups of `base`, each divided where that is known or estimated to be faster."""

    base: Partition
    database: Database | None
    target: Target
    accuracy: float | None = None
    own: Parts | None = None
    kept: Cache | None = None  # what was estimated before

    def __call__(self, graph: Graph) -> tuple[Group, ...]:
        return self.decided(graph)[0]

    def decided(self, graph: Graph) -> tuple[tuple[Group, ...], tuple[Decision, ...]]:
        """The groups, and why they are these."""
        chosen: dict[str, Decision] = {}
        out: list[Group] = []
        for group in self.base(graph):
            is_joined = bool(group.parts)
            # Only records divide what the rule alone has joined.
            is_open = is_joined or self.database is not None
            parts = parts_of(graph, group) if is_open else None
            if parts is not None:
                rivals = rivals_of(graph, group, parts, self.target, self.own)
                key = rivals.whole.key
                if key not in chosen:
                    is_divided = self._divided(is_joined, rivals)
                    chosen[key] = Decision(rivals, is_joined, is_divided)
                if chosen[key].is_divided:
                    out += parts
                    continue
            out.append(group)
        return tuple(out), tuple(chosen.values())

    def still_holds(self, decisions: tuple[Decision, ...]) -> bool:
        """Whether the records, of which there may be others now, say the same."""
        return all(self._divided(d.is_joined, d.rivals) == d.is_divided for d in decisions)

    def divides(self, whole: Function, parts: Sequence[Function]) -> bool:
        """Whether a joined group of an open model is rather its parts: by their portfolios if all
        have one, else as at the sizes that drafts are made for.
        """
        if self.database is not None:
            every = [stored_portfolio(self.database, f, self.target, self.own)
                     for f in (whole, *parts)]  # fmt: skip
            known = [p for p in every if p is not None]
            if len(known) == len(every) and len({len(p.samples) for p in known}) == 1:
                one, *others = ([seconds for seconds, _ in p.times] for p in known)
                ratios = [sum(own) / s for s, *own in zip(one, *others, strict=True)]
                return weighted_mean(ratios, known[0].weights) < WIN
        tasks = [
            Task(instantiate(f, drafted_sizes(f)), self.target, self.own) for f in (whole, *parts)
        ]
        among = sketches_for_open_sizes(tasks[0], self.accuracy)
        return self._divided(True, Rivals(tasks[0], tuple(tasks[1:])), among)

    def _divided(self, is_joined: bool, rivals: Rivals, among: tuple[Trace, ...] = ()) -> bool:
        whole = self._recorded((rivals.whole,), likely=True)
        parts = self._recorded(rivals.parts, likely=True)
        if not is_joined and (whole is None or parts is None):
            return False
        # Whether a trace still applies takes long to find out, so only where records decide.
        whole = None if whole is None else self._recorded((rivals.whole,))
        parts = None if parts is None else self._recorded(rivals.parts)
        if whole is not None and parts is not None:
            return parts < WIN * whole
        if not is_joined:
            return False
        if whole is not None or parts is not None:
            return whole is None
        if points(rivals.whole.func) <= PLAIN_POINTS:
            return True
        whole = self._estimated(rivals.whole, among)
        return sum(map(self._estimated, rivals.parts)) < whole

    def _estimated(self, task: Task, among: tuple[Trace, ...] = ()) -> float:
        """A draft is made for it, which takes longer than all else of a start with kernels that
        were built before.
        """
        if self.kept is None:
            return estimated_cycles(task, self.accuracy, among)
        how = "estimated cycles of some sketches" if among else "estimated cycles"
        key = digest(code_digest(self.own), task.statement, str(self.accuracy), how)
        with suppress(ValueError):  # damaged
            if (found := self.kept.get(key)) is not None:
                return float(found)
        cycles = estimated_cycles(task, self.accuracy, among)
        self.kept.put(key, repr(cycles).encode())
        return cycles

    def _recorded(self, tasks: tuple[Task, ...], likely: bool = False) -> float | None:
        """Seconds of all of them; None if one has no record. With `likely`, of records whose traces
        may no longer apply.
        """
        db, total = self.database, 0.0
        for task in tasks:
            best = None if db is None else likely_best(db, task) if likely else db.best(task)
            if best is None:
                return None
            total += best.cost
        return total


def offered(groups: Partition, target: Target) -> Partition:
    """The partition with groups joined wherever that may be faster on a CPU, or wherever a GPU
    keeps all between them in registers. A partition of the user's own stays as it is.
    """
    if groups is not partition:
        return groups
    if target.kind == "cpu":
        return JoinedGroups(partition)
    return JoinedGroups(partition, partial(is_one_launch, target=target))


@lru_cache(maxsize=256)
def estimated_cycles(
    task: Task, accuracy: float | None = None, among: tuple[Trace, ...] = ()
) -> float:
    """Of about the kernel that is built without a record, by the analytic score. Half as much is
    tried as for that one, since models are compiled in seconds.
    """
    (trace,) = drafts_of(task, 1, (), accuracy, variants=6, rows=128, among=among)
    variant, row = reopen(Candidate(task, trace))
    score = CpuScore()
    share = np.exp2(score.predict(variant, np.array([row], np.int32)))
    return float(score.least_cycles(task) / share[0])


def rivals_of(
    graph: Graph, group: Group, parts: tuple[Group, ...], target: Target, own: Parts | None
) -> Rivals:
    functions = (group_function(graph, g) for g in (group, *parts))
    whole, *others = (Task(f, target, own) for f in functions)
    return Rivals(whole, tuple(others))


def all_rivals(
    graph: Graph, groups: Partition, target: Target, own: Parts | None = None
) -> Iterator[Rivals]:
    """The rivals of all groups of a graph, after its passes, each pair once."""
    seen: set[str] = set()
    for group in groups(graph):
        parts = parts_of(graph, group)
        if parts is not None:
            rivals = rivals_of(graph, group, parts, target, own)
            if rivals.whole.key not in seen:
                seen.add(rivals.whole.key)
                yield rivals
