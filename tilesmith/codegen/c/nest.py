"""A launch of a Function in launch form (ir/nodes.py), taken apart."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilesmith.codegen.c.position import Position
from tilesmith.codegen.c.statements import extent_of
from tilesmith.ir.nodes import Alloc, Buffer, For, Stmt


@dataclass(frozen=True, slots=True)
class Nest:
    """A launch: loops over blocks, buffers of a block, loops over threads, and what one does."""

    blocks: tuple[For, ...]
    shared: tuple[Buffer, ...]
    threads: tuple[For, ...]
    body: tuple[Stmt, ...]

    @property
    def grid(self) -> int:
        return prod(map(extent_of, self.blocks))

    @property
    def num_threads(self) -> int:
        return prod(map(extent_of, self.threads))


def nest_of(s: Stmt) -> Nest:
    """Without a loop over blocks there is one block, without one over threads one thread."""
    blocks: list[For] = []
    threads: list[For] = []
    shared: list[Buffer] = []
    body: tuple[Stmt, ...] = (s,)
    while True:
        shared += [a.buffer for a in body if isinstance(a, Alloc) and not threads]
        rest = [a for a in body if not isinstance(a, Alloc)]
        if len(rest) != 1 or not isinstance(loop := rest[0], For):
            break
        if loop.kind == "blockIdx.x" and not threads:
            blocks.append(loop)
        elif loop.kind == "threadIdx.x" and (not threads or len(body) == 1):
            threads.append(loop)
        else:
            break
        body = loop.body
    return Nest(tuple(blocks), tuple(shared), tuple(threads), body)


def unflatten(position: Position, loops: tuple[For, ...], number: str) -> None:
    """The values of loops that together count blocks or threads, the outermost slowest."""
    inner = prod(map(extent_of, loops))
    total = inner
    for loop in loops:
        extent = extent_of(loop)
        inner //= extent
        name = position.bind(loop.name, extent)
        if extent == 1:
            continue
        value = number if inner == 1 else f"{number} / {inner}"
        if extent * inner < total:
            value += f" % {extent}"
        position.write(f"const int {name} = {value};")


def parameter(position: Position, b: Buffer, written: bool) -> str:
    dialect = position.dialect
    const = "" if written else "const "
    kind = f"{const}{dialect.spaces['global']}{dialect.type_of(b.dtype)}*"
    return f"{kind} {dialect.restrict} {position.memories[b.name].name}"
