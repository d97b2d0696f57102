"""Emits hardware instructions: the operands of a Store with an Intrinsic as vectors, and the
instruction's own code.
"""

from __future__ import annotations

from tilesmith.base.errors import BuildError
from tilesmith.codegen.llvm.addressing import Addressing
from tilesmith.codegen.llvm.builder import V
from tilesmith.codegen.llvm.frames import Cell
from tilesmith.codegen.llvm.intrinsics import emitter_of
from tilesmith.codegen.llvm.position import Position
from tilesmith.codegen.llvm.register_cache import RegisterCache
from tilesmith.expr.ints import Int
from tilesmith.expr.linear import step_along
from tilesmith.expr.nodes import Load
from tilesmith.ir.nodes import Store, walk


class Instructions:
    def __init__(self, position: Position, addressing: Addressing, cache: RegisterCache) -> None:
        self.position, self.addressing, self.cache = position, addressing, cache

    def emit(self, s: Store) -> None:
        unit = s.intrinsic
        assert unit is not None
        missing = unit.features - self.position.target.features
        if missing:
            raise BuildError(
                f"{unit.name} needs {', '.join(sorted(missing))}, which this target lacks"
            )
        if self.position.mask is not None:
            raise BuildError(f"{unit.name} cannot be done in some lanes only")
        operands: dict[str, V] = {}
        cells: dict[str, Cell] = {}
        ((_, block),) = walk(unit.description.body)
        its = [i.name for i in block.iters]
        accesses = {w.buffer: w.index for w in block.writes}
        accesses |= {load.buffer: load.index for load in block.loads}
        for n, _ in s.tile:
            self.position.env[n] = 0
        for name, load in s.operands:
            self._require_dense(s, name, load, its, accesses[name])
            a = self.addressing.address(load.buffer, load.index)
            cells[name] = Cell(a.memory.serial, a.terms, a.offset, operand_size(s, name))
            operands[name] = self.cache.read(a.memory, cells[name])
        for n, _ in s.tile:
            del self.position.env[n]
        out = unit.description.outputs[0].name
        self.cache.write(cells[out], emitter_of(unit)(self.position.builder, operands))

    def _require_dense(
        self, s: Store, name: str, load: Load, its: list[str], wanted: tuple[Int, ...]
    ) -> None:
        """Raises unless the operand is in memory as the instruction needs it: with the strides of
        the description along the tile.
        """
        assert s.intrinsic is not None
        m = self.position.memories[load.buffer]
        buf = s.intrinsic.description.all_buffers[name]
        for (loop, extent), it in zip(s.tile, its, strict=True):
            have = step_along(loop, load.index, m.strides)
            need = step_along(it, wanted, buf.strides)
            if have != need and extent.const != 1:
                raise BuildError(
                    f"{s.intrinsic.name}: {load.buffer} moves by {have} elements along {loop}, "
                    f"the instruction wants {need}; give it another layout"
                )


def operand_size(s: Store, name: str) -> int:
    """The number of elements of that operand which the instruction takes."""
    assert s.intrinsic is not None
    size: int = 1
    for n in s.intrinsic.description.all_buffers[name].shape:
        size *= n.const or 1
    return size
