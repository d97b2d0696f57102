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
from tilesmith.graph.memory import Arena
from tilesmith.graph.open_arguments import Arguments, aligned, rounded
from tilesmith.graph.open_plan import OpenPlan, OpenStep
from tilesmith.graph.plan import Place, Plan, Step
from tilesmith.graph.program import Feeds
from tilesmith.graph.size_fit import value_at
from tilesmith.ir.function import Function, instantiate
from tilesmith.runtime.arrays import address_of, empty
from tilesmith.runtime.chain import chain
from tilesmith.runtime.kernel import Kernel

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
        affinity: frozenset[int] | None = None, held: Sequence[dict[int, Array]] | None = None,
    ) -> None:  # fmt: skip
        """`held` are the weights of each step as its kernel reads them, where they are known."""
        self.plan, self.kernels, self.affinity = plan, tuple(kernels), affinity
        self.free: list[_Frame] = []
        self._known: OrderedDict[tuple[int, ...], SizedExecutor] = OrderedDict()
        self._lock = threading.Lock()
        self.chain = chain()
        self.held = self._all_held(store) if held is None else [*held]
        self.arguments = Arguments(plan, self.kernels, self.held)
        for upper in _classes(plan):
            self.arena(upper)

    def _all_held(self, store: ArrayStore | None) -> list[dict[int, Array]]:
        with ThreadPoolExecutor(PACKING_THREADS) as threads:
            return list(threads.map(lambda k: self._held(k, store), range(len(self.plan.steps))))

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
        """That of calls with these sizes."""
        numbers = self.arguments.numbers.at(self.plan.values_at(sizes))
        return self.arguments.arena_at(sizes, numbers)[0]


class SizedExecutor(Executor):
    """An OpenExecutor for certain sizes. Memory is shared with those for other sizes."""

    def __init__(self, owner: OpenExecutor, sizes: Mapping[str, int], graph: Graph | None) -> None:
        self.owner, self.affinity = owner, owner.affinity
        self.kernels = owner.kernels
        self._constants_from = graph or owner.plan.graph
        plan = owner.plan
        self.sizes = plan.values_at(sizes)
        form = owner.arguments
        numbers = form.numbers.at(self.sizes)
        if not form.are_possible(numbers):
            plan.require_possible(self.sizes)
        values = plan.graph.values
        self._outputs = [
            (n, plan.shape_at(v, self.sizes), values[v].dtype.numpy) for n, v in plan.graph.outputs
        ]
        self._chain = owner.chain
        self._run = self._chain.run if self.affinity is None else self._run_pinned
        self._arena, offsets = form.arena_at(sizes, numbers)
        self.arena_nbytes = self._arena.nbytes
        self.words, self.steps, self.workspace_nbytes = form.fill(offsets, numbers)
        self.in_arena = form.in_arena
        self.given = [(at, name, int(numbers[n])) for at, name, n in form.given]
        self.returned = [(at, name, int(numbers[n])) for at, name, n in form.returned]
        self.parts: list[tuple[int, Array]] = []
        if form.cut:
            self._cut()

    def _cut(self) -> None:
        """Parts of constants: where they lie if they are contiguous, else copied to the arena."""
        self.in_arena = self.in_arena.copy()
        copied: dict[str, int] = {}
        for at, name in self.owner.arguments.cut:
            whole = self._constants_from.constants[name]
            part = whole[tuple(map(slice, self.owner.plan.shape_at(name, self.sizes)))]
            if whole.flags.c_contiguous and part.flags.c_contiguous:
                self.words[at] = address_of(whole)
                continue
            if name not in copied:
                copied[name] = self.arena_nbytes
                self.parts.append((self.arena_nbytes, part))
                self.arena_nbytes += aligned(part.nbytes)
            self.words[at], self.in_arena[at] = copied[name], 1

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
            steps.append(Step(s.group, func, func, places, s.origins))
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
        steps.append(sorted({rounded(v, plan.largest[f"#{s.name}"]) for v in _doubled(low, high)}))
    if prod(map(len, steps)) <= _MOST_CLASSES:
        for values in product(*steps):
            yield dict(zip(plan.largest, values, strict=True))


def _doubled(low: int, high: int) -> Iterator[int]:
    v = max(low, 1)
    while v < high:
        yield v
        v *= 2
    yield high
