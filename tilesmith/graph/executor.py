"""Executor: a Plan and a kernel for each step in, a callable out that runs the whole plan in one
native call.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any, Protocol

import numpy as np

from tilesmith.base.errors import GraphError
from tilesmith.base.identity import digest
from tilesmith.codegen.artifact import Parameter
from tilesmith.graph.checks import verified
from tilesmith.graph.graph import Array
from tilesmith.graph.plan import Place, Plan
from tilesmith.graph.program import Feeds
from tilesmith.runtime.affinity import on_cores
from tilesmith.runtime.arrays import address_of, empty
from tilesmith.runtime.chain import CLOCK_MONOTONIC, chain
from tilesmith.runtime.checksum import checksum
from tilesmith.runtime.kernel import Kernel

_MAX_FREE_FRAMES = 8
PACKING_THREADS = min(4, os.cpu_count() or 1)


class ArrayStore(Protocol):
    """Where packed weights are kept between processes, by a digest of what they were made from."""

    def get_array(self, key: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None: ...

    def put_array(self, key: str, array: Array) -> None: ...


def constant_key(p: Parameter, array: Array) -> str:
    """Of a weight as a kernel reads it."""
    # Most weights are transposed views: in the order of their memory they need no copy.
    order = tuple(sorted(range(array.ndim), key=lambda d: -array.strides[d]))
    data = np.ascontiguousarray(array.transpose(order)).reshape(-1).view(np.uint8)
    contents = checksum(data.data).hex()
    return digest(contents, repr((order, array.shape, p.packed, p.shape, p.dtype.name)))


def packed_constant(kernel: Kernel, p: Parameter, array: Array, store: ArrayStore | None) -> Array:
    """A weight as a kernel reads it, from the store where that has it."""
    if p.packed is None:
        if array.flags.c_contiguous and array.flags.aligned:
            return array
        return array.copy(order="C")
    key = "" if store is None else constant_key(p, array)
    if store is not None:
        kept = store.get_array(key, p.shape, p.dtype.numpy)
        if kept is not None:
            return kept
    packed: Array = kernel.pack(p.name, array)
    if store is not None:
        store.put_array(key, packed)
    return packed


class _Frame:
    """Memory of one call: the arena, the workspace, the pointers of every step. A second caller at
    the same time gets a second one.
    """

    def __init__(self, plan: Plan, kernels: Sequence[Kernel], held: Sequence[Mapping[int, Array]]):
        self.arena, base = empty((plan.arena.nbytes,), np.dtype(np.uint8), plan.arena.nbytes)
        workspace = max((k.artifact.workspace_nbytes for k in kernels), default=0)
        self.workspace, workspace_at = empty((workspace,), np.dtype(np.uint8), workspace)
        counts = [len(s.places) for s in plan.steps]
        self.pointers: Any = (ctypes.c_void_p * max(1, sum(counts)))()
        self.steps: Any = (ctypes.c_void_p * max(1, 3 * len(counts)))()
        self.given: list[tuple[int, Place]] = []  # pointers that every call sets: inputs, outputs
        self.returned: list[tuple[int, Place]] = []
        first = ctypes.addressof(self.pointers)
        at = 0
        for k, (step, kernel) in enumerate(zip(plan.steps, kernels, strict=True)):
            self.steps[3 * k : 3 * k + 3] = [kernel.entry_address, first + 8 * at, workspace_at]
            for p, place in enumerate(step.places):
                self._set(at, place, base, held[k].get(p))
                at += 1
        self.address = ctypes.addressof(self.steps)

    def _set(self, at: int, place: Place, base: int, constant: Array | None) -> None:
        match place.kind:
            case "arena":
                self.pointers[at] = base + place.offset
            case "constant":
                assert constant is not None
                self.pointers[at] = address_of(constant)
            case "input":
                self.given.append((at, place))
            case _:
                self.returned.append((at, place))


def fill(out: Array, source: Array, offset: int) -> None:
    """Copies what lies in another array from this byte on."""
    flat = np.ascontiguousarray(source).reshape(-1)  # what callers give may have strides
    out.reshape(-1).view(np.uint8)[...] = flat.view(np.uint8)[offset : offset + out.nbytes]


class Executor:
    """Call it with an array for each input of the graph, checked by whoever calls. `held` are the
    weights of each step as its kernel reads them, where they are known; `known` has some of them,
    by step and parameter. `affinity` are the cores that calls run on, by number; by default those
    of the calling thread.
    """

    def __init__(
        self,
        plan: Plan,
        kernels: Sequence[Kernel],
        store: ArrayStore | None = None,
        held: Sequence[Mapping[int, Array]] | None = None,
        affinity: frozenset[int] | None = None,
        known: Callable[[int, int, Parameter], Array | None] | None = None,
    ) -> None:
        self.plan, self.kernels = plan, tuple(kernels)
        self._store, self._known = store, known
        self._held = [*held] if held is not None else self._packed_weights()
        self._free: list[_Frame] = []
        self._chain = chain()
        self.affinity = affinity
        self._run = self._chain.run if affinity is None else self._run_pinned
        values = plan.graph.values
        self._outputs = [(n, values[v].shape, values[v].dtype.numpy) for n, v in plan.graph.outputs]

    def _packed_weights(self) -> list[Mapping[int, Array]]:
        # Copies, checksums and files of large arrays are work that Python's threads share.
        with ThreadPoolExecutor(PACKING_THREADS) as threads:
            return list(threads.map(self._constants, range(len(self.plan.steps))))

    def _constants(self, k: int) -> dict[int, Array]:
        """The constants of a step, as its kernel wants them, by the position of the parameter."""
        step, kernel = self.plan.steps[k], self.kernels[k]
        found = {}
        for p, place in enumerate(step.places):
            if place.kind == "constant":
                parameter = kernel.artifact.parameters[p]
                kept = None if self._known is None else self._known(k, p, parameter)
                if kept is None:
                    array = self.plan.graph.constants[step.group.inputs[p]]
                    kept = packed_constant(kernel, parameter, array, self._store)
                found[p] = kept
        return found

    def constants(self, step: int) -> Mapping[int, Array]:
        """What the kernel of a step reads of the weights, by the position of the parameter."""
        return self._held[step]

    def __call__(self, feeds: Feeds) -> dict[str, Array]:
        frame, results, _kept = self._begin(feeds)
        self._run(frame.address, len(self.kernels))
        return self._end(frame, feeds, results)

    def bind(self, feeds: Feeds) -> Callable[[], dict[str, Array]]:
        """A call on these arrays, which writes its outputs into the same memory each time."""
        frame, results, copied = self._begin(feeds)
        if copied:
            names = ", ".join(copied)
            raise GraphError(f"bind needs C-contiguous arrays, and not so is {names}; copy them")
        run, address, count = self._run, frame.address, len(self.kernels)
        is_done = self._is_done

        def call(_kept: object = (self, frame)) -> dict[str, Array]:
            run(address, count)
            return results if is_done else self._finish(frame, feeds, results)

        return call

    @property
    def _is_done(self) -> bool:
        """Whether nothing is left to do behind the kernels."""
        return not self.plan.copies and not self.plan.graph.checks

    def _run_pinned(self, steps: int, count: int) -> None:
        with on_cores(self.affinity):
            self._chain.run(steps, count)

    def timed(
        self, feeds: Feeds, clock: int = CLOCK_MONOTONIC
    ) -> tuple[dict[str, Array], list[float]]:
        """The outputs, and the seconds of every step by a clock of the operating system."""
        frame, results, _kept = self._begin(feeds)
        times = (ctypes.c_int64 * max(1, len(self.kernels)))()
        count, at = len(self.kernels), ctypes.addressof(times)
        with on_cores(self.affinity):
            self._chain.run_timed(frame.address, count, at, clock)
        done = self._end(frame, feeds, results)
        return done, [t * 1e-9 for t in times[: len(self.kernels)]]

    def _begin(self, feeds: Feeds) -> tuple[_Frame, dict[str, Array], Any]:
        try:
            frame = self._free.pop()
        except IndexError:
            frame = _Frame(self.plan, self.kernels, self._held)
        results = {n: empty(s, d, prod(s) * d.itemsize)[0] for n, s, d in self._outputs}
        kept: dict[str, Array] = {}
        for at, place in frame.given:
            a = feeds[place.name]
            if not (a.flags.c_contiguous and a.flags.aligned):
                a = kept.setdefault(place.name, a.copy(order="C"))
            frame.pointers[at] = address_of(a) + place.offset
        for at, place in frame.returned:
            frame.pointers[at] = address_of(results[place.name]) + place.offset
        return frame, results, kept

    def _source(self, place: Place, feeds: Feeds, results: Feeds) -> Array:
        """The array of the host that an output is a part of, or the same as."""
        held = {"input": feeds, "constant": self.plan.graph.constants, "output": results}
        return held[place.kind][place.name]

    def _end(self, frame: _Frame, feeds: Feeds, results: dict[str, Array]) -> dict[str, Array]:
        done = self._finish(frame, feeds, results)
        if len(self._free) < _MAX_FREE_FRAMES:
            self._free.append(frame)
        return done

    def _finish(self, frame: _Frame, feeds: Feeds, results: dict[str, Array]) -> dict[str, Array]:
        for name, place in self.plan.copies:
            source = frame.arena if place.kind == "arena" else self._source(place, feeds, results)
            fill(results[name], source, place.offset)
        return verified(self.plan.graph.checks, feeds, results)
