"""`Function`: a whole kernel in the loop IR, with its parameters, buffers and facts about sizes;
its work (arithmetic operations and bytes), and its blocks and loops by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ArgumentError, ScheduleError, TilesmithError
from tilesmith.base.given import checks_given
from tilesmith.base.identity import digest
from tilesmith.expr.intervals import Rules
from tilesmith.expr.ints import Int, IntLike, Monomial, of, product
from tilesmith.expr.nodes import (
    ARITHMETIC,
    FLOAT_FUNCTIONS,
    Binary,
    Expr,
    Select,
    Unary,
    children,
)
from tilesmith.expr.walk import postorder, preorder
from tilesmith.ir import printer, serialize
from tilesmith.ir.initial import split_init
from tilesmith.ir.nodes import (
    Alloc,
    Block,
    Buffer,
    Fact,
    For,
    If,
    Path,
    Program,
    Stmt,
    Store,
    map_bindings,
    map_operands,
    map_writes,
    rewrite,
    statements,
    walk,
)
from tilesmith.ir.prepare import Merge


@dataclass(frozen=True, slots=True)
class Function(Program):
    """A kernel: its parameters in calling order, of which the last `num_outputs` are outputs, its
    intermediate buffers, and its statements.
    """

    @property
    def all_buffers(self) -> dict[str, Buffer]:
        """Parameters and intermediate buffers by name."""
        return {b.name: b for b in (*self.params, *self.buffers)}

    @property
    def rules(self) -> Rules:
        """The exact facts as rewrite rules: a product of size variables becomes the extent."""
        return _rules(self.facts)

    @property
    def sizes(self) -> tuple[str, ...]:
        """The size variables that are still open, in order of appearance."""
        seen: dict[str, None] = {}

        def add(p: Int) -> None:
            for n in sorted(p.names):
                if n[0] == "#":
                    seen.setdefault(n)

        for b in (*self.params, *self.buffers):
            for e in b.shape:
                add(e)
        for s in statements(self.body):
            if isinstance(s, For):
                add(s.extent)
            elif isinstance(s, Block | Store):
                for _, e in s.tile:
                    add(e)
        return tuple(seen)

    @property
    def open_sizes(self) -> tuple[str, ...]:
        """The same under their given names: "n" for ts.size("n")."""
        return tuple(n.removeprefix("#") for n in self.sizes)

    def require_closed(self, what: str, error: type[TilesmithError] = ArgumentError) -> None:
        """Raises if a size is still open, and tells how to instantiate it."""
        if names := self.open_sizes:
            example = ", ".join(f"{n!r}: 64" for n in names)
            raise error(
                f"{what} needs every size as a number, but {self.name!r} has the open sizes "
                f"{', '.join(names)}; give them first: ts.instantiate(func, {{{example}}})"
            )

    @property
    def digest(self) -> str:
        """A hash of the canonical JSON text. The printed text omits the dtypes of constants."""
        return digest(serialize.function_to_json(self))

    @property
    def flops(self) -> int:
        """Arithmetic operations of one call."""
        return flops(self)

    @property
    def nbytes(self) -> int:
        """Bytes of the parameters."""
        return nbytes(self)

    @property
    def signature(self) -> str:
        """Name, inputs and outputs on one line."""

        def show(buffers: tuple[Buffer, ...]) -> str:
            return ", ".join(
                f"{b.name}: {b.dtype}[{', '.join(map(str, b.shape))}]" for b in buffers
            )

        return f"{self.name}({show(self.inputs)}) -> {show(self.outputs)}"

    def __repr__(self) -> str:
        return f"<Function {self.signature}>"

    def __str__(self) -> str:
        return printer.show(self)


@lru_cache(maxsize=256)
def _rules(facts: tuple[Fact, ...]) -> Rules:
    rules: dict[Monomial, Int] = {}
    for f in facts:
        if f.exact:
            terms = product(f.sizes).terms
            if len(terms) == 1:
                ((m, c),) = terms.items()
                if c == 1 and len(m) == len(f.sizes):
                    rules[m] = f.extent
    return rules


def numbers(extents: Sequence[Int]) -> tuple[int, ...]:
    """The extents of a shape that is not open."""
    values = [e.const for e in extents]
    if None in values:
        raise ArgumentError(f"the size {list(extents)} is open; put in numbers with instantiate()")
    return tuple(n for n in values if n is not None)


@checks_given
def instantiate(func: Function, sizes: Mapping[str, int]) -> Function:
    """Replaces open sizes by numbers, by name: {"n": 64}. Sizes that are left out stay open.

    A size of 0 gives empty arrays; reductions over nothing give the identity of their combiner.
    """
    numbers = {_size_name(n): _extent(n, v) for n, v in sizes.items()}
    names = _size_names(func)
    if unknown := [n for n in numbers if n not in names]:
        wrong = ", ".join(n.removeprefix("#") for n in unknown)
        has = f"its open sizes are {', '.join(func.open_sizes)}" if func.sizes else "none is open"
        raise ArgumentError(f"{func.name!r} has no open size {wrong}; {has}")
    _check_facts(func, numbers)
    done = with_sizes(func, numbers)
    return _start_empty_sums(done) if 0 in numbers.values() else done


def _check_facts(func: Function, numbers: Mapping[str, int]) -> None:
    """Numbers for the parts of a split loop must cover it, exactly if that was promised."""
    env = {n: of(v) for n, v in numbers.items()}
    for f in func.facts:
        parts = [s.substitute(env).const for s in f.sizes]
        extent = f.extent.substitute(env).const
        if extent is None or None in parts:
            continue
        covered = prod(n for n in parts if n is not None)
        if covered < extent or (f.exact and covered != extent):
            sizes = " * ".join(str(s).removeprefix("#") for s in f.sizes)
            wanted = "is" if f.exact else "is at least"
            raise ArgumentError(f"{sizes} is {covered} in {func.name!r}; it {wanted} {extent}")


def _size_name(name: str) -> str:
    if not isinstance(name, str):
        raise ArgumentError(f"{name!r} is not the name of a size; use the one given to ts.size")
    return name if name.startswith("#") else f"#{name}"


def _extent(name: str, value: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgumentError(f"size {name.removeprefix('#')} is {value!r}; it is a whole number")
    n = int(value.__index__())
    if n < 0:
        raise ArgumentError(f"size {name.removeprefix('#')} is {n}; a size is at least 0")
    return n


def _size_names(func: Function) -> frozenset[str]:
    """Every size variable, including those that occur only in facts and in notes of loops."""
    names = set(func.sizes)
    for f in func.facts:
        for p in (*f.sizes, f.extent):
            names |= p.names
    for s in statements(func.body):
        if isinstance(s, For):
            names = names.union(*(n.sizes for n in s.notes))
    return frozenset(names)


def _start_empty_sums(func: Function) -> Function:
    """Moves the init of reductions in front of loops without iterations, which would never reach
    it.
    """
    for path, b in walk(func.body):
        if b.combiner is None or not b.init or all(i.extent.const != 0 for i in b.reducing):
            continue
        outermost = next((f.name for f in path if f.name in b.reducing_loops), None)
        func = replace(func, body=split_init(func.body, b, path, outermost))
    return func


def determine_extents(func: Function) -> Function:
    """Expresses the extents of split loops by the open sizes: the outermost part of a loop over n
    that is split by 8 has (n + 7) // 8 iterations. All inner parts must be numbers.
    """
    if not func.facts:
        return func
    env: dict[str, Int] = {}
    for f in func.facts:
        outermost, *inner = f.sizes
        extent, tile = f.extent.substitute(env), product(inner).const
        if (name := outermost.name) is None or tile is None:
            sizes = " * ".join(str(s).removeprefix("#") for s in f.sizes)
            raise ArgumentError(
                f"{func.name!r} has a loop over {extent} in parts of {sizes}: all but the "
                "outermost part need numbers; give them with ts.instantiate"
            )
        env[name] = (extent + (tile - 1)) // tile
    return replace(with_sizes(func, env), facts=())


def with_sizes(func: Function, sizes: Mapping[str, IntLike]) -> Function:
    """Turns a sketch into a concrete Function. Names have their leading #."""
    env = {k: of(v) for k, v in sizes.items()}
    numbers = {k: n for k, v in env.items() if (n := v.const) is not None}

    def put(p: Int) -> Int:
        return p.substitute(env)

    def buf(b: Buffer) -> Buffer:
        layout = None if b.layout is None else tuple(map(put, b.layout))
        prepared = tuple(
            Merge(tuple(map(put, s.given))) if isinstance(s, Merge) else s for s in b.prepared
        )
        return replace(b, shape=tuple(map(put, b.shape)), layout=layout, prepared=prepared)

    def go(s: Stmt) -> tuple[Stmt, ...]:
        match s:
            case For():
                notes = tuple(n.decided(numbers) for n in s.notes)
                return (replace(s, extent=put(s.extent), notes=notes),)
            case Block():
                b = map_bindings(s, put)
                iters = tuple(replace(i, extent=put(i.extent)) for i in b.iters)
                new = replace(
                    b,
                    iters=iters,
                    writes=map_writes(b.writes, put),
                    domain=frozenset(map(put, b.domain)),
                    tile=tuple((n, put(e)) for n, e in b.tile),
                    operands=map_operands(b.operands, put),
                )
                return (new,)
            case Store():
                tile = tuple((n, put(e)) for n, e in s.tile)
                writes = map_writes(s.writes, put)
                operands = map_operands(s.operands, put)
                return (replace(s, writes=writes, tile=tile, operands=operands),)
            case If():
                return (replace(s, conds=tuple(map(put, s.conds))),)
            case Alloc(buffer=b):
                return (Alloc(buf(b)),)
            case _:
                return (s,)

    facts = []
    for f in func.facts:
        new = Fact(tuple(map(put, f.sizes)), put(f.extent), f.exact)
        if any(n.const is None for n in new.sizes) or new.extent.const is None:
            facts.append(new)
    return replace(
        func,
        params=tuple(map(buf, func.params)),
        buffers=tuple(map(buf, func.buffers)),
        body=rewrite(func.body, go),
        facts=tuple(facts),
        declared=tuple(s for s in func.declared if f"#{s.name}" not in env),
    )


_UNARY = frozenset({*FLOAT_FUNCTIONS, "neg"})  # each call counts as one operation


def operations(e: Expr) -> int:
    """The number of arithmetic operations. Index arithmetic, comparisons, selects and casts are
    free, a shared node counts once, and of the two sides of a select the longer one counts.
    """
    longest: dict[int, int] = {}  # operations of each node as a tree, by id
    for x in postorder(e, children):
        inner = [longest[id(y)] for y in children(x)]
        longest[id(x)] = max(inner[1:]) if isinstance(x, Select) else _counts(x) + sum(inner)

    def counted(x: Expr) -> tuple[Expr, ...]:
        if isinstance(x, Select):
            return (x.a if longest[id(x.a)] >= longest[id(x.b)] else x.b,)
        return children(x)

    return sum(map(_counts, preorder(e, counted)))


def _counts(e: Expr) -> bool:
    return (isinstance(e, Binary) and e.op in ARITHMETIC) or (
        isinstance(e, Unary) and e.op in _UNARY
    )


def flops(func: Program) -> int:
    """Operations of all blocks over their iteration domains."""
    total = 0
    for _, b in walk(func.body):
        points = prod(_number(i.extent, func) for i in b.iters)
        each = sum(operations(w.value) for w in b.writes)
        if b.combiner is not None:
            each += sum(map(operations, b.combiner.values))
        total += points * each
    return total


def nbytes(func: Program) -> int:
    """Bytes of all parameters, each counted once."""
    return sum(prod(_number(n, func) for n in b.shape) * b.dtype.nbytes for b in func.params)


def num_terms(b: Block) -> int:
    """The number of values a block reduces to one; 1 if it does not reduce."""
    return max(1, prod(numbers([i.extent for i in b.reducing])))


_BLUNT = 1 / 256  # sums whose error may be such a share of a term are taken as exact if they are


def is_blunt(b: Block) -> bool:
    """Whether the rounding error of a block's sums may hide a missing term."""
    return b.combiner is not None and any(
        w.value.dtype.roundoff * num_terms(b) > _BLUNT for w in b.writes
    )


def _number(p: Int, func: Program) -> int:
    n = p.const
    if n is None:
        raise ArgumentError(
            f"{func.name} has the open size {p}; put in a number with instantiate()"
        )
    return n


def find_block(func: Function, name: str) -> tuple[Path, Block]:
    names = []
    for path, b in walk(func.body):
        if b.name == name:
            return path, b
        names.append(b.name)
    raise ScheduleError(f"there is no block {name!r} in {func.name}; it has {', '.join(names)}")


def find_loop(func: Function, name: str) -> tuple[Path, For]:
    """The loop, and the loops around it."""

    path: list[For] = []

    def go(body: tuple[Stmt, ...]) -> For | None:
        for s in body:
            if isinstance(s, For):
                if s.name == name:
                    return s
                path.append(s)
                if (found := go(s.body)) is not None:
                    return found
                path.pop()
        return None

    loop = go(func.body)
    if loop is None:
        loops = ", ".join(f.name for f in all_loops(func.body)) or "none"
        raise ScheduleError(f"there is no loop {name!r} in {func.name}; it has {loops}")
    return tuple(path), loop


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
