"""The variants of a task's sketches, lowered when first drawn and then kept, and the candidates
drawn from them, each once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from tilesmith.base.digest import digest
from tilesmith.base.errors import ScheduleError
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

# Structures of one sketch, and of all of them: a search looks at a few in each round. Where there
# are more, a sample is kept that is spread evenly over all combinations.
_MOST_PER_SKETCH = 512
_MOST_STRUCTURES = 8192


@dataclass(frozen=True, slots=True)
class Individual:
    """A row of a variant."""

    variant: int
    row: tuple[int, ...]


class Catalogue:
    def __init__(self, task: Task, sketches: Sequence[Trace]) -> None:
        self.task = task
        self.sketches = require_traces(sketches)
        counts = [structural_counts(s) for s in self.sketches]
        most = min(_MOST_PER_SKETCH, max(1, _MOST_STRUCTURES // max(1, len(self.sketches))))
        # The sketch of each structure, and which choice each of its structural decisions takes.
        self._structures = [
            (k, picked) for k, n in enumerate(counts) for picked in some_structures(n, most)
        ]
        # Structures that are in no round because there are too many.
        self.left_out = sum(map(prod, counts)) - len(self._structures)
        self._variants: dict[int, Variant | None] = {}
        self._proposed: dict[str, Individual] = {}
        self._seen: set[str] = set()
        self._rows: set[tuple[int, ...]] = set()  # variant and row

    def __len__(self) -> int:
        return len(self._structures)

    def trace(self, number: int) -> Trace:
        """Of a structure, its numeric decisions open."""
        sketch, picked = self._structures[number]
        return with_structure(self.sketches[sketch], picked)

    @cached_property
    def digest(self) -> str:
        """Equal for two catalogues that number the same structures alike."""
        return digest(str(len(self)), *(s.to_json() for s in self.sketches))

    def variant(self, number: int) -> Variant | None:
        """None where the structural decisions do not go together."""
        if number not in self._variants:
            try:
                self._variants[number] = lowered(self.task, self.trace(number))
            except ScheduleError:
                self._variants[number] = None
        return self._variants[number]

    def known(self, number: int) -> Variant:
        """A variant that is there."""
        v = self.variant(number)
        assert v is not None, f"variant {number} cannot be lowered"
        return v

    def transplant(
        self, rng: Rng, number: int, rows: Matrix, among: Sequence[int]
    ) -> Iterator[tuple[int, Matrix]]:
        """The same numbers in another variant of the same sketch, where it has the same decisions
        and they keep its limits.
        """
        sketch, _ = self._structures[number]
        others = [k for k in among if k != number and self._structures[k][0] == sketch]
        if not others or not len(rows):
            return
        to = rng.integers(0, len(others), len(rows))
        for k in np.unique(to):
            v = self.variant(others[int(k)])
            if v is not None and v.columns == self.known(number).columns:
                there = rows[to == k]
                yield others[int(k)], there[v.valid(there)]

    def like(self, others: Sequence[Candidate]) -> Iterator[tuple[int, Matrix]]:
        """Programs of other tasks, as near as this space has them: the same sketch and structural
        decisions, with the nearest numbers.
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
        for number, found in rows.items():
            yield number, self.known(number).adapt(np.array(found, np.int32))

    def seen(self, number: int, row: Matrix) -> bool:
        return (number, *row.tolist()) in self._rows

    def some(self, rng: Rng, n: int) -> list[int]:
        """Numbers of up to n variants that can be lowered, in random order."""
        found = []
        for k in rng.permutation(len(self)):
            if self.variant(int(k)) is not None:
                found.append(int(k))
                if len(found) == n:
                    break
        return found

    def propose(self, number: int, row: Matrix) -> Candidate | None:
        """The candidate of a row; None if it was there before or its numbers do not go together."""
        if self.seen(number, row):
            return None
        who = Individual(number, tuple(row.tolist()))
        self._rows.add((number, *who.row))
        c = self.known(number).candidate(row)
        if c.key in self._seen:
            return None
        self._seen.add(c.key)
        self._proposed[c.key] = who
        return c

    def individual(self, c: Candidate) -> Individual | None:
        """Which row a candidate is, if it was proposed here."""
        return self._proposed.get(c.key)

    def adopt(self, c: Candidate) -> Individual | None:
        """A candidate that is known from elsewhere, a record say: never to be proposed again. Which
        row it is, if it is one of this space.
        """
        self._seen.add(c.key)
        who = self._proposed.get(c.key) or self._find(c)
        if who is not None:
            self._proposed[c.key] = who
            self._rows.add((who.variant, *who.row))
        return who

    def _find(self, c: Candidate) -> Individual | None:
        if c.task != self.task:  # the same trace may have other extents there
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
