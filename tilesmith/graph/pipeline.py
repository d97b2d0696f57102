"""What happens to a graph between the front end and its partition: one visible list of passes.

Shapes and constants are settled while a graph is built, so every pass leaves a graph whose shapes
are known and whose constant parts are folded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilesmith.base.target import Target
from tilesmith.graph.graph import Graph, verify
from tilesmith.graph.passes.affine import bias_as_add
from tilesmith.graph.passes.batch_norm import fold_batch_norm
from tilesmith.graph.passes.blocks_of_scans import blocks_of_scans
from tilesmith.graph.passes.byte_tables import byte_tables
from tilesmith.graph.passes.concat import join_in_place
from tilesmith.graph.passes.half_precision import half_precision
from tilesmith.graph.passes.integers import IntegerKernels, integer_kernels, integer_kernels_for
from tilesmith.graph.passes.layouts import (
    channels_last,
    channels_last_for,
    channels_last_halves,
    channels_last_singles,
    pointwise_products,
)
from tilesmith.graph.passes.merge_dimensions import merge_dimensions
from tilesmith.graph.passes.movement import sink_movement
from tilesmith.graph.passes.numbered_updates import numbered_updates
from tilesmith.graph.passes.patterns import exporters_patterns
from tilesmith.graph.passes.scaled_channels import scaled_channels
from tilesmith.graph.passes.shared_products import shared_products
from tilesmith.graph.passes.whole_phases import whole_phases

Pass = Callable[[Graph], Graph]

PASSES: tuple[Pass, ...] = (
    integer_kernels,
    exporters_patterns,
    byte_tables,
    fold_batch_norm,
    bias_as_add,
    scaled_channels,
    channels_last,
    merge_dimensions,
    sink_movement,
    join_in_place,
)


# On a GPU, convolutions in float32 stay as they are, and parts of a concatenation are arrays of
# their own: the vectors that kernels load begin on boundaries of 16 bytes. Where there are
# instructions that multiply bytes, integer kernels come first (`passes_for`).
GPU_PASSES: tuple[Pass, ...] = (
    exporters_patterns,
    fold_batch_norm,
    bias_as_add,
    whole_phases,
    channels_last_halves,
    pointwise_products,
    sink_movement,
    shared_products,
    blocks_of_scans,
    numbered_updates,
)


def passes_for(target: Target) -> tuple[Pass, ...]:
    if target.kind != "cpu":
        integers = (IntegerKernels(reals=False),) if target.gpu.warp_products else ()
        return (*integers, *GPU_PASSES)
    own: dict[Pass, Pass] = {
        integer_kernels: integer_kernels_for(target),
        channels_last: channels_last_for(target),
    }
    return tuple(own.get(p, p) for p in PASSES)


def with_half_precision(passes: Sequence[Pass], narrow: Pass = half_precision) -> tuple[Pass, ...]:
    """The passes, and the one that makes everything half as wide."""
    at = before_halves(passes)
    return (*passes[:at], narrow, *passes[at:])


def with_tf32(passes: Sequence[Pass]) -> tuple[Pass, ...]:
    """The passes with the layouts that matrix instructions read float32 in."""
    return tuple(channels_last_singles if p is channels_last_halves else p for p in passes)


def before_halves(passes: Sequence[Pass]) -> int:
    """How many passes come before that: those that choose layouts by it follow, if there are any,
    and else it is the last one.
    """
    if channels_last_halves in passes:
        return list(passes).index(channels_last_halves)
    return len(passes)


def run_passes(graph: Graph, passes: Sequence[Pass] = PASSES) -> Graph:
    # Checks name inputs and outputs, which passes keep; notes name nodes of the model. Without
    # any, those of a pass that chooses types count.
    checks, precision = graph.checks, graph.precision
    for one in passes:
        graph = one(graph)
        verify(graph)
        precision = precision if precision.layers else graph.precision
    if graph.checks == checks and graph.precision is precision:
        return graph
    return replace(graph, checks=checks, precision=precision)
