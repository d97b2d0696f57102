"""Who writes what before whom, and what may therefore be moved, reordered or run at the same time.

The decisions rest on names and structure alone, never on the value of an extent, so that they are the same for a sketch with
open sizes and for each of its candidates.
"""

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
    """The loop and those around it."""

    def go(body: tuple[Stmt, ...], path: Path) -> tuple[Path, For] | None:
        for s in body:
            if isinstance(s, For):
                found = (path, s) if s.name == name else go(s.body, (*path, s))
                if found:
                    return found
        return None

    found = go(func.body, ())
    if found is None:
        loops = ", ".join(f.name for f in all_loops(func.body))
        raise ScheduleError(f"there is no loop {name!r} in {func.name}; it has {loops}")
    return found


def all_loops(body: tuple[Stmt, ...]) -> Iterator[For]:
    for s in body:
        if isinstance(s, For):
            yield s
            yield from all_loops(s.body)


def writers(func: Function, buffer: str) -> list[Block]:
    return [b for _, b in walk(func.body) if any(w.buffer == buffer for w in b.writes)]


def readers(func: Function, buffer: str) -> list[Block]:
    return [b for _, b in walk(func.body) if any(load.buffer == buffer for load in b.loads)]


def written(b: Block) -> tuple[str, ...]:
    return tuple(w.buffer for w in b.writes)


def only_writer(func: Function, b: Block, why: str) -> None:
    """Moves need a buffer's one and only writer; a reduction split into init and update has two."""
    for name in written(b):
        others = [o.name for o in writers(func, name) if o.name != b.name]
        if others:
            raise ScheduleError(
                f"cannot {why} {b.name}: {name} is also written by {', '.join(others)}; "
                "do this before decompose_reduction"
            )


def not_output(func: Function, b: Block, why: str) -> None:
    for name in written(b):
        if any(p.name == name for p in func.outputs):
            raise ScheduleError(f"cannot {why} {b.name}: {name} is an output and must be there whole")


def finished_at(func: Function, producer: Block, path: Path) -> None:
    """The producer's sum must be complete wherever all loops of `path` are fixed."""
    open_loops = producer.reducing_loops & {f.name for f in path}
    if open_loops:
        raise ScheduleError(
            f"{producer.name} is not finished inside loop {sorted(open_loops)[0]}, which it reduces over; "
            "choose a loop further out"
        )


def check_concurrent(func: Function, loop: For, what: str) -> None:
    """Iterations of `loop` may run at the same time: none adds to, or overwrites, what another one writes."""
    inside = {b.name for _, b in walk(loop.body)}
    for _, b in walk((loop,)):
        tile = {n for n, _ in b.tile}
        if loop.name in b.reducing_loops - tile:
            raise ScheduleError(
                f"cannot {what} loop {loop.name}: {b.name} reduces over it; "
                "use rfactor to split the reduction first"
            )
        bound = any(loop.name in i.bind.names for i in b.spatial)
        for name in written(b):
            outside = any(p.name == name for p in func.outputs) or any(
                o.name not in inside for o in (*writers(func, name), *readers(func, name))
            )
            if outside and not bound:
                raise ScheduleError(
                    f"cannot {what} loop {loop.name}: every iteration of it writes the same elements "
                    f"of {name} in {b.name}"
                )
