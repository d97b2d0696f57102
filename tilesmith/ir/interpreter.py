"""The reference interpreter: runs a concrete Function statement by statement on NumPy arrays,
before or after lowering.

Intermediate buffers start out as garbage (NaN, or an odd number), and every index is checked. It is
kept simple rather than fast, as the definition of what a program means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from tilesmith.base.errors import ArgumentError, VerifyError
from tilesmith.expr import semantics
from tilesmith.expr.dynamic import Dynamic, below
from tilesmith.expr.ints import Int, Opaque, evaluate_int
from tilesmith.expr.nodes import (
    Arg,
    Binary,
    Cast,
    Const,
    Expr,
    IntValue,
    Load,
    Select,
    Unary,
    join_args,
)
from tilesmith.ir.evaluators import Array, Values, input_arrays, is_loaded, operation, outside
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Alloc, Block, Buffer, For, If, Join, Stmt, Store, Sync, Write
from tilesmith.ir.pack import as_given, prepared

_NO_VALUES: Values = {}


def interpret(func: Function, *arrays: Any) -> Any:
    """The output array, or a tuple of them when there are several."""
    memory = {
        b.name: prepared(b, np.array(a, dtype=b.dtype.numpy))
        for b, a in zip(func.inputs, input_arrays(func, arrays), strict=True)
    }
    for b in (*func.outputs, *func.buffers):
        memory[b.name] = _garbage(b)
    with np.errstate(all="ignore"):
        _Run(memory).body(func.body, {})
    outs = tuple(as_given(b, memory[b.name]) for b in func.outputs)
    return outs if len(outs) > 1 else outs[0]


def _garbage(b: Buffer) -> Array:
    shape = [n if (n := e.const) is not None else -1 for e in b.shape]
    if -1 in shape:
        raise VerifyError(f"{b.name} has an open size; put in numbers with instantiate()")
    return np.full(shape, np.nan if b.dtype.is_float else 77, b.dtype.numpy)


class _Run:
    def __init__(self, memory: dict[str, Array]) -> None:
        self.memory = memory

    def body(self, body: tuple[Stmt, ...], env: dict[str, int]) -> None:
        for s in body:
            match s:
                case For():
                    extent = s.extent.const
                    assert extent is not None, f"loop {s.name} has the open extent {s.extent}"
                    for v in range(extent):
                        self.body(s.body, {**env, s.name: v})
                case If():
                    if all(self.integer(p, env) >= 0 for p in s.conds):
                        self.body(s.body, env)
                case Block():
                    for point in self.points(s.tile):
                        self.block(s, {**env, **point})
                case Store():
                    for point in self.points(s.tile):
                        self.store(s.writes, {**env, **point})
                case Alloc(buffer=b):
                    self.memory[b.name] = _garbage(b)
                case Sync():
                    pass
                case Join():
                    raise VerifyError("threads are joined; ir/simt.py runs such programs")

    def points(self, tile: tuple[tuple[str, Int], ...]) -> Iterator[dict[str, int]]:
        for at in product(*(range(self.integer(e, {})) for _, e in tile)):
            yield dict(zip((n for n, _ in tile), at, strict=True))

    def block(self, b: Block, env: dict[str, int]) -> None:
        point = {i.name: self.integer(i.bind, env) for i in b.iters}
        reducing = b.reducing_loops
        iters = {i.name for i in b.reducing}
        checks = [(p, env, reducing) for p in b.where] + [(p, point, iters) for p in b.domain]
        if not all(self.integer(p, e) >= 0 for p, e, r in checks if not p.names & r):
            return
        if b.init and b.combiner and all(env[n] == 0 for n in reducing):
            for w, c in zip(b.writes, b.combiner.identity, strict=True):
                self.put(w, point, semantics.constant(c.value, c.dtype))
        if not all(self.integer(p, e) >= 0 for p, e, _ in checks):
            return
        values = [self.expr(w.value, point, {}) for w in b.writes]
        if b.combiner:
            held = [self.memory[w.buffer][self.index(w.buffer, w.index, point)] for w in b.writes]
            args = join_args(held, values)
            values = [self.expr(v, point, args) for v in b.combiner.values]
        for w, v in zip(b.writes, values, strict=True):
            self.put(w, point, v)

    def store(self, writes: tuple[Write, ...], env: dict[str, int]) -> None:
        values = [self.expr(w.value, env, {}) for w in writes]
        for w, v in zip(writes, values, strict=True):
            self.put(w, env, v)

    def put(self, w: Write, env: dict[str, int], value: Any) -> None:
        self.memory[w.buffer][self.index(w.buffer, w.index, env, verb="written")] = value

    def index(
        self,
        name: str,
        index: tuple[Int, ...],
        env: Mapping[str, int],
        values: Values = _NO_VALUES,
        verb: str = "read",
    ) -> tuple[int, ...]:
        at = tuple(self.integer(p, env, values) for p in index)
        for d, (p, i, n) in enumerate(zip(index, at, self.memory[name].shape, strict=True)):
            if not 0 <= i < n:
                error = ArgumentError if is_loaded(p) else VerifyError
                raise error(outside(name, p, d, i, n, verb))
        return at

    def integer(self, p: Int, env: Mapping[str, int], values: Values = _NO_VALUES) -> int:
        """`values` holds the values of the loads inside p."""

        def opaque(a: Opaque) -> int:
            assert isinstance(a, Dynamic)
            return int(np.asarray(values[id(a.expr)]).astype(np.int64))

        return evaluate_int(p, env, opaque)

    def expr(self, e: Expr, env: Mapping[str, int], args: dict[str, Any]) -> Any:
        """Evaluates each node once, and of a select only the side that is taken."""
        values: dict[int, Any] = {}
        stack = [e]
        while stack:
            x = stack[-1]
            needs: Sequence[Expr] = below(x)
            if isinstance(x, Select):
                cond = values.get(id(x.cond))
                needs = (x.cond,) if cond is None else (x.a if cond else x.b,)
            left = [y for y in needs if id(y) not in values]
            if left:
                stack.extend(left)
            elif isinstance(x, Select) and needs[0] is x.cond:
                continue  # its condition has been evaluated now
            else:
                stack.pop()
                values[id(x)] = self.node(x, env, args, values)
        return values[id(e)]

    def node(self, e: Expr, env: Mapping[str, int], args: dict[str, Any], values: Values) -> Any:
        match e:
            case IntValue(value=p):
                return semantics.constant(self.integer(p, env, values), e.dtype)
            case Arg(name=n):
                return args[n]
            case Load(buffer=b, index=ix):
                return self.memory[b][self.index(b, ix, env, values)]
            case Select(cond=c, a=a, b=b):
                return values[id(a if values[id(c)] else b)]
            case Const() | Unary() | Binary() | Cast():
                return operation(e, values)
