"""A Program in, an OpenPlan out: imports it at the points that its sizes are generalised from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilesmith.base.errors import GraphError, TilesmithError
from tilesmith.expr.sizes import OpenSize
from tilesmith.graph.generalise import Divides, open_plan
from tilesmith.graph.graph import Array, Graph, Value
from tilesmith.graph.open_numbers import Instance, OpenNumbers
from tilesmith.graph.open_plan import OpenPlan, size_names
from tilesmith.graph.partition import Partition
from tilesmith.graph.passes.concat import join_in_place
from tilesmith.graph.pipeline import Pass, run_passes
from tilesmith.graph.program import Cursor, Program, Signature
from tilesmith.graph.same_results import have_same_results
from tilesmith.graph.size_fit import CannotOpen, NeedsPoint, ints_in, value_at

_LEAST = 11  # of the sizes of an instance: small ones have a structure of their own


class Opening:
    """A Program, and how its graphs become groups. Parts of a concatenation are not written in
    place: their strides would follow the sizes.
    """

    def __init__(
        self, program: Program, sizes: Mapping[str, OpenSize], passes: Sequence[Pass],
        groups: Partition,
    ) -> None:  # fmt: skip
        """`sizes` are by the names of dimensions."""
        self.program, self.groups = program, groups
        self.passes = tuple(p for p in passes if p is not join_in_place)
        self.names = size_names(program.inputs)
        self.sizes = [sizes[d] for d in self.names]
        self._imports: dict[tuple[int, ...], Graph] = {}  # while it is opened
        self._instances: dict[tuple[int, ...], Instance] = {}
        self.first: dict[str, int] = {}  # the point with the smallest sizes
        self._imported: OpenPlan | None = None  # the numbers of the graph as imported

    def instance(self, sizes: Mapping[str, int]) -> Instance:
        """The model at certain sizes, by their names with the #."""
        key = tuple(sizes.values())
        if key not in self._instances:
            graph = run_passes(self.kept(sizes), self.passes)
            self._instances[key] = Instance(dict(sizes), graph, tuple(self.groups(graph)))
        return self._instances[key]

    def kept(self, sizes: Mapping[str, int]) -> Graph:
        """As imported; imports of the same sizes are made once while it is opened."""
        key = tuple(sizes.values())
        if key not in self._imports:
            self._imports[key] = self.imported(sizes)
        return self._imports[key]

    def small(self) -> Graph | None:
        """The graph as imported at small sizes, if it can be."""
        try:
            return self.kept(next(self._points()))
        except GraphError:
            return None

    def imported(self, sizes: Mapping[str, int]) -> Graph:
        start = self.program.start
        if any(s.dims is None for s in self.program.inputs):
            raise CannotOpen("the number of dimensions of an input is open")
        if start.contents:
            raise _by_contents(start)
        types = {s.name: self._type(s, sizes) for s in self.program.inputs}
        stage = self.program.stage(start, types, {})
        if stage.host is not None:
            raise CannotOpen(f"{stage.host.op} {stage.host.name!r} runs on the host")
        if stage.cursor is not None:
            raise _by_contents(stage.cursor)
        return stage.graph

    def _type(self, s: Signature, sizes: Mapping[str, int]) -> Value:
        dims = (sizes[self.names[d]] if isinstance(d, str) else d for d in s.dims or ())
        return Value(s.name, tuple(dims), s.dtype)

    def plan(self, divides: Divides) -> OpenPlan:
        """Raises CannotOpen with the reason where there is none. `divides` is asked about groups
        that were joined.
        """
        try:
            return self._plan(divides)
        finally:
            self._instances.clear()
            self._imports.clear()

    def _plan(self, divides: Divides) -> OpenPlan:
        if not self.names:
            raise CannotOpen("it has no open dimensions")
        reason: GraphError | None = None
        for largest in self._largest():
            try:
                self._compare(largest)
                return self._to_the_end(self._generalised(largest, divides))
            except GraphError as error:
                reason = reason or error
        assert reason is not None
        if isinstance(reason, CannotOpen):
            raise reason
        raise CannotOpen(f"it cannot be imported at other sizes: {reason}") from reason

    def _declared(self) -> list[OpenSize]:
        return [
            OpenSize(self.names[d].removeprefix("#"), s.range, s.samples)
            for d, s in zip(self.names, self.sizes, strict=True)
        ]

    def _generalised(self, largest: dict[str, int], divides: Divides) -> OpenPlan:
        """From two points, or three where two do not say enough."""
        declared = self._declared()
        first, second = self._points()
        end = self.instance(largest)
        try:
            return open_plan(self.program.inputs, declared, [self.instance(first), end], divides)
        except NeedsPoint:
            every = [self.instance(first), self.instance(second), end]
            return open_plan(self.program.inputs, declared, every, divides)

    def _compare(self, largest: dict[str, int]) -> None:
        """Requires that imports at several sizes have one form, before any passes run. One of them
        is just behind another: a number that follows from a remainder, or that an importer has cut
        off at 0 or at a length, as the start of the last eight rows is, grows there in another way
        than up to the largest size.
        """
        self.first = next(self._points())
        points = [self.first, {n: v + 1 for n, v in self.first.items()}, largest]
        imports = [Instance(dict(p), self.kept(p), ()) for p in points]
        self._imported = OpenNumbers(self.program.inputs, self._declared(), imports).plan()

    def difference(self, sizes: Mapping[str, int], graph: Graph | None = None) -> str | None:
        """Why the model at certain sizes is not what it is at others; None if it is. Passes may
        write a graph in another way at small sizes, so it is compared as imported. `graph` is the
        import at these sizes, if it is there.
        """
        assert self._imported is not None
        try:
            if graph is None:
                graph = self.imported(sizes)
            _require_same(self._imported, graph, sizes)
        except TilesmithError as error:
            return str(error)
        return None

    def has_same_results(self, graph: Graph, sizes: Mapping[str, int]) -> bool:
        """Whether the model as imported at certain sizes computes what it does at others, though
        it may leave out or spell out what changes nothing at these.
        """
        plan = self._imported
        assert plan is not None
        try:
            values = plan.values_at(sizes)
            # A place below 0 would count from the end, which the open form never does.
            if any(value_at(p, values) < 0 for s in plan.settings.values() for p in ints_in(s)):
                return False
            return have_same_results(plan.graph_at(sizes), graph)
        except TilesmithError:
            return False

    def holds_at_the_ends(self, plan: OpenPlan) -> bool:
        """Whether the plan is the model at the ends of the ranges, if it was generalised from
        smaller sizes only, at which a part of a length may be all of it.
        """
        ends = self._ends()
        if all(plan.largest[n] >= v for n, v in ends.items()):
            return True
        try:
            graph = self.imported(ends)
        except GraphError:
            return False
        return self.difference(ends, graph) is None or self.has_same_results(graph, ends)

    def _to_the_end(self, plan: OpenPlan) -> OpenPlan:
        """With the constants of the ends of the ranges, where the graph there is another one than
        at most sizes: a length may happen to be that of something else.
        """
        ends = self._ends()
        if not plan.cut or all(plan.largest[n] >= v for n, v in ends.items()):
            return plan
        values = plan.values_at(ends)
        kept = dict(plan.graph.constants)
        for x in plan.cut:
            whole = self._whole(ends, x, kept[x], plan.shape_at(x, values))
            if whole is None:
                return plan
            kept[x] = whole
        return replace(plan, graph=replace(plan.graph, constants=kept), largest=ends)

    def _whole(
        self, ends: dict[str, int], name: str, part: Array, shape: tuple[int, ...]
    ) -> Array | None:
        """The constant of the graph at the ends of the ranges that another one is a part of: as the
        model has it, or as passes made it.
        """
        try:
            found = _larger(self.kept(ends), name, part, shape)
            if found is None:
                found = _larger(self.instance(ends).graph, name, part, shape)
        except GraphError:
            return None
        return found

    def _points(self) -> Iterator[dict[str, int]]:
        """Two points of different primes in the ranges, or behind them where these are small."""
        taken: set[int] = set()
        for _ in range(2):
            point = {}
            for name, size in zip(self.names.values(), self.sizes, strict=True):
                p = _prime_from(max(_LEAST, size.limits[0], *taken, 0) + len(taken))
                taken.add(p)
                point[name] = p
            yield point

    def _ends(self) -> dict[str, int]:
        """The ends of the ranges, at least something larger than the other points."""
        second = [*self._points()][-1]
        behind = _prime_from(max(second.values()) + 1)
        return {n: max(behind, s.limits[1]) for n, s in zip(second, self.sizes, strict=True)}

    def _largest(self) -> Iterator[dict[str, int]]:
        """The ends of the ranges, or a bit less where the graph is another one there, or a point
        just behind the others where that does not fit into memory.
        """
        ends = self._ends()
        yield ends
        least = max(v for p in self._points() for v in p.values())
        below = {n: v - 1 - k if v - 1 - k > least else v for k, (n, v) in enumerate(ends.items())}
        if below != ends:
            yield below
        behind = {}
        for name in ends:
            least = behind[name] = _prime_from(least + 1)
        if behind != ends:
            yield behind


def _by_contents(cursor: Cursor) -> CannotOpen:
    what = ", ".join(sorted(cursor.contents)) or "a value"
    return CannotOpen(f"the contents of {what} decide what it computes")


def _larger(graph: Graph, name: str, part: Array, shape: tuple[int, ...]) -> Array | None:
    """The constant of this shape of which `part` is the beginning. It may have another name where
    it is a weight as a whole.
    """
    others = [a for a in graph.constants.values() if a.dtype == part.dtype]
    for a in [a for a in (graph.constants.get(name), *others) if a is not None]:
        if a.shape == shape and np.array_equal(a[tuple(map(slice, part.shape))], part):
            return a
    return None


def _prime_from(least: int) -> int:
    n = max(least, 2)
    while any(n % d == 0 for d in range(2, int(n**0.5) + 1)):
        n += 1
    return n


def verified_at(opening: Opening, plan: OpenPlan, sizes: Mapping[str, int]) -> Graph:
    """The model imported at sizes outside of the range. Raises CannotOpen if it is not what the
    plan computes there, and whatever an importer raises, as where a window does not fit.

    Below the largest sizes a length may happen to be that of something else, so that passes write
    the graph in another way: imports are compared.
    """
    if all(v <= plan.largest[n] for n, v in sizes.items()):
        if reason := opening.difference(sizes):
            raise CannotOpen(reason)
        return plan.graph
    graph = run_passes(opening.imported(sizes), opening.passes)
    _require_same(plan, graph, sizes)
    return graph


def _require_same(plan: OpenPlan, graph: Graph, sizes: Mapping[str, int]) -> None:
    """Raises CannotOpen if the graph at these sizes is not that of the plan."""
    values = plan.values_at(sizes)
    names = [(n.name, n.function, n.inputs, n.outputs) for n in plan.graph.nodes]
    if names != [(n.name, n.function, n.inputs, n.outputs) for n in graph.nodes]:
        raise CannotOpen("its operators are others")
    for x, v in graph.values.items():
        if v.shape != plan.shape_at(x, values):
            raise CannotOpen(f"{x!r} has the shape {list(v.shape)}")
    for node in graph.nodes:
        for (key, want), (_, own) in zip(
            node.settings, plan.settings_at(node, values), strict=True
        ):
            if own != want:
                raise CannotOpen(f"{key} of {node.op} {node.name!r} is {want!r}")
    for x in plan.cut & graph.constants.keys():
        part, whole = graph.constants[x], plan.graph.constants[x]
        if part.size <= whole.size and not _is_part(part, whole):
            raise CannotOpen(f"{x!r} has other numbers")
    if graph.checks != plan.checks:
        raise CannotOpen("other things are checked")


def _is_part(part: Array, whole: Array) -> bool:
    return np.array_equal(
        whole[tuple(map(slice, part.shape))], part, equal_nan=part.dtype.kind == "f"
    )
