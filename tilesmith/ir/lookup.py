"""Finds the blocks and loops of a Function by name, and the blocks that read or write a buffer."""

from __future__ import annotations

from collections.abc import Iterator

from tilesmith.base.errors import ScheduleError
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, For, Path, Stmt, walk


def find_block(func: Function, name: str) -> tuple[Path, Block]:
    names = []
    for path, b in walk(func.body):
        if b.name == name:
            return path, b
        names.append(b.name)
    raise ScheduleError(f"there is no block {name!r} in {func.name}; it has {', '.join(names)}")


def find_loop(func: Function, name: str) -> tuple[Path, For]:
    """The loop, and the loops around it."""

    def go(body: tuple[Stmt, ...], path: Path) -> tuple[Path, For] | None:
        for s in body:
            if isinstance(s, For):
                inner = (path, s) if s.name == name else go(s.body, (*path, s))
                if inner:
                    return inner
        return None

    place = go(func.body, ())
    if place is None:
        loops = ", ".join(f.name for f in all_loops(func.body)) or "none"
        raise ScheduleError(f"there is no loop {name!r} in {func.name}; it has {loops}")
    return place


def all_loops(body: tuple[Stmt, ...]) -> Iterator[For]:
    for s in body:
        loop = s
        while isinstance(loop, For):
            yield loop
            if len(loop.body) != 1:
                yield from all_loops(loop.body)
                break
            loop = loop.body[0]


def writers(func: Function, buffer: str) -> list[Block]:
    return [b for _, b in walk(func.body) if any(w.buffer == buffer for w in b.writes)]


def readers(func: Function, buffer: str) -> list[Block]:
    return [b for _, b in walk(func.body) if any(load.buffer == buffer for load in b.loads)]


def written(b: Block) -> tuple[str, ...]:
    return tuple(w.buffer for w in b.writes)


def program_order(func: Function) -> dict[str, int]:
    """The position of each block in the text."""
    return {b.name: k for k, (_, b) in enumerate(walk(func.body))}


def require_only_writer(func: Function, b: Block, why: str) -> None:
    """Raises unless `b` alone writes its buffers. A reduction split into init and update has two
    writers.
    """
    for name in written(b):
        others = [o.name for o in writers(func, name) if o.name != b.name]
        if others:
            raise ScheduleError(
                f"cannot {why} {b.name}: {name} is also written by {', '.join(others)}; "
                "do this before decompose_reduction"
            )


def require_not_output(func: Function, b: Block, why: str) -> None:
    for name in written(b):
        if any(p.name == name for p in func.outputs):
            raise ScheduleError(
                f"cannot {why} {b.name}: {name} is an output and must be there whole"
            )


def is_own_loop(b: Block, loop: For) -> bool:
    """Whether the loop was created for this block. Such loops together visit each of its points
    once.

    Any other loop around a block belongs to a neighbour; the block may compute the same elements
    again in each of its iterations. The init of a reduction shares the reduction's loops.
    """
    return loop.owner in (b.name, b.name.removesuffix(".init"))
