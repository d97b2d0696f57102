"""Harder ways to run a Function: transformations that a code generator is allowed to make, applied
before the program is interpreted.

`hardened` gives each iteration fresh buffers and runs concurrent loops backwards. `races` finds
elements that two iterations of a concurrent loop access, one of them writing. Both take a concrete
Function.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from tilesmith.expr.dynamic import Dynamic
from tilesmith.expr.ints import Int, Opaque, evaluate_int, of, opaque_atoms, var
from tilesmith.ir.function import Function, readers, writers
from tilesmith.ir.nodes import Alloc, Block, For, Path, Stmt, map_bindings, rewrite, walk
from tilesmith.ir.regions import THREAD_LOOPS

Element = tuple[str, tuple[int, ...]]


def hardened(func: Function) -> Function:
    """Intermediate buffers are allocated anew in the innermost loop around their uses, and
    concurrent loops run backwards.
    """
    return backwards(renewed(func))


def renewed(func: Function) -> Function:
    """As a code generator allocates: nothing survives from one iteration of the innermost loop
    around a buffer's uses to the next.
    """
    homes: dict[str, list[Alloc]] = {}
    for buffer in func.buffers:
        paths = [
            _before_sum(path, b)
            for path, b in walk(func.body)
            if any(w.buffer == buffer.name for w in b.writes)
            or any(load.buffer == buffer.name for load in b.loads)
        ]
        common = paths[0] if paths else ()
        for path in paths[1:]:
            same = [f for f, g in zip(common, path, strict=False) if f.name == g.name]
            common = tuple(same)
        if common:
            homes.setdefault(common[-1].name, []).append(Alloc(buffer))

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, For) and s.name in homes:
            return (replace(s, body=(*homes[s.name], *s.body)),)
        return (s,)

    return replace(func, body=rewrite(func.body, go))


def _before_sum(path: Path, b: Block) -> Path:
    """The loops outside of the first one that the block reduces over, before which it starts."""
    reducing = b.reducing_loops
    first = next((k for k, f in enumerate(path) if f.name in reducing), len(path))
    return path[:first]


def backwards(func: Function) -> Function:
    """Runs parallel, bound and vectorized loops from the last iteration to the first."""
    turned: dict[str, Int] = {}
    for loop in concurrent(func.body):
        if not _reduced(loop):
            turned[loop.name] = loop.extent - 1 - var(loop.name)

    def go(s: Stmt) -> tuple[Stmt, ...]:
        return (map_bindings(s, lambda p: p.substitute(turned)),) if isinstance(s, Block) else (s,)

    return replace(func, body=rewrite(func.body, go))


def _reduced(loop: For) -> bool:
    """Whether a block reduces over the loop, which only vectorized loops may be."""
    return any(loop.name in b.reducing_loops for _, b in walk((loop,)))


def concurrent(body: tuple[Stmt, ...]) -> Iterator[For]:
    for s in body:
        if isinstance(s, For):
            if s.kind not in ("serial", "unroll"):
                yield s
            yield from concurrent(s.body)


def races(func: Function) -> list[str]:
    """One line for each buffer of which two iterations of a concurrent loop access the same
    element, one of them writing.
    """
    conflicts: list[str] = []

    def go(body: tuple[Stmt, ...], path: Path) -> None:
        for s in body:
            if isinstance(s, For):
                if s.kind not in ("serial", "unroll"):
                    conflicts.extend(_races_in(func, path, s))
                go(s.body, (*path, s))

    go(func.body, ())
    return conflicts


def _races_in(func: Function, path: Path, loop: For) -> Iterator[str]:
    inside = {b.name for _, b in walk(loop.body)}
    if loop.kind == "vectorize" and _reduced(loop):
        return
    outputs = {b.name for b in func.outputs}
    public = {
        n
        for n, buffer in func.all_buffers.items()
        if n in outputs
        or any(o.name not in inside for o in (*writers(func, n), *readers(func, n)))
        or (
            # Threads share it, but all of them may store the same value.
            loop.kind in THREAD_LOOPS.get(buffer.scope, ())
            and any(o.combiner is not None for o in writers(func, n))
        )
    }
    reported = set()
    for outer in _points(path):
        writer: dict[Element, int] = {}
        reader: dict[Element, int] = {}
        for v in range(_number(loop.extent)):
            for below, b in walk(loop.body):
                for inner in _points(below, b.tile):
                    env = {**outer, loop.name: v, **inner}
                    wrote, read = _touched(b, env)
                    for e in wrote:
                        if e[0] in public and (
                            writer.setdefault(e, v) != v or reader.get(e, v) != v
                        ):
                            reported.add(e[0])
                    for e in read:
                        if e[0] in public:
                            if writer.get(e, v) != v:
                                reported.add(e[0])
                            reader[e] = v
    for name in sorted(reported):
        yield f"iterations of {loop.name} share elements of {name}"


def _points(path: Path, tile: tuple[tuple[str, Int], ...] = ()) -> Iterator[dict[str, int]]:
    spans = [*((f.name, f.extent) for f in path), *tile]
    for at in product(*(range(_number(e)) for _, e in spans)):
        yield dict(zip((n for n, _ in spans), at, strict=True))


def _number(e: Int) -> int:
    n = e.const
    assert n is not None, f"{e} is open"
    return n


def _touched(b: Block, env: dict[str, int]) -> tuple[list[Element], list[Element]]:
    """The elements that one instance writes and reads; reads at indices loaded from a tensor are
    left out.
    """
    at = {i.name: of(_value(i.bind, env)) for i in b.iters}
    point = {n: _number(p) for n, p in at.items()}
    reducing = b.reducing_loops
    iters = {i.name for i in b.reducing}
    if any(_value(p, env) < 0 for p in b.where if not p.names & reducing):
        return [], []
    if any(_value(p, point) < 0 for p in b.domain if not p.names & iters):
        return [], []
    wrote = [(w.buffer, tuple(_value(p, point) for p in w.index)) for w in b.writes]
    read = [
        (load.buffer, tuple(_value(p, point) for p in load.index))
        for load in b.loads
        if not any(isinstance(a, Dynamic) for p in load.index for a in opaque_atoms(p))
    ]
    return wrote, read


def _value(p: Int, env: dict[str, int]) -> int:
    def opaque(a: Opaque) -> int:
        raise AssertionError(f"{a} is not known before the program runs")

    return evaluate_int(p, env, opaque)
