"""Values as indices: `Dynamic` is an index that is loaded from a tensor, as in `table[ids[i], j]`.
Conversions between values and `Int`s, and traversals that include the values inside of indices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilesmith.base.dtype import INT64, DType
from tilesmith.expr.intervals import Unknown, bounds
from tilesmith.expr.ints import ZERO, Int, Opaque, atom, map_atoms, opaque_atoms
from tilesmith.expr.nodes import (
    COMPARISONS,
    LEAVES,
    Binary,
    Cast,
    Const,
    Expr,
    IntValue,
    Load,
    Select,
    children,
    ints_of,
    map_index,
    map_ints,
    own_ints,
    rewrite,
    substitute,
)
from tilesmith.expr.walk import fold, preorder, text_or_digest


class Dynamic(Opaque):
    """An integer value inside of an index that is not a polynomial of iterators."""

    __slots__ = ("expr",)

    def __init__(self, expr: Expr) -> None:
        self.expr = expr
        self.key = text_or_digest(expr)

    def names(self) -> frozenset[str]:
        return frozenset(n for p in ints_of(self.expr) for n in p.names)

    def substitute(self, env: Mapping[str, Int]) -> Int:
        return as_index(map_ints(self.expr, lambda p: p.substitute(env)))


def as_index(e: Expr) -> Int:
    """An integer expression as an Int: a polynomial if it cannot wrap around, `Dynamic` if it may,
    or if it reads a tensor.

    An Int has no width. So int64 arithmetic becomes a polynomial; arithmetic of narrower types may
    wrap, and stays an expression. An IntValue has its value in any type (see `fitted`).
    """
    return fold(e, _summands, _index_of)


def _summands(e: Expr) -> tuple[Expr, ...]:
    """The operands that become parts of a polynomial."""
    if e.dtype is INT64 and isinstance(e, Binary) and e.op in ("add", "sub", "mul"):
        return e.a, e.b
    return (e.x,) if e.dtype is INT64 and isinstance(e, Cast) and isinstance(e.x, IntValue) else ()


def _index_of(e: Expr, inner: list[Int]) -> Int:
    if isinstance(e, IntValue):
        return e.value
    if isinstance(e, Const):
        return ZERO + int(e.value)
    return _polynomial(e, inner) if inner else atom(Dynamic(e))


def _polynomial(e: Expr, inner: list[Int]) -> Int:
    """A cast, a sum or a product of polynomials, assuming that it does not wrap."""
    match e:
        case Binary(op="add"):
            return inner[0] + inner[1]
        case Binary(op="sub"):
            return inner[0] - inner[1]
        case Binary(op="mul"):
            return inner[0] * inner[1]
    return inner[0]


def fitted(e: Expr, ranges: Mapping[str, Int]) -> Expr:
    """Turns indices into polynomials again where narrow arithmetic on iterators cannot leave the
    range of its type: `int32(i) + 1` is i + 1 if i stays small. `ranges` are the extents.
    """

    def fit(x: Expr) -> Expr:
        if isinstance(x, Load | IntValue):
            return map_ints(x, index)
        narrow = isinstance(x, Cast) or (isinstance(x, Binary) and x.op in ("add", "sub", "mul"))
        if not narrow or not x.dtype.is_int:
            return x
        parts = []
        for y in children(x):
            if isinstance(y, Const) and y.dtype.is_int:
                parts.append(ZERO + int(y.value))
            elif isinstance(y, IntValue):
                parts.append(y.value)
            else:
                return x
        value = _polynomial(x, parts)
        return IntValue(value, x.dtype) if fits(value, x.dtype) else x

    def fits(p: Int, dtype: DType) -> bool:
        try:
            low, high = (q.const for q in bounds(p, ranges))
        except Unknown:
            return False
        return low is not None and high is not None and (
            dtype.lowest() <= low and high <= dtype.highest()
        )  # fmt: skip

    def index(p: Int) -> Int:
        if p.plain:
            return p
        return map_atoms(
            p, lambda a: as_index(rewrite(a.expr, fit)) if isinstance(a, Dynamic) else atom(a)
        )

    return map_ints(e, index)


def below(e: Expr) -> tuple[Expr, ...]:
    """Its children, and the values that are loaded for its indices."""
    if isinstance(e, (Load, IntValue)):
        return tuple(
            a.expr
            for p in own_ints(e)
            if not p.plain
            for a in opaque_atoms(p)
            if isinstance(a, Dynamic)
        )
    return children(e)


def map_loads(e: Expr, f: Callable[[Load], Expr]) -> Expr:
    """Applies f to every Load, innermost first, including those inside of indices."""

    def put(x: Expr) -> Expr:
        if isinstance(x, Load):
            new = map_index(x.index, lambda p: map_dynamic(p, f))
            return f(x if new is x.index else Load(x.buffer, new, x.dtype))
        if isinstance(x, IntValue):
            p = map_dynamic(x.value, f)
            return x if p is x.value else IntValue(p, x.dtype)
        return x

    return rewrite(e, put)


def map_dynamic(p: Int, f: Callable[[Load], Expr]) -> Int:
    """Applies f to the Loads inside of the Dynamic atoms of p."""

    def go(a: Opaque) -> Int:
        return as_index(map_loads(a.expr, f)) if isinstance(a, Dynamic) else atom(a)

    return map_atoms(p, go)


def loads_of(e: Expr) -> tuple[Load, ...]:
    """Every distinct Load, including those inside of indices. Cached in the expression, because
    each primitive that moves a block asks for the loads of all others.
    """
    try:
        return e._loads  # type: ignore[union-attr,no-any-return]
    except AttributeError:
        pass
    loads = tuple(x for x in preorder(e, below) if isinstance(x, Load))
    object.__setattr__(e, "_loads", loads)
    return loads


def selects_of(e: Expr) -> tuple[Select, ...]:
    """Every distinct Select outside of indices. Cached as `loads_of` is: each pass asks again."""
    try:
        return e._selects  # type: ignore[union-attr,no-any-return]
    except AttributeError:
        pass
    selects = tuple(x for x in preorder(e, children) if isinstance(x, Select))
    object.__setattr__(e, "_selects", selects)
    return selects


def index_loads(p: Int) -> tuple[Load, ...]:
    """Every distinct Load inside of an index."""
    return () if p.plain else loads_of(IntValue(p, INT64))


def is_loaded(p: Int) -> bool:
    """Whether an index depends on elements of a tensor. If it leaves its buffer, the caller's data
    is wrong; any other index is an error of the Function.
    """
    return not p.plain and any(isinstance(a, Dynamic) for a in opaque_atoms(p))


# The size of the code that an expression becomes.
def code_cost(e: Expr) -> int:
    """The approximate number of instructions. An index with a division takes several per lane.
    A computed value that is used several times counts once, a loaded one each time. Cached in the
    expression, because it is asked for each loop around it.
    """
    try:
        return e._cost  # type: ignore[union-attr,no-any-return]
    except AttributeError:
        pass
    cost = _reading(e) if type(e) in LEAVES else _computing(e)
    object.__setattr__(e, "_cost", cost)
    return cost


def _computing(e: Expr) -> int:
    total = 0
    for x in preorder(e, _computed):
        total += 1
        for y in children(x):
            if type(y) in LEAVES:
                total += _reading(y)
    return total


def _computed(e: Expr) -> list[Expr]:
    return [x for x in children(e) if type(x) not in LEAVES]


def _reading(leaf: Expr) -> int:
    if not isinstance(leaf, Load):
        return 1
    return 1 + 8 * sum(1 for p in leaf.index if not p.plain for _ in opaque_atoms(p))


# Conditions of selects and guards: as linear inequalities, and decided by known values.
def is_zero(e: Expr) -> bool:
    """Whether it is the constant 0 whose bits are all 0."""
    return isinstance(e, Const) and e.value == 0 and not str(e.value).startswith("-")


def condition_parts(cond: Expr) -> tuple[tuple[Int, ...], tuple[Expr, ...]]:
    """A condition as a conjunction: Ints that must be >= 0, and other conditions that must hold."""
    ints: list[Int] = []
    rest: list[Expr] = []
    for x in preorder(cond, _conjuncts):
        match x:
            case Binary(op="and"):
                continue
            case Binary(op=op, a=IntValue(value=p), b=IntValue(value=q)) if op in COMPARISONS:
                match op:
                    case "lt":
                        ints.append(q - p - 1)
                    case "le":
                        ints.append(q - p)
                    case "gt":
                        ints.append(p - q - 1)
                    case "ge":
                        ints.append(p - q)
                    case "eq":
                        ints += (p - q, q - p)
                    case _:
                        rest.append(x)
            case _:
                rest.append(x)
    return tuple(ints), tuple(rest)


def _conjuncts(e: Expr) -> tuple[Expr, ...]:
    return (e.a, e.b) if isinstance(e, Binary) and e.op == "and" else ()


def settled(e: Expr, env: Mapping[str, Int]) -> Expr:
    """The expression with these values of iterators. Selects that they decide are replaced."""

    def settle(x: Expr) -> Expr:
        cond = x.cond if isinstance(x, Select) else None
        if isinstance(x, Select) and isinstance(cond, Binary) and cond.op == "eq":
            sides = [y.value.const for y in (cond.a, cond.b) if isinstance(y, IntValue)]
            if len(sides) == 2 and None not in sides:
                return x.a if sides[0] == sides[1] else x.b
        return x

    return rewrite(substitute(e, env), settle) if env else e
