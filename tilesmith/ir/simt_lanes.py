"""Evaluates integers and expressions for all threads of a GPU launch at once, and carries out their
loads and stores with every check.

Arrays have the axes [loops whose iterations run at once..., block, thread], each of length 1 where
nothing depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import INT64
from tilesmith.base.errors import ArgumentError, VerifyError
from tilesmith.expr import semantics
from tilesmith.expr.dynamic import Dynamic, below, is_loaded
from tilesmith.expr.ints import Int, opaque_atoms
from tilesmith.expr.nodes import Arg, Binary, Cast, Const, Expr, IntValue, Load, Select, Unary
from tilesmith.expr.walk import postorder
from tilesmith.ir.evaluators import (
    NO_VALUES,
    Array,
    Values,
    integer,
    needed,
    operation,
    outside,
)
from tilesmith.ir.nodes import Stmt, Write
from tilesmith.ir.printer import show_statement
from tilesmith.ir.simt_memory import LANE_BITS, Memory, Race, Shape, race_text

_UFUNC: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
_KEPT = 4096  # evaluated indices that are kept at most


@dataclass(frozen=True, slots=True)
class Place:
    """The elements that an access touches: offsets in the buffer, clipped into it. `strays` are
    (dimension, index, where it lies outside).
    """

    offset: Any
    strays: tuple[tuple[int, Array, Array], ...]
    distinct: bool  # in a local buffer: each loop point has its own element, alike in all lanes


class Lanes:
    def __init__(self, at: Shape, memory: dict[str, Memory], stmts: list[Stmt]) -> None:
        self.at, self.memory, self.stmts = at, memory, stmts
        self.env: dict[str, Any] = {}
        self.lanes = at.lanes + at.first * at.threads
        self.tags = self.lanes
        self.loops: dict[tuple[int, int, int], Array] = {}
        self.kept: dict[tuple[object, ...], Place] = {}
        self.names: dict[int, tuple[str, ...]] = {}
        self.orders: dict[int, tuple[list[Expr], bool]] = {}

    def begin(self, statement: int) -> None:
        """What follows belongs to the statement of this number."""
        self.tags = self.lanes + ((statement + 1) << LANE_BITS)

    def axis(self, extent: int, axis: int, rank: int) -> Array:
        """The iterations of a loop that all run at once, as this one of `rank` axes."""
        key = extent, axis, rank
        if key not in self.loops:
            shape = [1] * (rank + 2)
            shape[axis] = extent
            self.loops[key] = np.arange(extent).reshape(shape)
        return self.loops[key]

    # integers and indices
    def integer(self, p: Int, values: Values = NO_VALUES) -> Any:
        return integer(p, self.env, values)

    def index(self, p: Int, mask: Array | None) -> Any:
        """The value of p, which is not a part of an expression: what it reads is loaded."""
        return self.value(IntValue(p, INT64), mask) if is_loaded(p) else self.integer(p)

    def place(self, m: Memory, index: tuple[Int, ...], values: Values = NO_VALUES) -> Place:
        names = self.names.get(id(index))
        if names is None:
            names = tuple({n: None for p in index for n in p.names})
            self.names[id(index)] = names
        if values and any(map(is_loaded, index)):
            return self._place(m, index, values)
        env = self.env
        # There is one array per length and axis, which outlives what is kept.
        key = (id(index), m.shape, *[v if type(v := env[n]) is int else id(v) for n in names])
        place = self.kept.get(key)
        if place is None:
            if len(self.kept) > _KEPT:
                self.kept.clear()
            place = self.kept[key] = self._place(m, index, values)
        return place

    def _place(self, m: Memory, index: tuple[Int, ...], values: Values) -> Place:
        offset: Any = 0
        strays = []
        for d, (p, n) in enumerate(zip(index, m.shape, strict=True)):
            i = self.integer(p, values)
            low, high = (i, i) if type(i) is int else (i.min(initial=0), i.max(initial=0))
            if low < 0 or high >= n:
                i = np.asarray(i)
                strays.append((d, i, (i < 0) | (i >= n)))
                i = np.clip(i, 0, max(n - 1, 0))
            offset = offset * n + i
        distinct = type(offset) is int
        if not distinct and m.local:
            alike = offset.ndim < 2 or offset.shape[-2:] == (1, 1)
            distinct = alike and np.unique(offset).size == offset.size
        return Place(offset, tuple(strays), distinct)

    # loads
    def value(self, e: Expr, mask: Array | None, args: Mapping[str, Any] | None = None) -> Any:
        """The value of e where `mask` holds; elsewhere it may be anything."""
        known = self.orders.get(id(e))
        if known is None:
            order = postorder(e, below)
            known = self.orders[id(e)] = order, any(isinstance(x, Select) for x in order)
        order, chooses = known
        values: dict[int, Any] = {}
        loads: list[tuple[Load, Place]] = []
        for x in order:
            if isinstance(x, Load):
                m = self.find(x.buffer)
                place = self.place(m, x.index, values)
                loads.append((x, place))
                values[id(x)] = self.get(m, place)
            else:
                values[id(x)] = self.node(x, values, args)
        wanted = needed(order, values, mask) if chooses and loads else None
        for load, place in loads:
            self.check_load(load, place, mask if wanted is None else wanted[id(load)])
        return values[id(e)]

    def node(self, e: Expr, v: Values, args: Mapping[str, Any] | None) -> Any:
        match e:
            case IntValue(value=p):
                return semantics.constant(self.integer(p, v), e.dtype)
            case Arg(name=n):
                assert args is not None
                return args[n]
            case Select(cond=c, a=a, b=b):
                return np.asarray(np.where(v[id(c)], v[id(a)], v[id(b)]), e.dtype.numpy)
            case Const() | Unary() | Binary() | Cast():
                return operation(e, v)
            case Load():
                raise AssertionError(e)

    def get(self, m: Memory, place: Place) -> Any:
        if m.data.size == 0:
            return np.zeros((), m.data.dtype)
        rows = self.rows(m, place.offset)
        if rows is None:
            return m.data[place.offset * m.step + m.base]
        return m.rows()[0][rows].copy()  # one row would be a view, which a write changes

    def rows(self, m: Memory, offset: Any) -> Any:
        """Offsets in a local buffer that are the same for all lanes, without the axes of these."""
        if not m.local or type(offset) is int:
            return offset if m.local else None
        return offset[..., 0, 0] if offset.ndim > 1 and offset.shape[-2:] == (1, 1) else None

    def check_load(self, e: Load, place: Place, mask: Array | None) -> None:
        m = self.memory[e.buffer]
        self.check_inside(m, e.index, place, mask, "read")
        if m.known is not None:
            rows = self.rows(m, place.offset)
            cells = place.offset * m.step + m.base if rows is None else None
            known = m.known[cells] if rows is None else m.rows()[1][rows]
            if not known.all():
                missing = np.broadcast_arrays(~known if mask is None else ~known & mask, self.lanes)
                if missing[0].any():
                    where = np.broadcast_to(place.offset * m.step + m.base, missing[0].shape)
                    cell, lane = (int(x[missing[0]][0]) for x in (where, missing[1]))
                    raise VerifyError(
                        f"{m.name_of(cell)} is read by {self.thread(lane)} in "
                        f"`{self.statement}`, but nobody wrote it"
                    )
        if m.trails:
            self.record(m, place, mask, write=False)

    def record(self, m: Memory, place: Place, mask: Array | None, write: bool) -> None:
        cells, tags = np.broadcast_arrays(place.offset * m.step + m.base, self.tags)
        if mask is not None:
            cells, tags, keep = np.broadcast_arrays(cells, tags, mask)
            cells, tags = cells[keep], tags[keep]
        cells, tags = cells.ravel(), tags.ravel()
        try:
            for trail in m.trails:
                (trail.write if write else trail.read)(cells, tags)
        except Race as race:
            text = race_text(m, race.conflict, self.at.threads, self.stmts)
            raise VerifyError(text) from None

    def check_inside(
        self, m: Memory, index: tuple[Int, ...], place: Place, mask: Array | None, verb: str
    ) -> None:
        for d, i, bad in place.strays:
            wrong, at, lanes = np.broadcast_arrays(
                bad if mask is None else bad & mask, i, self.lanes
            )
            if wrong.any():
                p, value, lane = index[d], int(at[wrong][0]), int(lanes[wrong][0])
                text = outside(m.buffer.name, p, d, value, m.shape[d], verb)
                raise (ArgumentError if is_loaded(p) else VerifyError)(
                    f"{text}, by {self.thread(lane)} in `{self.statement}`"
                )

    # stores
    def put(self, w: Write, value: Any, mask: Array | None) -> None:
        m = self.find(w.buffer)
        place = self.place(m, w.index)
        self.check_inside(m, w.index, place, mask, "written")
        if m.data.size == 0:
            return
        value = np.asarray(value)
        if m.trails:
            self.record(m, place, mask, write=True)
        if m.local and place.distinct and self._put_rows(m, place.offset, value, mask):
            return
        cells, value = np.broadcast_arrays(place.offset * m.step + m.base, value)
        if mask is not None:
            cells, value, keep = np.broadcast_arrays(cells, value, mask)
            cells, value = cells[keep], value[keep]
        # of several values for one element, the last in program order remains
        m.data[cells] = value
        if m.known is not None:
            m.known[cells] = True

    def update(self, w: Write, mask: Array | None) -> None:
        """A write at loaded places. One that adds to an element is atomic. Of those that replace
        it, threads at the same time must write the same value.
        """
        m = self.find(w.buffer)
        loaded = {id(a.expr): a.expr for p in w.index if is_loaded(p) for a in opaque_atoms(p)
                  if isinstance(a, Dynamic)}  # fmt: skip
        place = self._place(m, w.index, {k: self.value(e, mask) for k, e in loaded.items()})
        self.check_inside(m, w.index, place, mask, "written")
        e = w.value
        new = e.b if w.accumulates and isinstance(e, Binary) else e
        value = np.asarray(self.value(new, mask))
        cells, value, keep = np.broadcast_arrays(
            place.offset * m.step + m.base,
            value,
            np.ones_like(self.lanes) > 0 if mask is None else mask,
        )
        cells, value = cells[keep], value[keep]
        if w.accumulates and isinstance(e, Binary):
            _UFUNC[e.op].at(m.data, cells, value)
            return
        m.data[cells] = value
        if m.known is not None:
            m.known[cells] = True
        same = (m.data[cells] == value) | ((m.data[cells] != m.data[cells]) & (value != value))
        if not same.all():
            raise VerifyError(
                f"{m.name_of(int(cells[~same][0]))} is given different values at the same time by "
                f"threads in `{self.statement}`"
            )

    def _put_rows(self, m: Memory, offset: Any, value: Array, mask: Array | None) -> bool:
        """Writes whole rows of a local buffer. False if several iterations write one element."""
        rows = self.rows(m, offset)
        outer = () if type(rows) is int else rows.shape
        for a in (value,) if mask is None else (value, mask):
            if a.ndim > 2 and np.broadcast_shapes(a.shape[:-2], outer) != outer:
                return False
        data, known = m.rows()
        if mask is None:
            data[rows] = value
            known[rows] = True
        else:
            data[rows] = np.where(mask, value, data[rows])
            known[rows] |= mask
        return True

    # who and where
    def find(self, name: str) -> Memory:
        m = self.memory.get(name)
        if m is None:
            raise VerifyError(
                f"{name} is used in `{self.statement}`, outside of the statements "
                "that its Alloc stands in"
            )
        return m

    @property
    def statement(self) -> str:
        return show_statement(self.stmts[(int(self.tags.flat[0]) >> LANE_BITS) - 1])

    def thread(self, lane: int) -> str:
        block, thread = divmod(lane, self.at.threads)
        return f"thread {thread} of block {block}"
