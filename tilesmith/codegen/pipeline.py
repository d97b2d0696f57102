"""What happens to a Function before it is written down: the passes, in order. Those of the second
list depend on the target.
"""

from __future__ import annotations

from tilesmith.base.target import Target
from tilesmith.codegen.passes.compact import compact
from tilesmith.codegen.passes.fetch import spread_fetches
from tilesmith.codegen.passes.guards import hoist_guards
from tilesmith.codegen.passes.lanes import widen_private_buffers
from tilesmith.codegen.passes.layouts import apply_layouts
from tilesmith.codegen.passes.lower_blocks import lower_blocks
from tilesmith.codegen.passes.notes import resolve_notes
from tilesmith.codegen.passes.partition import partition
from tilesmith.codegen.passes.simplify import simplify
from tilesmith.codegen.passes.squares import transpose_squares
from tilesmith.codegen.passes.stagger import stagger_rows
from tilesmith.codegen.passes.strips import strip_vectors
from tilesmith.codegen.passes.undivide import split_at_divisions
from tilesmith.ir.function import Function

PASSES = (
    resolve_notes,
    lower_blocks,
    compact,
    widen_private_buffers,
    apply_layouts,
    stagger_rows,
    simplify,
    split_at_divisions,
    hoist_guards,
    partition,
)
TARGET_PASSES = (transpose_squares, strip_vectors, spread_fetches)


def lower(func: Function) -> Function:
    """After the passes that are the same for all targets."""
    for step in PASSES:
        func = step(func)
    return func


def lower_for(func: Function, target: Target) -> Function:
    """The Function as the emitter sees it."""
    func = lower(func)
    for fit in TARGET_PASSES:
        func = fit(func, target)
    return func
