"""OpenPlan: the kernels of a model for all values of its open sizes, with expressions of the sizes
for shapes, offsets and settings.

Importers and passes compute with plain numbers. So a model is imported and optimised at several
points, and what these instances have in common is generalised: their nodes must be the same, and
whole numbers that differ become expressions of the sizes. Shapes follow from the operators
themselves. Each kernel's Function is stated anew with open sizes, and must be the one of every
instance when the numbers of that instance are put in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import DType, dtype
from tilesmith.base.errors import ArgumentError, TilesmithError
from tilesmith.expr.dsl import placeholder
from tilesmith.expr.ints import Int, of, product, var
from tilesmith.expr.sizes import OpenInt, OpenSize
from tilesmith.graph.checks import Check
from tilesmith.graph.graph import Array, Graph, Node, Settings
from tilesmith.graph.group_function import Input, group_function, identifier, numbered, stated
from tilesmith.graph.partition import Group
from tilesmith.graph.plan import Layout, Place, layout
from tilesmith.graph.program import Signature
from tilesmith.graph.regions import Region
from tilesmith.graph.size_fit import CannotOpen, SizeFit, opened, value_at
from tilesmith.ir.function import Function, instantiate
from tilesmith.ir.open_shapes import sizes_of

Shape = tuple[Int, ...]
_MOST_SAMPLES = 8  # of a size that follows from others


@dataclass(frozen=True)
class Instance:
    """A model that was imported at certain sizes (with their leading #), and its groups."""

    sizes: dict[str, int]
    graph: Graph
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class OpenPlace:
    """A Place whose offset follows the sizes. The kind "none" is that of an array that has a shape
    and no elements: a kernel is told a size by it.
    """

    kind: str
    name: str
    offset: Int


@dataclass(frozen=True)
class OpenStep:
    """A kernel: `sizes` has the expression of each size of `func`, by its name with the #."""

    group: Group
    func: Function
    places: tuple[OpenPlace, ...]
    sizes: Mapping[str, Int]


@dataclass(frozen=True, slots=True)
class OpenLifetime:
    nbytes: Int
    first: int
    last: int


@dataclass(frozen=True)
class OpenPlan:
    """`graph` is the instance at the largest sizes, which has the constants. Those in `cut` are
    parts of its arrays at smaller sizes. `derived` are sizes that follow from those of the inputs,
    such as the height behind a convolution, in an order in which they can be computed.
    """

    inputs: tuple[Signature, ...]
    sizes: tuple[OpenSize, ...]
    derived: Mapping[str, Int]
    graph: Graph
    shapes: Mapping[str, Shape]
    steps: tuple[OpenStep, ...]
    lifetimes: Mapping[str, OpenLifetime]
    copies: tuple[tuple[str, OpenPlace], ...]
    checks: tuple[Check, ...]
    cut: frozenset[str]
    largest: dict[str, int]  # the sizes of `graph`
    settings: Mapping[str, Settings] = field(default_factory=dict)

    def values_at(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """All sizes, those that follow from others included."""
        values = dict(sizes)
        for name, p in self.derived.items():
            values[name] = value_at(p, values)
        return values

    @cached_property
    def _extents(self) -> Mapping[Int, str]:
        """The open extents, each with a value that has it."""
        return {e: x for x, shape in self.shapes.items() for e in shape if e.const is None}

    def require_possible(self, values: Mapping[str, int]) -> None:
        """Raises where an array would have a negative length."""
        for e, x in self._extents.items():
            if value_at(e, values) < 0:
                given = {f"#{s.name}": values[f"#{s.name}"] for s in self.sizes}
                raise ArgumentError(
                    f"{self.graph.name} cannot run with {sizes_text(given)}, which is too small: "
                    f"{x!r} would have a length of {value_at(e, values)}"
                )

    def shape_at(self, value: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(value_at(e, sizes) for e in self.shapes[value])


def size_names(inputs: Sequence[Signature]) -> dict[str, str]:
    """For each open dimension, the name of its size in kernels, with the #."""
    found: dict[str, str] = {}
    for d in (d for s in inputs for d in s.dims or () if isinstance(d, str)):
        if d not in found:
            name = "#" + (identifier(d).replace("__", "_") or "n")
            while name in found.values():
                name += "_"
            found[d] = name
    return found


def open_plan(
    inputs: Sequence[Signature], sizes: Sequence[OpenSize], instances: Sequence[Instance]
) -> OpenPlan:
    """What the instances have in common; the last one has the largest sizes. Raises CannotOpen with
    the reason if they differ in more than numbers.
    """
    return _Opening(inputs, sizes, instances).plan()


def open_numbers(
    inputs: Sequence[Signature], sizes: Sequence[OpenSize], instances: Sequence[Instance]
) -> OpenPlan:
    """Like `open_plan`, of graphs as they are, without kernels."""
    return _Opening(inputs, sizes, instances).numbers()


class _Opening:
    def __init__(
        self, inputs: Sequence[Signature], sizes: Sequence[OpenSize], instances: Sequence[Instance]
    ) -> None:
        self.inputs, self.instances = inputs, instances
        self.declared = {f"#{s.name}": s for s in sizes}
        self.base = tuple(self.declared)
        self.points = [dict(i.sizes) for i in instances]
        self.fit = SizeFit(self.points, self.base)
        self.derived: dict[str, Int] = {}
        self._named: dict[Int, str] = {}
        self.graphs = [i.graph for i in instances]
        self.graph = self.graphs[-1]
        self.shapes: dict[str, Shape] = {}
        self.settings: dict[str, Settings] = {}
        self._results: dict[Any, list[tuple[Shape, DType]]] = {}  # a network repeats its nodes
        self._functions: dict[Any, tuple[Function, dict[str, Int], list[OpenPlace]]] = {}

    def plan(self) -> OpenPlan:
        self._require_same_nodes()
        self.cut = self._constants()
        self._propagate()
        layouts = [layout(i.graph, i.groups) for i in self.instances]
        self._require_same_layout(layouts)
        one = layouts[-1]
        offsets = self._offsets(layouts)

        def place(x: str) -> OpenPlace:
            root = one.regions.get(x, Region(x)).root
            kind = one.places.get(root, Place("arena", root))
            return OpenPlace(kind.kind, kind.name, offsets.get(x, of(0)))

        steps = []
        for k, group in enumerate(self.instances[-1].groups):
            func, how, further = self._function(k, group)
            places = [place(x) for x in (*group.inputs, *group.outputs)]
            places[len(group.inputs) : len(group.inputs)] = further
            steps.append(OpenStep(group, func, tuple(places), how))
        lifetimes = {
            x: OpenLifetime(
                product(self.shapes[x]) * self.graph.values[x].dtype.nbytes, a.first, a.last
            )
            for x, a in one.lifetimes.items()
        }
        values = dict(self.graph.outputs)
        late = tuple((name, place(values[name])) for name, _ in one.late)
        sizes = tuple(self.declared[n] for n in self.base)
        return OpenPlan(
            tuple(self.inputs), sizes, self.derived, self.graph, self.shapes,
            tuple(steps), lifetimes, late, self._checks(), self.cut,
            dict(self.instances[-1].sizes), self.settings,
        )  # fmt: skip

    def numbers(self) -> OpenPlan:
        self._require_same_nodes()
        self.cut = self._constants()
        self._propagate()
        return OpenPlan(
            tuple(self.inputs), tuple(self.declared[n] for n in self.base), self.derived,
            self.graph, self.shapes, (), {}, (), self._checks(), self.cut,
            dict(self.instances[-1].sizes), self.settings,
        )  # fmt: skip

    # what must be equal
    def _require_same_nodes(self) -> None:
        for other in self.instances[:-1]:
            reason = _difference(self.graph, other.graph)
            if reason is None:
                groups = [[g.name for g in i.groups] for i in (self.instances[-1], other)]
                nodes = [
                    [[n.name for n in g.nodes] for g in i.groups]
                    for i in (self.instances[-1], other)
                ]
                if groups[0] != groups[1] or nodes[0] != nodes[1]:
                    reason = "other operators are joined to kernels"
            if reason is not None:
                raise CannotOpen(
                    f"at {sizes_text(other.sizes)} its graph differs from that at "
                    f"{sizes_text(self.instances[-1].sizes)}: {reason}"
                )

    def _require_same_layout(self, layouts: Sequence[Layout]) -> None:
        one = layouts[-1]
        for other in layouts[:-1]:
            same = [
                {x: (r.root, r.strides is None) for x, r in h.regions.items()} for h in (one, other)
            ]
            spans = [{x: (t.first, t.last) for x, t in h.lifetimes.items()} for h in (one, other)]
            if same[0] != same[1] or spans[0] != spans[1] or dict(one.places) != dict(other.places):
                raise CannotOpen("its arrays lie in other places at some sizes")
            if [n for n, _ in one.late] != [n for n, _ in other.late]:
                raise CannotOpen("its outputs are stored in other ways at some sizes")
        strided = [x for x, r in one.regions.items() if r.strides is not None]
        if strided:
            raise CannotOpen(f"{strided[0]!r} lies in the midst of another array")

    # numbers
    def _constants(self) -> frozenset[str]:
        """The shapes of constants; returns those that are parts of larger ones."""
        cut = []
        for x, whole in self.graph.constants.items():
            arrays = [g.constants[x] for g in self.graphs]
            if all(a.shape == whole.shape for a in arrays):
                if not all(_same(a, whole) for a in arrays[:-1]):
                    raise CannotOpen(f"the numbers of {x!r} depend on the sizes")
                self.shapes[x] = tuple(map(of, whole.shape))
                continue
            for a in arrays[:-1]:
                fits = a.ndim == whole.ndim and all(
                    n <= m for n, m in zip(a.shape, whole.shape, strict=True)
                )
                if not fits or not _same(a, whole[tuple(map(slice, a.shape))]):
                    raise CannotOpen(f"{x!r}, which is computed of sizes only, depends on them")
            shapes = [a.shape for a in arrays]
            made = opened(self.fit, shapes, (), f"the shape of {x!r}")
            self.shapes[x] = tuple(map(of, made))
            cut.append(x)
        return frozenset(cut)

    def _propagate(self) -> None:
        """The shape of every value."""
        names = size_names(self.inputs)
        for s in self.inputs:
            if s.name in self.graph.values:
                assert s.dims is not None
                self.shapes[s.name] = tuple(
                    var(names[d]) if isinstance(d, str) else of(d) for d in s.dims
                )
        others = [{n.name: n for n in g.nodes} for g in self.graphs]
        for node in self.graph.nodes:
            given = [self.shapes[x] for x in node.inputs]
            near = [e for shape in given for e in shape if e.const is None]
            near += [p for shape in given if (p := product(shape)).const is None]
            versions = [nodes[node.name].settings for nodes in others]
            what = f"{node.op} {node.name!r}"
            made = {}
            for key in dict(node.settings):
                some = [dict(v)[key] for v in versions]
                made[key] = opened(self.fit, some, near, f"{key} of {what}")
            self.settings[node.name] = Settings(made.items())
            for x, (shape, kind) in zip(node.outputs, self._stages(node, given), strict=True):
                self.shapes[x] = tuple(map(self._size, shape))
                wanted = [g.values[x].shape for g in self.graphs]
                got = [tuple(value_at(e, p) for e in self.shapes[x]) for p in self.points]
                if wanted != got or kind != self.graph.values[x].dtype:
                    raise CannotOpen(
                        f"{what} makes {list(wanted[0])} at {sizes_text(self.points[0])}, and "
                        f"{list(got[0])} by its open shape"
                    )

    def _stages(self, node: Node, shapes: Sequence[Shape]) -> list[tuple[Shape, DType]]:
        """The shapes and types of its results."""
        types = [self.graph.values[x].dtype for x in node.inputs]
        node = replace(node, settings=self.settings[node.name])
        key = node.function, node.settings, tuple(shapes), tuple(types)
        if key not in self._results:
            tensors = [
                placeholder(shape, kind, name=f"x{k}")
                for k, (shape, kind) in enumerate(zip(shapes, types, strict=True))
            ]
            try:
                results = node.define(*tensors)
            except TilesmithError as error:
                raise CannotOpen(
                    f"{node.op} {node.name!r} cannot be stated with open sizes: {error}"
                ) from None
            self._results[key] = [(t.shape_ints, t.dtype) for t in results]
        return self._results[key]

    def _size(self, e: Int) -> Int:
        """The extent itself, or a size of its own where it is more than a polynomial."""
        if e.plain:
            return e
        name = self._named.get(e)
        if name is None:
            stem = sorted(e.names)[0].split(".")[0]
            name = f"{stem}.{sum(n.startswith(f'{stem}.') for n in self.derived) + 1}"
            self._derive(name, e)
            self._named[e] = name
        return var(name)

    def _derive(self, name: str, e: Int) -> None:
        self.derived[name] = e
        for point in self.points:
            point[name] = value_at(e, point)
        self.declared[name] = self._declared(name, e)

    def _declared(self, name: str, e: Int) -> OpenSize:
        """The range and the samples of a size that follows from others."""
        parts = [self.declared[n] for n in sorted(e.names)]
        low, high = (
            max(0, value_at(e, {f"#{s.name}": s.limits[k] for s in parts})) for k in (0, 1)
        )
        weights: dict[int, float] = {}
        most = max(len(s.weights) for s in parts)
        for k in range(most):  # all sizes grow together
            chosen = [[*s.weights.items()] for s in parts]
            some = [w[k * len(w) // most] for w in chosen]
            at = {f"#{s.name}": v for s, (v, _) in zip(parts, some, strict=True)}
            v = min(max(1, low, value_at(e, at)), max(1, high))
            weights[v] = weights.get(v, 0.0) + float(np.prod([w for _, w in some]))
        step = -(-len(weights) // _MOST_SAMPLES)
        kept = sorted(weights)[::-1][::step]
        limits = min(low, high), max(1, low, high)
        return OpenSize(
            name.removeprefix("#"), limits, tuple((v, weights[v]) for v in sorted(kept))
        )

    def _offsets(self, layouts: Sequence[Layout]) -> dict[str, Int]:
        """Where a value begins in the array that it is a part of, in bytes."""
        found = {}
        for x in layouts[-1].regions:
            some = [h.regions[x].offset for h in layouts]
            if any(some):
                near = [e * region_nbytes for e in self.shapes[x] if e.const is None
                        for region_nbytes in (1, self.graph.values[x].dtype.nbytes)]  # fmt: skip
                found[x] = self.fit.expression(some, near, f"the place of {x!r}")
        return found

    def _checks(self) -> tuple[Check, ...]:
        for g in self.graphs[:-1]:
            if g.checks != self.graph.checks:
                raise CannotOpen("what is checked of its values depends on the sizes")
        return self.graph.checks

    # functions
    def _function(
        self, number: int, group: Group
    ) -> tuple[Function, dict[str, Int], list[OpenPlace]]:
        """The Function of a group, its sizes, and the places of inputs that tell it sizes."""
        rename, how = self._group_sizes(group)
        declared = frozenset(
            replace(self._declared_of(e, n), name=n.removeprefix("#")) for n, e in how.items()
        )

        def put(e: Int) -> Int:
            made = rename(e)
            return made if made.const is not None else OpenInt(made, declared)

        settings = {n.name: _mapped(self.settings[n.name], put) for n in group.nodes}
        values = [self.graph.values[x] for x in group.inputs]
        inputs = [
            (tuple(map(put, self.shapes[v.name])), v.dtype, self.graph.is_constant(v.name))
            for v in values
        ]
        wanted = [group_function(i.graph, i.groups[number]) for i in self.instances]
        cut = tuple(v.name in self.cut for v in values)
        key = tuple(inputs), numbered(group, settings), tuple(map(id, wanted)), cut
        if key not in self._functions:
            opened = self._opened(group, inputs, cut, settings, how, wanted, declared)
            self._functions[key] = opened
        return self._functions[key]

    def _opened(
        self, group: Group, inputs: list[Input], cut: Sequence[bool],
        settings: Mapping[str, Settings], how: dict[str, Int], wanted: Sequence[Function],
        declared: frozenset[OpenSize],
    ) -> tuple[Function, dict[str, Int], list[OpenPlace]]:  # fmt: skip
        func = self._stated(group, inputs, settings, how)
        self._require_equal(wanted, group, func, how)
        further: list[OpenPlace] = []
        # What is cut for each length is packed for none.
        loose = [(e, t, c and not parts) for (e, t, c), parts in zip(inputs, cut, strict=True)]
        if loose != inputs:
            inputs = loose
            func = self._stated(group, inputs, settings, how)
        if not _tells_sizes(func, how, self.points[-1]):
            extents = tuple(OpenInt(var(n), declared) for n in how)
            inputs.append((extents, dtype("uint8"), False))
            func = self._stated(group, inputs, settings, how)
            further.append(OpenPlace("none", "", of(0)))
        return func, how, further

    def _stated(
        self, group: Group, inputs: Sequence[Any], settings: Mapping[str, Settings],
        how: Mapping[str, Int],
    ) -> Function:  # fmt: skip
        nodes, outputs = numbered(group, settings, len(inputs) - len(group.inputs))
        try:
            return stated(identifier(group.name), inputs, nodes, outputs)
        except TilesmithError as error:
            raise CannotOpen(f"{group.name} cannot be stated with open sizes: {error}") from None

    def _require_equal(
        self, every: Sequence[Function], group: Group, func: Function, how: Mapping[str, Int]
    ) -> None:
        """The open Function is that of each instance, at its sizes."""
        for wanted, instance, point in zip(every, self.instances, self.points, strict=True):
            sizes = {n: value_at(e, point) for n, e in how.items()}
            got = instantiate(func, {n: v for n, v in sizes.items() if n in func.sizes})
            if got.digest != wanted.digest:
                raise CannotOpen(
                    f"{group.name} is another function at {sizes_text(instance.sizes)} than its "
                    "open form says"
                )

    def _group_sizes(self, group: Group) -> tuple[Any, dict[str, Int]]:
        """How extents are written in the Function of a group, and its sizes as expressions of
        those of the model: as few and as simple ones as say everything.
        """
        every = [e for x in group.inputs for e in self.shapes[x] if e.const is None]
        every += [e for n in group.nodes for e in _ints_in(self.settings[n.name])]
        every = [e for e in every if e.const is None]
        names = list(dict.fromkeys(n for e in every for n in sorted(e.names)))
        expanded: dict[str, Int] = {}
        while (name := self._dependent(names)) is not None:
            step = {name: self.derived[name]}
            expanded = {k: v.substitute(step) for k, v in expanded.items()} | step
            names.remove(name)
            names += [n for n in sorted(step[name].names) if n not in names]
        every = [e.substitute(expanded) for e in every]
        monomials = list(dict.fromkeys(m for e in every for m in e.terms if m))
        used = [a for m in monomials for a in set(m)]
        if all(isinstance(a, str) for a in used) and len(used) == len(set(used)):
            # Each name occurs in one product only: the product is the size.
            products = {m: self._product_name(m) for m in monomials}

            def rename(e: Int) -> Int:
                e = e.substitute(expanded)
                out = of(e.terms.get((), 0))
                for m, c in e.terms.items():
                    if m:
                        out = out + var(products[m]) * c
                return out

            how = {name: product(var(str(a)) for a in m) for m, name in products.items()}
            return rename, how
        return (lambda e: e.substitute(expanded)), {n: var(n) for n in names}

    def _product_name(self, monomial: tuple[Any, ...]) -> str:
        if len(monomial) == 1:
            return str(monomial[0])
        return "#" + ".".join(n.removeprefix("#") for n in monomial)

    def _declared_of(self, e: Int, name: str) -> OpenSize:
        found = self.declared.get(name)
        return self._declared(name, e) if found is None else found

    def _dependent(self, names: Sequence[str]) -> str | None:
        """A derived size that another one of these has something in common with."""
        order = [*self.derived]
        derived = sorted((n for n in names if n in self.derived), key=order.index, reverse=True)
        for n in derived:
            own = self._sources(n)
            if any(own & self._sources(m) for m in names if m != n):
                return n
        return None

    def _sources(self, name: str) -> frozenset[str]:
        if name not in self.derived:
            return frozenset({name})
        return frozenset({name}).union(*map(self._sources, self.derived[name].names))


def _difference(a: Graph, b: Graph) -> str | None:
    """What two graphs differ in beside numbers."""
    if a.inputs != b.inputs or a.outputs != b.outputs:
        return "it has other inputs or outputs"
    for x, y in zip(a.nodes, b.nodes, strict=False):
        if (x.name, x.function, x.inputs, x.outputs) != (y.name, y.function, y.inputs, y.outputs):
            return f"{y.op} {y.name!r} instead of {x.op} {x.name!r}"
        if [k for k, _ in x.settings] != [k for k, _ in y.settings]:
            return f"{x.op} {x.name!r} has other settings"
    if len(a.nodes) != len(b.nodes):
        return f"it has {len(b.nodes)} nodes instead of {len(a.nodes)}"
    if set(a.constants) != set(b.constants):
        return "it has other constants"
    for name, v in a.values.items():
        if name not in b.values or v.dtype != b.values[name].dtype:
            return f"{name!r} has another type"
    return None


def _same(a: Array, b: Array) -> bool:
    if a is b:
        return True
    where = (a.__array_interface__["data"][0], a.strides, a.shape, a.dtype)
    if where == (b.__array_interface__["data"][0], b.strides, b.shape, b.dtype):
        return True
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _ints_in(value: Any) -> Iterator[Int]:
    if isinstance(value, Int):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _ints_in(part)


def _mapped(value: Any, put: Any) -> Any:
    if isinstance(value, Int):
        return put(value)
    if isinstance(value, tuple):
        parts = [_mapped(part, put) for part in value]
        return Settings(parts) if isinstance(value, Settings) else tuple(parts)
    return value


def _tells_sizes(func: Function, how: Mapping[str, Int], point: Mapping[str, int]) -> bool:
    """Whether the shapes of its inputs determine all sizes."""
    sizes = {n: value_at(e, point) for n, e in how.items()}
    shapes = [[value_at(e, sizes) for e in b.shape] for b in func.inputs]
    try:
        found = sizes_of(
            func.name, [b.name for b in func.inputs], [b.shape for b in func.inputs], shapes
        )
    except ArgumentError:
        return False
    return {f"#{n}" for n in found} >= set(how)


def sizes_text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{n.removeprefix('#')} = {v}" for n, v in sizes.items())
