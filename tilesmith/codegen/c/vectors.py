"""Vector loads and stores: finds the accesses of an unrolled loop that move 2 to 16 contiguous
elements at an aligned address, and emits the loop with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import MappingProxyType
from typing import NamedTuple

from tilesmith.base.dtype import DType
from tilesmith.codegen.c.expressions import Expressions
from tilesmith.codegen.c.integers import Integers
from tilesmith.codegen.c.position import ROLL, UNROLL, Memory, Position
from tilesmith.codegen.passes.accesses import is_uniform
from tilesmith.expr.dynamic import below, condition_parts, is_zero, loads_of
from tilesmith.expr.intervals import linear
from tilesmith.expr.ints import ONE, ZERO, Int, var
from tilesmith.expr.nodes import Const, Expr, Load, Select, ints_of, map_ints
from tilesmith.expr.walk import preorder
from tilesmith.ir.nodes import Store, Write, map_writes

_LANES = (16, 8, 4, 2)
_MOST_VISITS = 4096  # of the nodes of an expression, of which selects may share some
_RESULT = " result"  # the elements of a vector store; no buffer is called so


Conditions = tuple[tuple[Expr, bool], ...]


class Plan(NamedTuple):
    """A loop that moves vectors: `step` elements at a time, in vectors of so many lanes."""

    step: int
    loads: Mapping[Load, int]
    store: int  # lanes of the vector that is written; 0: each element by itself
    guards: Sequence[Int] = ()  # the same for all elements of a step, unless it is `partial`
    partial: bool = False  # whether the guards may hold for some elements of a step only
    # Of loads on one side of a select: the conditions under which they are carried out. Each is the
    # same for all lanes of a vector, and holds or (False) does not.
    conditions: Mapping[Load, Conditions] = MappingProxyType({})


class Vectors:
    def __init__(
        self,
        position: Position,
        integers: Integers,
        expressions: Expressions,
        store: Callable[[Store], None],
    ) -> None:
        self.position, self.integers, self.expressions = position, integers, expressions
        self.store = store

    def lanes(self, name: str, index: tuple[Int, ...], loop: str, extent: int) -> int:
        """The widest vector that holds consecutive elements of the loop; 0 if there is none."""
        memory = self.position.memories[name]
        p = linear(index, memory.strides)
        if p.terms.get((loop,)) != 1:
            return 0
        others = [c for m, c in p.terms.items() if m != (loop,)]
        if loop in Int({m: c for m, c in p.terms.items() if m != (loop,)}).names:
            return 0
        for n in _LANES:
            fits = extent % n == 0 and all(c % n == 0 for c in others)
            if fits and self.position.dialect.vector(memory.dtype, n) is not None:
                return n
        return 0

    def plan(
        self, loop: str, extent: int, s: Store, guards: Sequence[Int], only: bool = False
    ) -> Plan | None:
        """How to emit a loop around one guarded store with vectors; None if there are none. If that
        is all that the loop is there for (`only`), code may be added for it: guards may cut a
        vector, whose elements are then moved one by one, and sides of selects are loaded ahead.
        """
        if len(s.writes) != 1:
            return None
        (w,) = s.writes
        memories = self.position.memories
        loads: dict[Load, int] = {}
        moved = self._is_copy(w)
        conditions = _conditions_of_loads(w.value)
        if not only:
            padded = _padded_loads(w.value)
            conditions = {x: c for x, c in conditions.items() if not c or x in padded}
        for x in loads_of(w.value):
            if x.buffer == w.buffer and x.index != w.index:
                return None  # one iteration may read what another one writes
            if x in conditions and x.buffer != w.buffer:
                n = self.lanes(x.buffer, x.index, loop, extent)
                while n > 1 and not all(_is_same(c, loop, n) for c, _ in conditions[x]):
                    n //= 2
                loads |= {x: n} if n > 1 else {}
        far = {b: memories[b].scope != "local" for b in (w.buffer, *(x.buffer for x in loads))}
        written = 0
        if far[w.buffer] or (moved and any(far[x.buffer] for x in loads)):
            written = self.lanes(w.buffer, w.index, loop, extent)
        # Registers are read one by one, unless a whole vector of them is stored.
        loads = {x: n for x, n in loads.items() if far[x.buffer] or (moved and n == written)}
        if not loads and not written:
            return None
        step = max(written, *loads.values(), 0)
        held = {x: conditions[x] for x in loads if conditions[x]}
        plan = Plan(step, loads, written, guards, conditions=held)
        if all(is_uniform(p, loop, step) for p in guards):
            return plan
        cut = only and all(_last(p, loop, step) is not None for p in guards)
        return plan._replace(partial=True) if cut else None

    def _is_copy(self, w: Write) -> bool:
        return isinstance(w.value, Load) and w.value.dtype is self._dtype(w.buffer)

    def _dtype(self, name: str) -> DType:
        return self.position.memories[name].dtype

    def emit(self, loop: str, extent: int, s: Store, plan: Plan, alone: bool) -> None:
        """The loop, `plan.step` iterations at a time. `alone`: no other statement stands beside."""
        step = plan.step
        if extent == step:
            self._group(loop, ZERO, s, plan, alone)
            return
        position = self.position
        with position.loop(f"{loop}.v", extent, UNROLL, step):
            self._group(loop, var(f"{loop}.v"), s, plan, alone=True)

    def _group(self, loop: str, first: Int, s: Store, plan: Plan, alone: bool) -> None:
        """The iterations first .. first + step - 1."""
        if plan.partial:
            self._cut(loop, first, s, plan)
        elif plan.guards:
            conds = [p.substitute({loop: first}) for p in plan.guards]
            with self.position.braces(f"if ({self.integers.conditions(conds)})"):
                self._moved(loop, first, s, plan, alone=True)
        else:
            self._moved(loop, first, s, plan, alone)

    def _cut(self, loop: str, first: Int, s: Store, plan: Plan) -> None:
        """A vector, or the elements of it for which the guards hold."""
        position, whole = self.position, []
        for p in plan.guards:
            last = _last(p, loop, plan.step)
            assert last is not None
            whole.append(p.substitute({loop: first + last}))
        held = self.integers.conditions(whole)
        with position.braces(f"if ({held})"):
            self._moved(loop, first, s, plan, alone=True)
        env = {} if first == ZERO else {loop: first + var(loop)}
        writes = map_writes(s.writes, lambda p: p.substitute(env))
        # No `else`: variables of what follows may be declared in front of it.
        with position.braces(f"if (!({held}))"), position.loop(loop, plan.step, ROLL):
            conds = [p.substitute(env) for p in plan.guards]
            with position.braces(f"if ({self.integers.conditions(conds)})"):
                self.store(Store(writes))

    def _moved(self, loop: str, first: Int, s: Store, plan: Plan, alone: bool) -> None:
        (w,) = s.writes
        start = {loop: first}
        x = w.value
        if isinstance(x, Load) and self._is_copy(w) and dict(plan.loads) == {x: plan.store}:
            target = self._vector(w.buffer, w.index, start, plan.step)
            source = self._vector(x.buffer, x.index, start, plan.step, const=True)
            self.position.write(f"{target} = {source};")
            return
        position, step = self.position, plan.step
        padded = self._padded(w, plan)
        if padded is not None:
            with nullcontext() if alone else position.braces(""):
                conditions = plan.conditions[padded]
                name = self._fetch(padded, step, start, step, conditions, zeros=True)
                self._spill(w, name, step, start, step)
            return
        with nullcontext() if alone else position.braces(""):
            fetched = {
                x: self._fetch(x, n, start, step, plan.conditions.get(x, ()))
                for x, n in plan.loads.items()
            }
            result = self._array(w.buffer, step) if plan.store else None
            env = {} if first == ZERO else {loop: first + var(loop)}
            (moved,) = map_writes(s.writes, lambda p: p.substitute(env))
            with position.loop(loop, step, UNROLL) as lane:
                for x, array in fetched.items():
                    index = tuple(p.substitute(env) for p in x.index)
                    self.expressions.fetched[Load(x.buffer, index, x.dtype)] = f"{array}[{lane}]"
                if result is not None:
                    position.memories[_RESULT] = Memory(
                        result, self._dtype(w.buffer), "local", (ONE,)
                    )
                    moved = Write(_RESULT, (var(loop),), moved.value)
                self.store(Store((moved,)))
            self.expressions.fetched.clear()
            if result is not None:
                self._spill(w, result, plan.store, start, step)

    def _padded(self, w: Write, plan: Plan) -> Load | None:
        """What is copied in whole vectors, or zeros in its place; None if it is anything else."""
        x = w.value
        while isinstance(x, Select) and is_zero(x.b) and not condition_parts(x.cond)[1]:
            x = x.a
        if not isinstance(x, Load) or x is w.value or x.dtype is not self._dtype(w.buffer):
            return None
        whole = dict(plan.loads) == {x: plan.step} and plan.store == plan.step
        return x if whole and x in plan.conditions else None

    def _array(self, buffer: str, step: int, zeros: bool = False) -> str:
        """An array of registers for elements of a buffer."""
        memory = self.position.memories[buffer]
        name = self.position.fresh(f"{memory.name}_v")
        dialect = self.position.dialect
        kind = f"{dialect.aligned}{dialect.type_of(memory.dtype)}"
        self.position.write(f"{kind} {name}[{step}]{' = {0}' if zeros else ''};")
        return name

    def _fetch(
        self, x: Load, lanes: int, start: Mapping[str, Int], step: int, conditions: Conditions,
        zeros: bool = False,
    ) -> str:  # fmt: skip
        name = self._array(x.buffer, step, zeros)
        vector = self.position.dialect.vector(x.dtype, lanes)
        ((loop, first),) = start.items()
        for k in range(0, step, lanes):
            source = self._vector(x.buffer, x.index, start, lanes, k, const=True)
            line = f"*({vector}*)&{name}[{k}] = {source};"
            if conditions:
                at = {loop: first + k}
                holds = " && ".join(self._holds(c, truth, at) for c, truth in conditions)
                line = f"if ({holds}) {line}"
            self.position.write(line)
        return name

    def _holds(self, cond: Expr, truth: bool, at: Mapping[str, Int]) -> str:
        ints, others = condition_parts(cond)
        if truth and not others:
            return self.integers.conditions([p.substitute(at) for p in ints])
        text = self.expressions.value(map_ints(cond, lambda p: p.substitute(at))).text
        return f"({text})" if truth else f"!({text})"

    def _spill(self, w: Write, name: str, lanes: int, start: Mapping[str, Int], step: int) -> None:
        vector = self.position.dialect.vector(self._dtype(w.buffer), lanes)
        for k in range(0, step, lanes):
            target = self._vector(w.buffer, w.index, start, lanes, k)
            self.position.write(f"{target} = *(const {vector}*)&{name}[{k}];")

    def _vector(
        self,
        buffer: str,
        index: tuple[Int, ...],
        start: Mapping[str, Int],
        lanes: int,
        offset: int = 0,
        const: bool = False,
    ) -> str:
        """The vector of `lanes` elements from iteration start + offset on."""
        memory, dialect = self.position.memories[buffer], self.position.dialect
        ((loop, first),) = start.items()
        at = tuple(p.substitute({loop: first + offset}) for p in index)
        space = dialect.spaces[memory.scope]
        kind = f"{'const ' if const else ''}{space}{dialect.vector(memory.dtype, lanes)}"
        return f"*({kind}*)&{self.integers.element(memory, at)}"


def _conditions_of_loads(e: Expr) -> dict[Load, Conditions]:
    """The loads that are executed under one conjunction of conditions of selects, and these."""
    found: dict[Load, Conditions | None] = {}
    left: list[tuple[Expr, Conditions]] = [(e, ())]
    visits = 0
    while left and visits < _MOST_VISITS:
        visits += 1
        x, conditions = left.pop()
        if isinstance(x, Select):
            left += [
                (x.cond, conditions),
                (x.a, (*conditions, (x.cond, True))),
                (x.b, (*conditions, (x.cond, False))),
            ]
            continue
        if isinstance(x, Load):
            known = found.setdefault(x, conditions)
            if not conditions or known == ():
                found[x] = ()
            elif known != conditions or len(loads_of(x)) > 1:  # an index is loaded with it
                found[x] = None
        left += [(y, conditions) for y in below(x)]
    if left:
        return _certain_loads(e)
    return {x: conditions for x, conditions in found.items() if conditions is not None}


def _certain_loads(e: Expr) -> dict[Load, Conditions]:
    """Those that are executed whatever the conditions inside of e are."""
    return {x: () for x in preorder(e, _certain_operands) if isinstance(x, Load)}


def _padded_loads(e: Expr) -> set[Load]:
    """What is loaded where there is no padding, if that depends on iterators alone."""
    sides = (_without_padding(x) for x in preorder(e, _certain_operands) if isinstance(x, Select))
    return {x for x in sides if isinstance(x, Load)}


def _without_padding(e: Expr) -> Expr:
    while isinstance(e, Select) and isinstance(e.b, Const) and not condition_parts(e.cond)[1]:
        e = e.a
    return e


def _certain_operands(e: Expr) -> tuple[Expr, ...]:
    return (e.cond,) if isinstance(e, Select) else below(e)


def _is_same(cond: Expr, loop: str, step: int) -> bool:
    """Whether a condition, which loads nothing, is the same for the iterations k*step ..
    k*step + step - 1.
    """
    if loads_of(cond):
        return False
    ints, others = condition_parts(cond)
    if any(loop in p.names for x in others for p in ints_of(x)):
        return False
    return all(is_uniform(p, loop, step) for p in ints)


def _last(p: Int, loop: str, step: int) -> int | None:
    """The iteration of a step for which p is least; None if that is not the first or the last."""
    c = p.coefficient(loop)
    if c.const is None or loop in (p - c * var(loop)).names:
        return None
    return step - 1 if c.const < 0 else 0
