"""What kind of work a node is, read from the stages that its operator states: a view, element-wise
work, or a reduction. No operator is named here, so a new one needs no entry.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from enum import Enum
from functools import lru_cache
from math import prod

from tilesmith.base.dataclass import dataclass
from tilesmith.expr.dsl import Stage, Tensor
from tilesmith.expr.dynamic import loads_of
from tilesmith.expr.ints import Int, var
from tilesmith.expr.nodes import Const, Expr, IntValue, Load, Select, children
from tilesmith.expr.walk import preorder
from tilesmith.graph.graph import Graph, Node, Operator, Settings
from tilesmith.graph.join import join
from tilesmith.graph.shapes import Applied, Type, applied
from tilesmith.graph.strides import row_major, strides_within
from tilesmith.ops.transform import reshape
from tilesmith.ops.views import slice_

# An operator with such a parameter depends on the order of its operands' dimensions, so transposes
# and reshapes cannot be moved past it.
_AXIS_WORDS = frozenset({"axis", "axes", "layout", "groups"})


class Kind(Enum):
    ALIAS = "alias"  # the same bytes under another shape, or some of them
    JOIN = "join"  # a place for what others write
    VIEW = "view"  # elements read elsewhere, nothing computed
    ELEMENTWISE = "elementwise"  # every result from a few elements, without a reduction
    REDUCTION = "reduction"  # sums and the like, each input element read about once
    HEAVY = "heavy"  # reductions that read elements many times: convolutions, products


@dataclass(frozen=True, slots=True)
class Work:
    """A node's kind, and which inputs it reads one to one: at the very place it writes."""

    kind: Kind
    matched: frozenset[int]
    reads: tuple[float, ...]  # how often an element of each input is read, on average
    # Whether every input is read as NumPy broadcasts it: the operator means the same for any shape.
    pointwise: bool


def work_of(graph: Graph, node: Node) -> Work:
    types = tuple((graph.values[x].shape, graph.values[x].dtype) for x in node.inputs)
    work = _stated_work(node.function, types, node.settings)
    if node.function is join:
        return replace(work, kind=Kind.JOIN, pointwise=False)
    if alias_offset(graph, node) is not None:
        return replace(work, kind=Kind.ALIAS, pointwise=False)
    return work


@lru_cache(maxsize=4096)  # every pass asks, and networks repeat their nodes
def _stated_work(function: Operator, types: tuple[Type, ...], settings: Settings) -> Work:
    """What an operator's stages say, wherever its arrays may lie."""
    done = applied(function, types, settings)
    stages = stages_of(done.outputs)
    reads = tuple(_reads(x, stages) for x in done.inputs)
    matched = frozenset(
        k for k, x in enumerate(done.inputs) if _is_matched(x, stages, done.outputs)
    )
    kind = _kind(done, stages, reads)
    pointwise = (
        kind is Kind.ELEMENTWISE
        and not _AXIS_WORDS & parameters_of(function)
        and all(_broadcasts(s, done.outputs) for s in stages)
    )
    return Work(kind, matched, reads, pointwise)


def is_movement(graph: Graph, node: Node) -> bool:
    """Whether each result is an element of an input, or a constant, wherever it was read: of
    slices, transposes, concatenations and gathers.
    """
    types = tuple((graph.values[x].shape, graph.values[x].dtype) for x in node.inputs)
    return node.function is join or _only_moves(node.function, types, node.settings)


@lru_cache(maxsize=4096)
def _only_moves(function: Operator, types: tuple[Type, ...], settings: Settings) -> bool:
    stages = stages_of(applied(function, types, settings).outputs)
    return all(
        s.combiner is None and not s.updates and not s.running and all(map(_moves, s.values))
        for s in stages
    )


def parameters_of(function: Operator) -> frozenset[str]:
    """The names of what an operator can be given."""
    code = inspect.unwrap(function).__code__  # operators are wrapped in the check of arguments
    return frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def stages_of(outputs: tuple[Tensor, ...]) -> tuple[Stage, ...]:
    """All stages behind these tensors, producers first."""
    found: dict[int, Stage] = {}
    stack: list[tuple[Stage, bool]] = [(t.stage, False) for t in outputs if t.stage is not None]
    while stack:
        stage, done = stack.pop()
        if id(stage) in found:
            continue
        if done:
            found[id(stage)] = stage
            continue
        stack.append((stage, True))
        for load in _loads(stage):
            inner = load.buffer.tensor.stage  # type: ignore[attr-defined]
            if inner is not None:
                stack.append((inner, False))
    return tuple(found.values())


def _loads(stage: Stage) -> list[Load]:
    return stage.loads


def _points(stage: Stage) -> int:
    return prod(e.number for _, e in (*stage.axes, *stage.reduce))


def _reads(x: Tensor, stages: tuple[Stage, ...]) -> float:
    """How often an element is read. Stages without a reduction, such as padding, are computed again
    at each read of their result.
    """
    size = max(1, prod(e.number for e in x.shape_ints))
    most = 0.0
    for s in stages:
        count = sum(load.buffer is x.uid for load in _loads(s))
        if count and s.combiner is None:
            again = max((_reads(t, stages) for t in s.tensors), default=1.0)
            most = max(most, count * _points(s) / size * max(1.0, again))
        elif count:
            most = max(most, count * _points(s) / size)
    return most


def _is_matched(x: Tensor, stages: tuple[Stage, ...], outputs: tuple[Tensor, ...]) -> bool:
    """Whether every read of x is at the index that is written, in a stage of the output's shape,
    which is that of x: the first part of a concatenation is no such x.
    """
    found = False
    if x.shape_ints != outputs[0].shape_ints:
        return False
    for s in stages:
        for load in _loads(s):
            if load.buffer is not x.uid:
                continue
            found = True
            if s.reduce or s.updates or s.running or len(load.index) != len(s.axes):
                return False
            for p, (n, e) in zip(load.index, s.axes, strict=True):
                if p != var(n) and not (p.const == 0 and e.const == 1):
                    return False
            if tuple(e for _, e in s.axes) != outputs[0].shape_ints:
                return False
    return found


def _broadcasts(stage: Stage, outputs: tuple[Tensor, ...]) -> bool:
    axes = [var(n) for n, _ in stage.axes]
    if tuple(e for _, e in stage.axes) != outputs[0].shape_ints or len(outputs) > 1:
        return False
    if any(n.names for n in _numbers(stage)):
        return False
    for load in _loads(stage):
        shape = load.buffer.tensor.shape_ints  # type: ignore[attr-defined]
        if len(shape) > len(axes):
            return False
        own = axes[len(axes) - len(shape) :]
        for p, axis, extent in zip(load.index, own, shape, strict=True):
            if p != axis and not (p.const == 0 and extent.const == 1):
                return False
    return True


def _numbers(stage: Stage) -> list[Int]:
    """The whole numbers that a stage computes with; where axes are among them, it does not mean
    the same everywhere.
    """
    found = (e for v in stage.values for e in preorder(v, children))
    return [e.value for e in found if isinstance(e, IntValue)]


def alias_offset(graph: Graph, node: Node) -> int | None:
    """How many elements into its input the result of a node begins, if it shows the same bytes: a
    reshape does, and a slice of contiguous memory.
    """
    if node.function is reshape:
        return 0
    if node.function is not slice_ or graph.is_constant(node.inputs[0]):
        return None
    x, y = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
    strides = row_major(x.shape)
    if y.size == 0 or strides_within(y.shape, strides) is not None:
        return None
    maker = graph.producer.get(x.name)
    if maker is not None and work_of(graph, maker).kind is Kind.VIEW:
        return None  # not in memory
    steps = node.setting("steps") or (None,) * len(x.shape)
    first = 0
    for d, (start, step) in enumerate(zip(node.setting("starts"), steps, strict=True)):
        if y.shape[d] > 1 and step not in (None, 1):
            return None
        first += slice(start, None, step).indices(x.shape[d])[0] * strides[d]
    return first


def _kind(done: Applied, stages: tuple[Stage, ...], reads: tuple[float, ...]) -> Kind:
    reducing = [s for s in stages if s.combiner is not None]
    if not reducing:
        single = len(stages) == 1 and len(stages[0].values) == 1 and len(done.inputs) == 1
        return Kind.VIEW if single and _moves(stages[0].values[0]) else Kind.ELEMENTWISE
    products = [s for s in reducing if sum(load.buffer in _names(done) for load in _all(s)) > 1]
    return Kind.HEAVY if products and max(reads) > 4 else Kind.REDUCTION


def _names(done: Applied) -> set[str]:
    return {x.uid for x in done.inputs}


def _all(stage: Stage) -> list[Load]:
    """The loads of a stage, and of the element-wise stages before it such as padding."""
    found, stack = [], [stage]
    while stack:
        for load in _loads(stack.pop()):
            inner = load.buffer.tensor.stage  # type: ignore[attr-defined]
            if inner is not None and inner.combiner is None:
                stack.append(inner)
            else:
                found.append(load)
    return found


def _moves(e: Expr) -> bool:
    """Whether a value is read somewhere, or is a constant outside of it."""
    match e:
        case Load():
            return True
        case Select(cond=cond, a=a, b=b):
            return not loads_of(cond) and _moves(a) and _moves(b)
        case Const():
            return True
    return False
