"""Editor: a Graph in, another one out, rewritten node by node from the inputs to the outputs.

A rule sees a node with its inputs as they are in the new graph, and returns what stands for the
node's one result, or None to keep it. Shapes and constant folding come from the builder; equal
nodes are made once; transposes and reshapes of each other are joined as they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container
from math import prod
from typing import Any

from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Array, Graph, Node, Operator, Settings, Value
from tilesmith.graph.strides import Shape
from tilesmith.ops.transform import reshape, transpose
from tilesmith.ops.views import slice_

Rule = Callable[["Editor", Node, tuple[Value, ...]], Value | None]


def edited(graph: Graph, rule: Rule, unfolded: Container[Operator] = ()) -> Graph:
    """The graph with every node put through a rule. Operators in `unfolded` are kept even if their
    operands are constants.
    """
    editor = Editor(graph, unfolded)
    for node in graph.nodes:
        inputs = tuple(editor.new[x] for x in node.inputs)
        editor.node = node
        result = rule(editor, node, inputs)
        several = editor.kept(node, inputs) if result is None else (result,)
        for old, new in zip(node.outputs, several, strict=True):
            editor.set(old, new)
        editor.done.add(node.name)
    return editor.builder.finish({name: editor.new[value] for name, value in graph.outputs})


class Editor:
    """The new graph as far as it is built."""

    def __init__(self, graph: Graph, unfolded: Container[Operator] = ()) -> None:
        self.graph = graph
        self.builder = GraphBuilder(graph.name, unfolded)
        self.new: dict[str, Value] = {}  # by the value's name in the old graph
        self.node: Node | None = None  # the one that is being rewritten
        self.done: set[str] = set()  # nodes of the old graph that are rewritten
        self._made: dict[str, Node] = {}
        self._readers: dict[str, list[Node]] = {}  # nodes of the new graph, by what they read
        self._old: dict[str, list[str]] = {}  # values of the old graph, by their new one
        self._known: dict[Any, tuple[Value, ...]] = {}
        self.stacked: dict[tuple[str, ...], Value] = {}  # constants made of several
        for x in graph.inputs:
            v = graph.values[x]
            self.set(x, self.builder.input(x, v.shape, v.dtype))
        for x, a in graph.constants.items():
            self.set(x, self.builder.constant(a, x))

    def set(self, old: str, new: Value) -> None:
        self.new[old] = new
        self._old.setdefault(new.name, []).append(old)

    def add(
        self, function: Operator, *inputs: Value, instead_of: Node | None = None, **settings: Any
    ) -> Value:
        """One node more; one that exists already is not made again. It comes from the node of the
        model that is being rewritten, or from another one that it stands for.
        """
        (made,) = self.add_several(function, *inputs, instead_of=instead_of, **settings)
        return made

    def add_several(
        self, function: Operator, *inputs: Value, instead_of: Node | None = None, **settings: Any
    ) -> tuple[Value, ...]:
        """The same for an operator of several results."""
        key = (function, tuple(v.name for v in inputs), Settings.of(dict(sorted(settings.items()))))
        if key not in self._known:
            from_node = self.node if instead_of is None else instead_of
            origin = from_node.origin if from_node is not None else ""
            name = self.node.outputs[0] if self.node is not None else ""
            self._known[key] = self.builder.add_several(
                function, *inputs, name=name, origin=origin, **settings
            )
            if (last := self.builder.last) is not None:
                self._made |= dict.fromkeys(last.outputs, last)
                for x in last.inputs:
                    self._readers.setdefault(x, []).append(last)
        return self._known[key]

    def constant(self, array: Any, name: str = "const") -> Value:
        return self.builder.constant(array, name)

    def array(self, value: Value) -> Array | None:
        return self.builder.array(value)

    def maker(self, value: Value) -> Node | None:
        """The node of the new graph that makes a value."""
        return self._made.get(value.name)

    def source(self, value: Value, function: Operator) -> tuple[Value, Node] | None:
        """The first input of the node that makes a value, if that applies `function`."""
        node = self.maker(value)
        if node is None or node.function is not function:
            return None
        return self.builder.value(node.inputs[0]), node

    def is_inside(self, value: Value, nodes: Collection[Node] = ()) -> bool:
        """Whether nobody reads a value of the new graph but these nodes of the new graph and the
        node that is being rewritten: then it need not be there once that is rewritten.
        """
        names = {n.name for n in nodes}
        for n in self._readers.get(value.name, ()):
            if n.name not in names and not self._is_dead(n):
                return False
        own = None if self.node is None else self.node.name
        for old in self._old.get(value.name, ()):
            waiting = (n.name for n in self.graph.consumers.get(old, ()) if n.name not in self.done)
            if old in self.graph.returned or any(name != own for name in waiting):
                return False
        return True

    def _is_dead(self, node: Node, depth: int = 4) -> bool:
        """Whether nobody reads what a node of the new graph makes, because its readers were
        rewritten. Chains longer than `depth` count as alive.
        """
        for x in node.outputs:
            for old in self._old.get(x, ()):
                readers = self.graph.consumers.get(old, ())
                if old in self.graph.returned or any(n.name not in self.done for n in readers):
                    return False
            if not all(depth and self._is_dead(n, depth - 1) for n in self._readers.get(x, ())):
                return False
        return True

    def kept(self, node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        """The node as it was; movements are joined with those before them."""
        if node.function is transpose:
            axes = node.setting("axes")
            rank = len(inputs[0].shape)
            return (self.transpose(inputs[0], tuple(range(rank))[::-1] if axes is None else axes),)
        if node.function is reshape:
            return (self.reshape(inputs[0], self.graph.values[node.outputs[0]].shape),)
        if node.function is slice_:
            return (self.slice(inputs[0], *_limits(node, inputs[0].shape)),)
        return self.add_several(node.function, *inputs, **dict(node.settings))

    def transpose(self, x: Value, axes: tuple[int, ...]) -> Value:
        """Dimension d of the result is dimension axes[d] of x."""
        axes = tuple(a % len(x.shape) for a in axes)
        if (found := self.source(x, transpose)) is not None:
            inner = found[1].setting("axes")
            axes = tuple(inner[a] for a in axes)
            x = found[0]
        elif (merged := self._before_merge(x, axes)) is not None:
            return merged
        moved = [a for a in axes if x.shape[a] != 1]
        if moved == sorted(moved):  # only dimensions of extent 1 change places
            return self.reshape(x, tuple(x.shape[a] for a in axes))
        return self.add(transpose, x, axes=axes)

    def _before_merge(self, x: Value, axes: tuple[int, ...]) -> Value | None:
        """transpose(reshape(transpose(y))), where the reshape merges dimensions, as a reshape of
        one transpose: the dimensions that it merges move together.
        """
        reshaped = self.source(x, reshape)
        if reshaped is None or self.source(reshaped[0], transpose) is None:
            return None
        groups = _merged_dims(reshaped[0].shape, x.shape)
        if groups is None:
            return None
        inner = self.transpose(reshaped[0], tuple(d for a in axes for d in groups[a]))
        return self.reshape(inner, tuple(x.shape[a] for a in axes))

    def reshape(self, x: Value, shape: tuple[int, ...]) -> Value:
        if (found := self.source(x, reshape)) is not None:
            x = found[0]
        if x.shape == tuple(shape):
            return x
        if (sliced := self._before_slice(x, tuple(shape))) is not None:
            return sliced
        if (found := self.source(x, transpose)) is not None:
            source, axes = found[0], found[1].setting("axes")
            if (order := _unit_dims_apart(x.shape, shape)) is not None:
                return self._before_transpose(source, axes, order, tuple(shape))
            # Without dimensions of extent 1, which may come from another reshape: then the
            # transpose can be the order in which its source is stored.
            if self.source(source, reshape) is not None:
                big = [d for d, n in enumerate(source.shape) if n != 1]
                inner = self.reshape(source, tuple(source.shape[d] for d in big))
                x = self.transpose(inner, tuple(big.index(a) for a in axes if a in big))
                if x.shape == tuple(shape):
                    return x
        return self.add(reshape, x, shape=tuple(shape))

    def slice(self, x: Value, starts: Shape, stops: Shape, steps: Shape) -> Value:
        """A slice of a transpose as the transpose of a slice."""
        if (found := self.source(x, transpose)) is not None:
            source, axes = found[0], found[1].setting("axes")
            back = [axes.index(d) for d in range(len(axes))]
            inner = self.slice(source, *(tuple(t[d] for d in back) for t in (starts, stops, steps)))
            return self.transpose(inner, axes)
        return self.add(slice_, x, starts=starts, stops=stops, steps=steps)

    def _before_slice(self, x: Value, shape: Shape) -> Value | None:
        """reshape(slice(x)) along one axis as slice(reshape(x)): a reshape of something in memory
        is free, and the slice then is an index expression of whoever reads it.
        """
        if (found := self.source(x, slice_)) is None or prod(x.shape) == 0:
            return None
        whole, node = found
        cut = [d for d, (n, m) in enumerate(zip(whole.shape, x.shape, strict=True)) if n != m]
        steps = node.setting("steps") or (1,) * len(cut)
        if len(cut) != 1 or any(step not in (None, 1) for step in steps):
            return None
        (d,) = cut
        first = slice(node.setting("starts")[d], None).indices(whole.shape[d])[0]
        below = prod(x.shape[d + 1 :])
        for k in range(len(shape)):
            inner = prod(shape[k + 1 :])
            if prod(shape[:k]) != prod(x.shape[:d]) or first * below % inner:
                continue
            if whole.shape[d] * below % inner == 0:
                extents = (*shape[:k], whole.shape[d] * below // inner, *shape[k + 1 :])
                at = first * below // inner
                begin = tuple(at if j == k else 0 for j in range(len(shape)))
                ends = tuple(a + n for a, n in zip(begin, shape, strict=True))
                return self.slice(self.reshape(whole, extents), begin, ends, (1,) * len(shape))
        return None

    def _before_transpose(
        self, x: Value, axes: tuple[int, ...], kept: tuple[int | None, ...], shape: tuple[int, ...]
    ) -> Value:
        """reshape(transpose(x)), where the reshape adds and drops dimensions of extent 1 only, as
        transpose(reshape(x)): a reshape of something in memory is free.
        """
        wanted = [axes[d] for d in kept if d is not None]  # dimensions of x, in the result's order
        inner = self.reshape(x, tuple(x.shape[a] for a in sorted(wanted)))
        order = {a: k for k, a in enumerate(sorted(wanted))}
        if len(wanted) == len(shape):
            return self.transpose(inner, tuple(order[a] for a in wanted))
        spread = self.reshape(inner, inner.shape + (1,) * (len(shape) - len(wanted)))
        rest = iter(range(len(wanted), len(shape)))
        named = iter(wanted)
        return self.transpose(
            spread, tuple(next(rest) if d is None else order[next(named)] for d in kept)
        )


def _limits(node: Node, shape: Shape) -> tuple[Shape, Shape, Shape]:
    """Starts, stops and steps of a slice as numbers."""
    steps = node.setting("steps") or (None,) * len(shape)
    given = zip(node.setting("starts"), node.setting("stops"), steps, shape, strict=True)
    ranges = [slice(a, b, c).indices(n) for a, b, c, n in given]
    # The element before the first cannot be named by its place.
    stops = tuple(b if b >= 0 else -n - 1 for (_, b, _), n in zip(ranges, shape, strict=True))
    return tuple(r[0] for r in ranges), stops, tuple(r[2] for r in ranges)


def _merged_dims(old: Shape, new: Shape) -> list[tuple[int, ...]] | None:
    """For each new dimension the old ones that it consists of; None if one is divided."""
    groups: list[tuple[int, ...]] = []
    left = list(range(len(old)))
    for n in new:
        group: list[int] = []
        while left and (not group or prod(old[d] for d in group) != n):
            group.append(left.pop(0))
        groups.append(tuple(group))
    if left and groups:
        groups[-1] += tuple(left)
    if any(not g or prod(old[d] for d in g) != n for g, n in zip(groups, new, strict=True)):
        return None
    return groups


def _unit_dims_apart(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int | None, ...] | None:
    """For each new dimension the old one it is, None for an added one of extent 1; None if the
    shapes differ in more than dimensions of extent 1.
    """
    big = [d for d, n in enumerate(old) if n != 1]
    if [old[d] for d in big] != [n for n in new if n != 1] or prod(new) == 0:
        return None
    left = iter(big)
    return tuple(None if n == 1 else next(left) for n in new)
