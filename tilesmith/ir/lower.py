"""Lowers tensors to an unscheduled Function: one loop nest per stage, producers first."""

from __future__ import annotations

from collections.abc import Sequence

from tilesmith.base.errors import ExpressionError
from tilesmith.base.given import checks_given
from tilesmith.expr.dsl import Running, Stage, Tensor, Updates
from tilesmith.expr.dynamic import map_dynamic, map_loads
from tilesmith.expr.ints import Int, var
from tilesmith.expr.nodes import Expr, Load
from tilesmith.expr.sizes import declared_in
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, Buffer, For, Iter, Stmt, Write
from tilesmith.ir.verify import verify


@checks_given(error=ExpressionError)
def function(
    tensors: Sequence[Tensor], name: str = "main", constants: Sequence[Tensor] = ()
) -> Function:
    """The Function that computes tensors from placeholders: one plain loop nest for each stage.

    - `tensors`: the parameters in calling order, inputs first, then outputs.
    - `name`: the name of the kernel.
    - `constants`: inputs that stay the same from call to call, such as weights. Tuning may choose
      their memory layout; `kernel.pack` converts an array to it, once.

    Example:

        X = ts.placeholder((4, 4), name="X")
        Y = ts.compute((4, 4), lambda i, j: X[j, i], name="Y")
        print(ts.function([X, Y], name="transpose"))
    """
    for t in tensors:
        if not isinstance(t, Tensor):
            raise ExpressionError(
                f"function({name!r}) is given {t!r}; it takes tensors: inputs, then outputs"
            )
    inputs = [t for t in tensors if t.stage is None]
    outputs = [t for t in tensors if t.stage is not None]
    if not outputs:
        raise ExpressionError(f"function({name!r}) has no output; add a computed tensor")
    if [*inputs, *outputs] != list(tensors):
        raise ExpressionError(f"function({name!r}): list the inputs first, then the outputs")
    if len({id(t) for t in tensors}) != len(tensors):
        raise ExpressionError(f"function({name!r}) lists a tensor twice")
    for t in constants:
        if not any(t is x for x in inputs):
            raise ExpressionError(
                f"function({name!r}): the constant {t!r} is none of its inputs; list it there too"
            )
    names = _name_params(tensors, name)
    stages = _in_order(outputs, inputs, name)
    _name_rest(stages, names)
    labels = _labels(stages, names)
    buffers = [
        Buffer(names[t.uid], t.shape_ints, t.dtype)
        for s in stages
        for t in s.tensors
        if t not in outputs
    ]
    for s, label in zip(stages, labels, strict=True):
        if s.running is not None and all(e.const != 0 for _, e in s.axes):
            shape = tuple(e for n, e in s.axes if n != s.running.axis)
            buffers.append(Buffer(f"{label}.partial", shape, s.values[0].dtype))
    fixed = {id(t) for t in constants}
    params = [
        Buffer(names[t.uid], t.shape_ints, t.dtype, "constant" if id(t) in fixed else "global")
        for t in tensors
    ]
    body: tuple[Stmt, ...] = ()
    for s, label in zip(stages, labels, strict=True):
        body += _nest(s, label, names)
    declared = declared_in((t.shape_ints for t in tensors), name)
    func = Function(name, tuple(params), len(outputs), tuple(buffers), body, declared=declared)
    verify(func)
    return func


def _name_params(tensors: Sequence[Tensor], func: str) -> dict[str, str]:
    names: dict[str, str] = {}
    for t in tensors:
        if t.name in names.values():
            raise ExpressionError(
                f"function({func!r}) has two parameters named {t.name!r}; name each differently"
            )
        names[t.uid] = t.name
    return names


def _name_rest(stages: list[Stage], names: dict[str, str]) -> None:
    """Names intermediate tensors, with a number appended where the name is taken."""
    taken = set(names.values())
    counts: dict[str, int] = {}
    for s in stages:
        for t in s.tensors:
            if t.uid not in names:
                unique = t.name
                while unique in taken:
                    counts[t.name] = counts.get(t.name, 0) + 1
                    unique = f"{t.name}_{counts[t.name]}"
                names[t.uid] = unique
                taken.add(unique)


def _in_order(outputs: list[Tensor], inputs: list[Tensor], func: str) -> list[Stage]:
    order: dict[int, Stage] = {}
    given = {id(t) for t in inputs}

    def visit(root: Tensor) -> None:
        # iterative: a chain of stages may be longer than the Python stack
        stack: list[tuple[Tensor, bool]] = [(root, False)]
        while stack:
            t, done = stack.pop()
            if t.stage is None:
                if id(t) not in given:
                    raise ExpressionError(
                        f"{t.name} is read but is not a parameter of function({func!r}); "
                        "list it among the inputs"
                    )
                continue
            if done:
                order.setdefault(id(t.stage), t.stage)
            elif id(t.stage) not in order:
                stack.append((t, True))
                for load in t.stage.loads:
                    stack.append((load.buffer.tensor, False))  # type: ignore[attr-defined]

    for t in outputs:
        visit(t)
    return list(order.values())


def _labels(stages: list[Stage], names: dict[str, str]) -> list[str]:
    """The name of each stage's block: that of its tensor, or the stage's own if it has several
    tensors.
    """
    taken = {names[s.tensors[0].uid] for s in stages if len(s.tensors) == 1}
    labels = []
    for s in stages:
        label, n = names[s.tensors[0].uid], 1
        if len(s.tensors) > 1:
            label = s.name
            while label in taken:
                label, n = f"{s.name}_{n}", n + 1
            taken.add(label)
        labels.append(label)
    return labels


def _nest(s: Stage, label: str, names: dict[str, str]) -> tuple[Stmt, ...]:
    def rename(load: Load) -> Expr:
        return Load(names[load.buffer], load.index, load.dtype)

    if s.running is not None:
        empty = any(e.const == 0 for _, e in s.axes)
        return () if empty else (_loops(_running_block(s, s.running, label, names)),)
    index: tuple[Int, ...] = tuple(var(n) for n, _ in s.axes)
    nothing = any(e.const == 0 for _, e in s.reduce)
    if nothing:  # a reduction over an empty range is the identity
        assert s.combiner is not None
        values: tuple[Expr, ...] = s.combiner.identity
    else:
        values = tuple(map_loads(v, rename) for v in s.values)
    reduce = () if nothing else s.reduce
    iters = tuple(Iter(n, "S", e, var(f"{label}.{n}")) for n, e in s.axes) + tuple(
        Iter(n, "R", e, var(f"{label}.{n}")) for n, e in reduce
    )
    writes = tuple(Write(names[t.uid], index, v) for t, v in zip(s.tensors, values, strict=True))
    reduces = bool(reduce) and s.combiner is not None
    stmt = Block(label, iters, writes, s.combiner if reduces else None, reduces)
    if s.combiner is not None and not s.reduce:  # sum over no axis at all
        stmt = Block(label, iters, writes)
    first = _loops(stmt)
    if s.updates is None or any(e.const == 0 for _, e in s.updates.axes):
        return (first,)
    return first, _loops(_update_block(s, s.updates, f"{label}.updates", names))


def _running_block(s: Stage, r: Running, label: str, names: dict[str, str]) -> Block:
    def rename(load: Load) -> Expr:
        return Load(names[load.buffer], load.index, load.dtype)

    iters = tuple(Iter(n, "R" if n == r.axis else "S", e, var(f"{label}.{n}")) for n, e in s.axes)
    joined, added = (map_loads(v, rename) for v in s.values)
    partial = tuple(var(i.name) for i in iters if i.kind == "S")
    writes = (
        Write(f"{label}.partial", partial, joined),
        Write(names[s.tensors[0].uid], r.index, added),
    )
    return Block(label, iters, writes, s.combiner, init=True, domain=r.inside)


def _loops(b: Block) -> Stmt:
    stmt: Stmt = b
    for i in reversed(b.iters):
        stmt = For(f"{b.name}.{i.name}", i.extent, (stmt,), owner=b.name)
    return stmt


def _update_block(s: Stage, u: Updates, label: str, names: dict[str, str]) -> Block:
    """Axes that are an index themselves are spatial: different points update other elements."""

    def rename(load: Load) -> Expr:
        return Load(names[load.buffer], load.index, load.dtype)

    own = {p.name for p in u.index}
    iters = tuple(Iter(n, "S" if n in own else "R", e, var(f"{label}.{n}")) for n, e in u.axes)
    index = tuple(map_dynamic(p, rename) for p in u.index)
    write = Write(names[s.tensors[0].uid], index, map_loads(u.value, rename))
    inside = frozenset(map_dynamic(p, rename) for p in u.inside)
    return Block(label, iters, (write,), s.combiner, domain=inside)
