"""Winograd's minimal filtering: rewrites a sum of products over sliding windows so that several
neighbouring results share products. F(2, 3), two results of three taps, takes four instead of six.

The rounding error (`filtering_error`): the input transform adds elements of both signs and the
output transform cancels them again, so that errors in between grow. Take inputs and weights that
are independent, of any scale. Then the variance of each product and of each sum follows from the
transform matrices, and the error of a result relative to that of a direct sum grows by

    growth = sqrt(sum over products p of |image_p|**2 * |weights_p|**2 * behind_p**2 / taps)

along each window: 1.3 for F(2, 3), 3.2 for F(4, 3). The rounding errors of K additions walk at
random. With u the roundoff of the type, the largest error of a layer over its largest value is

    error <= u / 2 * (4 + sqrt(K)) * growth of all windows * max(1, (log2(results) - 4) / 16)

Measured over 16 to 512 channels, for inputs of both signs and for positive ones, it is 0.4 to 0.9
of that. Few results have errors far above the others', so that more results have a larger one: the
largest of 13 million, of sums of 768 products by F(4, 3) along two windows, was 1.19e-5.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from math import log2, prod, sqrt
from statistics import mode
from typing import ClassVar, TypeVar

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import BOOL, INT64, DType
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.intervals import linear, row_major
from tilesmith.expr.ints import Int, of, product, var
from tilesmith.expr.nodes import Binary, Const, Expr, IntValue, Load, Select
from tilesmith.ir.function import Function, find_block, readers, require_only_writer
from tilesmith.ir.nodes import Block, Buffer, Iter, Write, walk
from tilesmith.ir.prepare import Basis, with_step
from tilesmith.schedule.cache import check_fresh, replaced, top_level
from tilesmith.schedule.filters import Filter, can_filter, filter_of
from tilesmith.schedule.sample import SampleLocation, SamplePermutation
from tilesmith.schedule.step import Step

_K = TypeVar("_K")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Window:
    """One dimension of a sliding window. `image` is read at (place * `stride` + tap) * `apart` +
    `offset` in dimension `image_dim`; `weights` at one of `count` taps in `weights_dim`.
    """

    place: str
    tap: str
    count: int
    image_dim: int
    weights_dim: int
    offset: Int
    stride: int = 1
    apart: int = 1

    def filter(self, results: int) -> Filter:
        return filter_of(results, self.count, self.stride)


@dataclass(frozen=True, slots=True)
class Filtering:
    """A block that sums image * weights, and its sliding windows."""

    image: Load
    weights: Load
    windows: tuple[Window, ...]


def filtering_of(func: Function, b: Block) -> Filtering | None:
    """The block as sums over windows; None if it is not a sum of products with constant weights."""
    if b.combiner is None or b.combiner.op != "add" or not b.init:
        return None
    value = b.writes[0].value
    if not (isinstance(value, Binary) and value.op == "mul" and value.dtype.is_float):
        return None
    if value.dtype.bits < 32:  # the transforms lose digits that half precision does not have
        return None
    if not (isinstance(value.a, Load) and isinstance(value.b, Load)):
        return None
    for image, weights in ((value.a, value.b), (value.b, value.a)):
        if _is_prepared(func, weights):
            windows = [_window(b, image, weights, i) for i in b.reducing]
            return Filtering(image, weights, tuple(w for w in windows if w is not None))
    return None


def _is_prepared(func: Function, weights: Load) -> bool:
    """Whether the weights are an input that only this block reads and the caller can transform."""
    p = next((p for p in func.inputs if p.name == weights.buffer), None)
    if p is None or p.scope != "constant" or p.layout is not None:
        return False
    return len(list(readers(func, p.name))) == 1


def _window(b: Block, image: Load, weights: Load, tap: Iter) -> Window | None:
    count = tap.extent.const
    if count is None or count < 2:
        return None
    moved = [d for d, p in enumerate(image.index) if tap.name in p.names]
    taken = [d for d, p in enumerate(weights.index) if tap.name in p.names]
    if len(moved) != 1 or len(taken) != 1 or weights.index[taken[0]].name != tap.name:
        return None
    at = image.index[moved[0]]
    apart = at.coefficient(tap.name).const
    if apart is None:
        return None
    for i in b.spatial:
        uses = sum(i.name in p.names for p in (*image.index, *weights.index))
        step = at.coefficient(i.name).const
        if step is None:
            continue
        offset = at - var(i.name) * step - var(tap.name) * apart
        if min(step, apart) < 1 or step % apart or uses != 1 or offset.const is None:
            continue
        if step // apart < count:
            return Window(i.name, tap.name, count, moved[0], taken[0], offset, step // apart, apart)
    return None


@dataclass(frozen=True, slots=True)
class Winograd(Step):
    """Rewrites a sum over windows of constant weights by minimal filtering: fewer products, but
    sums before (input transform) and after (output transform). Rounding differs slightly.

    Y[i] += X[i + r] * W[r]    ->    Y.tiles[r, i] = X[2*i + ...] +- X[2*i + ...]
                                     Y.products[r, i] += Y.tiles[r, i] * W[r]
                                     Y[i] = Y.products[..., i // 2] +- ...
    """

    name: ClassVar[str] = "winograd"
    block: str
    taps: tuple[str, ...]
    results: int = 2  # neighbouring results that share products, along each window

    def apply(self, func: Function) -> Function:
        _, b = find_block(func, self.block)
        require_only_writer(func, b, "winograd")
        filtering = filtering_of(func, b)
        by_tap = {} if filtering is None else {w.tap: w for w in filtering.windows}
        if filtering is None or not self.taps or {*self.taps} - by_tap.keys():
            raise self._refuse(
                f"{list(self.taps)} are no windows of constant weights; it has {[*by_tap]}"
            )
        if len({*self.taps}) != len(self.taps):
            raise self._refuse(f"{list(self.taps)} names a window twice")
        if self.results < 1:
            raise self._refuse(f"{self.results} results; it takes 1 or more")
        at = top_level(func, b.name)
        plain = all(i.bind.name is not None for i in b.iters)
        if len(list(walk((func.body[at],)))) > 1 or b.tile or b.where or not plain:
            raise self._refuse("it shares its loops, or they were cut; do this first")
        check_fresh(func, f"winograd {b.name}", f"{b.name}.tiles", f"{b.name}.products")
        windows = tuple(by_tap[t] for t in self.taps)
        asked = {n for p in b.domain for n in p.names}
        for w in windows:
            if asked & {w.place, w.tap}:
                raise self._refuse(f"some taps of {w.tap} are skipped")
            if not can_filter(self.results, w.count, w.stride):
                raise self._refuse(
                    f"{self.results} results of {w.count} taps of {w.tap} take too many products"
                )
        rewritten = _Rewritten(func, b, filtering, windows, self.results)
        return replace(
            replaced(func, at, *rewritten.blocks),
            params=tuple(map(rewritten.parameter, func.params)),
            buffers=(*func.buffers, *rewritten.buffers),
        )

    def _refuse(self, why: str) -> ScheduleError:
        return ScheduleError(f"cannot winograd {self.block}: {why}")


class _Rewritten:
    """The three blocks of the rewritten sum: input transform, products, output transform. Along a
    transformed window, the place counts groups of results and the tap counts products.
    """

    def __init__(
        self,
        func: Function,
        b: Block,
        filtering: Filtering,
        windows: tuple[Window, ...],
        results: int,
    ) -> None:
        self._b, self._filtering, self._windows, self._results = b, filtering, windows, results
        self._image = func.all_buffers[filtering.image.buffer]
        self._result = func.all_buffers[b.writes[0].buffer]
        self._filters = {w.tap: w.filter(results) for w in windows}
        extents = {i.name: i.extent for i in b.iters}
        self._groups = {w.place: (extents[w.place] + results - 1) // results for w in windows}
        self._dims = {w.image_dim: w for w in windows}
        # The places of all windows are one flat axis, so that a register tile can have any size.
        self._group = "_".join(self._groups)
        self._last_dim = max(self._dims)
        self._last_place = [i.name for i in b.spatial if i.name in self._groups][-1]
        filters = self._filters.values()
        numbers = tuple(of(f.products * f.stride) for f in filters)
        taps = tuple(of(f.products) for f in filters)
        count = product(self._groups.values())
        shape = self._joined(dict(enumerate(self._image.shape)), self._dims, self._last_dim, count)
        extents = {i.name: i.extent for i in b.spatial}
        sums = self._joined(extents, self._groups, self._last_place, count)
        self._tiles = Buffer(f"{b.name}.tiles", (*numbers, *shape), self._image.dtype)
        self._products = Buffer(f"{b.name}.products", (*taps, *sums), self._result.dtype)
        self.buffers = (self._tiles, self._products)

    @staticmethod
    def _joined(items: Mapping[_K, _T], joined: Container[_K], last: _K, one: _T) -> tuple[_T, ...]:
        """The items without those that are `joined`, but with `one` in place of the `last`."""
        kept = ((k, one if k == last else x) for k, x in items.items())
        return tuple(x for k, x in kept if k == last or k not in joined)

    def _parts(self, group: Int) -> dict[str, Int]:
        """The group along each window, from the number on the flat axis."""
        out: dict[str, Int] = {}
        for place, n in reversed(self._groups.items()):
            out[place] = group - group // n * n
            group = group // n
        first = next(iter(self._groups))
        out[first] += group * self._groups[first]  # the outermost needs no remainder
        return out

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self._before(), self._between(), self._behind()

    def parameter(self, p: Buffer) -> Buffer:
        if p.name != self._filtering.weights.buffer:
            return p
        bases = {w.weights_dim: self._filters[w.tap].weights for w in self._windows}
        shape = tuple(of(len(bases[d])) if d in bases else n for d, n in enumerate(p.shape))
        basis = Basis(tuple(sorted(bases.items())))
        return replace(p, shape=shape, prepared=with_step(p.prepared, basis))

    def _before(self) -> Block:
        """The input transform: sums of neighbouring image elements."""
        taps = [w.tap for w in self._windows]
        group = var(self._group)
        parts = self._parts(group)
        axes = {d: var(f"ax{d}") for d in range(len(self._image.shape))}
        index = (*map(var, taps), *self._joined(axes, self._dims, self._last_dim, group))
        axes |= {d: parts[w.place] for d, w in self._dims.items()}

        def at(position: list[Int], left: tuple[Window, ...]) -> Expr:
            if not left:
                return self._read(position)
            w, rest = left[0], left[1:]
            start = position[w.image_dim] * (self._results * w.stride * w.apart) + w.offset

            def moved(by: Int) -> Expr:
                there = [*position]
                there[w.image_dim] = start + by * w.apart
                return at(there, rest)

            terms = _image_terms(self._filters[w.tap], var(w.tap))
            return _weighted([(moved(by), weight) for by, weight in terms])

        value = at([*axes.values()], self._windows)
        iters = tuple(
            Iter(p.name or "", "S", e, p) for p, e in zip(index, self._tiles.shape, strict=True)
        )
        write = Write(self._tiles.name, index, value)
        return Block(self._tiles.name, iters, (write,))

    def _read(self, index: list[Int]) -> Expr:
        """An element of the image. A last, partial group would read beyond its end; 0 there."""
        value: Expr = Load(self._image.name, tuple(index), self._image.dtype)
        for d, w in self._dims.items():
            extent, f = self._image.shape[d], self._filters[w.tap]
            last = (self._groups[w.place] - 1) * self._results + f.products
            most = (last * w.stride - 1) * w.apart + w.offset
            if (room := extent - 1 - most).const is None or room.const < 0:
                inside = Binary("lt", _number(index[d]), _number(extent), BOOL)
                value = Select(inside, value, Const(0.0, value.dtype), value.dtype)
        return value

    def _between(self) -> Block:
        """The products, summed over channels and over the phases of a stride."""
        b, image, weights = self._b, self._filtering.image, self._filtering.weights
        filters = self._filters
        phases = {t: Iter(f"{t}_phase", "R", of(f.stride), of(0)) for t, f in filters.items()}
        numbers = {
            t: var(t) * f.stride + (var(phases[t].name) if f.stride > 1 else 0)
            for t, f in filters.items()
        }
        group = Iter(self._group, "S", product(self._groups.values()), var(self._group))
        index = dict(enumerate(image.index))
        position = self._joined(index, self._dims, self._last_dim, group.bind)
        tile = Load(self._tiles.name, (*numbers.values(), *position), image.dtype)
        weight = replace(weights, index=tuple(p.substitute(numbers) for p in weights.index))
        term = Binary("mul", tile, weight, b.writes[0].value.dtype)
        spatial = (
            *(Iter(t, "S", of(f.products), of(0)) for t, f in filters.items()),
            *self._joined({i.name: i for i in b.spatial}, self._groups, self._last_place, group),
        )
        reducing = (
            *(i for t, i in phases.items() if filters[t].stride > 1),
            *(i for i in b.reducing if i.name not in filters),
        )
        zeros = {
            of(f.count - 1) - numbers[t]
            for t, f in filters.items()
            if f.count < f.products * f.stride
        }
        write = Write(self._products.name, tuple(var(i.name) for i in spatial), term)
        return replace(
            b,
            name=self._products.name,
            iters=(*spatial, *reducing),
            writes=(write,),
            domain=b.domain | zeros,
        )

    def _behind(self) -> Block:
        """The output transform: each result is a sum of products."""
        b, m = self._b, self._results
        dtype = self._result.dtype
        sizes = row_major(tuple(self._groups.values()))
        group = linear((var(place) // m for place in self._groups), sizes)
        axes = {i.name: var(i.name) for i in b.spatial}
        index = self._joined(axes, self._groups, self._last_place, group)

        def at(taps: tuple[Int, ...], left: tuple[Window, ...]) -> Expr:
            if not left:
                return Load(self._products.name, (*taps, *index), dtype)
            w, rest = left[0], left[1:]
            result = var(w.place) - var(w.place) // m * m
            terms = _result_terms(self._filters[w.tap], result)
            return _weighted([(at((*taps, p), rest), weight) for p, weight in terms])

        write = replace(b.writes[0], value=at((), self._windows))
        return Block(b.name, b.spatial, (write,))


_Weight = Callable[[DType], Expr]
_Terms = list[tuple[Int, _Weight | None]]  # (position, factor of the element there)


def _image_terms(f: Filter, number: Int) -> _Terms:
    """The image elements that a product takes, with their factors. For F(2, 3) these are two, at
    positions computed from its number. Otherwise all are taken, some with the factor zero.
    """
    if (f.results, f.taps, f.stride) == (2, 3, 1):
        return [((number + 2) // 3, None), (number // 3 + 2, _chosen(number, (-1, 1, -1, -1)))]
    phase = number - number // f.stride * f.stride
    columns = zip(*f.image, strict=True)
    return [(phase + x * f.stride, _chosen(number, c)) for x, c in enumerate(columns)]


def _result_terms(f: Filter, result: Int) -> _Terms:
    """The products that a result sums, with their factors."""
    if (f.results, f.taps, f.stride) == (2, 3, 1):
        sign = _chosen(result, (1, -1))
        return [(of(1), None), (of(2), sign), (result * 3, sign)]
    return [(of(p), _chosen(result, row)) for p, row in enumerate(f.behind)]


def _chosen(number: Int, values: Sequence[float]) -> _Weight | None:
    """values[number] as an expression; None if all values are 1."""
    if set(values) == {1.0}:
        return None

    usual = mode(reversed(values))

    def weight(dtype: DType) -> Expr:
        out: Expr = Const(float(usual), dtype)
        for k, v in enumerate(values):
            if v != usual:
                out = Select(_equal(number, k), Const(float(v), dtype), out, dtype)
        return out

    return weight


def _weighted(terms: Sequence[tuple[Expr, _Weight | None]]) -> Expr:
    total: Expr | None = None
    for x, weight in terms:
        term = x if weight is None else Binary("mul", weight(x.dtype), x, x.dtype)
        total = term if total is None else Binary("add", total, term, x.dtype)
    assert total is not None
    return total


def _number(p: Int) -> Expr:
    return IntValue(p, INT64)


def _equal(p: Int, n: int) -> Expr:
    return Binary("eq", _number(p), _number(of(n)), BOOL)


def filtering_error(func: Function, steps: Sequence[Step]) -> float:
    """The relative error that minimal filtering causes, of the block with the largest; 0 without
    it. The error of direct sums is not part of it.
    """
    places = [k for k, s in enumerate(steps) if isinstance(s, Winograd)]
    growths: dict[str, float] = {}
    largest = 0.0
    for k, s in enumerate(steps[: places[-1] + 1] if places else ()):
        if isinstance(s, Winograd):
            growth, terms, results, roundoff = _of_step(func, s)
            growth *= growths.get(s.block, 1.0)
            growths[f"{s.block}.products"] = growth
            many = max(1.0, (log2(max(results, 1)) - 4) / 16)  # above 1 from a million on
            largest = max(largest, roundoff / 2 * (4 + sqrt(terms)) * growth * many)
        if k < places[-1] and not _is_open(s):
            func = s.apply(func)
    return largest


def _of_step(func: Function, step: Winograd) -> tuple[float, int, int, float]:
    """The growth along its windows, the terms of a sum of products, the number of results, and the
    roundoff.
    """
    b = find_block(func, step.block)[1]
    filtering = filtering_of(func, b)
    assert filtering is not None, step
    windows = [w for w in filtering.windows if w.tap in step.taps]
    terms = prod(i.extent.number for i in b.reducing if i.name not in step.taps)
    growth = prod(w.filter(step.results).growth for w in windows)
    phases = prod(w.stride for w in windows)
    results = prod(i.extent.number for i in b.spatial)
    return growth, terms * phases, results, b.writes[0].value.dtype.roundoff


def _is_open(step: Step) -> bool:
    return isinstance(step, SampleLocation | SamplePermutation) and step.decision is None
