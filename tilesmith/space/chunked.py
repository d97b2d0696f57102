"""The rule that sums products of float16 in chunks (schedule/chunks.py), for processors that
compute with float16 vectors: the tiles of other rules, with twice the lanes.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import FLOAT16
from tilesmith.ir.contract import narrow_terms
from tilesmith.ir.function import find_block, num_terms
from tilesmith.schedule.chunks import ChunkSums, NarrowSums, most_terms
from tilesmith.schedule.sample import Require
from tilesmith.space import analysis
from tilesmith.space.derive import Derived, Rule, State
from tilesmith.task.task import allowed_error

_SHORTEST = 8  # terms of a chunk, below which adding up the chunks takes most of the time


@dataclass(frozen=True)
class SumWindowsInHalves:
    """Sketches of the `rules` for sums over a small window, such as those of a depthwise
    convolution, which is a single chunk if `accuracy` allows as many terms.
    """

    rules: tuple[Rule, ...]
    accuracy: float | None = None

    def __call__(self, state: State) -> Derived | None:
        b = state.block
        if state.levels_of(b.name) or _most_terms(state, self.accuracy) < num_terms(b):
            return None
        after = state.attempt(NarrowSums(b.name))
        if after is None:
            return None
        states = tuple(s for rule in self.rules if (d := rule(after)) for s in d.states)
        return Derived(states, final=True) if states else None


def _most_terms(state: State, accuracy: float | None) -> int:
    """The longest chunk of the current block's sums; 0 if these are not of products of float16, or
    do not become float16 anyway.
    """
    func, b = state.func, state.block
    terms = narrow_terms(b)
    if terms is None or terms.dtype is not FLOAT16:
        return 0
    consumer = analysis.fusible_consumer(func, b)
    if consumer is None or any(w.value.dtype is not FLOAT16 for w in consumer.writes):
        return 0
    return most_terms(allowed_error(accuracy, FLOAT16), analysis.points(b)[0], FLOAT16)


@dataclass(frozen=True)
class TileInChunks:
    """Sketches of the `rules`, which tile a block so that its sums stay in registers during the
    reducing loops of level `inside` and further in. Those are the chunks, as long as `accuracy`
    allows.

    It takes sums whose results become float16 anyway: a sum that may be larger than float16 holds
    keeps its type.
    """

    rules: tuple[Rule, ...]
    accuracy: float | None = None
    inside: int = 4

    def __call__(self, state: State) -> Derived | None:
        most = _most_terms(state, self.accuracy)
        if most < _SHORTEST or state.levels_of(state.block.name):
            return None
        derived = [d for rule in self.rules if (d := rule(state)) is not None]
        if not derived:
            return None
        chunked = [list(self._chunked(state, d.states, most)) for d in derived]
        preferred = derived[0].preferred if len(chunked[0]) == len(derived[0].states) else 0
        states = tuple(s for every in chunked for s in every)
        return Derived(states, final=bool(states), preferred=preferred)

    def _chunked(self, before: State, states: tuple[State, ...], most: int) -> Iterator[State]:
        known = {name for name, _ in before.tiled}
        for state in states:
            (name,) = (name for name, _ in state.tiled if name not in known)
            levels = state.levels_of(name)
            b = find_block(state.func, name)[1]
            inner = [x for level in levels[self.inside :] for x in level if x in b.reducing_loops]
            terms = " * ".join(f"#{x}" for x in inner)
            after = state.attempt(
                Require(terms, most=most), ChunkSums(name, inner[0], terms),
                done=[f"{name}.chunk"],
            )  # fmt: skip
            if after is not None:
                yield after.with_tile(f"{name}.chunk", levels)
