"""Limits of launches with matrix instructions (codegen/c/tensor.py): groups of threads, registers
that hold the result, stages in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilesmith.base.target import Target
from tilesmith.expr.ints import Int, of, product, var
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, Path
from tilesmith.space.limit import Limit

_MOST_GROUPS = 3  # beside the one that copies
# Registers of a thread that hold results: the rest is for addresses. Three groups have 160 each.
_MOST_RESULTS, _MOST_RESULTS_OF_GROUPS = 208, 416
_MOST_ROWS = 256  # of a box of the copy engine
_BARRIERS_NBYTES, _ALIGNMENT = 16, 1024  # per stage, and once


def product_of(blocks: Iterable[tuple[Path, Block]]) -> tuple[Path, Block] | None:
    """The block that a matrix instruction computes, with its loops, if there is one."""
    for path, b in blocks:
        if b.intrinsic is not None and b.intrinsic.fragment is not None:
            return path, b
    return None


def tensor_limits(
    func: Function, target: Target, k: int, blocks: list[tuple[Path, Block]]
) -> Iterator[Limit]:
    found = product_of(blocks)
    assert found is not None
    path, b = found
    assert b.intrinsic is not None
    assert b.intrinsic.fragment is not None
    groups = product(f.extent for f in path if f.kind == "threadIdx.x")
    held = product(f.extent for f in path if f.kind == "vthread")
    registers = held * b.intrinsic.fragment.registers
    yield Limit(f"groups of threads of kernel {k}", groups, _MOST_GROUPS)
    yield Limit(f"{b.name}: results of a thread", registers, _MOST_RESULTS)
    yield Limit(f"{b.name}: results of all groups", registers * groups, _MOST_RESULTS_OF_GROUPS)
    rows = groups * held * (b.tile[0][1].const or 1)
    yield Limit(f"{b.name}: rows of a block", rows, _MOST_ROWS)
    stage = of(_BARRIERS_NBYTES)
    for around, copy in blocks:
        buffer = func.all_buffers[copy.writes[0].buffer]
        if buffer.scope == "shared":
            own = product(f.extent for f in around if f.owner == copy.name)
            stage += own * buffer.dtype.nbytes
    shared = stage * _stages(path) + _ALIGNMENT
    yield Limit(f"shared bytes of kernel {k}", shared, target.shared_nbytes)


def _stages(path: Path) -> Int:
    note = next((n for f in path if (n := f.note("pipeline")) is not None), 2)
    return var(note) if isinstance(note, str) else of(int(str(note)))
