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
from tilesmith.codegen.c.position import UNROLL, Memory, Position
from tilesmith.codegen.passes.accesses import is_uniform
from tilesmith.expr.dynamic import below, condition_parts, loads_of
from tilesmith.expr.intervals import linear
from tilesmith.expr.ints import ONE, ZERO, Int, var
from tilesmith.expr.nodes import Const, Expr, Load, Select
from tilesmith.expr.walk import preorder
from tilesmith.ir.nodes import Store, Write, map_writes

_LANES = (16, 8, 4, 2)
_RESULT = " result"  # the elements of a vector store; no buffer is called so


class Plan(NamedTuple):
    """A loop that moves vectors: `step` elements at a time, in vectors of so many lanes."""

    step: int
    loads: Mapping[Load, int]
    store: int  # lanes of the vector that is written; 0: each element by itself
    guards: Sequence[Int] = ()  # the same for all elements of a step
    # Of loads that a select makes: their conditions, the same for all lanes of a vector.
    conditions: Mapping[Load, tuple[Int, ...]] = MappingProxyType({})


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

    def plan(self, loop: str, extent: int, s: Store, guards: Sequence[Int]) -> Plan | None:
        """How to emit a loop around one guarded store with vectors; None if there are none."""
        if len(s.writes) != 1:
            return None
        (w,) = s.writes
        memories = self.position.memories
        loads: dict[Load, int] = {}
        moved = self._is_copy(w)
        certain = _selected_loads(w.value) | dict.fromkeys(_certain_loads(w.value), ())
        for x in loads_of(w.value):
            if x.buffer == w.buffer and x.index != w.index:
                return None  # one iteration may read what another one writes
            if x in certain and x.buffer != w.buffer:
                n = self.lanes(x.buffer, x.index, loop, extent)
                while n > 1 and not all(is_uniform(p, loop, n) for p in certain[x]):
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
        conditions = {x: certain[x] for x in loads if certain[x]}
        plan = Plan(max(written, *loads.values(), 0), loads, written, guards, conditions)
        return plan if all(is_uniform(p, loop, plan.step) for p in guards) else None

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
        if plan.guards:
            conds = [p.substitute({loop: first}) for p in plan.guards]
            with self.position.braces(f"if ({self.integers.conditions(conds)})"):
                self._moved(loop, first, s, plan, alone=True)
        else:
            self._moved(loop, first, s, plan, alone)

    def _moved(self, loop: str, first: Int, s: Store, plan: Plan, alone: bool) -> None:
        (w,) = s.writes
        start = {loop: first}
        if self._is_copy(w) and set(plan.loads.values()) == {plan.store} == {plan.step}:
            (x,) = plan.loads
            target = self._vector(w.buffer, w.index, start, plan.step)
            source = self._vector(x.buffer, x.index, start, plan.step, const=True)
            self.position.write(f"{target} = {source};")
            return
        position, step = self.position, plan.step
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

    def _array(self, buffer: str, step: int) -> str:
        """An array of registers for elements of a buffer."""
        memory = self.position.memories[buffer]
        name = self.position.fresh(f"{memory.name}_v")
        dialect = self.position.dialect
        self.position.write(f"{dialect.aligned}{dialect.type_of(memory.dtype)} {name}[{step}];")
        return name

    def _fetch(
        self, x: Load, lanes: int, start: Mapping[str, Int], step: int, conditions: Sequence[Int]
    ) -> str:
        name = self._array(x.buffer, step)
        vector = self.position.dialect.vector(x.dtype, lanes)
        for k in range(0, step, lanes):
            source = self._vector(x.buffer, x.index, start, lanes, k, const=True)
            line = f"*({vector}*)&{name}[{k}] = {source};"
            if conditions:
                at = {loop: first + k for loop, first in start.items()}
                holds = self.integers.conditions([p.substitute(at) for p in conditions])
                line = f"if ({holds}) {line}"
            self.position.write(line)
        return name

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


def _certain_loads(e: Expr) -> set[Load]:
    """Those that are executed whatever the conditions inside of e are."""
    return {x for x in preorder(e, _certain_operands) if isinstance(x, Load)}


def _selected_loads(e: Expr) -> dict[Load, tuple[Int, ...]]:
    """What is loaded where there is no padding, and the conditions of that on iterators."""
    found: dict[Load, tuple[Int, ...]] = {}
    for x in preorder(e, _certain_operands):
        if isinstance(x, Select) and isinstance(x.a, Load) and isinstance(x.b, Const):
            conditions, others = condition_parts(x.cond)
            if not others and found.get(x.a, conditions) == conditions:
                found[x.a] = conditions
    return found


def _certain_operands(e: Expr) -> tuple[Expr, ...]:
    return (e.cond,) if isinstance(e, Select) else below(e)
