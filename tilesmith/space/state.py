"""What rules work on: a State is a partial sketch and the node it stands at, a rule turns it into
further ones. Nodes are blocks, worked on from the output backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from tilesmith.ir.dependence import find_block
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, walk
from tilesmith.schedule.sample import SampleLocation, SamplePermutation
from tilesmith.schedule.step import Step
from tilesmith.task.task import Task


@dataclass(frozen=True)
class State:
    """`func` is the Function after `steps`; `done` are the nodes that need no further rule.

    Structural samples are left open in `steps`. Until they are decided nothing has moved, so the
    steps behind them speak of blocks by name.
    """

    task: Task
    func: Function
    steps: tuple[Step, ...] = ()
    done: frozenset[str] = frozenset()
    tiled: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = ()  # loops of each level, by block

    @property
    def node(self) -> str | None:
        """The last block that is not done: what the rules are asked about now."""
        for _, b in reversed(list(walk(self.func.body))):
            if b.name not in self.done:
                return b.name
        return None

    @property
    def block(self) -> Block:
        assert self.node is not None
        return find_block(self.func, self.node)[1]

    def then(self, *steps: Step, done: Iterable[str] = ()) -> State:
        """Further along, by these steps. Open structural samples are written down, not applied."""
        func = self.func
        for s in steps:
            if not (isinstance(s, SampleLocation | SamplePermutation) and s.decision is None):
                func = s.apply(func)
        return replace(
            self, func=func, steps=(*self.steps, *steps), done=self.done | frozenset(done)
        )

    def skip(self) -> State:
        """This node is left as it is."""
        assert self.node is not None
        return replace(self, done=self.done | {self.node})

    def with_tile(self, block: str, levels: Sequence[Sequence[str]]) -> State:
        return replace(self, tiled=(*self.tiled, (block, tuple(tuple(level) for level in levels))))

    def levels_of(self, block: str) -> tuple[tuple[str, ...], ...]:
        return dict(self.tiled).get(block, ())


@dataclass(frozen=True)
class Derived:
    """What a rule made. With `final`, the rules behind it are not asked about the same state.

    `preferred` is the position of the state that should be followed first where there are too many
    sketches to derive all of them.
    """

    states: tuple[State, ...] = field(default_factory=tuple)
    final: bool = False
    preferred: int = 0


Rule = Callable[[State], Derived | None]


@runtime_checkable
class Finishing(Protocol):
    """A rule that also adds to a state at which no node is left."""

    def finish(self, state: State) -> State: ...
