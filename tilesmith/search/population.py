"""A population over several variants: rows grouped by variant, so that scoring, breeding and
picking act on whole matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tilesmith.search import checked
from tilesmith.search.catalogue import Catalogue
from tilesmith.search.protocol import Mutator, Part, Scores
from tilesmith.space.domains import Matrix, Rng, encode
from tilesmith.space.variant import Variant

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


def breed(
    catalogue: Catalogue, rng: Rng, parents: Population, crossover: float,
    mutators: Sequence[Mutator], moved: float,
) -> Population:  # fmt: skip
    """A child of each parent. A share `crossover` has a second parent of the same variant. Then all
    go through the mutators. Finally a share `moved` goes to another variant of the same sketch that
    also has parents.
    """
    out: list[tuple[int, Matrix]] = []
    together: dict[int, list[Matrix]] = {}
    for number, rows in parents.groups:
        together.setdefault(number, []).append(rows)
    present = list(together)
    for number, parts in together.items():
        rows = np.concatenate(parts)
        v = catalogue.lowered(number)
        mates = rows.take(rng.integers(0, len(rows), len(rows)), axis=0)
        chosen = rng.random(len(rows)) < crossover
        children = np.where(chosen[:, None], v.cross(rng, rows, mates), rows)
        for m in mutators:
            children = checked.mutate(m, v, rng, children)
        goes = rng.random(len(rows)) < moved
        out += catalogue.transplant(rng, number, children[goes], present)
        out.append((number, children[~goes]))
    return merge(*out)
