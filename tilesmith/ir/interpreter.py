"""The reference interpreter: runs a concrete Function statement by statement on NumPy arrays,
before or after lowering.

Intermediate buffers start out as garbage (NaN, or an odd number), and every index is checked. It is
kept simple rather than fast, as the definition of what a program means. What is the same for all
instances of a statement is found once: every statement, index and node becomes a Python function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tilesmith.base.errors import ArgumentError, VerifyError
from tilesmith.base.given import checks_given
from tilesmith.expr import semantics
from tilesmith.expr.dynamic import Dynamic, below, is_loaded
from tilesmith.expr.ints import Int, Opaque, evaluate_int, opaque_atoms
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
from tilesmith.expr.walk import postorder
from tilesmith.ir.evaluators import (
    NO_VALUES,
    Array,
    Values,
    garbage,
    input_arrays,
    operation,
    outside,
    result_of,
    shape_of,
)
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Alloc, Block, For, If, Join, Stmt, Store, Sync, Write
from tilesmith.ir.open_shapes import with_shapes_of
from tilesmith.ir.pack import prepared

Env = dict[str, int]  # the values of loops, or of a block's iterators
Action = Callable[[Env], None]
Number = Callable[[Env, Values], int]
Step = Callable[[Env, dict[str, Any], dict[int, Any]], Any]  # a node's value, from those by id
# A node, how it is computed, and the Select whose side is to be computed before, if it is one.
Order = list[tuple[int, Step, Select | None]]


@checks_given
def interpret(func: Function, *arrays: Any) -> Any:
    """The output array, or a tuple of them when there are several. Open sizes are those of the
    arrays.
    """
    func = with_shapes_of(func, arrays)
    memory = {
        b.name: prepared(b, np.array(a, dtype=b.dtype.numpy))
        for b, a in zip(func.inputs, input_arrays(func, arrays), strict=True)
    }
    for b in (*func.outputs, *func.buffers):
        memory[b.name] = garbage(b, shape_of(b))
    with np.errstate(all="ignore"):
        _Run(memory).body(func.body)({})
    return result_of(func, [memory[b.name] for b in func.outputs])


class _Run:
    def __init__(self, memory: dict[str, Array]) -> None:
        self.memory = memory
        self._orders: dict[int, Order] = {}  # by id: the Function keeps its nodes alive

    def body(self, body: tuple[Stmt, ...]) -> Action:
        actions = [self.statement(s) for s in body]

        def run(env: Env) -> None:
            for act in actions:
                act(env)

        return actions[0] if len(actions) == 1 else run

    def statement(self, s: Stmt) -> Action:
        match s:
            case For():
                inner = self.body(s.body)
                if (extent := s.extent.const) is not None:
                    return _loop((s.name,), (extent,), inner)
                count = self.number(s.extent)  # cut short: see codegen/passes/open_loops.py

                def counted(env: Env) -> None:
                    for at in range(count(env, NO_VALUES)):
                        env[s.name] = at
                        inner(env)
                    env.pop(s.name, None)

                return counted
            case If():
                conds, held = [self.number(p) for p in s.conds], self.body(s.body)

                def guarded(env: Env) -> None:
                    if _hold(conds, env):
                        held(env)

                return guarded
            case Block():
                return self.tiled(s.tile, self.block(s))
            case Store():
                return self.tiled(s.tile, self.store(s.writes))
            case Alloc(buffer=b):
                return lambda _: self.memory.__setitem__(b.name, garbage(b, shape_of(b)))
            case Sync():
                return lambda _: None
            case Join():
                return _joined

    def tiled(self, tile: tuple[tuple[str, Int], ...], act: Action) -> Action:
        extents = [number(e)({}, NO_VALUES) for _, e in tile]
        return _loop(tuple(n for n, _ in tile), extents, act) if tile else act

    def block(self, b: Block) -> Action:
        iters = [(i.name, number(i.bind)) for i in b.iters]
        reducing, reduced = b.reducing_loops, {i.name for i in b.reducing}
        # Those that no reducing loop takes part in also decide whether it is initialised.
        outer = [number(p) for p in b.where if not p.names & reducing]
        own_outer = [self.number(p) for p in b.domain if not p.names & reduced]
        inner = [number(p) for p in b.where if p.names & reducing]
        own_inner = [self.number(p) for p in b.domain if p.names & reduced]
        identity = b.combiner.identity if b.init and b.combiner else ()
        neutral = [semantics.constant(c.value, c.dtype) for c in identity]
        puts, keeps = [self.put(w) for w in b.writes], b.keeps_partial
        values = [self.value(w.value) for w in b.writes]
        held = [self.held(w) for w in b.writes] if b.combiner else []
        joined = [self.value(v) for v in b.combiner.values] if b.combiner else []

        def run(env: Env) -> None:
            point = {n: at(env, NO_VALUES) for n, at in iters}
            if not (_hold(outer, env) and _hold(own_outer, point)):
                return
            if neutral and all(env[n] == 0 for n in reducing):
                for put, c, kept in zip(puts, neutral, keeps, strict=True):
                    if not kept:
                        put(point, c)
            if not (_hold(inner, env) and _hold(own_inner, point)):
                return
            new = [v(point, {}) for v in values]
            if joined:
                args = join_args([h(point, NO_VALUES) for h in held], new)
                new = [v(point, args) for v in joined]
            for put, v in zip(puts, new, strict=True):
                put(point, v)

        return run

    def store(self, writes: tuple[Write, ...]) -> Action:
        values = [self.value(w.value) for w in writes]
        puts = [self.put(w) for w in writes]

        def run(env: Env) -> None:
            new = [v(env, {}) for v in values]
            for put, v in zip(puts, new, strict=True):
                put(env, v)

        return run

    def put(self, w: Write) -> Callable[[Env, Any], None]:
        index, name = self.index(w.buffer, w.index, "written", self.number), w.buffer

        def run(env: Env, value: Any) -> None:
            self.memory[name][index(env, NO_VALUES)] = value

        return run

    def held(self, w: Write) -> Callable[[Env, Values], Any]:
        """The element that a write replaces."""
        at = self.index(w.buffer, w.index, number_of=self.number)
        return lambda env, values: self.memory[w.buffer][at(env, values)]

    def number(self, p: Int) -> Number:
        """The value of p, which is not a part of an expression: loads inside of it are done."""
        if not is_loaded(p):
            return number(p)
        loaded = [a.expr for a in opaque_atoms(p) if isinstance(a, Dynamic)]
        values, at = [(id(e), self.value(e)) for e in loaded], number(p)
        return lambda env, _: at(env, {k: v(env, {}) for k, v in values})

    def element(self, name: str, index: tuple[Int, ...]) -> Callable[[Env, Values], Any]:
        at = self.index(name, index)
        return lambda env, values: self.memory[name][at(env, values)]

    def index(
        self,
        name: str,
        index: tuple[Int, ...],
        verb: str = "read",
        number_of: Callable[[Int], Number] | None = None,
    ) -> Callable[[Env, Values], tuple[int, ...]]:
        numbers = [(number_of or number)(p) for p in index]

        def run(env: Env, values: Values) -> tuple[int, ...]:
            at = tuple([n(env, values) for n in numbers])
            extents = self.memory[name].shape
            for i, extent in zip(at, extents, strict=True):
                if not 0 <= i < extent:
                    break
            else:
                return at
            d = next(d for d, i in enumerate(at) if not 0 <= i < extents[d])
            error = ArgumentError if is_loaded(index[d]) else VerifyError
            raise error(outside(name, index[d], d, at[d], extents[d], verb))

        return run

    def value(self, e: Expr) -> Callable[[Env, dict[str, Any]], Any]:
        """Evaluates each node once, and of a select only the side that is taken."""
        first, last = self.order(e), id(e)
        if all(choice is None for _, _, choice in first):
            steps = [(k, step) for k, step, _ in first]

            def straight(env: Env, args: dict[str, Any]) -> Any:
                values: dict[int, Any] = {}
                for k, step in steps:
                    values[k] = step(env, args, values)
                return values[last]

            return straight

        def run(env: Env, args: dict[str, Any]) -> Any:
            values: dict[int, Any] = {}
            stack = [iter(first)]
            while stack:
                for k, step, choice in stack[-1]:
                    if k in values:
                        continue
                    if choice is not None:
                        side = choice.a if values[id(choice.cond)] else choice.b
                        stack.append(iter(self.order(side)))
                        break
                    values[k] = step(env, args, values)
                else:
                    stack.pop()
            return values[last]

        return run

    def order(self, e: Expr) -> Order:
        """The nodes that e needs in any case, each after its operands."""
        found = self._orders.get(id(e))
        if found is None:
            found = self._orders[id(e)] = []
            for x in postorder(e, lambda y: (y.cond,) if isinstance(y, Select) else below(y)):
                step = self.step(x)
                if isinstance(x, Select):
                    found.append((id(x), step, x))
                found.append((id(x), step, None))
        return found

    def step(self, e: Expr) -> Step:
        match e:
            case IntValue(value=p):
                at, constant = number(p), cache(partial(semantics.constant, dtype=e.dtype))
                return lambda env, _, values: constant(at(env, values))
            case Arg(name=n):
                return lambda _, args, __: args[n]
            case Load(buffer=b, index=ix):
                element = self.element(b, ix)
                return lambda env, _, values: element(env, values)
            case Select(cond=c, a=a, b=b):
                return lambda _, __, values: values[id(a if values[id(c)] else b)]
            case Const():
                known = operation(e, NO_VALUES)
                return lambda _, __, ___: known
            case Binary(op=op, a=a, b=b):
                left, right, join = id(a), id(b), semantics.of_scalars(op, a.dtype)
                return lambda _, __, values: join(values[left], values[right])
            case Unary(op=op, x=x):
                operand, of, dtype = id(x), semantics.unary, e.dtype
                return lambda _, __, values: of(op, values[operand], dtype)
            case Cast(x=x):
                operand, to, dtype = id(x), semantics.cast, e.dtype
                return lambda _, __, values: to(values[operand], dtype)


def _loop(names: tuple[str, ...], extents: Sequence[int], act: Action) -> Action:
    if len(names) == 1:
        name, extent = names[0], extents[0]

        def count(env: Env) -> None:
            for at in range(extent):
                env[name] = at
                act(env)
            env.pop(name, None)

        return count

    def run(env: Env) -> None:
        for at in product(*map(range, extents)):
            env.update(zip(names, at, strict=True))
            act(env)
        for n in names:
            env.pop(n, None)

    return run


def _joined(_: Env) -> None:
    raise VerifyError("threads are joined; ir/simt.py runs such programs")


def _hold(conds: list[Number], env: Env) -> bool:
    for c in conds:  # noqa: SIM110 (a generator costs more than most conditions)
        if c(env, NO_VALUES) < 0:
            return False
    return True


def number(p: Int) -> Number:
    """The value of p; `values` holds those of the loads inside it."""
    if not p.plain:
        return lambda env, values: evaluate_int(p, env, partial(_loaded, values))
    if (constant := p.const) is not None:
        return lambda _, __: constant
    if (name := p.name) is not None:
        return lambda env, _: env[name]
    terms = [(c, [a for a in m if isinstance(a, str)]) for m, c in p.terms.items()]
    if all(len(names) <= 1 for _, names in terms):
        start = sum(c for c, names in terms if not names)
        linear = [(c, names[0]) for c, names in terms if names]
        if len(linear) == 1:
            ((factor, only),) = linear
            return lambda env, _: start + factor * env[only]
        if len(linear) == 2:
            (k, i), (m, j) = linear
            return lambda env, _: start + k * env[i] + m * env[j]

        def add(env: Env, _: Values) -> int:
            total = start
            for c, n in linear:
                total += c * env[n]
            return total

        return add
    return lambda env, _: sum(prod((env[n] for n in names), start=c) for c, names in terms)


def _loaded(values: Values, a: Opaque) -> int:
    assert isinstance(a, Dynamic)
    return int(np.asarray(values[id(a.expr)]).astype(np.int64))
