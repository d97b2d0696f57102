"""Inputs and expected outputs of a task, in shared memory.

The fork server maps the memory before it forks. The worker that evaluates the oracle fills it once,
and every run worker of the task reads it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from math import prod

import numpy as np

from tilesmith.base.errors import TilesmithError
from tilesmith.ir.evaluate import evaluate
from tilesmith.ir.function import Function
from tilesmith.measure.child.guarded_memory import Array, make_read_only
from tilesmith.task.inputs import example_inputs

_MAX_THREADS = 32  # each takes some 40 MB
_PIECE = 1 << 16


def _is_finite(a: Array) -> bool:
    """In pieces, because an array of all answers would be new memory, which is slow."""
    flat = a.reshape(-1)
    return a.dtype.kind in "biu" or all(
        np.isfinite(flat[k : k + _PIECE]).all() for k in range(0, flat.size, _PIECE)
    )


class TaskArrays:
    def __init__(self, func: Function) -> None:
        self.func = func
        spans, total = [], 0
        for b in func.params:
            shape = tuple(n.const or 0 for n in b.shape)
            nbytes = prod(shape) * b.dtype.nbytes
            spans.append((total, shape, b.dtype.numpy))
            total += -(-nbytes // 64) * 64
        self._memory = mmap.mmap(-1, max(total, 1))
        self._nbytes = total
        self.arrays: list[Array] = [
            np.frombuffer(self._memory, kind, prod(shape), offset).reshape(shape)
            for offset, shape, kind in spans
        ]

    @property
    def inputs(self) -> list[Array]:
        return self.arrays[: len(self.func.inputs)]

    @property
    def outputs(self) -> list[Array]:
        return self.arrays[len(self.func.inputs) :]

    def fill(self, seed: int) -> str | None:
        """Evaluates the oracle on example inputs. Returns None, or why it cannot be evaluated. If
        inputs of both signs lead to NaN or infinity, with which nothing can be compared, positive
        ones are tried. All cores of this process share the work.
        """
        num_threads = min(len(os.sched_getaffinity(0)), _MAX_THREADS)
        best: list[Array] | None = None
        for positive in (False, True):
            try:
                inputs = example_inputs(self.func, seed, positive)
                result = evaluate(self.func, *inputs, num_threads=num_threads)
            except (TilesmithError, MemoryError, ValueError) as error:
                return f"{type(error).__name__}: {error}"
            outputs = list(result) if isinstance(result, tuple) else [result]
            finite = all(map(_is_finite, outputs))
            if finite or best is None:
                best = [*inputs, *outputs]
            if finite:
                break
        assert best is not None
        for to, data in zip(self.arrays, best, strict=True):
            to[...] = data
        return None

    def protect(self) -> None:
        """Makes the arrays read-only for this process, which runs kernels."""
        if self._nbytes:
            at = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
            make_read_only(at, self._nbytes)

    def close(self) -> None:
        self.arrays = []
        self._memory.close()
