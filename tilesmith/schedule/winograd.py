"""Winograd's minimal filtering: a sum of products over windows of three neighbours in, the same sum
out with four products for two neighbouring results instead of six.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from tilesmith.base.dtype import BOOL, INT64, DType
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import Int, of, product, var
from tilesmith.expr.nodes import Binary, Const, Expr, IntValue, Load, Select
from tilesmith.ir.dependence import find_block, only_writer, readers
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, Buffer, Iter, Matrix, Write, walk
from tilesmith.schedule.cache import check_fresh, top_level
from tilesmith.schedule.location import nest
from tilesmith.schedule.step import Step

# F(2, 3): from four neighbours x, with the window's weights g in the basis of `_FILTER`,
#     p0 = (x0 - x2) g0    p1 = (x1 + x2) g1    p2 = (x1 - x2) g2    p3 = (x1 - x3) g3
#     y0 = p0 + p1 + p2    y1 = p1 - p2 - p3
RESULTS, TAPS, PRODUCTS = 2, 3, 4
_K = TypeVar("_K")
_T = TypeVar("_T")
_FILTER: Matrix = ((1.0, 0.0, 0.0), (0.5, 0.5, 0.5), (-0.5, 0.5, -0.5), (0.0, 0.0, 1.0))


def less_products(places: int) -> float:
    """Products of a plain window at so many places, for each that is left."""
    return TAPS * places / (PRODUCTS * -(-places // RESULTS))


@dataclass(frozen=True, slots=True)
class Window:
    """`image` is read at place + tap + `offset` in a dimension, `weights` at tap in one."""

    place: str
    tap: str
    image_dim: int
    weights_dim: int
    offset: Int


@dataclass(frozen=True, slots=True)
class Filtering:
    """A block that sums image * weights, and the windows that it goes over."""

    image: Load
    weights: Load
    windows: tuple[Window, ...]


def filtering_of(func: Function, b: Block) -> Filtering | None:
    """What Winograd applies to; None where the block is no sum of products with constants."""
    if b.combiner is None or b.combiner.op != "add" or not b.init:
        return None
    value = b.writes[0].value
    if not (isinstance(value, Binary) and value.op == "mul" and value.dtype.is_float):
        return None
    if value.dtype.bits < 32:  # differences of neighbours need the digits
        return None
    if not (isinstance(value.a, Load) and isinstance(value.b, Load)):
        return None
    for image, weights in ((value.a, value.b), (value.b, value.a)):
        if _is_prepared(func, weights):
            windows = [_window(b, image, weights, i) for i in b.reducing]
            return Filtering(image, weights, tuple(w for w in windows if w is not None))
    return None


def _is_prepared(func: Function, weights: Load) -> bool:
    """Whether it is an input that the caller brings into any form, for this block alone."""
    p = next((p for p in func.inputs if p.name == weights.buffer), None)
    if p is None or p.scope != "constant" or p.layout is not None or p.basis:
        return False
    return len(list(readers(func, p.name))) == 1


def _window(b: Block, image: Load, weights: Load, tap: Iter) -> Window | None:
    if tap.extent.const != TAPS:
        return None
    moved = [d for d, p in enumerate(image.index) if tap.name in p.names]
    taken = [d for d, p in enumerate(weights.index) if tap.name in p.names]
    if len(moved) != 1 or len(taken) != 1 or weights.index[taken[0]].name != tap.name:
        return None
    at = image.index[moved[0]] - var(tap.name)
    for i in b.spatial:
        uses = sum(i.name in p.names for p in (*image.index, *weights.index))
        offset = at - var(i.name)
        if i.name in at.names and uses == 1 and offset.const is not None:
            return Window(i.name, tap.name, moved[0], taken[0], offset)
    return None


@dataclass(frozen=True, slots=True)
class Winograd(Step):
    """Sums over windows of three constant weights each, with two thirds of the products for each
    of the windows, and sums before and behind. Rounding differs a little from the plain sum.

    Y[i] += X[i + r] * W[r]    ->    Y.tiles[r, i] = X[2*i + ...] +- X[2*i + ...]
                                     Y.products[r, i] += Y.tiles[r, i] * W[r]
                                     Y[i] = Y.products[..., i // 2] +- ...
    """

    name: ClassVar[str] = "winograd"
    block: str
    taps: tuple[str, ...]

    def apply(self, func: Function) -> Function:
        _, b = find_block(func, self.block)
        only_writer(func, b, "winograd")
        found = filtering_of(func, b)
        known = {} if found is None else {w.tap: w for w in found.windows}
        if found is None or not self.taps or {*self.taps} - known.keys():
            raise self._refuse(
                f"{list(self.taps)} are no windows of three constant weights; it has {[*known]}"
            )
        at = top_level(func, b.name)
        plain = all(i.bind.name is not None for i in b.iters)
        if len(list(walk((func.body[at],)))) > 1 or b.tile or b.where or b.domain or not plain:
            raise self._refuse("it shares its loops, or they were cut; do this first")
        check_fresh(func, f"winograd {b.name}", f"{b.name}.tiles", f"{b.name}.products")
        windows = tuple(known[t] for t in self.taps)
        rewritten = _Rewritten(func, b, found, windows)
        bare = replace(func, body=(*func.body[:at], *func.body[at + 1 :]))
        made = tuple(nest(bare, block) for block in rewritten.blocks)
        return replace(
            func,
            params=tuple(map(rewritten.parameter, func.params)),
            buffers=(*func.buffers, *rewritten.buffers),
            body=(*func.body[:at], *made, *func.body[at + 1 :]),
        )

    def _refuse(self, why: str) -> ScheduleError:
        return ScheduleError(f"cannot winograd {self.block}: {why}")


class _Rewritten:
    """The three blocks of a filtering. Where a window is transformed, its place counts pairs of
    results, and its tap counts the four products.
    """

    def __init__(
        self, func: Function, b: Block, found: Filtering, windows: tuple[Window, ...]
    ) -> None:
        self._b, self._found, self._windows = b, found, windows
        self._image = func.all_buffers[found.image.buffer]
        self._result = func.all_buffers[b.writes[0].buffer]
        extents = {i.name: i.extent for i in b.iters}
        self._pairs = {w.place: (extents[w.place] + 1) // RESULTS for w in windows}
        self._dims = {w.image_dim: w for w in windows}
        # The places of all windows are one axis, of which a register tile takes any number.
        self._pair = "_".join(self._pairs)
        self._last_dim = max(self._dims)
        self._last_place = [i.name for i in b.spatial if i.name in self._pairs][-1]
        taps = tuple(of(PRODUCTS) for _ in windows)
        count = product(self._pairs.values())
        shape = self._joined(dict(enumerate(self._image.shape)), self._dims, self._last_dim, count)
        extents = {i.name: i.extent for i in b.spatial}
        sums = self._joined(extents, self._pairs, self._last_place, count)
        self._tiles = Buffer(f"{b.name}.tiles", (*taps, *shape), self._image.dtype)
        self._products = Buffer(f"{b.name}.products", (*taps, *sums), self._result.dtype)
        self.buffers = (self._tiles, self._products)

    @staticmethod
    def _joined(items: Mapping[_K, _T], joined: Container[_K], last: _K, one: _T) -> tuple[_T, ...]:
        """The items, with `one` in the place of the last of those that are joined."""
        kept = ((k, one if k == last else x) for k, x in items.items())
        return tuple(x for k, x in kept if k == last or k not in joined)

    def _halves(self, pair: Int) -> dict[str, Int]:
        """Half of each place, by the number of their pair."""
        out: dict[str, Int] = {}
        for place, n in reversed(self._pairs.items()):
            out[place] = pair - pair // n * n
            pair = pair // n
        first = next(iter(self._pairs))
        out[first] += pair * self._pairs[first]  # the outermost has no remainder
        return out

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self._before(), self._between(), self._behind()

    def parameter(self, p: Buffer) -> Buffer:
        if p.name != self._found.weights.buffer:
            return p
        dims = {w.weights_dim for w in self._windows}
        shape = tuple(of(PRODUCTS) if d in dims else n for d, n in enumerate(p.shape))
        return replace(p, shape=shape, basis=tuple((d, _FILTER) for d in sorted(dims)))

    def _before(self) -> Block:
        """Sums and differences of the image's neighbours."""
        taps = [w.tap for w in self._windows]
        pair = var(self._pair)
        halves = self._halves(pair)
        axes = {d: var(f"ax{d}") for d in range(len(self._image.shape))}
        index = (*map(var, taps), *self._joined(axes, self._dims, self._last_dim, pair))
        axes |= {d: halves[w.place] for d, w in self._dims.items()}

        def at(position: list[Int], left: tuple[Window, ...]) -> Expr:
            if not left:
                return self._read(position)
            w, rest = left[0], left[1:]
            start = position[w.image_dim] * RESULTS + w.offset

            def moved(by: Int) -> Expr:
                there = [*position]
                there[w.image_dim] = start + by
                return at(there, rest)

            tap = var(w.tap)
            one = _equal(tap, 1)
            return _plus_or_minus(one, moved((tap + 2) // 3), moved(tap // 3 + 2))

        value = at([*axes.values()], self._windows)
        iters = tuple(
            Iter(p.name or "", "S", e, p) for p, e in zip(index, self._tiles.shape, strict=True)
        )
        write = Write(self._tiles.name, index, value)
        return Block(self._tiles.name, iters, (write,))

    def _read(self, index: list[Int]) -> Expr:
        """An element of the image; the last of an odd number of results reads beyond its end."""
        value: Expr = Load(self._image.name, tuple(index), self._image.dtype)
        for d, w in self._dims.items():
            extent = self._image.shape[d]
            most = self._pairs[w.place] * RESULTS + RESULTS - 1 + w.offset
            if (room := extent - 1 - most).const is None or room.const < 0:
                inside = Binary("lt", _number(index[d]), _number(extent), BOOL)
                value = Select(inside, value, Const(0.0, value.dtype), value.dtype)
        return value

    def _between(self) -> Block:
        """The products, and the rest of the sum over them."""
        b, image, weights = self._b, self._found.image, self._found.weights
        taps = {w.tap for w in self._windows}
        before = tuple(var(w.tap) for w in self._windows)
        pair = Iter(self._pair, "S", product(self._pairs.values()), var(self._pair))
        index = dict(enumerate(image.index))
        position = self._joined(index, self._dims, self._last_dim, pair.bind)
        tile = Load(self._tiles.name, (*before, *position), image.dtype)
        term = Binary("mul", tile, weights, b.writes[0].value.dtype)
        spatial = (
            *(Iter(w.tap, "S", of(PRODUCTS), of(0)) for w in self._windows),
            *self._joined({i.name: i for i in b.spatial}, self._pairs, self._last_place, pair),
        )
        rest = (i for i in b.reducing if i.name not in taps)
        write = Write(self._products.name, tuple(var(i.name) for i in spatial), term)
        return replace(b, name=self._products.name, iters=(*spatial, *rest), writes=(write,))

    def _behind(self) -> Block:
        """Results from sums and differences of the products."""
        b = self._b
        dtype = self._result.dtype
        pair = of(0)
        for place, n in self._pairs.items():
            pair = pair * n + var(place) // RESULTS
        axes = {i.name: var(i.name) for i in b.spatial}
        index = self._joined(axes, self._pairs, self._last_place, pair)

        def at(taps: tuple[Int, ...], left: tuple[Window, ...]) -> Expr:
            if not left:
                return Load(self._products.name, (*taps, *index), dtype)
            place, rest = var(left[0].place), left[1:]
            odd = place - place // RESULTS * RESULTS
            both = [at((*taps, p), rest) for p in (of(1), of(2), odd * 3)]
            outer = Binary("add", both[1], both[2], dtype)
            return _plus_or_minus(_equal(odd, 0), both[0], outer)

        write = replace(b.writes[0], value=at((), self._windows))
        return Block(b.name, b.spatial, (write,))


def _number(p: Int) -> Expr:
    return IntValue(p, INT64)


def _equal(p: Int, n: int) -> Callable[[DType], Expr]:
    """1 where they are equal, and -1 where they are not."""
    cond = Binary("eq", _number(p), _number(of(n)), BOOL)
    return lambda dtype: Select(cond, Const(1.0, dtype), Const(-1.0, dtype), dtype)


def _plus_or_minus(sign: Callable[[DType], Expr], a: Expr, b: Expr) -> Expr:
    return Binary("add", a, Binary("mul", sign(a.dtype), b, a.dtype), a.dtype)
