"""Primitives that stage a buffer in a copy of its own (cache_read, cache_write), and primitives
that set where and with which strides a buffer is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import Int, exact_quotient, product, var
from tilesmith.expr.nodes import Expr, Load
from tilesmith.ir.dependence import check_kinds, check_scopes
from tilesmith.ir.function import (
    Function,
    find_block,
    is_own_loop,
    require_only_writer,
    writers,
    written,
)
from tilesmith.ir.nodes import (
    Block,
    Buffer,
    For,
    Iter,
    Stmt,
    Write,
    map_bindings,
    map_write_loads,
    rewrite,
    rewrite_blocks,
    walk,
)
from tilesmith.schedule.loops import fresh, loop_names, nest, trivial_index
from tilesmith.schedule.step import Step

Index = tuple[Int, ...]
SCOPES = ("global", "local", "shared", "fragment")


def find_buffer(func: Function, name: str) -> Buffer:
    buffer = func.all_buffers.get(name)
    if buffer is None:
        names = ", ".join(func.all_buffers)
        raise ScheduleError(f"there is no buffer {name!r} in {func.name}; it has {names}")
    return buffer


def top_level(func: Function, block: str) -> int:
    """The position of the statement that holds the block."""
    for k, s in enumerate(func.body):
        if any(b.name == block for _, b in walk((s,))):
            return k
    raise AssertionError(block)


def replaced(func: Function, at: int, *blocks: Block) -> Function:
    """The Function with blocks, in nests of their own, in place of the statement number `at`."""
    before, after = func.body[:at], func.body[at + 1 :]
    rest = replace(func, body=(*before, *after))
    return replace(func, body=(*before, *(nest(rest, b) for b in blocks), *after))


def elementwise(name: str, shape: tuple[Int, ...], value: Callable[[Index], Expr]) -> Block:
    """The block that writes the value at each index to a buffer of its own name."""
    index = tuple(var(f"ax{d}") for d in range(len(shape)))
    iters = (Iter(f"ax{d}", "S", e, p) for d, (e, p) in enumerate(zip(shape, index, strict=True)))
    return Block(name, tuple(iters), (Write(name, index, value(index)),))


def rename_nest(func: Function, block: str, new: str) -> Function:
    """Renames a block and its own loops."""
    path, b = find_block(func, block)
    taken = loop_names(func)
    own = {f.name for f in path if is_own_loop(b, f)} | {n for n, _ in b.tile}
    env = {
        n: fresh(new + n[len(block) :], taken)
        for n in (*(f.name for f in path), *(n for n, _ in b.tile))
        if n in own and n.startswith(f"{block}.")
    }
    ints: dict[str, Int] = {k: var(v) for k, v in env.items()}

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, For) and s.name in env:
            return (replace(s, name=env[s.name], owner=new),)
        if isinstance(s, Block):
            o = map_bindings(s, lambda p: p.substitute(ints))
            if s.name == block:
                tile = tuple((env.get(n, n), e) for n, e in o.tile)
                o = replace(o, name=new, tile=tile)
            return (o,)
        return (s,)

    return replace(func, body=rewrite(func.body, go))


def check_fresh(func: Function, why: str, *names: str) -> None:
    """That the names are free: a primitive derives the names of what it adds from existing ones."""
    taken = func.all_buffers.keys() | {b.name for _, b in walk(func.body)}
    for name in names:
        if name in taken:
            raise ScheduleError(
                f"cannot {why}: there is a {name} already; a buffer has one copy of each kind"
            )


def check_scope(what: str, scope: str) -> None:
    if scope not in SCOPES:
        raise ScheduleError(f"{what}: there is no scope {scope!r}; known are {', '.join(SCOPES)}")


@dataclass(frozen=True, slots=True)
class CacheRead(Step):
    """Makes a block read a buffer through a copy. The whole copy is filled before the block's loop
    nest; compute_at then moves it to where a part of it is needed.

    C[i] = A[i] ...    ->    A.shared[ax0] = A[ax0]
                             C[i] = A.shared[i] ...
    """

    name: ClassVar[str] = "cache_read"
    block: str
    buffer: str
    scope: str = "local"

    @property
    def copy(self) -> str:
        return f"{self.buffer}.{self.scope}"

    def apply(self, func: Function) -> Function:
        _, b = find_block(func, self.block)
        buf = find_buffer(func, self.buffer)
        check_scope(f"cannot cache_read {self.buffer}", self.scope)
        if b.intrinsic is not None:
            raise ScheduleError(
                f"cannot cache_read {self.buffer} for {b.name}: an instruction carries it out; "
                "do this before tensorize"
            )
        if not any(load.buffer == self.buffer for load in b.loads):
            reads = ", ".join(dict.fromkeys(load.buffer for load in b.loads)) or "nothing"
            raise ScheduleError(
                f"cannot cache_read {self.buffer} for {b.name}: it does not read it, but {reads}"
            )
        check_fresh(func, f"cache_read {self.buffer} for {b.name}", self.copy)
        copy = elementwise(self.copy, buf.shape, lambda at: Load(self.buffer, at, buf.dtype))

        def put(load: Load) -> Expr:
            return replace(load, buffer=self.copy) if load.buffer == self.buffer else load

        body = rewrite_blocks(
            func.body,
            lambda o: replace(o, writes=map_write_loads(o.writes, put)) if o.name == b.name else o,
        )
        at = top_level(func, self.block)
        if any(top_level(func, w.name) >= at for w in writers(func, self.buffer)):
            raise ScheduleError(
                f"cannot cache_read {self.buffer} for {b.name}: it is computed inside the same "
                "loops; cache it before compute_at"
            )
        body = (*body[:at], nest(func, copy), *body[at:])
        new = Buffer(self.copy, buf.shape, buf.dtype, self.scope)
        return replace(func, body=body, buffers=(*func.buffers, new))


@dataclass(frozen=True, slots=True)
class CacheWrite(Step):
    """Makes a block compute into a buffer of its own, which a second block copies to the old one.
    If a dimension was divided, as channels into groups, that buffer has a dimension per part.

    C[i] += A[i, k]    ->    C.local[i] += A[i, k]
                             C[i] = C.local[i]
    """

    name: ClassVar[str] = "cache_write"
    block: str
    scope: str = "local"

    @property
    def copy(self) -> str:
        return f"{self.block}.{self.scope}"

    def apply(self, func: Function) -> Function:
        _, b = find_block(func, self.block)
        check_scope(f"cannot cache_write {self.block}", self.scope)
        require_only_writer(func, b, "cache_write")
        split = _is_divided(func, b)
        if not split:
            trivial_index(b, "cache_write")
        several = len(b.writes) > 1
        names = {w.buffer: f"{w.buffer}.{self.scope}" if several else self.copy for w in b.writes}
        check_fresh(func, f"cache_write {b.name}", self.copy, *names.values())
        at = top_level(func, self.block)
        inside = [o for _, o in walk((func.body[at],)) if o.name != b.name]
        if any(load.buffer in written(b) for o in inside for load in o.loads):
            raise ScheduleError(
                f"cannot cache_write {b.name}: it is read inside the same loops; "
                "cache it before compute_at"
            )
        func = rename_nest(func, self.block, self.copy)
        index = tuple(var(i.name) for i in b.spatial) if split else b.writes[0].index

        def go(o: Block) -> Block:
            if o.name != self.copy:
                return o
            writes = (replace(w, buffer=names[w.buffer], index=index) for w in o.writes)
            return replace(o, writes=tuple(writes))

        body = rewrite_blocks(func.body, go)
        buffers = func.all_buffers
        copy = Block(
            self.block,
            b.spatial,
            tuple(
                Write(w.buffer, w.index, Load(names[w.buffer], index, w.value.dtype))
                for w in b.writes
            ),
            domain=frozenset(p for p in b.domain if p.names <= {i.name for i in b.spatial}),
        )
        body = (*body[: at + 1], nest(func, copy), *body[at + 1 :])
        parts = tuple(i.extent for i in b.spatial)
        new = tuple(
            Buffer(n, parts if split else buffers[w].shape, buffers[w].dtype, self.scope)
            for w, n in names.items()
        )
        done = replace(func, body=body, buffers=(*func.buffers, *new))
        check_kinds(done, f"cache_write {self.block}")
        check_scopes(done, f"cache_write {self.block}")
        return done


def _is_divided(func: Function, b: Block) -> bool:
    """Whether the block writes each element once, at an index of which some dimension consists of
    several iterators, as a number consists of digits.
    """
    extents, index = {i.name: i.extent for i in b.spatial}, b.writes[0].index
    parts = [digits(p, extents) for p in index]
    if not all(parts) or all(p.name for p in index) or len(b.writes) != 1:
        return False
    shape = func.all_buffers[b.writes[0].buffer].shape
    sizes = [product(extents[n] for n in own) for own in parts]
    return sizes == list(shape) and sorted(n for d in parts for n in d) == sorted(extents)


def digits(p: Int, extents: dict[str, Int]) -> tuple[str, ...]:
    """The iterators of which an index consists, that which counts most first."""
    if p.name is not None:
        return (p.name,) if p.name in extents else ()
    for n in sorted(p.names & extents.keys()):
        rest = exact_quotient(p - var(n), extents[n])
        if rest is not None and n not in rest.names and (more := digits(rest, extents)):
            return (*more, n)
    return ()


def change_buffer(func: Function, name: str, **changes: object) -> Function:
    def go(b: Buffer) -> Buffer:
        return replace(b, **changes) if b.name == name else b  # type: ignore[arg-type]

    return replace(func, params=tuple(map(go, func.params)), buffers=tuple(map(go, func.buffers)))


def _is_param(func: Function, name: str) -> bool:
    return any(p.name == name for p in func.params)


@dataclass(frozen=True, slots=True)
class SetScope(Step):
    """Moves an intermediate buffer to another scope.

    P = global float32[64]    ->    P = local float32[64]
    """

    name: ClassVar[str] = "set_scope"
    buffer: str
    scope: str

    def apply(self, func: Function) -> Function:
        find_buffer(func, self.buffer)
        if _is_param(func, self.buffer):
            raise ScheduleError(
                f"cannot set the scope of {self.buffer}: a parameter lives where the caller has it"
            )
        check_scope(f"cannot set the scope of {self.buffer}", self.scope)
        done = change_buffer(func, self.buffer, scope=self.scope)
        doing = f"set the scope of {self.buffer} to {self.scope}"
        check_kinds(done, doing)
        check_scopes(done, doing)
        return done


@dataclass(frozen=True, slots=True)
class StorageAlign(Step):
    """Pads the stride of a dimension to `offset` modulo `multiple` elements, so that rows do not
    fall on the same cache sets or shared-memory banks.

    A.shared = shared float32[64, 64]    ->    A.shared = shared float32[64, 64] align(0, 32, 8)
    """

    name: ClassVar[str] = "storage_align"
    buffer: str
    dim: int
    multiple: int
    offset: int = 0

    def apply(self, func: Function) -> Function:
        buf = find_buffer(func, self.buffer)
        if _is_param(func, self.buffer):
            raise ScheduleError(
                f"cannot align {self.buffer}: a parameter lies as the caller has it"
            )
        rank = len(buf.layout or buf.shape)
        if not 0 <= self.dim < rank:
            raise ScheduleError(
                f"cannot align dimension {self.dim} of {self.buffer}: it has {rank} dimensions"
            )
        if self.multiple < 1 or not 0 <= self.offset < self.multiple:
            raise ScheduleError(
                f"cannot align {self.buffer} to {self.offset} modulo {self.multiple}: "
                "the offset lies between 0 and the multiple"
            )
        return change_buffer(func, self.buffer, align=(self.dim, self.multiple, self.offset))
