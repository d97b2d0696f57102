"""The passes that lower a Function before a back end emits it, in one list per kind of target.

A pass takes a Function and the Target and returns a Function of the same meaning. A back end takes
its list as a setting, so your own pass is one more entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilesmith.base.given import checks_given
from tilesmith.base.target import Target
from tilesmith.codegen.passes.apply_layouts import (
    apply_layouts,
    compact,
    stagger_rows,
    widen_private_buffers,
)
from tilesmith.codegen.passes.bulk_copies import bulk_copies
from tilesmith.codegen.passes.form_launches import append_scalars, form_launches, place_buffers
from tilesmith.codegen.passes.full_blocks import full_blocks
from tilesmith.codegen.passes.guards import full_vectors, hoist_guards
from tilesmith.codegen.passes.hold_fragments import hold_fragments
from tilesmith.codegen.passes.hold_results import hold_results
from tilesmith.codegen.passes.hold_rows import hold_rows
from tilesmith.codegen.passes.insert_syncs import insert_syncs
from tilesmith.codegen.passes.join_across_blocks import join_across_blocks
from tilesmith.codegen.passes.join_across_threads import join_across_threads
from tilesmith.codegen.passes.lower_blocks import lower_blocks, resolve_notes
from tilesmith.codegen.passes.mask_tiles import mask_tiles
from tilesmith.codegen.passes.open_loops import split_open_loops
from tilesmith.codegen.passes.open_vectors import strip_open_vectors
from tilesmith.codegen.passes.own_registers import own_registers
from tilesmith.codegen.passes.part_copies import part_copies
from tilesmith.codegen.passes.partition import partition, split_at_divisions
from tilesmith.codegen.passes.pipeline_copies import pipeline_copies
from tilesmith.codegen.passes.rotate_products import rotate_products
from tilesmith.codegen.passes.simplify import simplify
from tilesmith.codegen.passes.sink_virtual_threads import sink_virtual_threads
from tilesmith.codegen.passes.spread_prefetches import prefetch_streams, spread_prefetches
from tilesmith.codegen.passes.stage_functions import stage_functions
from tilesmith.codegen.passes.steps_outside import load_fragments, steps_outside, unroll_registers
from tilesmith.codegen.passes.strip_vectors import strip_vectors
from tilesmith.codegen.passes.transpose_squares import transpose_squares
from tilesmith.codegen.passes.whole_turns import whole_turns
from tilesmith.ir.function import Function, determine_extents
from tilesmith.ir.verify import check_races

Pass = Callable[[Function, Target], Function]

# What every back end needs: loops, guards and stores, over buffers as they are in memory.
PLAIN_PASSES: tuple[Pass, ...] = (
    resolve_notes,
    lower_blocks,
    compact,
    apply_layouts,
    simplify,
)

# "CPU" marks a policy of processors, which the file of the pass explains.
CPU_PASSES: tuple[Pass, ...] = (
    resolve_notes,
    lower_blocks,
    compact,
    widen_private_buffers,  # CPU
    apply_layouts,
    stagger_rows,  # CPU
    simplify,
    strip_open_vectors,  # CPU
    split_at_divisions,  # CPU
    hoist_guards,
    split_open_loops,  # CPU
    part_copies,  # CPU
    partition,  # CPU
    transpose_squares,  # CPU
    stage_functions,  # CPU
    strip_vectors,  # CPU
    full_vectors,  # CPU
    spread_prefetches,  # CPU
    prefetch_streams,  # CPU
    hold_results,  # CPU
)

# "GPU" marks what only GPUs have. The result is in launch form, see ir/nodes.py.
GPU_PASSES: tuple[Pass, ...] = (
    join_across_blocks,  # GPU
    join_across_threads,  # GPU
    append_scalars,  # GPU
    lower_blocks,
    place_buffers,  # GPU
    sink_virtual_threads,  # GPU
    resolve_notes,
    compact,
    apply_layouts,
    hold_rows,  # GPU
    bulk_copies,  # GPU
    form_launches,  # GPU
    simplify,
    full_blocks,  # GPU
    mask_tiles,  # GPU
    own_registers,  # GPU
    hold_fragments,  # GPU
    whole_turns,  # GPU
    rotate_products,  # GPU
    pipeline_copies,  # GPU
    insert_syncs,  # GPU
    steps_outside,  # GPU
    load_fragments,  # GPU
    unroll_registers,  # GPU
)


@checks_given
def lower(func: Function, target: Target, passes: Sequence[Pass]) -> Function:
    """Applies all passes in order, if no iterations that run at the same time are in each other's
    way. Whatever is built comes through here, and its notes and kinds of loops are final.

    Sizes may be open: extents and shapes are expressions of them then, and extents of split loops
    are determined by the constant extents inside (see `determine_extents`).
    """
    func = determine_extents(func)
    check_races(func)
    for step in passes:
        func = step(func, target)
    return func
