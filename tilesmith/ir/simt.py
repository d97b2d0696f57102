"""The SIMT interpreter: runs a Function in launch form (ir/nodes.py) as a GPU would, and raises a
VerifyError for what a GPU would do silently wrong.

All threads run from one Sync or Join to the next. It is an error if

* two threads of a block access one element of shared or global memory without a Sync between them,
  and one of them writes, even if it writes the same value;
* two blocks of a launch access one element of global memory, and one of them writes;
* an access leaves its buffer, or reads what nobody wrote; an output keeps an element that nobody
  wrote;
* some threads of a block reach a Sync or a Join and others do not;
* a local buffer is allocated outside of the threads, or a shared one outside of the blocks.

A Sync orders accesses to shared memory, and to global memory too if that is its scope. A Join
orders nothing. The arithmetic is that of ir/interpreter.py. One NumPy operation serves all threads
of many blocks.
"""

from __future__ import annotations

from copy import copy
from itertools import product
from typing import Any

import numpy as np

from tilesmith.base.errors import VerifyError
from tilesmith.base.given import checks_given
from tilesmith.expr.dynamic import is_loaded, loads_of
from tilesmith.expr.nodes import Binary, Expr, Load, join_args
from tilesmith.ir.evaluators import Array, input_arrays, result_of, shape_of
from tilesmith.ir.function import Function
from tilesmith.ir.intrinsics import BULK_COPY
from tilesmith.ir.launch_form import LaunchForm, launch_form_of
from tilesmith.ir.nodes import (
    Alloc,
    Block,
    Buffer,
    For,
    Fragment,
    If,
    Join,
    Stmt,
    Store,
    Sync,
    Write,
    statements,
)
from tilesmith.ir.open_shapes import with_shapes_of
from tilesmith.ir.pack import prepared
from tilesmith.ir.printer import show_statement
from tilesmith.ir.simt_lanes import Lanes
from tilesmith.ir.simt_loops import Wide, wide_loops
from tilesmith.ir.simt_memory import Memory, Shape, Trail, allocate

_AXES = ("blockIdx.x", "threadIdx.x")
# The memory that a Sync orders, by its scope.
_ORDERED = {
    "shared": ("shared",),
    "cluster": ("shared", "cluster"),
    "global": ("shared", "global", "constant"),
}
_LANES = 1 << 13  # threads that run at once, if a block does not have more
_POINTS = 1 << 16  # the same, times the iterations that run at once


@checks_given
def run_simt(func: Function, *arrays: Any) -> Any:
    """The output array, or a tuple of them when there are several. The shapes of the inputs give
    open sizes.
    """
    func = with_shapes_of(func, arrays)
    memory: dict[str, Memory] = {}
    for b, a in zip(func.inputs, input_arrays(func, arrays), strict=True):
        data = prepared(b, np.array(a, dtype=b.dtype.numpy))
        memory[b.name] = Memory(b, shape_of(b), data.ravel(), None)
    for b in (*func.outputs, *func.buffers):
        memory[b.name] = _global(b)
    with np.errstate(all="ignore"):
        for s in func.body:
            if isinstance(s, Alloc):
                memory[s.buffer.name] = _global(s.buffer)
            else:
                _Launch(func, s, memory).run()
    return result_of(func, [_output(memory[b.name]) for b in func.outputs])


def _global(b: Buffer) -> Memory:
    if b.scope in ("local", "shared", "cluster"):
        raise VerifyError(f"{b.name} is {b.scope}, but allocated outside of the blocks")
    return allocate(b, Shape(0, 1, 1))


def _output(m: Memory) -> Array:
    assert m.known is not None
    if not m.known.all():
        cell = int(np.argmin(m.known))
        raise VerifyError(f"{m.name_of(cell)} is an element of an output, but nobody wrote it")
    return m.data.reshape(m.shape)


# Instructions that several threads carry out together, or that move many elements: the tile's loops
# run at once, as axes of their own.
def run_copy(lanes: Lanes, s: Store, mask: Array | None) -> None:
    """A copy of a box by each active thread."""
    which: Any = slice(None)
    if mask is not None:
        mask = np.broadcast_to(mask, (lanes.at.blocks, lanes.at.threads))
        which = np.flatnonzero(mask.any(axis=0))
        mask = None if mask[:, which].all() else mask[:, which]
    some = _threads(lanes, s, which)
    (w,) = s.writes
    some.put(w, some.value(w.value, mask), mask)


def run_group(lanes: Lanes, s: Store, fragment: Fragment, blocks: Array | None) -> None:
    """A matrix instruction over a tile of rows, columns and depth: C = C + a * b. Each thread of a
    group holds its part of C. `blocks` are those that reach the statement; None: all.
    """
    threads, group = lanes.at.threads, fragment.threads
    if threads % group:
        raise VerifyError(f"{threads} threads do not form groups of {group}")
    # The last thread of a group stands for all, so that a copy by thread 0 is another thread's.
    one = _threads(lanes, s, slice(group - 1, None, group))
    (w,) = s.writes
    sums = w.value
    assert isinstance(sums, Binary)
    assert isinstance(sums.b, Binary)
    (m, _), (n, _), (k, _) = s.tile
    first = np.arange(lanes.at.blocks)[:, None] * (threads // group) + np.arange(threads // group)
    first *= group
    left, right = sums.b.a, sums.b.b
    if not any(m in p.names for x in loads_of(left) for p in x.index):
        left, right = right, left
    own = [x for x in loads_of(left) if lanes.find(x.buffer).local]
    _require_same(one, _threads(lanes, s, slice(0, None, group)), right if own else sums.b)
    on = None if blocks is None else blocks[:, None]
    rows, columns, depth = (e.number for _, e in s.tile)
    count = (lanes.at.blocks, threads // group)
    if own:
        held = _held(one, own[0], fragment, first, (m, k), on)
        a = np.broadcast_to(held, (rows, 1, depth, *count)).astype(left.dtype.numpy)
    else:
        a = np.broadcast_to(one.value(left, on), (rows, 1, depth, *count))
    b = np.broadcast_to(one.value(right, on), (1, columns, depth, *count))
    if s.intrinsic is not None and s.intrinsic.roundoff:
        a, b = (rounded(x, s.intrinsic.roundoff) for x in (a, b))
    total = np.einsum("mkbg,nkbg->mnbg", a[:, 0], b[0])[:, :, None]
    one.env |= {"d0": one.env[m], "d1": one.env[n]}
    memory = lanes.find(w.buffer)
    if not memory.local or memory.known is None:
        raise VerifyError(f"{w.buffer} holds the result of an instruction but is not local")
    place = one.place(memory, w.index)
    one.check_inside(memory, w.index, place, on, "written")
    cells = place.offset * memory.step + first + one.integer(fragment.lane)
    cells, total = np.broadcast_arrays(cells, total)
    if on is not None:
        keep = np.broadcast_to(on, cells.shape)
        cells, total = cells[keep], total[keep]
    if np.unique(cells).size != cells.size:
        raise VerifyError(f"two elements of {w.buffer} are in one register")
    if not memory.known[cells].all():
        raise VerifyError(f"{w.buffer} is added to, but nobody wrote it")
    memory.data[cells] += total


def rounded(a: Array, roundoff: float) -> Array:
    """Floats with fewer digits: to the nearest, ties away from zero."""
    parts, exponents = np.frexp(a)
    whole = parts / roundoff
    near = np.copysign(np.floor(np.abs(whole) + 0.5), whole)
    return np.where(np.isfinite(a), np.ldexp(near * roundoff, exponents), a).astype(a.dtype)


def _held(
    one: Lanes, x: Load, fragment: Fragment, first: Array, axes: tuple[str, str], on: Array | None
) -> Array:
    """An operand that the threads of a group hold in their registers, as they do results."""
    memory = one.find(x.buffer)
    before = dict(one.env)
    one.env |= {"d0": one.env[axes[0]], "d1": one.env[axes[1]]}
    cells = one.place(memory, x.index).offset * memory.step + first + one.integer(fragment.lane)
    one.env = before
    known = True if memory.known is None else memory.known[cells]
    if not np.all(known if on is None else known | ~np.broadcast_to(on, cells.shape)):
        raise VerifyError(f"{x.buffer} is a factor, but nobody wrote it")
    values: Array = memory.data[cells]
    return values


def _threads(lanes: Lanes, s: Store, which: Any) -> Lanes:
    """Some threads, with the tile's loops."""
    out = copy(lanes)
    out.env = {n: _taken(v, which) for n, v in lanes.env.items()}
    out.lanes, out.tags = lanes.lanes[:, which], lanes.tags[:, which]
    out.loops, out.kept, out.names, out.orders = {}, {}, {}, {}
    for d, (name, extent) in enumerate(s.tile):
        out.env[name] = out.axis(extent.number, d, len(s.tile))
    return out


def _taken(v: Any, which: Any) -> Any:
    return v[..., which] if type(v) is not int and v.shape[-1] > 1 else v


def _require_same(one: Lanes, other: Lanes, e: Expr) -> None:
    for x in loads_of(e):
        m = one.find(x.buffer)
        if not np.array_equal(one.place(m, x.index).offset, other.place(m, x.index).offset):
            raise VerifyError(f"threads of a group give different addresses of {x.buffer}")


class _Launch:
    """Loops over blocks around loops over threads."""

    def __init__(self, func: Function, stmt: Stmt, memory: dict[str, Memory]) -> None:
        self.memory = memory
        self.form = _form(func, stmt)
        self.body = self.form.body
        self.numbers: dict[int, int] = {}
        self.stmts: list[Stmt] = []
        written = set()
        for s in statements(self.body):
            if id(s) not in self.numbers:
                self.numbers[id(s)] = len(self.stmts)
                self.stmts.append(s)
            if isinstance(s, Store):
                written |= {w.buffer for w in s.writes}
        self.written = sorted(written & memory.keys())
        if inputs := [n for n in self.written if memory[n].known is None]:
            raise VerifyError(f"{func.name} writes its input {inputs[0]}")
        self.wide = wide_loops(self.body)

    def run(self) -> None:
        form = self.form
        blocks, threads = form.grid, form.num_threads
        if not blocks or not threads:
            return
        for name in self.written:
            m = self.memory[name]
            m.trails = [Trail(m.data.size, 1), Trail(m.data.size, threads)]
        step = -(-max(1, _LANES // threads) // form.cluster) * form.cluster
        for first in range(0, blocks, step):
            at = Shape(first, min(step, blocks - first), threads)
            memory = dict(self.memory)
            for b in form.shared:
                memory[b.name] = allocate(b, at, form.cluster)
            lanes = Lanes(at, memory, self.stmts)
            lanes.env |= _digits(form.blocks, np.arange(first, first + at.blocks)[:, None])
            lanes.env |= _digits(form.threads, np.arange(threads)[None, :])
            _Threads(self, lanes).body(self.body, None)
            for name in self.written:
                self.memory[name].trails[0].reset()
        for name in self.written:
            self.memory[name].trails = []


def _form(func: Function, s: Stmt) -> LaunchForm:
    if not isinstance(s, For) or s.kind not in _AXES:
        raise VerifyError(f"{func.name} is not in launch form: `{show_statement(s)}` is no launch")
    form = launch_form_of(s)
    last = form.body[-1] if form.body else None
    if not form.threads and isinstance(last, For) and last.kind == "threadIdx.x":
        raise VerifyError(
            f"{func.name}: `{show_statement(form.body[0])}` stands between blocks and threads, "
            "where only shared buffers are allocated"
        )
    return form


def _digits(loops: tuple[For, ...], number: Array) -> dict[str, Array]:
    """The value of each loop; the outermost one counts slowest."""
    out: dict[str, Array] = {}
    for f in reversed(loops):
        number, out[f.name] = np.divmod(number, f.trips)
    return out


class _Threads:
    """Runs the statements of all threads of some blocks. A mask is where they are active; None is
    everywhere.
    """

    def __init__(self, launch: _Launch, lanes: Lanes) -> None:
        self.launch, self.lanes, self.at = launch, lanes, lanes.at
        self.points, self.axis, self.rank = 1, 0, 0

    def body(self, body: tuple[Stmt, ...], mask: Array | None) -> None:
        allocated = []
        for s in body:
            match s:
                case For():
                    self.loop(s, mask)
                case If():
                    inner = self.active(s, mask)
                    if inner is None or inner.any():
                        self.body(s.body, inner)
                case Store():
                    self.begin(s)
                    self.store(s, mask)
                case Alloc(buffer=b):
                    self.alloc(b)
                    allocated.append(b.name)
                case Sync():
                    self.sync(s, mask)
                case Join():
                    self.join(s, mask)
                case Block():
                    raise VerifyError(f"block {s.name} is not lowered; run_simt takes launch form")
        for name in allocated:
            del self.lanes.memory[name]

    def begin(self, s: Stmt) -> None:
        self.lanes.begin(self.launch.numbers[id(s)])

    def loop(self, s: For, mask: Array | None) -> None:
        n, env = s.trips, self.lanes.env
        if s.kind not in ("serial", "unroll", "vectorize"):
            raise VerifyError(f"loop {s.name} of kind {s.kind} lies inside the threads of a launch")
        wide = self.launch.wide.get(id(s))
        before = self.points, self.axis, self.rank
        if wide is not None and n and self._fits(wide):
            if self.axis == 0:
                self.rank = wide.axes
            env[s.name] = self.lanes.axis(n, self.axis, self.rank)
            self.points, self.axis = self.points * n, self.axis + 1
            self.body(s.body, mask)
        else:
            for v in range(n):
                env[s.name] = v
                self.body(s.body, mask)
        self.points, self.axis, self.rank = before
        env.pop(s.name, None)

    def _fits(self, wide: Wide) -> bool:
        return self.points * wide.points * self.at.blocks * self.at.threads <= _POINTS

    def active(self, s: If, mask: Array | None) -> Array | None:
        for p in s.conds:
            yes = np.asarray(self.lanes.index(p, mask)) >= 0
            if not yes.all():
                mask = yes if mask is None else mask & yes
        return mask

    def store(self, s: Store, mask: Array | None) -> None:
        if s.intrinsic is not None and s.intrinsic.fragment is not None:
            some = self.together(s, mask)
            run_group(self.lanes, s, s.intrinsic.fragment, some)
            return
        if s.intrinsic is not None and s.intrinsic.name == BULK_COPY.name:
            run_copy(self.lanes, s, mask)
            return
        names = [n for n, _ in s.tile]
        for point in product(*(range(self.lanes.integer(e)) for _, e in s.tile)):
            self.lanes.env.update(zip(names, point, strict=True))
            if len(s.writes) == 1 and any(map(is_loaded, s.writes[0].index)):
                self.lanes.update(s.writes[0], mask)
                continue
            values = [self.lanes.value(w.value, mask) for w in s.writes]
            for w, v in zip(s.writes, values, strict=True):
                self.lanes.put(w, v, mask)

    def alloc(self, b: Buffer) -> None:
        if b.scope != "local":
            raise VerifyError(f"{b.name} is {b.scope}, but each thread allocates it")
        if b.name in self.lanes.memory:
            raise VerifyError(f"buffer {b.name} is allocated twice")
        self.lanes.memory[b.name] = allocate(b, self.at)

    def together(self, s: Stmt, mask: Array | None) -> Array | None:
        """Which blocks reach a statement that all their threads must reach; None: all of them."""
        if mask is None:
            return None
        at = np.broadcast_to(mask, (self.at.blocks, self.at.threads))
        some, all_ = at.any(axis=1), at.all(axis=1)
        if (some & ~all_).any():
            b = int((some & ~all_).argmax())
            there, away = int(at[b].argmax()), int(at[b].argmin())
            raise VerifyError(
                f"divergent `{show_statement(s)}`: thread {there} of block {b + self.at.first} "
                f"reaches it, thread {away} does not"
            )
        return None if some.all() else np.asarray(some)

    def sync(self, s: Sync, mask: Array | None) -> None:
        some = self.together(s, mask)
        away = None if some is None else np.repeat(~some, self.at.threads)
        for m in self.lanes.memory.values():
            if m.buffer.scope not in _ORDERED[s.scope]:
                continue
            for trail in m.trails[:1]:  # the second one, of global memory, is for the whole launch
                trail.reset(away, self.at.first * self.at.threads)

    def join(self, s: Join, mask: Array | None) -> None:
        self.begin(s)
        some = self.together(s, mask)
        on = None if some is None else some[:, None]
        lanes = (self.at.blocks, self.at.threads)
        values = [np.broadcast_to(self.lanes.value(x, on), lanes) for x in s.values]
        for b in {x.buffer for x in s.values}:
            if not self.lanes.find(b).local:
                raise VerifyError(f"{b} is joined across threads but not local")
        out = [v.copy() for v in values]
        span, threads = s.stride * s.extent, self.at.threads
        whole = threads // span * span
        if whole:  # full groups, all at once
            grid = (self.at.blocks, -1, s.extent, s.stride)
            group = self._reduced([v[:, :whole].reshape(grid) for v in values], s)
            for o, g in zip(out, group, strict=True):
                o[:, :whole] = np.broadcast_to(g, (*g.shape[:2], *grid[2:])).reshape(lanes[0], -1)
        for first in range(whole, min(whole + s.stride, threads)):
            members = slice(first, threads, s.stride)
            group = self._reduced([v[:, None, members, None] for v in values], s)
            for o, g in zip(out, group, strict=True):
                o[:, members] = g[:, 0, :, 0]
        for x, o in zip(s.values, out, strict=True):
            self.lanes.put(Write(x.buffer, x.index, x), o, on)

    def _reduced(self, parts: list[Array], s: Join) -> list[Array]:
        """Joins along axis 2 in pairs, as threads do: one half with the other."""
        while (n := parts[0].shape[2]) > 1:
            half = n // 2
            low, high = ([v[:, :, k * half : (k + 1) * half] for v in parts] for k in (0, 1))
            args = join_args(low, high)
            new = [np.asarray(self.lanes.value(v, None, args)) for v in s.combiner.values]
            parts = [
                np.concatenate([a.astype(v.dtype, copy=False), v[:, :, 2 * half :]], axis=2)
                for a, v in zip(new, parts, strict=True)
            ]
        return parts
