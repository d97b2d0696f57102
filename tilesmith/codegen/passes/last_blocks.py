"""GPU: which launches the last blocks of the launch before them carry out.

The note `last` on a loop over blocks says that its blocks compute parts of the same results, which
the next launch joins. The block of them that finishes last may then do so itself, which saves a
launch. It sees what the others wrote, because they count themselves after they have written it.

    for i in 10:  # blockIdx.x
      for p in 8:  # blockIdx.x, last
        S.parts[p, i] = ...
    for i in 10:  # blockIdx.x, carried out by whichever block (i, p) is the last one of its i
      S[i] = S.parts[0, i] + S.parts[1, i] + ...

Both launches have the same number of threads. A block of the second one belongs to the blocks of
the first one with the same values of the other loops: it reads what these have written, and nothing
that other blocks of the first launch write. Where that is not so, the note is dropped, and the
second launch remains one. OpenCL does not say when one group of threads sees what another one
wrote, so it has none of this.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import Access, accesses
from tilesmith.expr.ints import Int, var
from tilesmith.ir.function import Function
from tilesmith.ir.launch_form import LAST, LaunchForm, launch_form_of
from tilesmith.ir.nodes import Alloc, Buffer, For, Stmt, Store, statements

# Where the next launch has more blocks than this, counters take more memory than they save time.
_MOST_GROUPS = 1 << 14


def last_blocks(func: Function, target: Target) -> Function:
    """Takes launch form, and drops notes that cannot be followed."""
    if not any(isinstance(s, For) and s.note(LAST) is not None for s in statements(func.body)):
        return func
    buffers = {b.name: b for b in (*func.params, *func.buffers)}
    buffers |= {s.buffer.name: s.buffer for s in func.body if isinstance(s, Alloc)}
    body = list(func.body)
    launches = [k for k, s in enumerate(body) if not isinstance(s, Alloc)]
    taken = -1  # a launch that the one before it carries out
    for k, after in zip(launches, (*launches[1:], -1), strict=True):
        form = launch_form_of(body[k])
        if not form.parts:
            continue
        fits = target.kind == "cuda" and after >= 0 and taken != k
        if fits and _may_follow(form, launch_form_of(body[after]), buffers):
            taken = after
        else:
            body[k] = _without_note(body[k])
    return replace(func, body=tuple(body))


def _without_note(s: Stmt) -> Stmt:
    if not isinstance(s, For) or s.kind != "blockIdx.x":
        return s
    notes = tuple(n for n in s.notes if n[0] != LAST)
    return replace(s, notes=notes, body=tuple(_without_note(t) for t in s.body))


def _may_follow(first: LaunchForm, second: LaunchForm, buffers: dict[str, Buffer]) -> bool:
    if first.cluster > 1 or second.cluster > 1 or second.parts:
        return False
    if first.num_threads != second.num_threads or second.grid > _MOST_GROUPS:
        return False
    if any(_is_instruction(s) for n in (first, second) for s in statements(n.body)):
        return False
    groups, blocks = ([f for f in x if f.extent.const != 1] for x in (first.groups, second.blocks))
    if [f.extent for f in groups] != [f.extent for f in blocks]:
        return False
    here, there = ([a for a in accesses(n.body) if a.buffer in buffers] for n in (first, second))
    used = {a.buffer for a in here}
    if any(a.buffer in used for a in there if a.write):
        return False
    names = {b.name: var(a.name) for a, b in zip(groups, blocks, strict=True)}
    ranges = {f.name: f.extent for n in (first, second) for f in (*n.blocks, *n.threads)}
    tiles = {f.name: f.extent for f in groups}
    return all(
        _of_one_group(a, b, names, ranges, tiles)
        for a in here
        if a.write
        for b in there
        if a.buffer == b.buffer
    )


def _is_instruction(s: Stmt) -> bool:
    return isinstance(s, Store) and s.intrinsic is not None


def _of_one_group(
    write: Access, read: Access, names: dict[str, Int], ranges: dict[str, Int],
    tiles: dict[str, Int],
) -> bool:  # fmt: skip
    """Whether an element that both access tells their group: along some dimension, both indices are
    the same sum of digits, among them those of the group.
    """
    written = ranges | {f.name: f.extent for f in write.path}
    loaded = ranges | {f.name: f.extent for f in read.path}
    left = {n for n, e in tiles.items() if e.const != 1}
    for p, q in zip(write.index, read.index, strict=True):
        mine, moving = _divided(p, tiles)
        theirs, other = _divided(q.substitute(names), tiles)
        group, digits = _digits(mine, tiles), _digits(moving, written)
        if mine != theirs or not group or digits is None or digits != _digits(other, loaded):
            continue
        if _distinct([*group, *digits]):
            left -= mine.names
    return not left


def _divided(p: Int, tiles: dict[str, Int]) -> tuple[Int, Int]:
    """The terms of the loops that number the groups, and the others."""
    mine = {m: c for m, c in p.terms.items() if Int({m: c}).names & tiles.keys()}
    return Int(mine), Int({m: c for m, c in p.terms.items() if m not in mine})


def _digits(p: Int, ranges: dict[str, Int]) -> list[tuple[int, int]] | None:
    """Step and count of the loops in an index, those that count on from one another as one; None if
    it is no sum of loops.
    """
    digits = []
    for m, c in p.terms.items():
        loop = m[0] if len(m) == 1 else None
        n = ranges[loop].const if isinstance(loop, str) and loop in ranges else None
        if n is None or c <= 0:
            return None
        if n > 1:
            digits.append((c, n))
    out: list[tuple[int, int]] = []
    for c, n in sorted(digits):
        if out and out[-1][0] * out[-1][1] == c:
            out[-1] = out[-1][0], out[-1][1] * n
        else:
            out.append((c, n))
    return out


def _distinct(digits: list[tuple[int, int]]) -> bool:
    """Whether each step is larger than all that the smaller ones reach together."""
    reach = 0
    for c, n in sorted(digits):
        if c <= reach:
            return False
        reach += c * (n - 1)
    return True
