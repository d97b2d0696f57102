"""The arguments of all kernels of an OpenPlan: everything that is the same for all sizes is settled
once, so that a new combination of sizes costs little.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.expr.ints import Int, of
from tilesmith.graph.graph import Array
from tilesmith.graph.memory import ALIGNMENT, Arena, Lifetime, plan_arena
from tilesmith.graph.open_plan import OpenPlan, OpenStep
from tilesmith.graph.size_fit import value_at
from tilesmith.runtime.arrays import address_of
from tilesmith.runtime.kernel import Kernel
from tilesmith.runtime.open_kernel import OpenKernel, PortfolioKernel

Words = np.ndarray[tuple[int], np.dtype[np.int64]]


class Numbers:
    """Expressions of the sizes, each evaluated once."""

    def __init__(self) -> None:
        self._places: dict[Int, int] = {}

    def add(self, e: Int) -> int:
        """Its place among the values."""
        return self._places.setdefault(e, len(self._places))

    def at(self, sizes: Mapping[str, int]) -> Words:
        return np.array([value_at(e, sizes) for e in self._places], np.int64)


@dataclass(frozen=True, slots=True)
class Code:
    """A kernel as it is called: the bytes of its workspace and its sizes, as places among the
    numbers.
    """

    kernel: Kernel
    workspace: int
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A step that is one of several kernels: which one follows from its own sizes."""

    step: int
    kernel: PortfolioKernel
    own: Mapping[str, int]  # sizes by name without #, as places among the numbers
    members: tuple[Code, ...]


class Arguments:
    """`words` are the arguments of all steps, one after the other: addresses, and behind them the
    sizes. Those in `arena` are relative to the begin of the arena.
    """

    def __init__(
        self, plan: OpenPlan, kernels: Sequence[Kernel], held: Sequence[Mapping[int, Array]]
    ) -> None:
        self.plan, self.numbers = plan, Numbers()
        self.given: list[tuple[int, str, int]] = []  # word, input, its offset among the numbers
        self.returned: list[tuple[int, str, int]] = []
        self.cut: list[tuple[int, str]] = []  # words of parts of constants
        self.choices: list[Choice] = []
        self._roots = {x: k for k, x in enumerate(plan.lifetimes)}
        self._nbytes = self._all(t.nbytes for t in plan.lifetimes.values())
        self._extents = self._all(plan.open_extents)
        words: list[int] = []
        arena: list[tuple[int, int, int]] = []  # word, root, offset
        sizes: list[tuple[int, int]] = []
        steps: list[int] = []
        self._codes: list[Code] = []
        self._workspaces: list[int] = []
        for k, (step, kernel) in enumerate(zip(plan.steps, kernels, strict=True)):
            code = self._code(k, step, kernel)
            self._workspaces.append(code.workspace)
            self._codes.append(code)
            steps += [0, 8 * len(words), 0]
            for p, place in enumerate(step.places):
                at, offset = len(words), self.numbers.add(place.offset)
                words.append(0)
                match place.kind:
                    case "arena":
                        arena.append((at, self._roots[place.name], offset))
                    case "constant" if p in held[k]:
                        words[at] = address_of(held[k][p])
                    case "constant":
                        self.cut.append((at, place.name))
                    case "input":
                        self.given.append((at, place.name, offset))
                    case "output":
                        self.returned.append((at, place.name, offset))
            sizes += ((len(words) + n, number) for n, number in enumerate(code.sizes))
            words += [0] * len(code.sizes)
        self.words, self.steps = _array(words), _array(steps or [0] * 3)
        self.in_arena = np.zeros(len(words), np.int64)
        self._arena_words, self._arena_roots, self._arena_offsets = _columns(arena, 3)
        self.in_arena[self._arena_words] = 1
        self._size_words, self._size_numbers = _columns(sizes, 2)
        self._arenas: dict[tuple[int, ...], tuple[Arena, Words, Words]] = {}

    def _all(self, every: Iterable[Int]) -> Words:
        return _array([self.numbers.add(e) for e in every])

    def _code(self, k: int, step: OpenStep, kernel: Kernel) -> Code:
        if not isinstance(kernel, OpenKernel):
            workspace = self.numbers.add(of(kernel.artifact.workspace_nbytes))
            return Code(kernel, workspace, ())
        if not isinstance(kernel, PortfolioKernel):
            return self._one(step, kernel)
        members = tuple(self._one(step, m) for m in kernel.members)
        own = {n.removeprefix("#"): self.numbers.add(e) for n, e in step.sizes.items()}
        self.choices.append(Choice(k, kernel, own, members))
        return members[0]

    def _one(self, step: OpenStep, kernel: OpenKernel) -> Code:
        form = kernel.artifact.entries[0].open
        assert form is not None
        workspace = form.workspace.substitute(step.sizes)
        sizes = tuple(self.numbers.add(step.sizes[n]) for n in form.names)
        return Code(kernel, self.numbers.add(workspace), sizes)

    @cached_property
    def _entries(self) -> Words:
        """The addresses of kernels, which those for another machine do not have."""
        return _array([c.kernel.entry_address for c in self._codes] or [0])

    def arena_at(self, sizes: Mapping[str, int], numbers: Words) -> tuple[Arena, Words]:
        """The arena for these sizes and where each array begins: planned for sizes up to the next
        powers of two, or up to the largest ones.
        """
        upper = {n: rounded(v, self.plan.largest[n]) for n, v in sizes.items()}
        key = tuple(upper.values())
        if key not in self._arenas:
            self._arenas[key] = self._planned(self.numbers.at(self.plan.values_at(upper)))
        arena, offsets, room = self._arenas[key]
        if (numbers[self._nbytes] <= room).all():
            return arena, offsets
        return self._planned(numbers)[:2]  # something is larger at smaller sizes

    def _planned(self, numbers: Words) -> tuple[Arena, Words, Words]:
        room = numbers[self._nbytes]
        lives = {
            x: Lifetime(int(n), t.first, t.last)
            for (x, t), n in zip(self.plan.lifetimes.items(), room, strict=True)
        }
        arena = plan_arena(lives)
        return arena, _array([arena.offsets[x] for x in self._roots]), room

    def fill(self, offsets: Words, numbers: Words) -> tuple[Words, Words, int]:
        """The words and the steps at some sizes, and the bytes of the workspace."""
        words, steps = self.words.copy(), self.steps.copy()
        steps[0::3] = self._entries
        words[self._arena_words] = offsets[self._arena_roots] + numbers[self._arena_offsets]
        words[self._size_words] = numbers[self._size_numbers]
        workspaces = numbers[self._workspaces] if self._workspaces else _array([0])
        for c in self.choices:
            own = {n: int(numbers[place]) for n, place in c.own.items()}
            code = c.members[c.kernel.member_for(own)]
            steps[3 * c.step] = code.kernel.entry_address
            workspaces[c.step] = numbers[code.workspace]
            first = int(steps[3 * c.step + 1]) // 8 + len(self.plan.steps[c.step].places)
            words[first : first + len(code.sizes)] = numbers[list(code.sizes)]
        return words, steps, int(workspaces.max())

    def are_possible(self, numbers: Words) -> bool:
        """Whether no array has a negative length."""
        return not self._extents.size or bool(numbers[self._extents].min() >= 0)


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def rounded(value: int, largest: int) -> int:
    upper = 1 << max(value - 1, 0).bit_length()
    return min(upper, largest) if value <= largest else upper


def _array(values: Sequence[int]) -> Words:
    return np.array(values, np.int64)


def _columns(rows: Sequence[tuple[int, ...]], count: int) -> list[Words]:
    return [_array([row[c] for row in rows]) for c in range(count)]
