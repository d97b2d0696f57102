"""OpenExecutor: an OpenPlan and a kernel for each step in; for certain sizes, a callable out that
runs the whole plan in one native call. Nothing is compiled for sizes that come for the first time:
expressions are evaluated, once for each of the last some hundred combinations of sizes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tilesmith.graph.checks import verified
from tilesmith.graph.executor import PACKING_THREADS, ArrayStore, Executor, fill, packed_constant
from tilesmith.graph.graph import Array, Graph
from tilesmith.graph.memory import ALIGNMENT, Arena, plan_arena
from tilesmith.graph.open_plan import OpenPlan, OpenStep, lifetimes_at
from tilesmith.graph.plan import Place, Plan, Step
from tilesmith.graph.program import Feeds
from tilesmith.graph.size_fit import value_at
from tilesmith.ir.function import Function, instantiate
from tilesmith.runtime.arrays import address_of, empty
from tilesmith.runtime.chain import chain
from tilesmith.runtime.kernel import Kernel
from tilesmith.runtime.open_kernel import OpenKernel, PortfolioKernel

_MOST_SIZES = 512  # combinations that are kept, of some KB each
_MOST_FRAMES = 8
_MOST_CLASSES = 100
_BYTES = np.dtype(np.uint8)


class _Frame:
    """Memory of one call: the arena, the workspace, the arguments of every step. Calls with any
    sizes use it one after the other; it grows when they need more.
    """

    def __init__(self) -> None:
        self.sizes: SizedExecutor | None = None  # whose pointers are in it
        self.arena, self.base = empty((0,), _BYTES, 0)
        self.workspace, self.workspace_at = empty((0,), _BYTES, 0)
        self.words = np.zeros(1, np.int64)
        self.steps = np.zeros(1, np.int64)
        self.address = 0

    def take(self, sized: SizedExecutor) -> None:
        """Makes it ready for calls with these sizes."""
        if self.sizes is sized:
            return
        if self.arena.nbytes < sized.arena_nbytes:
            self.arena, self.base = empty((sized.arena_nbytes,), _BYTES, sized.arena_nbytes)
        if self.workspace.nbytes < sized.workspace_nbytes:
            nbytes = sized.workspace_nbytes
            self.workspace, self.workspace_at = empty((nbytes,), _BYTES, nbytes)
        self.words = sized.words + sized.in_arena * self.base
        self.steps = sized.steps.copy()
        self.steps[1::3] += address_of(self.words)
        self.steps[2::3] = self.workspace_at
        self.address = address_of(self.steps)
        for offset, part in sized.parts:
            to = self.arena[offset : offset + part.nbytes].view(part.dtype)
            to.reshape(part.shape)[...] = part
        self.sizes = sized


class OpenExecutor:
    """`at(sizes)` is an Executor. `sizes` are those of the inputs, by their names in kernels."""

    def __init__(
        self, plan: OpenPlan, kernels: Sequence[Kernel], store: ArrayStore | None = None,
        affinity: frozenset[int] | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.kernels, self.affinity = plan, tuple(kernels), affinity
        self.free: list[_Frame] = []
        self._known: OrderedDict[tuple[int, ...], SizedExecutor] = OrderedDict()
        self._arenas: dict[tuple[int, ...], tuple[Arena, Mapping[str, int]]] = {}
        self._lock = threading.Lock()
        self.chain = chain()
        for upper in _classes(plan):
            self.arena(upper)
        with ThreadPoolExecutor(PACKING_THREADS) as threads:
            self.held = list(threads.map(lambda k: self._held(k, store), range(len(plan.steps))))

    def _held(self, k: int, store: ArrayStore | None) -> dict[int, Array]:
        """The weights of a step as its kernel reads them, by the position of the parameter."""
        step, kernel = self.plan.steps[k], self.kernels[k]
        found = {}
        for p, place in enumerate(step.places):
            if place.kind == "constant" and place.name not in self.plan.cut:
                array = self.plan.graph.constants[place.name]
                found[p] = packed_constant(kernel, kernel.artifact.parameters[p], array, store)
        return found

    def at(self, sizes: Mapping[str, int], graph: Graph | None = None) -> SizedExecutor:
        """`graph` is the model imported at these sizes, where they are beyond the largest that it
        was opened at: it has the constants.
        """
        key = tuple(sizes.values())
        found = self._known.get(key)
        if found is None:
            made = SizedExecutor(self, sizes, graph)
            with self._lock:
                found = self._known.setdefault(key, made)
                while len(self._known) > _MOST_SIZES:
                    self._known.popitem(last=False)
        return found

    def knows(self, sizes: Mapping[str, int]) -> bool:
        return tuple(sizes.values()) in self._known

    def arena(self, sizes: Mapping[str, int]) -> Arena:
        """Offsets for sizes up to the next powers of two, or up to the largest ones."""
        upper = {n: _rounded(v, self.plan.largest[n]) for n, v in sizes.items()}
        key = tuple(upper.values())
        if key not in self._arenas:
            lives = lifetimes_at(self.plan, self.plan.values_at(upper))
            self._arenas[key] = plan_arena(lives), {x: t.nbytes for x, t in lives.items()}
        arena, room = self._arenas[key]
        lives = lifetimes_at(self.plan, self.plan.values_at(sizes))
        if all(t.nbytes <= room[x] for x, t in lives.items()):
            return arena
        return plan_arena(lives)  # something is larger at smaller sizes


class SizedExecutor(Executor):
    """An OpenExecutor for certain sizes. Memory is shared with those for other sizes."""

    def __init__(self, owner: OpenExecutor, sizes: Mapping[str, int], graph: Graph | None) -> None:
        self.owner, self.affinity = owner, owner.affinity
        self.kernels = owner.kernels
        self._constants_from = graph or owner.plan.graph
        plan = owner.plan
        self.sizes = plan.values_at(sizes)
        plan.require_possible(self.sizes)
        values = plan.graph.values
        self._outputs = [
            (n, plan.shape_at(v, self.sizes), values[v].dtype.numpy) for n, v in plan.graph.outputs
        ]
        self._chain = owner.chain
        self._run = self._chain.run if self.affinity is None else self._run_pinned
        self._arena = owner.arena(sizes)
        self.arena_nbytes = self._arena.nbytes
        self.workspace_nbytes = 0
        self._lay_out()

    def _lay_out(self) -> None:
        """The arguments of all steps, as numbers: in the arena relative to its begin."""
        words: list[int] = []
        in_arena: list[int] = []
        steps: list[int] = []
        self.given: list[tuple[int, str, int]] = []
        self.returned: list[tuple[int, str, int]] = []
        self.parts: list[tuple[int, Array]] = []
        held: dict[str, int] = {}  # parts of constants that are copied, by name
        for k, step in enumerate(self.owner.plan.steps):
            entry, workspace, numbers = self._entry(k, step)
            steps += [entry, 8 * len(words), 0]
            self.workspace_nbytes = max(self.workspace_nbytes, workspace)
            for p, place in enumerate(step.places):
                offset = value_at(place.offset, self.sizes)
                at, moves = 0, 0
                match place.kind:
                    case "arena":
                        at, moves = self._arena.offsets[place.name] + offset, 1
                    case "constant" if p in self.owner.held[k]:
                        at = address_of(self.owner.held[k][p])
                    case "constant":
                        at, moves = self._part(place.name, held)
                    case "input":
                        self.given.append((len(words), place.name, offset))
                    case "output":
                        self.returned.append((len(words), place.name, offset))
                words.append(at)
                in_arena.append(moves)
            words += numbers
            in_arena += [0] * len(numbers)
        self.words, self.in_arena = np.array(words, np.int64), np.array(in_arena, np.int64)
        self.steps = np.array(steps or [0] * 3, np.int64)

    def _entry(self, k: int, step: OpenStep) -> tuple[int, int, list[int]]:
        """The code of a step, the bytes of its workspace, and the sizes as it takes them."""
        kernel = self.kernels[k]
        if not isinstance(kernel, OpenKernel):
            return kernel.entry_address, kernel.artifact.workspace_nbytes, []
        own = {n: value_at(e, self.sizes) for n, e in step.sizes.items()}
        if isinstance(kernel, PortfolioKernel):
            plain = {n.removeprefix("#"): v for n, v in own.items()}
            kernel = kernel.members[kernel.member_for(plain)]
        form = kernel.artifact.entries[0].open
        assert form is not None
        return kernel.entry_address, value_at(form.workspace, own), [own[n] for n in form.names]

    def _part(self, name: str, held: dict[str, int]) -> tuple[int, int]:
        """Where the part of a constant lies: in the constant itself if that is contiguous."""
        whole = self._constants_from.constants[name]
        shape = self.owner.plan.shape_at(name, self.sizes)
        part = whole[tuple(map(slice, shape))]
        assert part.shape == shape
        if whole.flags.c_contiguous and part.flags.c_contiguous:
            return address_of(whole), 0
        if name not in held:
            held[name] = self.arena_nbytes
            self.parts.append((self.arena_nbytes, part))
            self.arena_nbytes += -(-part.nbytes // ALIGNMENT) * ALIGNMENT
        return held[name], 1

    @cached_property
    def plan(self) -> Plan:  # type: ignore[override]
        """The plan at these sizes, for summaries and profiles."""
        plan = self.owner.plan
        values = {
            x: type(v)(x, plan.shape_at(x, self.sizes), v.dtype)
            for x, v in plan.graph.values.items()
        }
        graph = Graph(
            plan.graph.name, plan.graph.inputs, plan.graph.outputs, plan.graph.nodes, values,
            self._constants_from.constants, plan.checks, plan.graph.precision,
        )  # fmt: skip
        steps = []
        for s in plan.steps:
            func = self._func(s)
            places = tuple(Place(p.kind, p.name, value_at(p.offset, self.sizes)) for p in s.places)
            steps.append(Step(s.group, func, func, places))
        return Plan(graph, tuple(steps), self._arena, ())

    def _func(self, step: OpenStep) -> Function:
        own = {n: value_at(e, self.sizes) for n, e in step.sizes.items()}
        return instantiate(step.func, {n: v for n, v in own.items() if n in step.func.sizes})

    def constants(self, step: int) -> Mapping[int, Array]:
        return self.owner.held[step]

    def _begin(self, feeds: Feeds) -> tuple[Any, dict[str, Array], Any]:
        try:
            frame = self.owner.free.pop()
        except IndexError:
            frame = _Frame()
        frame.take(self)
        results = {n: empty(s, d, prod(s) * d.itemsize)[0] for n, s, d in self._outputs}
        kept: dict[str, Array] = {}
        for at, name, offset in self.given:
            a = feeds[name]
            if not (a.flags.c_contiguous and a.flags.aligned):
                a = kept.setdefault(name, a.copy(order="C"))
            frame.words[at] = address_of(a) + offset
        for at, name, offset in self.returned:
            frame.words[at] = address_of(results[name]) + offset
        return frame, results, kept

    def _end(self, frame: Any, feeds: Feeds, results: dict[str, Array]) -> dict[str, Array]:
        done = self._finish(frame, feeds, results)
        if len(self.owner.free) < _MOST_FRAMES:
            self.owner.free.append(frame)
        return done

    @property
    def _is_done(self) -> bool:
        return not self.owner.plan.copies and not self.owner.plan.checks

    def _finish(self, frame: Any, feeds: Feeds, results: dict[str, Array]) -> dict[str, Array]:
        for name, place in self.owner.plan.copies:
            offset = value_at(place.offset, self.sizes)
            match place.kind:
                case "arena":
                    source = frame.arena
                    offset += self._arena.offsets[place.name]
                case "input":
                    source = feeds[place.name]
                case "output":
                    source = results[place.name]
                case _:
                    shape = self.owner.plan.shape_at(place.name, self.sizes)
                    source = self._constants_from.constants[place.name][tuple(map(slice, shape))]
            fill(results[name], source, offset)
        return verified(self.owner.plan.checks, feeds, results)


def _classes(plan: OpenPlan) -> Iterator[dict[str, int]]:
    """The sizes that arenas are planned for in the ranges, if they are few."""
    steps = []
    for s in plan.sizes:
        low, high = s.limits
        steps.append(sorted({_rounded(v, plan.largest[f"#{s.name}"]) for v in _doubled(low, high)}))
    if prod(map(len, steps)) <= _MOST_CLASSES:
        for values in product(*steps):
            yield dict(zip(plan.largest, values, strict=True))


def _doubled(low: int, high: int) -> Iterator[int]:
    v = max(low, 1)
    while v < high:
        yield v
        v *= 2
    yield high


def _rounded(value: int, largest: int) -> int:
    upper = 1 << max(value - 1, 0).bit_length()
    return min(upper, largest) if value <= largest else upper
