"""Primitives that change the memory layout of a buffer (packing as in BLIS, blocked layouts such as
NCHWc), or pad the iterators of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import BOOL, INT64
from tilesmith.base.errors import ScheduleError, TraceError
from tilesmith.expr.dynamic import Dynamic
from tilesmith.expr.intervals import Unknown, bounds, is_injective
from tilesmith.expr.ints import (
    Int,
    is_size,
    maximum,
    nonnegative,
    of,
    opaque_atoms,
    parse_int,
    var,
)
from tilesmith.expr.nodes import Arg, Binary, Cast, Const, Expr, IntValue, Load, Select, children
from tilesmith.expr.walk import postorder
from tilesmith.ir.evaluators import operation
from tilesmith.ir.function import Function, find_block, readers, require_only_writer, written
from tilesmith.ir.nodes import (
    Block,
    Buffer,
    Fact,
    For,
    Iter,
    Stmt,
    Write,
    map_write_loads,
    rewrite_blocks,
    walk,
)
from tilesmith.ir.prepare import AppendZeros, with_step
from tilesmith.schedule.cache import (
    change_buffer,
    check_fresh,
    elementwise,
    find_buffer,
    rename_nest,
    top_level,
)
from tilesmith.schedule.iterators import open_domain
from tilesmith.schedule.loops import nest, require_no_notes, trivial_index
from tilesmith.schedule.step import Step


@dataclass(frozen=True, slots=True)
class TransformLayout(Step):
    """Sets the position of an element in memory by integer expressions over its indices d0, d1, ...

    The program keeps using the logical indices. A compacted copy (compute_at) applies the layout
    relative to its own box. The map must be one-to-one; a layout that cannot be proven so is
    refused. An input in another layout is the caller's duty: `ts.pack(func, name, array)` converts
    an array.

        B = local float32[256, 512]
    ->  B = local float32[256, 512] as [d1 // 16, d0, d1 - 16*(d1 // 16)]
    """

    name: ClassVar[str] = "transform_layout"
    buffer: str
    layout: tuple[str, ...]

    def decide(self, sizes: Mapping[str, int]) -> TransformLayout:
        env = {n: of(v) for n, v in sizes.items()}

        def put(text: str) -> str:
            p = parse_int(text)
            # The text is kept where nothing changes, because steps are compared by their text.
            return text if p.names.isdisjoint(env) else str(p.substitute(env))

        return replace(self, layout=tuple(map(put, self.layout)))

    def apply(self, func: Function) -> Function:
        buf = find_buffer(func, self.buffer)
        try:
            dims = tuple(map(parse_int, self.layout))
        except (TraceError, ZeroDivisionError) as e:
            raise ScheduleError(f"the layout of {self.buffer}: {e}") from None
        indices = {f"d{k}": n for k, n in enumerate(buf.shape)}
        seen: set[str] = set()
        for p in dims:
            for n in p.names:
                if n not in indices and not is_size(n):
                    raise ScheduleError(
                        f"the layout of {self.buffer} uses {n!r}; "
                        f"its indices are {', '.join(indices) or 'none'}"
                    )
            seen |= p.names
            try:
                low, _ = bounds(p, indices)
            except Unknown as e:
                raise ScheduleError(f"the layout of {self.buffer}: {e}") from None
            if not nonnegative(low):
                raise ScheduleError(
                    f"the layout of {self.buffer}: {p} goes down to {low}; it must begin at 0"
                )
        missing = [n for n, e in indices.items() if n not in seen and e.const != 1]
        if missing:
            raise ScheduleError(
                f"the layout of {self.buffer} leaves out {missing[0]}: "
                "elements would fall on each other"
            )
        if any(b.name == self.buffer for b in func.outputs):
            raise ScheduleError(
                f"cannot change the layout of {self.buffer}: "
                "an output lies as the caller expects it"
            )
        if not _is_one_to_one(dims, buf.shape):
            shape = ", ".join(map(str, buf.shape))
            raise ScheduleError(
                f"the layout of {self.buffer} puts two elements of its [{shape}] on one place, or "
                "it cannot be proven that it does not; build it of digits, such as d0 // 16 and "
                "d0 % 16, each times a stride as large as what is below"
            )
        return change_buffer(func, self.buffer, layout=dims)


@lru_cache(1000)
def _is_one_to_one(dims: tuple[Int, ...], shape: tuple[Int, ...]) -> bool:
    return is_injective(dims, {f"d{k}": n for k, n in enumerate(shape)})


@dataclass(frozen=True, slots=True)
class Pad(Step):
    """Rounds the extents of a block's iterators up to a multiple. Operands are copied into larger
    buffers that end in zeros, and the result is cropped. Zeros behind a constant are the caller's
    duty, as its layout is: `ts.pack` appends them. An iterator that is summed over is padded only
    if its terms are then 0, whatever the elements are. How many multiples an open extent has is a
    size that a fact determines.

    for i in 100:                     for i in 112:  A.pad[i, k] = where(i < 100, A[i, k], 0)
      C[i] += A[i, k]         ->      for i in 112:  C.pad[i] += A.pad[i, k]
                                      for i in 100:  C[i] = C.pad[i]
    """

    name: ClassVar[str] = "pad"
    block: str
    multiples: tuple[tuple[str, int], ...]

    def apply(self, func: Function) -> Function:
        b = unscheduled(func, self.block, "pad")
        trivial_index(b, "pad")
        check_fresh(func, f"pad {b.name}", f"{b.name}.pad", *(f"{w.buffer}.pad" for w in b.writes))
        wanted = dict(self.multiples)
        extents: dict[str, Int] = {}
        facts: list[Fact] = []
        for i in b.iters:
            n, m = i.extent, wanted.pop(i.name, 1)
            if m < 1:
                raise ScheduleError(f"cannot pad {i.name} of {b.name} to a multiple of {m}")
            if n // m * m == n:
                continue
            if n.const is None:
                count = var(f"#{b.name}.{i.name}.pad")
                facts.append(Fact((count, of(m)), n, exact=False))
                extents[i.name] = count * m
            else:
                extents[i.name] = of(-(-n.const // m) * m)
        if wanted:
            raise ScheduleError(
                f"cannot pad {sorted(wanted)[0]} of {b.name}: "
                f"its iterators are {', '.join(i.name for i in b.iters) or 'none'}"
            )
        if not extents:
            return func
        for i in b.reducing:
            if i.name in extents and not vanishes(b, _is_zero_behind(func, i)):
                raise ScheduleError(
                    f"cannot pad {i.name} of {b.name}: "
                    "zeros behind its operands would change the result"
                )
        func = replace(func, facts=(*func.facts, *facts))
        func, b = self._pad_operands(func, b, extents)
        return self._crop(func, b, extents)

    def _pad_operands(
        self, func: Function, b: Block, extents: dict[str, Int]
    ) -> tuple[Function, Block]:
        grown = {i.name: extents.get(i.name, i.extent) for i in b.iters}
        buffers = func.all_buffers
        new: dict[str, Buffer] = {}
        grown_params: dict[str, Buffer] = {}
        stages = []
        for load in b.loads:
            if load.buffer in (new | grown_params) or not any(
                p.names & extents.keys() for p in load.index
            ):
                continue
            old = buffers[load.buffer]
            shape = list(old.shape)
            for other in (x for x in b.loads if x.buffer == load.buffer):
                for d, p in enumerate(other.index):
                    if any(isinstance(a, Dynamic) for a in opaque_atoms(p)):
                        if p.names & extents.keys() and not _is_element(p):
                            raise ScheduleError(
                                f"cannot pad {b.name}: where it would read {load.buffer} at {p} "
                                "is not known"
                            )
                        continue  # the index is loaded from a padded operand, so it is 0 there
                    try:
                        low, last = bounds(p, grown)
                        before = bounds(p, {i.name: i.extent for i in b.iters})[0]
                    except Unknown:
                        raise ScheduleError(
                            f"cannot pad {b.name}: how far it would read {load.buffer} at {p} "
                            "is not known"
                        ) from None
                    if low != before and low.const is not None and low.const < 0:
                        raise ScheduleError(
                            f"cannot pad {b.name}: it would read {load.buffer} at {p}, "
                            "before its first element"
                        )
                    shape[d] = _larger(shape[d], last + 1)
            if _is_prepared(func, b, old):
                added = tuple((m - n).number for m, n in zip(shape, old.shape, strict=True))
                prepared = with_step(old.prepared, AppendZeros(added))
                grown_params[old.name] = replace(old, shape=tuple(shape), prepared=prepared)
                continue
            name = f"{load.buffer}.pad"
            check_fresh(func, f"pad {b.name}", name)
            new[load.buffer] = Buffer(name, tuple(shape), old.dtype)
            stages.append(_padded(func, new[load.buffer], old))

        def put(load: Load) -> Expr:
            return replace(load, buffer=new[load.buffer].name) if load.buffer in new else load

        body = rewrite_blocks(
            func.body,
            lambda o: replace(o, writes=map_write_loads(o.writes, put)) if o.name == b.name else o,
        )
        at = top_level(func, b.name)
        body = (*body[:at], *stages, *body[at:])
        params = tuple(grown_params.get(p.name, p) for p in func.params)
        func = replace(func, params=params, body=body, buffers=(*func.buffers, *new.values()))
        return func, find_block(func, b.name)[1]

    def _crop(self, func: Function, b: Block, extents: dict[str, Int]) -> Function:
        name = f"{b.name}.pad"
        old = func.all_buffers
        at = top_level(func, b.name)
        func = rename_nest(func, b.name, name)
        by_dim = [p.name for p in b.writes[0].index]
        shape = tuple(
            extents.get(n, e)
            for n, e in zip(map(str, by_dim), old[written(b)[0]].shape, strict=True)
        )
        names = {w: name if len(b.writes) == 1 else f"{w}.pad" for w in written(b)}
        path, big = find_block(func, name)
        iters = tuple(replace(i, extent=extents.get(i.name, i.extent)) for i in big.iters)
        big = replace(
            big,
            iters=iters,
            domain=frozenset(),  # it held everywhere, and padding adds zeros
            writes=tuple(replace(w, buffer=names[w.buffer]) for w in big.writes),
        )
        by_loop = {i.bind.name: i.extent for i in iters}
        nested: Stmt = big
        for f in reversed(path):
            nested = For(f.name, by_loop[f.name], (nested,), owner=f.owner)
        crop = Block(
            b.name,
            b.spatial,
            tuple(
                Write(w.buffer, w.index, Load(names[w.buffer], w.index, w.value.dtype))
                for w in b.writes
            ),
        )
        body = (*func.body[:at], nested, nest(func, crop), *func.body[at + 1 :])
        new = tuple(Buffer(n, shape, old[w].dtype) for w, n in names.items())
        return replace(func, body=body, buffers=(*func.buffers, *new))


def _larger(n: Int, m: Int) -> Int:
    """The larger one of an extent and of what is read of it, which is known to be n or more where
    both are open.
    """
    if (more := (m - n).const) is not None:
        return n if more < 0 else m
    return m if n.const is None else maximum(n, m)


def unscheduled(func: Function, name: str, why: str) -> Block:
    """The block, if it is in loops of its own that nothing was done to."""
    path, b = find_block(func, name)
    require_only_writer(func, b, why)
    loops = {f"{b.name}.{i.name}" for i in b.iters}
    alone = not path or sum(1 for _ in walk((path[0],))) == 1
    if b.where or open_domain(b) or b.tile or {f.name for f in path} != loops or not alone:
        raise ScheduleError(f"cannot {why} {b.name}: do this before its loops are scheduled")
    for f in path:
        require_no_notes(f, f"{why} {b.name} over")
    return b


def _is_prepared(func: Function, b: Block, buf: Buffer) -> bool:
    """Whether the caller can append the zeros ahead of time: a constant that only `b` reads."""
    return (
        buf.scope == "constant"
        and buf.is_as_given
        and [r.name for r in readers(func, buf.name)] == [b.name]
    )


def _is_zero_behind(func: Function, i: Iter) -> Callable[[Load], bool]:
    """Whether a load is 0 where the iterator is padded: it is read at the iterator itself, in a
    dimension that ends with it. Elsewhere, what lies behind may be an element as well.
    """
    buffers = func.all_buffers

    def zero(x: Load) -> bool:
        shape = buffers[x.buffer].shape
        return any(p.name == i.name and n == i.extent for p, n in zip(x.index, shape, strict=True))

    return zero


def _is_element(p: Int) -> bool:
    """Whether an index is a loaded element itself, which is 0 where that tensor is padded."""
    ((m, c),) = p.terms.items() if len(p.terms) == 1 else (((), 0),)
    e = m[0].expr if c == 1 and len(m) == 1 and isinstance(m[0], Dynamic) else None
    while isinstance(e, Cast):
        e = e.x
    return isinstance(e, Load)


def _padded(func: Function, new: Buffer, old: Buffer) -> Stmt:
    def value(index: tuple[Int, ...]) -> Expr:
        sizes = zip(index, old.shape, new.shape, strict=True)
        return where_inside(
            [(p, n) for p, n, m in sizes if n != m], Load(old.name, index, old.dtype)
        )

    return nest(func, elementwise(new.name, new.shape, value))


def where_inside(limits: Sequence[tuple[Int, Int]], value: Expr) -> Expr:
    """The value where each of the first is less than the second, else 0."""
    cond: Expr | None = None
    for p, n in limits:
        inside = Binary("lt", IntValue(p, INT64), IntValue(n, INT64), BOOL)
        cond = inside if cond is None else Binary("and", cond, inside, BOOL)
    d = value.dtype
    return value if cond is None else Select(cond, value, Const(d.wrap(0), d), d)


def vanishes(b: Block, zero: Callable[[Load], bool]) -> bool:
    """Whether the block is a sum, whose terms are 0 wherever the loads that `zero` names are 0,
    whatever its other operands are. 0 * x is not, if x may be infinite.
    """
    if b.combiner is None or b.combiner.op != "add":
        return False
    values = (_value(w.value, zero) for w in b.writes)
    return all(v is not None and v == 0 for v in values)


def _value(e: Expr, zero: Callable[[Load], bool]) -> Any:
    """The value of an expression in which some loads are 0; None if it depends on others."""
    values: dict[int, Any] = {}
    with np.errstate(all="ignore"):
        for x in postorder(e, children):
            values[id(x)] = _node(x, values, zero)
    return values[id(e)]


def _node(e: Expr, values: dict[int, Any], zero: Callable[[Load], bool]) -> Any:
    match e:
        case Load():
            return e.dtype.numpy.type(0) if zero(e) else None
        case IntValue() | Arg():
            return None
        case Select(cond=c, a=a, b=b):
            cond, left, right = (values[id(x)] for x in (c, a, b))
            if cond is not None:
                return left if cond else right
            return left if left is not None and left == right else None
        case Const():
            return operation(e, values)
        case Binary(op="mul", a=a, b=b) if values[id(a)] is None or values[id(b)] is None:
            known = values[id(b)] if values[id(a)] is None else values[id(a)]
            other = a if values[id(a)] is None else b
            return known if known is not None and known == 0 and _is_finite(other) else None
        case _:
            return None if any(values[id(x)] is None for x in children(e)) else operation(e, values)


def _is_finite(e: Expr) -> bool:
    """Whether a value that is not known is a number: an integer, or a float that holds one."""
    if not e.dtype.is_float or isinstance(e, IntValue):
        return True
    if not isinstance(e, Cast):
        return False
    inner = e.x.dtype
    return not inner.is_float and inner.highest() <= e.dtype.highest()
