"""Limits of launches with matrix instructions (codegen/c/tensor.py): groups of threads, registers
that hold the result, stages in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilesmith.base.target import Target
from tilesmith.expr.ints import Int, of, product
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, Path
from tilesmith.ir.notes import PipelineStages
from tilesmith.space.domains import Limit

_MOST_GROUPS = 3  # beside the one that copies
# Registers of a thread that hold results, and what is needed besides.
_MOST_RESULTS, _FEWEST_OTHERS = 208, 28
_MOST_ROWS = 256  # of a box of the copy engine
_BARRIERS_NBYTES, _ALIGNMENT = 16, 1024  # per stage, and once
_MOST_RESULTS_OF_WARPS, _OTHER_REGISTERS = 128, 80  # the latter for operands and addresses
_MOST_FETCHED = 64  # elements that a thread fetches ahead of their use


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
    if b.intrinsic.fragment.threads == target.warp_size:
        yield from _warp_limits(func, target, k, blocks, path, b, groups, registers)
        return
    yield Limit(f"groups of threads of kernel {k}", groups, _MOST_GROUPS)
    yield Limit(f"{b.name}: results of a thread", registers, _MOST_RESULTS)
    # The compiler gives all groups the same number of registers, also the one that copies.
    total = (registers + _FEWEST_OTHERS) * (groups + 1) * b.intrinsic.fragment.threads
    yield Limit(f"{b.name}: registers", total, target.registers_per_block)
    rows = groups * held * b.tile[0][1].number
    yield Limit(f"{b.name}: rows of a block", rows, _MOST_ROWS)
    stage = of(_BARRIERS_NBYTES)
    for around, copy in blocks:
        buffer = func.all_buffers[copy.writes[0].buffer]
        if buffer.scope == "shared":
            own = product(f.extent for f in around if f.owner == copy.name)
            stage += own * buffer.dtype.nbytes
    shared = stage * _stages(path) + _ALIGNMENT
    yield Limit(f"shared bytes of kernel {k}", shared, target.shared_nbytes)


def _warp_limits(
    func: Function, target: Target, k: int, blocks: list[tuple[Path, Block]], path: Path, b: Block,
    groups: Int, registers: Int,
) -> Iterator[Limit]:  # fmt: skip
    threads = groups * target.warp_size
    yield Limit(f"threads of kernel {k}", threads, target.max_threads)
    yield Limit(f"{b.name}: results of a thread", registers, _MOST_RESULTS_OF_WARPS)
    total = threads * (registers + _OTHER_REGISTERS)
    yield Limit(f"{b.name}: registers", total, target.registers_per_block)
    shared = of(0)
    for around, copy in blocks:
        buffer = func.all_buffers[copy.writes[0].buffer]
        if buffer.scope == "shared":
            own = [f.extent for f in around if f.owner == copy.name]
            padding = product(own[:-1]) * sum(buffer.align[1:]) if buffer.align else of(0)
            shared += (product(own) + padding) * buffer.dtype.nbytes
    stages = _stages(path)
    yield Limit(f"shared bytes of kernel {k}", shared * stages, target.shared_nbytes)
    fetched = (stages - 1) * shared - threads * (2 * _MOST_FETCHED)
    yield Limit(f"elements fetched ahead in kernel {k}", fetched, 0)


def _stages(path: Path) -> Int:
    return next((n.size for f in path if (n := f.note(PipelineStages)) is not None), of(2))
