"""GPU: decides where the buffers between the statements of one launch live.

A buffer whose uses all stand inside of the loops over threads is private to a thread. One whose
uses all stand inside of the loops over blocks is shared by the threads of a block. Any other is in
global memory. A scope that the schedule gave is widened if the uses are further apart.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import Access, accesses, common_loops
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Buffer, For, Join, statements


def place_buffers(func: Function, _: Target) -> Function:
    """Takes lowered statements whose virtual threads still stand outside."""
    uses: dict[str, list[Access]] = {b.name: [] for b in func.buffers}
    for a in accesses(func.body):
        if a.buffer in uses:
            uses[a.buffer].append(a)
    joined = {x.buffer for s in statements(func.body) if isinstance(s, Join) for x in s.values}
    return replace(
        func,
        buffers=tuple(b if b.name in joined else _placed(b, uses[b.name]) for b in func.buffers),
    )


def _placed(b: Buffer, uses: list[Access]) -> Buffer:
    if not uses:
        return b
    around = common_loops(uses)
    kinds = {_axis(f) for f in around}
    if b.scope == "global":
        further = {_axis(f) for a in uses for f in a.path[len(around) :]}
        if "threadIdx" in kinds and "threadIdx" not in further:
            return replace(b, scope="local")
        return replace(b, scope="shared") if "blockIdx" in kinds else b
    if not around:  # several launches
        return replace(b, scope="global")
    if b.scope == "local" and not all(_private(a, len(around)) for a in uses):
        return replace(b, scope="shared")
    return b


def _private(a: Access, depth: int) -> bool:
    """Whether an access below the common loops leaves the buffer private: all threads carry out
    what stands outside of their loops, but nobody else what stands inside.
    """
    return not a.write or all(_axis(f) != "threadIdx" for f in a.path[depth:])


def _axis(f: For) -> str:
    return f.kind.split(".")[0]
