"""Grid: enumerates every candidate of every variant in a fixed order. Rows are generated on demand,
so that a space may be of any size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from tilesmith.base.given import checks_given
from tilesmith.schedule.trace import Trace
from tilesmith.search.catalogue import Catalogue
from tilesmith.space.domains import Matrix, Rng
from tilesmith.space.variant import Variant
from tilesmith.task.task import Candidate, Measurement, Task

_LEAST, _MOST = 64, 8192  # rows generated at a time: few at first, more if valid ones are rare


@checks_given
@dataclass(frozen=True)
class Grid:
    """Variants one after another, decisions like the digits of a number. A variant is abandoned
    after `patience` consecutive rows that break a limit.
    """

    patience: int = 1 << 26

    def start(self, task: Task, sketches: Sequence[Trace], rng: Rng) -> GridSearch:
        """The search of one task, which is asked for candidates and told measurements."""
        return GridSearch(Catalogue(task, sketches), self.patience)


class GridSearch:
    """Searches with the same catalogue never propose the same candidate."""

    def __init__(self, catalogue: Catalogue, patience: int = Grid.patience) -> None:
        self.catalogue, self.patience = catalogue, patience
        self._rest = self._walk()

    def ask(self, n: int) -> list[Candidate]:
        return list(islice(self._rest, max(n, 0)))

    def tell(self, measurements: Sequence[Measurement]) -> None:
        for m in measurements:
            self.catalogue.adopt(m.candidate)

    def _walk(self) -> Iterator[Candidate]:
        for number in range(len(self.catalogue)):
            variant = self.catalogue.variant(number)
            if variant is not None:
                for row in valid_rows(variant, self.patience):
                    c = self.catalogue.propose(number, row)
                    if c is not None:
                        yield c


def valid_rows(variant: Variant, patience: int = Grid.patience) -> Iterator[Matrix]:
    """The rows of a variant that satisfy its limits, in order."""
    at, block, missed = 0, _LEAST, 0
    while at < variant.size and missed < patience:
        rows = variant.rows(at, block)
        kept = rows[variant.valid(rows)]
        missed = 0 if len(kept) else missed + len(rows)
        yield from kept
        at += len(rows)
        block = min(2 * block, _MOST)
