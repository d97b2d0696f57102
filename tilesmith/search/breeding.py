"""Children of a population: crossover within a variant and between variants, mutation, and moves to
other structures of the same sketch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from tilesmith.search import checked
from tilesmith.search.population import Catalogue, ChangeDecisions, Population, merge
from tilesmith.search.protocol import Mutator
from tilesmith.space.domains import Matrix, Rng

# Structures that the rows of one variant are moved to in a generation: each more is a call of the
# model for few rows.
_TARGETS = 2
_TRIES = 3  # structures that a row is moved to until it fits one
_REPAIRS = 2  # changed decisions of a row that exceeds a limit of its new structure


def breed(
    catalogue: Catalogue, rng: Rng, parents: Population, crossover: float,
    mutators: Sequence[Mutator], moved: float, across: float = 0.0, lower: int = 0,
) -> Population:  # fmt: skip
    """A child of each parent. A share `crossover` has a second parent: of another variant for a
    share `across` of these, else of the same one. Then all go through the mutators. Finally a share
    `moved` goes to another structure of the same sketch: one that is lowered, or one of at most
    `lower` that are lowered for it.
    """
    out: list[tuple[int, Matrix]] = []
    together: dict[int, list[Matrix]] = {}
    for number, rows in parents.groups:
        together.setdefault(number, []).append(rows)
    people = {number: np.concatenate(parts) for number, parts in together.items()}
    lowering = set(rng.permutation([*people])[:lower].tolist()) if lower and moved else set()
    for number, rows in people.items():
        v = catalogue.lowered(number)
        mates = rows.take(rng.integers(0, len(rows), len(rows)), axis=0)
        chosen = rng.random(len(rows)) < crossover
        children = np.where(chosen[:, None], v.cross(rng, rows, mates), rows)
        if across and len(people) > 1:
            far = chosen & (rng.random(len(rows)) < across)
            children[far] = _cross_from_others(catalogue, rng, number, rows[far], people)
        for m in mutators:
            ours = isinstance(m, ChangeDecisions)  # its rows are always valid
            mutate = m.mutate if ours else partial(checked.mutate, m)
            children = mutate(v, rng, children)
        goes = rng.random(len(rows)) < moved
        if goes.any():
            out += move(catalogue, rng, number, children[goes], number in lowering)
        out.append((number, children[~goes]))
    return merge(*out)


def _cross_from_others(
    catalogue: Catalogue, rng: Rng, number: int, rows: Matrix, people: dict[int, Matrix]
) -> Matrix:
    """Children of these rows and of rows of other variants, each as likely as it has rows."""
    others = [k for k in people if k != number]
    shares = np.array([len(people[k]) for k in others], float)
    to = rng.choice(len(others), len(rows), p=shares / shares.sum())
    out = rows.copy()
    v = catalogue.lowered(number)
    for k in np.unique(to).tolist():
        there = people[others[k]]
        mates = there.take(rng.integers(0, len(there), int((to == k).sum())), axis=0)
        out[to == k] = v.cross_from(rng, rows[to == k], catalogue.lowered(others[k]), mates)
    return out


def move(
    catalogue: Catalogue, rng: Rng, number: int, rows: Matrix, lower: bool
) -> Iterator[tuple[int, Matrix]]:
    """Moves each row to another structure of its sketch, one decision away, with all the numbers
    that the two have in common. One that exceeds a limit there has other decisions changed, or goes
    elsewhere; after a few tries it stays what it was. With `lower`, one more structure is lowered.
    """
    near = rng.permutation(catalogue.siblings(number)).tolist()
    news = [k for k in near if not catalogue.is_asked(k)]
    ready = [k for k in near if catalogue.is_asked(k) and catalogue.variant(k) is not None]
    targets = ready[:_TARGETS]
    if news and lower and catalogue.variant(news[0]) is not None:
        targets.append(news[0])
    v, left = catalogue.lowered(number), rows
    for _ in range(_TRIES if targets else 0):
        to = rng.integers(0, len(targets), len(left))
        stay = np.ones(len(left), bool)
        for k in np.unique(to).tolist():
            at = np.flatnonzero(to == k)
            there = catalogue.lowered(targets[k])
            carried = there.carried(rng, v, left[at])
            for _ in range(_REPAIRS):
                wrong = np.flatnonzero(~there.valid(carried))
                if not len(wrong):
                    break
                carried[wrong] = there.mutate(rng, carried[wrong])
            ok = there.valid(carried)
            stay[at[ok]] = False
            if ok.any():
                yield targets[k], carried[ok]
        left = left[stay]
        if not len(left):
            return
    yield number, left
