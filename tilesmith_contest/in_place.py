"""How well records predict a model: for every kernel its record, its time alone with warm caches,
its time alone with constants that are not in a cache, and its time in its place in the model.

All three times are taken in turns, so that they meet the same state of the machine; the record may
come from another hour.
"""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.codegen.artifact import Parameter
from tilesmith.graph.executor import Executor
from tilesmith.graph.model import Model
from tilesmith.graph.plan import Step
from tilesmith.runtime.arrays import address_of, empty
from tilesmith.runtime.chain import CLOCK_MONOTONIC, CLOCK_THREAD_CPUTIME_ID, chain
from tilesmith.runtime.kernel import Kernel
from tilesmith_contest.problems import Array

_CALLS = 8  # of a kernel alone, for each run of the whole model
_COLD_NBYTES = 64 << 20  # constants are rotated through so much memory, more than most caches hold
_MAX_COPIES = 64


@dataclass(frozen=True, slots=True)
class InPlace:
    """A kernel and how often the model runs it; seconds of one call, medians. `record` is None for
    a kernel without one.
    """

    name: str
    count: int
    record: float | None
    alone: float
    rotated: float
    in_place: float


@dataclass(frozen=True)
class InPlaceReport:
    kernels: tuple[InPlace, ...]

    def total(self, which: str) -> float:
        """Of one call of the model; `which` is the name of a field of InPlace."""
        return sum(k.count * (getattr(k, which) or 0.0) for k in self.kernels)

    @property
    def excess(self) -> float:
        """Time in place over the time alone with warm caches, of the whole model, minus 1."""
        return self.total("in_place") / self.total("alone") - 1

    @property
    def excess_rotated(self) -> float:
        """The same over the times with constants from memory."""
        return self.total("in_place") / self.total("rotated") - 1

    def __str__(self) -> str:
        lines = [
            f"{'count':>5} {'record':>10} {'alone':>10} {'rotated':>10} {'in place':>10}  (us)"
        ]
        for k in sorted(self.kernels, key=lambda k: -k.count * k.in_place):
            record = "-" if k.record is None else f"{k.record * 1e6:.1f}"
            lines.append(
                f"{k.count:5} {record:>10} {k.alone * 1e6:10.1f} {k.rotated * 1e6:10.1f} "
                f"{k.in_place * 1e6:10.1f}  {k.name}"
            )
        records = self.total("record") if all(k.record for k in self.kernels) else None
        text = f"in place {1e3 * self.total('in_place'):.2f} ms"
        text += f"; alone {1e3 * self.total('alone'):.2f} ms, {100 * self.excess:+.1f} % in place"
        text += f"; rotated {1e3 * self.total('rotated'):.2f} ms"
        text += f", {100 * self.excess_rotated:+.1f} % in place"
        if records:
            over = self.total("in_place") / records - 1
            text += f"; records {1e3 * records:.2f} ms, {100 * over:+.1f} % in place"
        return "\n".join([*lines, text])


def in_place(
    model: Model, feeds: Mapping[str, Array], rounds: int = 15, processor_time: bool = False
) -> InPlaceReport:
    """Of a model without stages; the arrays of kernels alone are random. `processor_time` counts
    that of the calling thread, for a model of one thread on a machine that has other work.
    """
    clock = CLOCK_THREAD_CPUTIME_ID if processor_time else CLOCK_MONOTONIC
    (executor,) = model.executors
    by_kernel: dict[int, list[int]] = {}
    for k, kernel in enumerate(executor.kernels):
        by_kernel.setdefault(id(kernel), []).append(k)
    kinds = list(by_kernel.values())
    alone = [_Alone(executor, at[0], 1) for at in kinds]
    rotated = [_Alone(executor, at[0], _copies(executor, at[0])) for at in kinds]
    whole: list[list[float]] = []
    for k in range(rounds + 1):  # the first round warms up
        _, times = executor.timed(feeds, clock)
        for a in (*alone, *rotated):
            a.run(clock)
        if k:
            whole.append(times)
        else:
            for a in (*alone, *rotated):
                a.samples.clear()
    found = []
    for at, one, other in zip(kinds, alone, rotated, strict=True):
        here = statistics.median(statistics.fmean(times[k] for k in at) for times in whole)
        kernel = executor.kernels[at[0]]
        found.append(
            InPlace(kernel.name, len(at), kernel.origin.seconds, one.seconds, other.seconds, here)
        )
    return InPlaceReport(tuple(found))


def _constants(step: Step, kernel: Kernel) -> list[int]:
    """Positions of the parameters that are constants."""
    return [k for k, place in enumerate(step.places) if place.kind == "constant"]


def _copies(executor: Executor, k: int) -> int:
    """How many copies of a kernel's constants do not fit the caches together."""
    kernel = executor.kernels[k]
    nbytes = sum(
        kernel.artifact.parameters[p].nbytes for p in _constants(executor.plan.steps[k], kernel)
    )
    return min(_MAX_COPIES, max(1, _COLD_NBYTES // nbytes)) if nbytes else 1


class _Alone:
    """Calls of one kernel, one behind the other, on `copies` sets of constants in turns."""

    def __init__(self, executor: Executor, k: int, copies: int) -> None:
        step, self.kernel = executor.plan.steps[k], executor.kernels[k]
        constants = _constants(step, self.kernel)
        parameters = self.kernel.artifact.parameters
        others = [_array(p) for p in parameters]
        sets = [
            [_array(p) if n in constants else others[n] for n, p in enumerate(parameters)]
            for _ in range(copies)
        ]
        workspace = self.kernel.artifact.workspace_nbytes
        space, space_at = empty((workspace,), np.dtype(np.uint8), workspace)
        self._kept: Any = (sets, space)
        self._pointers = [
            (ctypes.c_void_p * len(s))(*(address_of(a) for a in s)) for s in sets
        ]  # fmt: skip
        self._entry, self._space_at = self.kernel.entry_address, space_at
        self._next = 0
        self.samples: list[float] = []

    def run(self, clock: int) -> None:
        steps = (ctypes.c_void_p * (3 * _CALLS))()
        for n in range(_CALLS):
            at = ctypes.addressof(self._pointers[(self._next + n) % len(self._pointers)])
            steps[3 * n : 3 * n + 3] = [self._entry, at, self._space_at]
        self._next += _CALLS
        times = (ctypes.c_int64 * _CALLS)()
        chain().run_timed(ctypes.addressof(steps), _CALLS, ctypes.addressof(times), clock)
        # The first calls bring the activations into the caches, where the kernel before it would
        # have left them.
        self.samples += [t * 1e-9 for t in times[2:]]

    @property
    def seconds(self) -> float:
        return statistics.median(self.samples)


def _array(p: Parameter) -> Array:
    """Small numbers; zeros of integers, which may be indices."""
    array: Array = empty(p.shape, p.dtype.numpy, p.nbytes)[0]
    if p.dtype.is_float:
        array[...] = np.resize(np.linspace(-1, 1, 997), array.shape).astype(array.dtype)
    else:
        array[...] = 0
    return array


def sum_of_records(kernels: Sequence[Kernel]) -> float | None:
    """What the records say that a model takes; None if a kernel has none."""
    times = [k.origin.seconds for k in kernels]
    return None if any(t is None for t in times) else float(sum(t for t in times if t))
