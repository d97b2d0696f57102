"""GPU: decides where the buffers between the statements of one launch live.

A buffer whose uses all stand inside of the loops over threads is private to a thread. One whose
uses all stand inside of the loops over blocks is shared by the threads of a block. Any other is in
global memory.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import Access, accesses
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Buffer


def place_buffers(func: Function, _: Target) -> Function:
    """Takes lowered statements whose virtual threads still stand outside."""
    uses: dict[str, list[Access]] = {b.name: [] for b in func.buffers}
    for a in accesses(func.body):
        if a.buffer in uses:
            uses[a.buffer].append(a)
    return replace(func, buffers=tuple(_placed(b, uses[b.name]) for b in func.buffers))


def _placed(b: Buffer, uses: list[Access]) -> Buffer:
    if b.scope != "global" or not uses:
        return b
    depth = 0
    first = uses[0].path
    while all(len(a.path) > depth and a.path[depth].name == first[depth].name for a in uses):
        depth += 1
    around = {f.kind.split(".")[0] for f in first[:depth]}
    further = {f.kind.split(".")[0] for a in uses for f in a.path[depth:]}
    if "threadIdx" in around and "threadIdx" not in further:
        return replace(b, scope="local")
    return replace(b, scope="shared") if "blockIdx" in around else b
