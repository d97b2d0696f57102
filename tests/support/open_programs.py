"""Small random Functions with open sizes, and candidates of a space for them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import tilesmith as ts
from tilesmith.base.errors import TilesmithError
from tilesmith.ir.function import Function
from tilesmith.schedule.open_trace import open_trace

M, N = ts.size("m", range=(1, 64)), ts.size("n", range=(1, 64))


def random_open_program(rng: np.random.Generator) -> Function:
    """Two or three stages over arrays of m, n and constants: element-wise operators, broadcasts,
    transposes, products, reductions of rows and columns.
    """
    rows, columns = (M, N) if rng.random() < 0.5 else (M, int(rng.integers(2, 20)))
    x = ts.placeholder((rows, columns), name="X")
    inputs, y = [x], x
    for k in range(int(rng.integers(2, 4))):
        if len(y.shape_ints) == 1:
            y = ts.compute(y.shape_ints, lambda i, y=y: ts.maximum(y[i], 0) + 1, name=f"S{k}")
            continue
        height, width = y.shape_ints
        match int(rng.integers(0, 6)):
            case 0:
                b = ts.placeholder((width,), name=f"B{k}")
                inputs.append(b)
                y = ts.ops.add(y, b)
            case 1:
                y = ts.compute((width, height), lambda i, j, y=y: y[j, i] * 2, name=f"T{k}")
            case 2:
                w = ts.placeholder((width, int(rng.integers(2, 20))), name=f"W{k}")
                inputs.append(w)
                y = ts.ops.matmul(y, w)
            case 3:
                r = ts.reduce_axis(width, name=f"r{k}")
                y = ts.compute((height,), lambda i, y=y, r=r: ts.sum(y[i, r], axis=r), name=f"R{k}")
            case 4:
                r = ts.reduce_axis(height, name=f"c{k}")
                y = ts.compute((width,), lambda j, y=y, r=r: ts.amax(y[r, j], axis=r), name=f"C{k}")
            case _:
                y = ts.ops.softmax(y)
    return ts.function([*inputs, y], name="open_program")


def open_candidates(
    func: Function, target: ts.Target, sizes: dict[str, int], count: int, rng: np.random.Generator
) -> Iterator[Function]:
    """Random candidates for these sizes, applied to the open Function; those that need numbers are
    left out.
    """
    task = ts.Task(ts.instantiate(func, sizes), target)
    sketches = ts.SketchSpace().sketches(task)
    for candidate in ts.Random().start(task, sketches, rng).ask(count):
        try:
            yield open_trace(candidate.trace, func).apply(func)
        except TilesmithError:
            continue
