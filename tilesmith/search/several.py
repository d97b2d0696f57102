"""The search of a union of spaces: a search for each of them, which share the trials by what they
have found (a bandit whose arms are the spaces).

A single search over all sketches together stays with the space that is better in the first minute:
its model learns of that one, and proposes little else. Here each space has its own search. The best
by the analytic score of each space is measured first, then all have equal turns until each has had
some trials, and from then on turns by how near a space's best is to the best of all. A share is
left to the others, because a large space gets better for longer than a small one.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from math import inf, isfinite

from tilesmith.search.evolution import EvolutionSearch
from tilesmith.search.population import Catalogue
from tilesmith.search.protocol import Resumable, Search, Suggestible
from tilesmith.task.task import Candidate, Measurement

_EQUAL_TRIALS = 16  # of each space, before their times are compared
# Turns are proportional to (best of all / best of the space) ** _POWER: a space that is behind by a
# fifth has a third of the turns of the best.
_POWER = 6.0
_FLOOR = 0.3  # of the turns, shared equally by all spaces


class UnionSearch:
    """`searches` has one for each space."""

    def __init__(self, searches: Sequence[Search]) -> None:
        self._searches = list(searches)
        self._credit = [0.0] * len(searches)  # turns that a space is behind its share
        self._best = [inf] * len(searches)
        self._trials = [0] * len(searches)
        self._is_exhausted = [False] * len(searches)
        self._owner: dict[str, int] = {}  # the space of each candidate
        self._measured: set[str] = set()
        self._is_drafted = [False] * len(searches)

    @property
    def left_out(self) -> int:
        return sum(map(left_out, self._searches))

    def ask(self, n: int) -> list[Candidate]:
        """The next candidates."""
        out: list[Candidate] = []
        for k, search in enumerate(self._searches):
            if len(out) < n and not self._is_drafted[k]:
                self._is_drafted[k] = True
                out += self._new(k, _draft(search))
        while len(out) < n and not all(self._is_exhausted):
            for k, count in enumerate(self._turns(n - len(out))):
                if count:
                    asked = self._searches[k].ask(count)
                    self._is_exhausted[k] = not asked
                    out += self._new(k, asked)
        return out

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """All searches learn of all measurements: their cost models do."""
        for search in self._searches:
            search.tell(measurements)
        for m in measurements:
            key = m.candidate.key
            k = self._owner.get(key)
            if k is None and (k := self._space_of(m.candidate)) is not None:
                self._owner[key] = k
            if k is None:
                continue
            if key not in self._measured:
                self._measured.add(key)
                self._trials[k] += 1
            if m.failure is None:
                self._best[k] = min(self._best[k], m.cost)

    def suggest(self, others: Sequence[Candidate]) -> None:
        for search in self._searches:
            if isinstance(search, Suggestible):
                search.suggest(others)

    def state(self) -> bytes:
        """The states of the searches that have one."""
        states = [s.state() if isinstance(s, Resumable) else b"" for s in self._searches]
        return json.dumps([b64encode(s).decode() for s in states]).encode()

    def resume(self, state: bytes) -> None:
        try:
            states = [b64decode(s) for s in json.loads(state)]
        except (ValueError, TypeError):
            return  # of another version, or damaged
        if len(states) == len(self._searches):
            for search, own in zip(self._searches, states, strict=True):
                if own and isinstance(search, Resumable):
                    search.resume(own)

    @property
    def shares(self) -> list[float]:
        """The share of the next turns that each space has."""
        going = [not e for e in self._is_exhausted]
        best = min(self._best)
        few = [g and t < _EQUAL_TRIALS for g, t in zip(going, self._trials, strict=True)]
        if any(few) or not isfinite(best):
            weights = [float(f) for f in few] if any(few) else [float(g) for g in going]
        else:
            near = [
                (best / b) ** _POWER if g else 0.0 for g, b in zip(going, self._best, strict=True)
            ]
            floor = _FLOOR / max(1, sum(going))
            weights = [
                floor * g + (1 - _FLOOR) * x / sum(near) for g, x in zip(going, near, strict=True)
            ]
        total = sum(weights) or 1.0
        return [w / total for w in weights]

    def _turns(self, n: int) -> list[int]:
        """How many of the next n candidates each space proposes."""
        counts = [0] * len(self._searches)
        shares = self.shares
        for _ in range(n):
            for k, share in enumerate(shares):
                self._credit[k] += share
            k = max(
                (k for k, e in enumerate(self._is_exhausted) if not e),
                key=lambda k: self._credit[k],
            )
            self._credit[k] -= 1
            counts[k] += 1
        return counts

    def _new(self, k: int, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those that no other space has proposed."""
        fresh = [c for c in candidates if c.key not in self._owner]
        self._owner.update({c.key: k for c in fresh})
        return fresh

    def _space_of(self, c: Candidate) -> int | None:
        """Of a record, whose search was another."""
        for k, search in enumerate(self._searches):
            if isinstance(search, EvolutionSearch) and search.catalogue.individual(c) is not None:
                return k
        return None


def _draft(search: Search) -> Sequence[Candidate]:
    if isinstance(search, EvolutionSearch):
        return [c for c in [next(search.drafts(), None)] if c is not None]
    return search.ask(1)


def left_out(search: Search) -> int:
    """The structures that a search never proposes because there are too many; 0 if it does not
    tell.
    """
    if isinstance(search, UnionSearch):
        return search.left_out
    catalogue = getattr(search, "catalogue", None)
    return catalogue.left_out if isinstance(catalogue, Catalogue) else 0
