"""Value expressions: what is computed at one point of an iteration space. Frozen nodes with a
dtype, compared by structure.

Integer arithmetic on iterators lives in `Int` and enters here as `IntValue`; a value that is read
from a tensor enters an
index as the opaque atom `Dynamic`. Evaluating an expression has no effect, so a rewrite may drop,
copy or reorder it; the one
rule is that a `Select` reads only on the branch that is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tilesmith.base.digest import digest
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
from tilesmith.expr.walk import fold, postorder, preorder


class Node:
    """Compared by structure. The hash is kept, and comparing walks both graphs side by side, so
    that neither grows with what is shared.
    """

    __slots__ = ("_hash", "_loads")

    def __hash__(self) -> int:
        try:
            return self._hash  # type: ignore[attr-defined,no-any-return]
        except AttributeError:
            pass
        for x in postorder(self, _operands):
            if not hasattr(x, "_hash"):
                inner = tuple(y._hash for y in _operands(x))  # type: ignore[attr-defined]
                object.__setattr__(x, "_hash", hash((type(x).__name__, x._own(), inner)))
        return self._hash  # type: ignore[attr-defined,no-any-return]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Node):
            return NotImplemented
        pairs: list[tuple[Node, Node]] = [(self, other)]
        seen = set()
        while pairs:
            x, y = pairs.pop()
            if x is y or (id(x), id(y)) in seen:
                continue
            if type(x) is not type(y) or x._own() != y._own():
                return False
            seen.add((id(x), id(y)))
            pairs.extend(zip(_operands(x), _operands(y), strict=True))
        return True

    def _own(self) -> tuple[object, ...]:
        """All that it is beside its operands."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[object, ...]:
        """A pickle is a table of nodes, as deep as the expression may be."""
        if not _operands(self):
            return type(self), tuple(getattr(self, f) for f in self.__dataclass_fields__)  # type: ignore[attr-defined]
        rows: list[object] = []
        place: dict[int, int] = {}
        for k, x in enumerate(postorder(self, _operands)):
            place[id(x)] = k
            inner = tuple(place[id(y)] for y in _operands(x))
            op = (x.op,) if isinstance(x, Unary | Binary) else ()
            rows.append((type(x), op, inner, x.dtype) if inner else x)  # type: ignore[attr-defined]
        return _assemble, (rows,)

    def __repr__(self) -> str:
        return brief(self)  # type: ignore[arg-type]


def _assemble(rows: list[Any]) -> Node:
    nodes: list[Node] = []
    for row in rows:
        if not isinstance(row, Node):
            kind, op, inner, dtype = row
            row = kind(*op, *(nodes[k] for k in inner), dtype)
        nodes.append(row)
    return nodes[-1]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Const(Node):
    value: int | float | bool
    dtype: DType

    def _own(self) -> tuple[object, ...]:
        return repr(self.value), self.dtype.name  # 0.0 is not -0.0, and NaN is itself


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class IntValue(Node):
    """An integer over iterators, as a value; it lies within its dtype."""

    value: Int
    dtype: DType

    def _own(self) -> tuple[object, ...]:
        return self.value, self.dtype.name


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Arg(Node):
    """A parameter of a combiner: `x0`, `x1` on the left, `y0`, `y1` on the right."""

    name: str
    dtype: DType

    def _own(self) -> tuple[object, ...]:
        return self.name, self.dtype.name


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Load(Node):
    buffer: str
    index: tuple[Int, ...]
    dtype: DType

    def _own(self) -> tuple[object, ...]:
        return self.buffer, self.index, self.dtype.name


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Unary(Node):
    op: str  # one of UNARY
    x: Expr
    dtype: DType

    def _own(self) -> tuple[object, ...]:
        return self.op, self.dtype.name


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Binary(Node):
    op: str  # one of BINARY
    a: Expr
    b: Expr
    dtype: DType

    def _own(self) -> tuple[object, ...]:
        return self.op, self.dtype.name


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Select(Node):
    cond: Expr
    a: Expr
    b: Expr
    dtype: DType

    def _own(self) -> tuple[object, ...]:
        return (self.dtype.name,)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cast(Node):
    x: Expr
    dtype: DType

    def _own(self) -> tuple[object, ...]:
        return (self.dtype.name,)


_LEAVES = frozenset({Const, IntValue, Arg, Load})
Expr = Const | IntValue | Arg | Load | Unary | Binary | Select | Cast

FLOAT_FUNCTIONS = (
    "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "sin", "cos", "atan",
    "expm1",
)  # fmt: skip
UNARY = (*FLOAT_FUNCTIONS, "neg", "abs", "floor", "ceil", "round", "trunc", "not", "bitnot")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
BITWISE = ("bitand", "bitor", "bitxor", "shl", "shr")  # of integers
ARITHMETIC = (
    "add", "sub", "mul", "div", "floordiv", "mod", "truncdiv", "fmod", "max", "min", "pow",
    *BITWISE,
)  # fmt: skip
BINARY = (*ARITHMETIC, *COMPARISONS, "and", "or")


class Dynamic(Opaque):
    """An integer that is read from a tensor, inside an index: `table[ids[i], j]`."""

    __slots__ = ("expr",)

    def __init__(self, expr: Expr) -> None:
        self.expr = expr
        self.key = _text_or_digest(expr)

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
    """What a cast, a sum or a product of polynomials is if it does not wrap."""
    match e:
        case Binary(op="add"):
            return inner[0] + inner[1]
        case Binary(op="sub"):
            return inner[0] - inner[1]
        case Binary(op="mul"):
            return inner[0] * inner[1]
    return inner[0]


def fitted(e: Expr, ranges: Mapping[str, Int]) -> Expr:
    """Indices as polynomials again where narrow arithmetic on iterators cannot leave its type:
    `int32(i) + 1` is i + 1 if i stays small. `ranges` are the extents of the iterators.
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
        found = _polynomial(x, parts)
        return IntValue(found, x.dtype) if fits(found, x.dtype) else x

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


# These run for every node of every candidate: plain tests, where a match would cost three times.
def children(e: Expr) -> tuple[Expr, ...]:
    kind = type(e)
    if kind in _LEAVES:
        return ()
    if kind is Binary:
        return e.a, e.b  # type: ignore[union-attr]
    if kind is Select:
        return e.cond, e.a, e.b  # type: ignore[union-attr]
    return (e.x,)  # type: ignore[union-attr]


def _operands(e: Node) -> tuple[Node, ...]:
    return children(e)  # type: ignore[arg-type]


def below(e: Expr) -> tuple[Expr, ...]:
    """All that it is made of: its children, and what is read for its indices."""
    if isinstance(e, (Load, IntValue)):
        return tuple(
            a.expr
            for p in own_ints(e)
            if not p.plain
            for a in opaque_atoms(p)
            if isinstance(a, Dynamic)
        )
    return children(e)


def code_cost(e: Expr) -> int:
    """About how many instructions an expression becomes; an index with a division costs several,
    once per lane. What is computed for several uses counts once, what is only read counts for each.
    """
    if type(e) in _LEAVES:
        return _reading(e)
    total = 0
    for x in preorder(e, _computed):
        total += 1
        for y in children(x):
            if type(y) in _LEAVES:
                total += _reading(y)
    return total


def _computed(e: Expr) -> list[Expr]:
    return [x for x in children(e) if type(x) not in _LEAVES]


def _reading(leaf: Expr) -> int:
    if not isinstance(leaf, Load):
        return 1
    return 1 + 8 * sum(1 for p in leaf.index if not p.plain for _ in opaque_atoms(p))


def map_children(e: Expr, f: Callable[[Expr], Expr]) -> Expr:
    if isinstance(e, Binary):
        a, b = f(e.a), f(e.b)
        return e if a is e.a and b is e.b else Binary(e.op, a, b, e.dtype)
    if isinstance(e, Select):
        c, a, b = f(e.cond), f(e.a), f(e.b)
        return e if c is e.cond and a is e.a and b is e.b else Select(c, a, b, e.dtype)
    if isinstance(e, Unary):
        x = f(e.x)
        return e if x is e.x else Unary(e.op, x, e.dtype)
    if isinstance(e, Cast):
        x = f(e.x)
        return e if x is e.x else Cast(x, e.dtype)
    return e


def rewrite(e: Expr, f: Callable[[Expr], Expr]) -> Expr:
    """f over each distinct node, operands first: f gets the node with what f made of its operands.
    What is shared stays shared, and what does not change stays the same object.
    """
    if type(e) in _LEAVES:
        return f(e)
    new: dict[int, Expr] = {}

    def put(x: Expr) -> Expr:
        return new[id(x)]

    for x in postorder(e, children):
        new[id(x)] = f(x if type(x) in _LEAVES else map_children(x, put))
    return new[id(e)]


def _map_index(index: tuple[Int, ...], f: Callable[[Int], Int]) -> tuple[Int, ...]:
    new = tuple(map(f, index))
    return index if all(x is y for x, y in zip(new, index, strict=True)) else new


def map_ints(e: Expr, f: Callable[[Int], Int]) -> Expr:
    """f over every Int of the expression. f must go through `Int.substitute` to reach inside
    Dynamic atoms.
    """

    return rewrite(e, lambda x: map_own_ints(x, f))


def map_own_ints(e: Expr, f: Callable[[Int], Int]) -> Expr:
    """f over the Ints of this one node."""
    if isinstance(e, Load):
        new = _map_index(e.index, f)
        return e if new is e.index else Load(e.buffer, new, e.dtype)
    if isinstance(e, IntValue):
        p = f(e.value)
        return e if p is e.value else IntValue(p, e.dtype)
    return e


def map_loads(e: Expr, f: Callable[[Load], Expr]) -> Expr:
    """f over every Load, innermost first: also over those inside the index of another one."""

    def put(x: Expr) -> Expr:
        if isinstance(x, Load):
            new = _map_index(x.index, lambda p: map_dynamic(p, f))
            return f(x if new is x.index else Load(x.buffer, new, x.dtype))
        if isinstance(x, IntValue):
            p = map_dynamic(x.value, f)
            return x if p is x.value else IntValue(p, x.dtype)
        return x

    return rewrite(e, put)


def map_dynamic(p: Int, f: Callable[[Load], Expr]) -> Int:
    """f over the Loads inside the Dynamic atoms of p."""

    def go(a: Opaque) -> Int:
        return as_index(map_loads(a.expr, f)) if isinstance(a, Dynamic) else atom(a)

    return map_atoms(p, go)


def map_args(values: tuple[Expr, ...], env: Mapping[str, Expr]) -> tuple[Expr, ...]:
    """The values with what `env` has for each Arg."""
    return tuple(rewrite(v, lambda e: env[e.name] if isinstance(e, Arg) else e) for v in values)


def loads_of(e: Expr) -> tuple[Load, ...]:
    """Every Load, also those inside indices; one that is shared comes once. Kept with the
    expression: whoever moves a block asks all others what they read.
    """
    try:
        return e._loads  # type: ignore[union-attr,no-any-return]
    except AttributeError:
        pass
    found = tuple(x for x in preorder(e, below) if isinstance(x, Load))
    object.__setattr__(e, "_loads", found)
    return found


def own_ints(e: Expr) -> tuple[Int, ...]:
    if isinstance(e, Load):
        return e.index
    return (e.value,) if isinstance(e, IntValue) else ()


def ints_of(e: Expr) -> Iterator[Int]:
    for x in preorder(e, children):
        yield from own_ints(x)


def substitute(e: Expr, env: Mapping[str, Int]) -> Expr:
    return map_ints(e, lambda p: p.substitute(env)) if env else e


def settled(e: Expr, env: Mapping[str, Int]) -> Expr:
    """With these numbers put in. A choice that they decide is what is chosen."""

    def settle(x: Expr) -> Expr:
        cond = x.cond if isinstance(x, Select) else None
        if isinstance(x, Select) and isinstance(cond, Binary) and cond.op == "eq":
            sides = [y.value.const for y in (cond.a, cond.b) if isinstance(y, IntValue)]
            if len(sides) == 2 and None not in sides:
                return x.a if sides[0] == sides[1] else x.b
        return x

    return rewrite(substitute(e, env), settle) if env else e


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
            return v.op if plain and v.op in COMBINERS else None
        return None

    def join(self, x: tuple[Expr, ...], y: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return map_args(self.values, join_args(x, y))


_T = TypeVar("_T")


def join_args(x: Iterable[_T], y: Iterable[_T]) -> dict[str, _T]:
    """The Args of a combiner: x is what there is, y what is joined to it."""
    return {f"x{k}": v for k, v in enumerate(x)} | {f"y{k}": v for k, v in enumerate(y)}


COMBINERS = ("add", "mul", "max", "min")


def plain_combiner(op: str, dtype: DType) -> Combiner:
    neutral = {"add": 0, "mul": 1, "max": dtype.lowest(), "min": dtype.highest()}[op]
    value = Binary(op, Arg("x0", dtype), Arg("y0", dtype), dtype)
    return Combiner((value,), (Const(dtype.wrap(neutral), dtype),))


def binary_dtype(op: str, a: DType, b: DType) -> DType:
    return BOOL if op in COMPARISONS or op in ("and", "or") else promote(a, b)


SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "and": "&", "or": "|",
    "bitand": "&", "bitor": "|", "bitxor": "^", "shl": "<<", "shr": ">>",
}  # fmt: skip


# Expressions that would be longer as text show what they share under names of their own.
_LONG_TEXT = 2000


def show(e: Expr) -> str:
    """The expression as a person would write it."""
    parts, text = show_parts(e)
    return f"{text} with {', '.join(f'{n} = {t}' for n, t in parts)}" if parts else text


def brief(e: Expr) -> str:
    """The same within 80 characters, for messages; names without the numbers that tell them apart
    while they are being stated.
    """
    text = re.sub(r"@\d+", "", show(e))
    return text if len(text) <= 80 else f"{text[:77]}..."


def show_parts(e: Expr, prefix: str = "v") -> tuple[list[tuple[str, str]], str]:
    """Names for what is shared, each with its text, and the text of the whole. Short expressions
    are written out.
    """
    shared: dict[int, str] = {}
    if fold(e, children, _length) > _LONG_TEXT:
        uses: dict[int, int] = {}
        for x in preorder(e, children):
            for y in children(x):
                uses[id(y)] = uses.get(id(y), 0) + 1
        order = [x for x in postorder(e, children) if uses.get(id(x), 0) > 1 and children(x)]
        shared = {id(x): f"{prefix}{k}" for k, x in enumerate(order)}
    parts: list[tuple[str, str]] = []

    def name(x: Expr, inner: list[tuple[str, str]]) -> tuple[str, str]:
        text, bare = _text(x, inner)
        if id(x) not in shared:
            return text, bare
        parts.append((shared[id(x)], bare))
        return shared[id(x)], shared[id(x)]

    return parts, fold(e, children, name)[0]


def _length(e: Expr, inner: list[int]) -> int:
    return sum(inner) + (6 if inner else len(_text(e, [])[0]))


def _text(e: Expr, inner: list[tuple[str, str]]) -> tuple[str, str]:
    """With and without the parentheses around it. `inner` has the same of the operands."""
    match e:
        case Const(value=v):
            return repr(v), repr(v)
        case IntValue(value=p):
            text = str(p) if len(p.terms) == 1 else f"({p})"
            return text, strip(text)
        case Arg(name=n):
            return n, n
        case Load(buffer=b, index=ix):
            text = f"{b}[{', '.join(map(str, ix))}]"
        case Unary(op="neg"):
            text = f"-{inner[0][0]}"
        case Unary(op="not" | "bitnot"):
            text = f"~{inner[0][0]}"
        case Unary(op=op):
            text = f"{op}({inner[0][1]})"
        case Binary(op=("max" | "min" | "truncdiv" | "fmod") as op):
            text = f"{op}({inner[0][1]}, {inner[1][1]})"
        case Binary(op=op):
            bare = f"{inner[0][0]} {SIGNS[op]} {inner[1][0]}"
            return f"({bare})", bare
        case Select():
            text = f"where({', '.join(bare for _, bare in inner)})"
        case Cast(dtype=d):
            text = f"{d.name}({inner[0][1]})"
    return text, text


def _text_or_digest(e: Expr) -> str:
    """The text of a short expression, the digest of a long one: equal for equal expressions,
    however much of them is shared.
    """
    if fold(e, children, _length) <= _LONG_TEXT:
        return show(e)

    def mark(x: Expr, inner: list[str]) -> str:
        own = _text(x, [("", "")] * 3)[0]
        return digest(f"{type(x).__name__} {x.dtype.name} {own} {' '.join(inner)}")

    return f"value_{fold(e, children, mark)}"


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
