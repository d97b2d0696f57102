"""GPU: computes a scalar in the launch before, if that has a single block, instead of in one of its
own: a launch takes longer than the scalar.

    for S.block in 1:  # blockIdx.x             for S.block in 1:  # blockIdx.x
      for t in 32: S += ...            ->         for t in 32: S += ...
    Y = sqrt(S)                                   Y = sqrt(S)
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.target import Target
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, For, Stmt


def append_scalars(func: Function, _: Target) -> Function:
    """Takes blocks whose reductions across threads are joined."""
    body: list[Stmt] = []
    for s in func.body:
        last = body[-1] if body else None
        if isinstance(s, Block) and isinstance(last, For) and _is_single(last):
            body[-1] = replace(last, body=(*last.body, s))
        else:
            body.append(s)
    return replace(func, body=tuple(body)) if len(body) < len(func.body) else func


def _is_single(root: For) -> bool:
    return root.kind == "blockIdx.x" and root.extent.const == 1
