"""What strategies search in: the catalogue of a task's variants with the candidates that were
proposed, populations of rows over several variants, and how rows are drawn, bred and picked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from math import prod
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError, TuneError
from tilesmith.base.given import checks_given
from tilesmith.base.identity import digest
from tilesmith.schedule.trace import Trace
from tilesmith.search.protocol import Part, Scores
from tilesmith.space.domains import Matrix, Rng, encode
from tilesmith.space.spaces import (
    require_traces,
    some_structures,
    structural_counts,
    with_structure,
)
from tilesmith.space.variant import Variant, lowered, reopen
from tilesmith.task.task import Candidate, Measurement, Task


@checks_given(error=TuneError)
@dataclass(frozen=True)
class ChangeDecisions:
    """Changes one decision of each row of a random `share` by a small step: a prime factor moves to
    another tile level, or another value is chosen.
    """

    share: float = 1.0

    def mutate(self, variant: Variant, rng: Rng, rows: Matrix) -> Matrix:
        """Rows with some decisions changed."""
        if self.share >= 1:
            return variant.mutate(rng, rows)
        chosen = rng.random(len(rows)) < self.share
        return np.where(chosen[:, None], variant.mutate(rng, rows), rows)


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
        self._places = {place: k for k, place in enumerate(self._structures)}
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

    def siblings(self, number: int) -> list[int]:
        """The structures of the same sketch that differ in one structural decision, such as the
        place where a block is computed; if none of these is searched, all others of the sketch.
        """
        sketch, picked = self._structures[number]
        near = [
            self._places[place]
            for at, count in enumerate(structural_counts(self.sketches[sketch]))
            for other in range(count)
            if other != picked[at]
            and (place := (sketch, (*picked[:at], other, *picked[at + 1 :]))) in self._places
        ]
        return near or [
            k for k, (s, _) in enumerate(self._structures) if s == sketch and k != number
        ]

    def is_asked(self, number: int) -> bool:
        """Whether `variant` returns without lowering."""
        return number in self._variants

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

    def every(self, patience: int) -> Iterator[Candidate]:
        """All candidates that were not proposed yet, in a fixed order: variants one after another,
        decisions like the digits of a number. See `Variant.valid_rows` for `patience`.
        """
        for number in range(len(self)):
            variant = self.variant(number)
            for row in () if variant is None else variant.valid_rows(patience):
                c = self.propose(number, row)
                if c is not None:
                    yield c

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


_ROUNDS = 8  # draws without a new candidate after which the rest is enumerated
_PATIENCE = 1 << 18


class RandomSearch:
    """Draws candidates, each once. If that finds no new ones, the rest of the space is enumerated,
    so that a small space is exhausted. Other searches use it with their own catalogue, for random
    proposals and when a space is nearly exhausted.
    """

    def __init__(self, catalogue: Catalogue, rng: Rng) -> None:
        self.catalogue, self.rng = catalogue, rng
        self._rest = catalogue.every(_PATIENCE)
        self._missed = 0

    def ask(self, n: int) -> list[Candidate]:
        """The next candidates."""
        out: list[Candidate] = []
        while len(out) < n and self._missed < _ROUNDS:
            drawn = self._draw(n - len(out))
            self._missed = 0 if drawn else self._missed + 1
            out += drawn
        return out + list(islice(self._rest, max(n - len(out), 0)))

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Nothing is learned."""
        for m in measurements:
            self.catalogue.adopt(m.candidate)

    def _draw(self, n: int) -> list[Candidate]:
        """Up to n new candidates, spread evenly over up to n variants."""
        numbers = self.catalogue.some(self.rng, n)
        out: list[Candidate] = []
        for k, number in enumerate(numbers):
            share = -(-(n - len(out)) // (len(numbers) - k))
            for row in self.catalogue.lowered(number).sample(self.rng, share):
                c = self.catalogue.propose(number, row)
                if c is not None:
                    out.append(c)
        return out


Score = Callable[[Variant, Matrix], Scores]


@dataclass(frozen=True, eq=False)
class Population:
    """`groups` are (variant's number, rows). Members are numbered across groups."""

    groups: tuple[tuple[int, Matrix], ...]

    def __len__(self) -> int:
        return sum(len(rows) for _, rows in self.groups)

    def members(self) -> Iterator[tuple[int, Matrix]]:
        for number, rows in self.groups:
            for row in rows:
                yield number, row

    def parts(self, catalogue: Catalogue) -> list[Part]:
        return [(catalogue.lowered(number), rows) for number, rows in self.groups]

    def scores(self, catalogue: Catalogue, score: Score) -> Scores:
        scored = [score(variant, rows) for variant, rows in self.parts(catalogue)]
        return np.concatenate(scored) if scored else np.zeros(0)

    def take(self, at: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Population:
        """The members at these positions, which may repeat."""
        at = np.sort(at)
        starts = np.cumsum([0, *(len(rows) for _, rows in self.groups)])
        ends = np.searchsorted(at, starts).tolist()
        return Population(
            tuple(
                (number, rows.take(at[ends[k] : ends[k + 1]] - starts[k], axis=0))
                for k, (number, rows) in enumerate(self.groups)
                if ends[k] < ends[k + 1]
            )
        )


def merge(*groups: tuple[int, Matrix]) -> Population:
    """The union of these rows."""
    rows: dict[int, list[Matrix]] = {}
    for number, part in groups:
        if len(part):
            rows.setdefault(number, []).append(part)
    out = []
    for number, parts in rows.items():
        together = np.concatenate(parts)
        _, first = np.unique(encode(together), return_index=True)
        out.append((number, together.take(np.sort(first), axis=0)))
    return Population(tuple(out))


def sample(catalogue: Catalogue, rng: Rng, numbers: list[int], count: int) -> Population:
    """`count` rows, drawn evenly from these variants."""
    each = -(-count // max(len(numbers), 1))
    groups = [(k, catalogue.lowered(k).sample(rng, each)) for k in numbers]
    return Population(tuple((k, rows) for k, rows in groups if len(rows)))


Numbers = np.ndarray[Any, np.dtype[np.int64]]


def pick(
    count: int, variants: Sequence[int], rows: Sequence[Matrix], scores: Scores, diversity: float
) -> list[int]:
    """The positions of `count` candidates that make a good batch, best first: a greedy maximum of

        sum of scores + diversity * number of different decisions among them,

    where a decision is a value of a column of a variant. The objective is submodular, so the greedy
    batch has at least 63 % of the best possible worth if no score is negative. Without diversity
    these are the best scores, in order. Scores are used as given: divide them by their standard
    deviation if their unit is arbitrary, as for a ranking model.

    `variants[i]` is the number of the variant that `rows[i]` belongs to. Of equals the first wins.
    """
    count = min(count, len(scores))
    if diversity == 0:
        return [int(i) for i in np.argsort(-scores, kind="stable")[:count]]
    parts = decisions(variants, rows)
    holders, ends = _holders(parts)
    worth = np.array(scores, float) + diversity * (parts >= 0).sum(axis=1)
    taken = {-1}
    out: list[int] = []
    for _ in range(count):
        best = int(np.argmax(worth))
        out.append(best)
        worth[best] = -np.inf
        for part in parts[best].tolist():
            if part not in taken:  # no longer new for the other candidates that make it
                taken.add(part)
                worth[holders[ends[part] : ends[part + 1]]] -= diversity
    return out


def decisions(variants: Sequence[int], rows: Sequence[Matrix]) -> Numbers:
    """For each row, a number for each of its decisions, equal if variant, column and value are
    equal. Lines of variants with fewer columns end in -1.
    """
    widths = np.array([len(r) for r in rows], np.int64)
    out = np.full((len(rows), widths.max(initial=0)), -1, np.int64)
    there = np.arange(out.shape[1]) < widths[:, None]
    values = np.concatenate([*rows, np.zeros(0, np.int64)]).astype(np.int64)
    which, columns = np.nonzero(there)
    # variant, column and value in one integer: values take 32 bits, the others are small
    keys = np.asarray(variants, np.int64)[which] * out.shape[1] + columns << 32
    out[there] = np.unique(keys + values, return_inverse=True)[1]
    return out


def _holders(parts: Numbers) -> tuple[Numbers, list[int]]:
    """The lines that contain each decision, concatenated, and the start of each decision's lines
    followed by the end of the last.
    """
    lines, columns = np.nonzero(parts >= 0)
    held = parts[lines, columns]
    ends = np.cumsum(np.bincount(held))
    return lines[np.argsort(held, kind="stable")], [0, *ends.tolist()]
