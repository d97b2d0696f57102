"""Derivation of sketches from a task and rules. A State is a partial sketch with a current node, a
block for which a rule derives further states; nodes are visited from the output backwards.

Sketches multiply: each block has a few alternatives, and a sketch is one of them for every block.
So states are followed in order of their discrepancy, the number of times that an alternative other
than the preferred one was taken (limited discrepancy search). The first sketch has the preferred
alternative everywhere, and the next ones differ from it in one block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from functools import cached_property
from heapq import heappop, heappush
from typing import Protocol, runtime_checkable

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.base.given import a, checks_given
from tilesmith.ir.function import Function, find_block
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

    def attempt(self, *steps: Step, done: Iterable[str] = ()) -> State | None:
        """The state after these steps; None if one of them does not apply."""
        try:
            return self.then(*steps, done=done)
        except ScheduleError:
            return None

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


# A search tries a few hundred structures in minutes, so more sketches would be useless.
MOST_SKETCHES = 256
# The most blocks in all states together. The time to derive is proportional to it: about 2 s.
_MOST_WORK = 4000
_FINISHING = 2  # the work of finishing a state, per block of it
# Rules that take more steps than this per sketch, and per block, are assumed not to terminate.
_MOST_STEPS, _MOST_STEPS_PER_BLOCK = 64, 8


@dataclass(frozen=True)
class Derivation:
    """`left_out` counts branches that were not followed; each stands for one sketch or more."""

    finished: tuple[State, ...]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class _Branch:
    """A state and how it was reached: the position of the alternative taken at each step."""

    state: State
    path: tuple[int, ...] = ()
    discrepancy: int = 0

    def __lt__(self, other: _Branch) -> bool:
        """The order of the search: by discrepancy, then deepest first, so that sketches are
        finished early.
        """
        return self._rank < other._rank

    @property
    def _rank(self) -> tuple[int, int, tuple[int, ...]]:
        return self.discrepancy, -len(self.path), self.path


def derive(task: Task, rules: Sequence[Rule], most: int = MOST_SKETCHES) -> Derivation:
    """States with no node left, sorted by number of steps, then in the order of the rules."""
    _require_rules(rules)
    start = State(task, task.func)
    longest = _MOST_STEPS + _MOST_STEPS_PER_BLOCK * _num_blocks(start)
    front = [_Branch(start)]
    ended: list[_Branch] = []
    left_out = work = 0
    while front:
        branch = heappop(front)
        if branch.state.node is None:
            ended.append(branch)
            work += _FINISHING * _num_blocks(branch.state)
            continue
        if ended and (len(ended) >= most or work >= _MOST_WORK):
            left_out += 1
            continue
        if len(branch.path) > longest:
            raise ScheduleError(
                f"the rules take more than {longest} steps for one sketch of {task.func.name}; "
                "one of them may never finish its node"
            )
        for further in _expand(branch, rules):
            work += _num_blocks(further.state)
            heappush(front, further)
    if not ended:
        raise ScheduleError(
            f"the rules derive no sketch of {task.func.name}: for one of its blocks none of them "
            "makes a state; end them with one that leaves any block as it is, by state.skip()"
        )
    left_out += len(ended[most:])
    kept = sorted(ended[:most], key=lambda b: (len(b.path), b.path))
    # Asked once: whether an object has the methods of a protocol takes as long as a small rule.
    given: Sequence[object] = rules
    finishing = [r for r in given if isinstance(r, Finishing)]
    return Derivation(tuple(_finish(b.state, finishing) for b in kept), left_out)


def _num_blocks(state: State) -> int:
    return sum(1 for _ in walk(state.func.body))


def _expand(branch: _Branch, rules: Sequence[Rule]) -> list[_Branch]:
    """The states that the rules derive. The first rule's preferred one adds no discrepancy."""
    out: list[_Branch] = []
    for rule in rules:
        derived = _ask(rule, branch.state)
        if derived is None:
            continue
        best = len(out) + derived.preferred if not out else -1
        for state in derived.states:
            at = len(out)
            away = branch.discrepancy + (at != best)
            out.append(_Branch(state, (*branch.path, at), away))
        if derived.final:
            break
    return out


def _ask(rule: Rule, state: State) -> Derived | None:
    """Calls a rule. The result is checked, since the rule may be a user's own."""
    at = f"the rule {_name(rule)}, asked about the block {state.node} of {state.task.func.name},"
    try:
        derived = rule(state)
    except Exception as e:
        raise ScheduleError(f"{at} raises {type(e).__name__}: {e}") from e
    wanted = "a rule returns Derived((state, ...)) with what it makes of the state, or None"
    if derived is None:
        return None
    if not isinstance(derived, Derived):
        raise ScheduleError(f"{at} returns {a(derived)}; {wanted}")
    if not isinstance(derived.states, tuple):
        raise ScheduleError(
            f"{at} returns Derived of {a(derived.states)}; {wanted}: the states are a tuple"
        )
    for s in derived.states:
        if not isinstance(s, State):
            raise ScheduleError(f"{at} returns Derived of {a(s)} in a tuple; {wanted}")
        if s.task is not state.task and s.task != state.task:
            raise ScheduleError(
                f"{at} returns a state of another task, {s.task.func.name}; a rule goes on from "
                "the state it is given, by state.then()"
            )
    if derived.states and not 0 <= derived.preferred < len(derived.states):
        raise ScheduleError(
            f"{at} prefers state {derived.preferred} of {len(derived.states)}; they count from 0"
        )
    return derived


def _finish(state: State, rules: Sequence[Finishing]) -> State:
    for rule in rules:
        state = rule.finish(state)
        if not isinstance(state, State):
            raise ScheduleError(
                f"finish of the rule {_name(rule)} returns {a(state)}; it returns the state with "
                "what it adds"
            )
    return state


def _require_rules(rules: Sequence[Rule]) -> None:
    if not isinstance(rules, tuple | list):
        raise ScheduleError(
            f"rules are a tuple of rules, such as (my_rule, *ts.default_rules(target)), not "
            f"{a(rules)}"
        )
    if not rules:
        raise ScheduleError(
            "there are no rules to derive sketches by; give some, such as "
            "ts.default_rules(task.target), or leave rules out"
        )
    for rule in rules:
        if isinstance(rule, type) or not callable(rule):
            raise ScheduleError(
                f"a rule is a callable that takes a State and returns Derived or None, not "
                f"{a(rule)}"
            )


def _name(rule: object) -> str:
    return getattr(rule, "__name__", type(rule).__name__)
