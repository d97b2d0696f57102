"""The catalogue of a search: the variants of a task's sketches, each lowered at first use, and
which candidates have been proposed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from tilesmith.base.errors import ScheduleError
from tilesmith.base.identity import digest
from tilesmith.schedule.trace import Trace
from tilesmith.space.domains import Matrix, Rng
from tilesmith.space.reopen import lowered, reopen
from tilesmith.space.spaces import (
    require_traces,
    some_structures,
    structural_counts,
    with_structure,
)
from tilesmith.space.variant import Variant
from tilesmith.task.task import Candidate, Task

# The most structures (combinations of structural decisions) of one sketch, and of all sketches. If
# there are more, an evenly spread sample is kept.
_MOST_PER_SKETCH = 512
_MOST_STRUCTURES = 8192


@dataclass(frozen=True, slots=True)
class Individual:
    """A row, with the number of its variant."""

    variant: int
    row: tuple[int, ...]


class Catalogue:
    """The variants of a task's sketches by number, and which candidates were proposed: a help for
    strategies of your own, so that none is proposed twice.
    """

    def __init__(self, task: Task, sketches: Sequence[Trace]) -> None:
        self.task = task
        self.sketches = require_traces(sketches)
        counts = [structural_counts(s) for s in self.sketches]
        most = min(_MOST_PER_SKETCH, max(1, _MOST_STRUCTURES // max(1, len(self.sketches))))
        # For each structure: its sketch, and the chosen position of each structural decision.
        self._structures = [
            (k, picked) for k, n in enumerate(counts) for picked in some_structures(n, most)
        ]
        # The number of structures that are not searched because there are too many.
        self.left_out = sum(map(prod, counts)) - len(self._structures)
        self._variants: dict[int, Variant | None] = {}
        self._proposed: dict[str, Individual] = {}
        self._seen: set[str] = set()
        self._rows: set[tuple[int, ...]] = set()  # proposed ones: (variant, *row)

    def __len__(self) -> int:
        return len(self._structures)

    def trace(self, number: int) -> Trace:
        """The trace of a structure, with its numeric decisions open."""
        sketch, picked = self._structures[number]
        return with_structure(self.sketches[sketch], picked)

    @cached_property
    def digest(self) -> str:
        """Equal for two catalogues that number the same structures equally."""
        return digest(str(len(self)), *(s.to_json() for s in self.sketches))

    def variant(self, number: int) -> Variant | None:
        """None if the structural decisions contradict each other."""
        if number not in self._variants:
            try:
                self._variants[number] = lowered(self.task, self.trace(number))
            except ScheduleError:
                self._variants[number] = None
        return self._variants[number]

    def lowered(self, number: int) -> Variant:
        """A variant that can be lowered."""
        v = self.variant(number)
        assert v is not None, f"variant {number} cannot be lowered"
        return v

    def transplant(
        self, rng: Rng, number: int, rows: Matrix, among: Sequence[int]
    ) -> Iterator[tuple[int, Matrix]]:
        """Moves each row to a random other variant of the same sketch that has the same columns.
        Rows that exceed a limit there are left out.
        """
        sketch, _ = self._structures[number]
        others = [k for k in among if k != number and self._structures[k][0] == sketch]
        if not others or not len(rows):
            return
        to = rng.integers(0, len(others), len(rows))
        for k in np.unique(to):
            v = self.variant(others[int(k)])
            if v is not None and v.columns == self.lowered(number).columns:
                there = rows[to == k]
                yield others[int(k)], there[v.valid(there)]

    def like(self, others: Sequence[Candidate]) -> Iterator[tuple[int, Matrix]]:
        """The rows of this space nearest to programs of other tasks: the same sketch and structural
        decisions, with the nearest numeric ones.
        """
        rows: dict[int, list[tuple[int, ...]]] = {}
        for c in others:
            try:
                there, row = reopen(c)
                number = self._numbers.get(there.trace)
                here = None if number is None else self.variant(number)
            except ScheduleError:
                continue
            if number is not None and here is not None and here.columns == there.columns:
                rows.setdefault(number, []).append(row)
        for number, matrix in rows.items():
            yield number, self.lowered(number).adapt(np.array(matrix, np.int32))

    def seen(self, number: int, row: Matrix) -> bool:
        """Whether a row of a variant was proposed."""
        return (number, *row.tolist()) in self._rows

    def some(self, rng: Rng, n: int) -> list[int]:
        """Numbers of up to n variants that can be lowered, in random order. One of each sketch
        comes first, then a second one: a sketch with many structures is not better for that.
        """
        turns: dict[int, int] = {}  # structures of each sketch so far
        order: list[tuple[int, int, int]] = []
        for k in rng.permutation(len(self)):
            sketch, _ = self._structures[k]
            turns[sketch] = turns.get(sketch, 0) + 1
            order.append((turns[sketch], len(order), int(k)))
        numbers = []
        for _, _, k in sorted(order):
            if self.variant(k) is not None:
                numbers.append(k)
                if len(numbers) == n:
                    break
        return numbers

    def propose(self, number: int, row: Matrix) -> Candidate | None:
        """The candidate of a row; None if it was proposed before."""
        if self.seen(number, row):
            return None
        who = Individual(number, tuple(row.tolist()))
        self._rows.add((number, *who.row))
        c = self.lowered(number).candidate(row)
        if c.key in self._seen:
            return None
        self._seen.add(c.key)
        self._proposed[c.key] = who
        return c

    def individual(self, c: Candidate) -> Individual | None:
        """The row of a candidate, if it was proposed here."""
        return self._proposed.get(c.key)

    def adopt(self, c: Candidate) -> Individual | None:
        """Marks a candidate that was measured, such as a record, as proposed. Returns its row if it
        belongs to this space.
        """
        self._seen.add(c.key)
        who = self._proposed.get(c.key) or self._find(c)
        if who is not None:
            self._proposed[c.key] = who
            self._rows.add((who.variant, *who.row))
        return who

    def _find(self, c: Candidate) -> Individual | None:
        if c.task != self.task:  # another task may have the same trace with other extents
            return None
        try:
            variant, row = reopen(c)
        except ScheduleError:
            return None
        number = self._numbers.get(variant.trace)
        if number is None or not variant.contains(np.array([row], np.int32))[0]:
            return None
        return Individual(number, row)

    @cached_property
    def _numbers(self) -> dict[Trace, int]:
        return {self.trace(k): k for k in range(len(self))}
