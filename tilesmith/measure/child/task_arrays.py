"""Inputs, expected outputs and allowed errors of a task, in shared memory.

The fork server maps the memory before it forks. The worker that evaluates the oracle fills it once,
and every run worker of the task reads it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from math import prod
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TilesmithError
from tilesmith.base.target import Target
from tilesmith.ir.contract import narrow_terms, sums_products
from tilesmith.ir.error_bounds import Bounded, bounded_in_ways
from tilesmith.ir.function import Function, numbers
from tilesmith.ir.nodes import walk
from tilesmith.ir.pieces import of_each
from tilesmith.measure.child.check import Bits, share_that_tells, to_bits
from tilesmith.measure.child.guarded_memory import make_read_only
from tilesmith.task.inputs import Draw, draws, example_inputs
from tilesmith.task.slices import fewer_slices

Array = np.ndarray[Any, Any]

_MAX_THREADS = 32  # each takes some 40 MB
_ENOUGH = 0.8  # of the results have to tell right from wrong, or other inputs are tried


@dataclass(frozen=True, slots=True)
class Case:
    """Inputs of one draw, what the outputs are to be, and by how much each may be off."""

    draw: Draw
    inputs: list[Array]
    outputs: list[Array]
    limits: dict[str, list[Bits]]  # by the way in which a kernel rounds


def ways_of(func: Function, target: Target) -> tuple[str, ...]:
    """The ways in which kernels may round, as ir/error_bounds.py calls them."""
    blocks = [b for _, b in walk(func.body)]
    if target.kind == "cpu":
        halves = "fp16" in target.features and any(narrow_terms(b) is not None for b in blocks)
        return ("", "chunks") if halves else ("",)
    rounds = target.gpu.warp_products and any(map(sums_products, blocks))
    return ("", "factors") if rounds else ("",)


class TaskArrays:
    """Kernels may round in one of the `ways`."""

    def __init__(self, func: Function, ways: tuple[str, ...] = ("",)) -> None:
        self.func, self.ways = func, ways
        spans: list[tuple[int, tuple[int, ...], np.dtype[Any]]] = []
        total = 0
        all_draws = draws(func)
        for _ in all_draws:
            kinds = [(numbers(b.shape), b.dtype.numpy) for b in func.params]
            kinds += [(numbers(b.shape), np.dtype(np.uint16)) for b in func.outputs] * len(ways)
            for shape, kind in kinds:
                spans.append((total, shape, kind))
                total += -(-prod(shape) * kind.itemsize // 64) * 64
        self._memory = mmap.mmap(-1, max(total, 1))
        self._nbytes = total
        arrays = [
            np.frombuffer(self._memory, kind, prod(shape), offset).reshape(shape)
            for offset, shape, kind in spans
        ]
        num_inputs, num_outputs = len(func.inputs), len(func.outputs)
        each = num_inputs + (1 + len(ways)) * num_outputs
        self.cases: list[Case] = []
        for k, draw in enumerate(all_draws):
            own = arrays[k * each : (k + 1) * each]
            outputs = own[num_inputs : num_inputs + num_outputs]
            limits = {
                way: own[num_inputs + n * num_outputs :][:num_outputs]
                for n, way in enumerate(ways, start=1)
            }
            self.cases.append(Case(draw, own[:num_inputs], outputs, limits))

    def fill(self, seed: int) -> str | None:
        """Evaluates the oracle on example inputs. Returns None, or why it cannot be evaluated. All
        cores of this process share the work.
        """
        for case in self.cases:
            why = self._fill(case, seed)
            if why is not None:
                return why
        return None

    def _fill(self, case: Case, seed: int) -> str | None:
        """Inputs that lead to NaN or infinity, or to the same result everywhere, tell little: then
        others are tried.
        """
        num_threads = min(len(os.sched_getaffinity(0)), _MAX_THREADS)
        slices = fewer_slices(self.func)
        at = slices.drawn(seed)
        best: tuple[float, list[Array], list[list[Bounded]]] | None = None
        for setting in case.draw.tries:
            try:
                inputs = example_inputs(slices.func, seed, case.draw, setting)
                results = bounded_in_ways(slices.func, self.ways, *inputs, num_threads=num_threads)
            except (TilesmithError, MemoryError, ValueError) as error:
                return f"{type(error).__name__}: {error}"
            share = min(map(share_that_tells, results[0]), default=1.0)
            if best is None or share > best[0]:
                best = share, inputs, results
            if best[0] >= _ENOUGH:
                break
        assert best is not None
        _, inputs, results = best
        for way, bounds in zip(self.ways, results, strict=True):
            self._put(case.limits[way], bounds, at, num_threads)
        for b, to, data in zip(self.func.inputs, case.inputs, inputs, strict=True):
            slices.spread(b, data, at, to)
        for b, value, result in zip(self.func.outputs, case.outputs, results[0], strict=True):
            slices.spread(b, result.value, at, value)
        return None

    def _put(
        self, limits: list[Bits], results: list[Bounded], at: list[Array], num_threads: int
    ) -> None:
        slices = fewer_slices(self.func)
        for b, limit, result in zip(self.func.outputs, limits, results, strict=True):
            if result.error is None:
                limit[...] = 0
                continue
            errors = result.error.reshape(-1)
            bits = np.empty(errors.size, np.uint16)

            def put(part: slice, bits: Array = bits, errors: Array = errors) -> None:
                bits[part] = to_bits(errors[part])

            of_each(put, errors.size, num_threads)
            slices.spread(b, bits.reshape(result.error.shape), at, limit)

    def protect(self) -> None:
        """Makes the arrays read-only for this process, which runs kernels."""
        if self._nbytes:
            at = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
            make_read_only(at, self._nbytes)

    def close(self) -> None:
        self.cases = []
        self._memory.close()
