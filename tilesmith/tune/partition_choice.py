"""Which partition of a graph is faster, by records: a group as one kernel or as two.

A database that knows both ways decides; so compile_model takes what tune_model found without being
told. Without records of all kernels involved, the rule of `graph/partition.py` stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilesmith.base.target import Target
from tilesmith.graph.alternatives import parts_of
from tilesmith.graph.graph import Graph
from tilesmith.graph.group_function import group_function
from tilesmith.graph.partition import Group, Partition
from tilesmith.records.database import Database
from tilesmith.task.task import Task

# Two kernels are taken only if they win by so much: the value between them goes through memory,
# which a warm measurement does not see entirely.
WIN = 0.98


@dataclass(frozen=True)
class Rivals:
    """A task, and the tasks that together compute the same."""

    whole: Task
    parts: tuple[Task, ...]


@dataclass(frozen=True)
class RecordedPartition:
    """The groups of `base`, each divided in two where records say that this is faster."""

    base: Partition
    database: Database
    target: Target

    def __call__(self, graph: Graph) -> tuple[Group, ...]:
        chosen: dict[str, bool] = {}
        out: list[Group] = []
        for group in self.base(graph):
            parts = parts_of(graph, group)
            if parts is not None:
                rivals = rivals_of(graph, group, parts, self.target)
                key = rivals.whole.key
                if key not in chosen:
                    chosen[key] = self._divided(rivals)
                if chosen[key]:
                    out += parts
                    continue
            out.append(group)
        return tuple(out)

    def _divided(self, rivals: Rivals) -> bool:
        whole = self.database.best(rivals.whole)
        parts = [self.database.best(t) for t in rivals.parts]
        if whole is None or any(m is None for m in parts):
            return False
        return sum(m.cost for m in parts if m is not None) < WIN * whole.cost


def rivals_of(graph: Graph, group: Group, parts: tuple[Group, ...], target: Target) -> Rivals:
    functions = (group_function(graph, g) for g in (group, *parts))
    whole, *others = (Task(f, target) for f in functions)
    return Rivals(whole, tuple(others))


def all_rivals(graph: Graph, groups: Partition, target: Target) -> Iterator[Rivals]:
    """The rivals of all groups of a graph, after its passes, each pair once."""
    seen: set[str] = set()
    for group in groups(graph):
        parts = parts_of(graph, group)
        if parts is not None:
            rivals = rivals_of(graph, group, parts, target)
            if rivals.whole.key not in seen:
                seen.add(rivals.whole.key)
                yield rivals
