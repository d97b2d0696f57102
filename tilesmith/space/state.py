"""States in the derivation of sketches. A State is a partial sketch with a current node, a block
for which a rule derives further states. Nodes are visited from the output backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

from tilesmith.base.errors import ScheduleError
from tilesmith.base.given import checks_given
from tilesmith.ir.function import Function
from tilesmith.ir.lookup import find_block
from tilesmith.ir.nodes import Block, walk
from tilesmith.schedule.sample import SampleLocation, SamplePermutation
from tilesmith.schedule.step import Step
from tilesmith.task.task import Task


@dataclass(frozen=True)
class State:
    """`func` is the Function after `steps`; `done` are the nodes that need no further rule.

    Structural samples in `steps` are open and have not been applied to `func`. Later steps
    therefore refer to blocks by name.
    """

    task: Task
    func: Function
    steps: tuple[Step, ...] = ()
    done: frozenset[str] = frozenset()
    tiled: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = ()  # loops of each level, by block

    @cached_property
    def node(self) -> str | None:
        """The last block that is not done, which the rules are asked about next."""
        for _, b in reversed(list(walk(self.func.body))):
            if b.name not in self.done:
                return b.name
        return None

    @cached_property
    def block(self) -> Block:
        assert self.node is not None
        return find_block(self.func, self.node)[1]

    def then(self, *steps: Step, done: Iterable[str] = ()) -> State:
        """The state after these steps. Open structural samples are recorded, not applied."""
        func = self.func
        for s in steps:
            if not (isinstance(s, SampleLocation | SamplePermutation) and s.decision is None):
                func = s.apply(func)
        return replace(
            self, func=func, steps=(*self.steps, *steps), done=self.done | frozenset(done)
        )

    def skip(self) -> State:
        """The state with the current node left unchanged."""
        assert self.node is not None
        return replace(self, done=self.done | {self.node})

    def with_tile(self, block: str, levels: Sequence[Sequence[str]]) -> State:
        return replace(self, tiled=(*self.tiled, (block, tuple(tuple(level) for level in levels))))

    def levels_of(self, block: str) -> tuple[tuple[str, ...], ...]:
        return dict(self.tiled).get(block, ())


@checks_given(error=ScheduleError)
@dataclass(frozen=True)
class Derived:
    """The states that a rule derived. With `final`, later rules are not asked about the same state.

    `preferred` is the position of the state to follow first if there are too many sketches.
    """

    states: tuple[State, ...] = field(default_factory=tuple)
    final: bool = False
    preferred: int = 0


Rule = Callable[[State], Derived | None]


@runtime_checkable
class Finishing(Protocol):
    """A rule that also adds steps to finished states, which have no node left."""

    def finish(self, state: State) -> State: ...
