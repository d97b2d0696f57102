"""Value expressions: what is computed at one point of an iteration space. Frozen nodes with a
dtype, compared by structure.

Integer arithmetic on iterators lives in `Int` and enters here as `IntValue`; a value that is read
from a tensor enters an
index as the opaque atom `Dynamic`. Evaluating an expression has no effect, so a rewrite may drop,
copy or reorder it; the one
rule is that a `Select` reads only on the branch that is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from tilesmith.base.dtype import BOOL, INT64, DType, promote
from tilesmith.expr.ints import (
    ZERO,
    Int,
    Opaque,
    Unknown,
    atom,
    bounds,
    map_atoms,
    opaque_atoms,
)


@dataclass(frozen=True, slots=True)
class Const:
    value: int | float | bool
    dtype: DType

    def __eq__(self, other: object) -> bool:  # 0.0 is not -0.0, and NaN is itself
        if not isinstance(other, Const):
            return NotImplemented
        return self.dtype is other.dtype and repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        return hash((repr(self.value), self.dtype.name))


@dataclass(frozen=True, slots=True)
class IntValue:
    """An integer over iterators, as a value; it lies within its dtype."""

    value: Int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Arg:
    """A parameter of a combiner: `x0`, `x1` on the left, `y0`, `y1` on the right."""

    name: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class Load:
    buffer: str
    index: tuple[Int, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Unary:
    op: str  # one of UNARY
    x: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Binary:
    op: str  # one of BINARY
    a: Expr
    b: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Select:
    cond: Expr
    a: Expr
    b: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Cast:
    x: Expr
    dtype: DType


Expr = Const | IntValue | Arg | Load | Unary | Binary | Select | Cast

FLOAT_FUNCTIONS = (
    "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "sin", "cos",
)  # fmt: skip
UNARY = (*FLOAT_FUNCTIONS, "neg", "abs", "floor", "ceil", "round", "not")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
ARITHMETIC = ("add", "sub", "mul", "div", "floordiv", "mod", "max", "min", "pow")
BINARY = (*ARITHMETIC, *COMPARISONS, "and", "or")


class Dynamic(Opaque):
    """An integer that is read from a tensor, inside an index: `table[ids[i], j]`."""

    __slots__ = ("expr",)

    def __init__(self, expr: Expr) -> None:
        self.expr = expr
        self.key = show(expr)

    def names(self) -> frozenset[str]:
        found: set[str] = set()
        for p in ints_of(self.expr):
            found |= p.names
        return frozenset(found)

    def substitute(self, env: Mapping[str, Int]) -> Int:
        return as_index(map_ints(self.expr, lambda p: p.substitute(env)))


def as_index(e: Expr) -> Int:
    """An integer expression as an Int: polynomial where it cannot wrap around, `Dynamic` where it
    may, or where it reads a tensor.

    An Int has no width. So int64 arithmetic is taken apart; that of narrower types wraps, and stays
    an expression of its own type. An IntValue holds its value whatever its type (see `fitted`).
    """
    if isinstance(e, IntValue):
        return e.value
    if isinstance(e, Const):
        return ZERO + int(e.value)
    if e.dtype is INT64:
        match e:
            case Cast(x=IntValue(value=p)):
                return p
            case Binary(op="add", a=a, b=b):
                return as_index(a) + as_index(b)
            case Binary(op="sub", a=a, b=b):
                return as_index(a) - as_index(b)
            case Binary(op="mul", a=a, b=b):
                return as_index(a) * as_index(b)
    return atom(Dynamic(e))


def fitted(e: Expr, ranges: Mapping[str, Int]) -> Expr:
    """Indices as polynomials again where narrow arithmetic on iterators cannot leave its type:
    `int32(i) + 1` is i + 1 if i stays small. `ranges` are the extents of the iterators.
    """

    def fit(x: Expr) -> Expr:
        if isinstance(x, Load | IntValue):
            return map_ints(x, index)
        x = map_children(x, fit)
        if not (isinstance(x, Cast | Binary) and x.dtype.is_int):
            return x
        found = _polynomial(x)
        return IntValue(found, x.dtype) if found is not None and fits(found, x.dtype) else x

    def fits(p: Int, dtype: DType) -> bool:
        try:
            low, high = (q.const for q in bounds(p, ranges))
        except Unknown:
            return False
        return low is not None and high is not None and (
            dtype.lowest() <= low and high <= dtype.highest()
        )  # fmt: skip

    def index(p: Int) -> Int:
        return map_atoms(p, lambda a: as_index(fit(a.expr)) if isinstance(a, Dynamic) else atom(a))

    return map_ints(e, index)


def _polynomial(e: Cast | Binary) -> Int | None:
    """What a cast, a sum or a product of IntValues and constants is if it does not wrap."""
    parts = []
    for x in children(e):
        if isinstance(x, Const) and x.dtype.is_int:
            parts.append(ZERO + int(x.value))
        elif isinstance(x, IntValue):
            parts.append(x.value)
        else:
            return None
    match e:
        case Cast():
            return parts[0]
        case Binary(op="add"):
            return parts[0] + parts[1]
        case Binary(op="sub"):
            return parts[0] - parts[1]
        case Binary(op="mul"):
            return parts[0] * parts[1]
    return None


# These run for every node of every candidate: plain tests, where a match would cost three times.
def children(e: Expr) -> tuple[Expr, ...]:
    if isinstance(e, Binary):
        return e.a, e.b
    if isinstance(e, (Unary, Cast)):
        return (e.x,)
    if isinstance(e, Select):
        return e.cond, e.a, e.b
    return ()


def operations(e: Expr) -> int:
    """About how many operations an expression is; an index with a division costs several, once per
    lane.
    """
    if isinstance(e, Load):
        return 1 + 8 * sum(1 for p in e.index if not p.plain for _ in opaque_atoms(p))
    return 1 + sum(map(operations, children(e)))


def map_children(e: Expr, f: Callable[[Expr], Expr]) -> Expr:
    if isinstance(e, Binary):
        a, b = f(e.a), f(e.b)
        return e if a is e.a and b is e.b else Binary(e.op, a, b, e.dtype)
    if isinstance(e, Select):
        c, a, b = f(e.cond), f(e.a), f(e.b)
        return e if c is e.cond and a is e.a and b is e.b else Select(c, a, b, e.dtype)
    if isinstance(e, (Unary, Cast)):
        x = f(e.x)
        return e if x is e.x else replace(e, x=x)
    return e


def _map_index(index: tuple[Int, ...], f: Callable[[Int], Int]) -> tuple[Int, ...]:
    new = tuple(map(f, index))
    return index if all(x is y for x, y in zip(new, index, strict=True)) else new


def map_ints(e: Expr, f: Callable[[Int], Int]) -> Expr:
    """f over every Int of the expression. f must go through `Int.substitute` to reach inside
    Dynamic atoms.
    """
    if isinstance(e, Load):
        new = _map_index(e.index, f)
        return e if new is e.index else Load(e.buffer, new, e.dtype)
    if isinstance(e, IntValue):
        p = f(e.value)
        return e if p is e.value else IntValue(p, e.dtype)
    return map_children(e, lambda x: map_ints(x, f))


def map_loads(e: Expr, f: Callable[[Load], Expr]) -> Expr:
    """f over every Load, innermost first: also over those inside the index of another one."""
    if isinstance(e, Load):
        new = _map_index(e.index, lambda p: map_dynamic(p, f))
        return f(e if new is e.index else Load(e.buffer, new, e.dtype))
    if isinstance(e, IntValue):
        p = map_dynamic(e.value, f)
        return e if p is e.value else IntValue(p, e.dtype)
    return map_children(e, lambda x: map_loads(x, f))


def map_dynamic(p: Int, f: Callable[[Load], Expr]) -> Int:
    """f over the Loads inside the Dynamic atoms of p."""

    def go(a: Opaque) -> Int:
        return as_index(map_loads(a.expr, f)) if isinstance(a, Dynamic) else atom(a)

    return map_atoms(p, go)


def loads_of(e: Expr) -> Iterator[Load]:
    """Every Load, also those inside indices."""
    if isinstance(e, Load):
        yield e
    for p in own_ints(e):
        if p.plain:
            continue
        for a in opaque_atoms(p):
            if isinstance(a, Dynamic):
                yield from loads_of(a.expr)
    for x in children(e):
        yield from loads_of(x)


def own_ints(e: Expr) -> tuple[Int, ...]:
    if isinstance(e, Load):
        return e.index
    return (e.value,) if isinstance(e, IntValue) else ()


def ints_of(e: Expr) -> Iterator[Int]:
    yield from own_ints(e)
    for x in children(e):
        yield from ints_of(x)


def substitute(e: Expr, env: Mapping[str, Int]) -> Expr:
    return map_ints(e, lambda p: p.substitute(env)) if env else e


def settled(e: Expr, env: Mapping[str, Int]) -> Expr:
    """With these numbers put in. A choice that they decide is what is chosen."""

    def settle(x: Expr) -> Expr:
        x = map_children(x, settle)
        cond = x.cond if isinstance(x, Select) else None
        if isinstance(x, Select) and isinstance(cond, Binary) and cond.op == "eq":
            sides = [y.value.const for y in (cond.a, cond.b) if isinstance(y, IntValue)]
            if len(sides) == 2 and None not in sides:
                return x.a if sides[0] == sides[1] else x.b
        return x

    return settle(substitute(e, env)) if env else e


@dataclass(frozen=True, slots=True)
class Combiner:
    """How a reduction joins two partial results: one expression per output over Args x0.. and y0..,
    and the neutral values.

    It must be associative and commutative; schedules rely on it.
    """

    values: tuple[Expr, ...]
    identity: tuple[Const, ...]

    @property
    def op(self) -> str | None:
        """The name, if it is a plain add, mul, max or min."""
        if len(self.values) == 1 and isinstance(v := self.values[0], Binary):
            plain = (v.a, v.b) == (Arg("x0", v.dtype), Arg("y0", v.dtype))
            return v.op if plain and v.op in ("add", "mul", "max", "min") else None
        return None

    def join(self, x: tuple[Expr, ...], y: tuple[Expr, ...]) -> tuple[Expr, ...]:
        env = {f"x{k}": e for k, e in enumerate(x)} | {f"y{k}": e for k, e in enumerate(y)}

        def put(e: Expr) -> Expr:
            return env[e.name] if isinstance(e, Arg) else map_children(e, put)

        return tuple(put(v) for v in self.values)


COMBINERS = ("add", "mul", "max", "min")


def plain_combiner(op: str, dtype: DType) -> Combiner:
    neutral = {"add": 0, "mul": 1, "max": dtype.lowest(), "min": dtype.highest()}[op]
    value = Binary(op, Arg("x0", dtype), Arg("y0", dtype), dtype)
    return Combiner((value,), (Const(dtype.wrap(neutral), dtype),))


def binary_dtype(op: str, a: DType, b: DType) -> DType:
    return BOOL if op in COMPARISONS or op in ("and", "or") else promote(a, b)


_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "and": "&", "or": "|",
}  # fmt: skip


def show(e: Expr) -> str:
    """The expression as a person would write it."""
    match e:
        case Const(value=v):
            return repr(v)
        case IntValue(value=p):
            return str(p) if len(p.terms) == 1 else f"({p})"
        case Arg(name=n):
            return n
        case Load(buffer=b, index=ix):
            return f"{b}[{', '.join(map(str, ix))}]"
        case Unary(op="neg", x=x):
            return f"-{show(x)}"
        case Unary(op="not", x=x):
            return f"~{show(x)}"
        case Unary(op=op, x=x):
            return f"{op}({strip(show(x))})"
        case Binary(op=("max" | "min") as op, a=a, b=b):
            return f"{op}({strip(show(a))}, {strip(show(b))})"
        case Binary(op=op, a=a, b=b):
            return f"({show(a)} {_SIGNS[op]} {show(b)})"
        case Select(cond=c, a=a, b=b):
            return f"where({strip(show(c))}, {strip(show(a))}, {strip(show(b))})"
        case Cast(x=x, dtype=d):
            return f"{d.name}({strip(show(x))})"


def strip(text: str) -> str:
    """Without the outermost pair of parentheses, if one pair encloses it all."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for k, ch in enumerate(text):
        depth += (ch == "(") - (ch == ")")
        if depth == 0 and k < len(text) - 1:
            return text
    return text[1:-1]


def condition_parts(cond: Expr) -> tuple[tuple[Int, ...], tuple[Expr, ...]]:
    """A condition as a conjunction: Ints that must be >= 0, and whatever else must hold."""
    match cond:
        case Binary(op="and", a=a, b=b):
            pa, ra = condition_parts(a)
            pb, rb = condition_parts(b)
            return pa + pb, ra + rb
        case Binary(op=op, a=IntValue(value=x), b=IntValue(value=y)) if op in COMPARISONS:
            match op:
                case "lt":
                    return (y - x - 1,), ()
                case "le":
                    return (y - x,), ()
                case "gt":
                    return (x - y - 1,), ()
                case "ge":
                    return (x - y,), ()
                case "eq":
                    return (x - y, y - x), ()
    return (), (cond,)
