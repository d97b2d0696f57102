"""Functions as the passes that look at vector registers and prefetches get them."""

from __future__ import annotations

import tilesmith as ts
from tilesmith.codegen import pipeline
from tilesmith.codegen.passes.transpose_squares import transpose_squares

_FIRST = pipeline.CPU_PASSES.index(transpose_squares)
EARLY_PASSES, LATE_PASSES = pipeline.CPU_PASSES[:_FIRST], pipeline.CPU_PASSES[_FIRST:]
TARGET = ts.cpu(1)


def lower(func: ts.Function) -> ts.Function:
    """After the early passes, which are the same for all processors."""
    return pipeline.lower(func, TARGET, EARLY_PASSES)
