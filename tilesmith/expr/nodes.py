"""Value expressions: what is computed at one point of an iteration space. Nodes are frozen, have a
dtype, and are compared by structure.

Integer arithmetic on iterators is an `Int`, which becomes a value as `IntValue`. Evaluating an
expression has no side effects, so a rewrite may drop, copy or reorder it. The one rule is that a
`Select` reads only on the side that is taken.

`dynamic.py` has the values that are used as indices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import BOOL, DType, promote
from tilesmith.expr.ints import Int
from tilesmith.expr.walk import Text, brief, postorder, preorder, strip


class Node:
    """Compared by structure. The hash is cached, and a comparison walks both graphs side by side,
    so the cost of both is linear in the number of distinct nodes.
    """

    __slots__ = ("_cost", "_hash", "_loads", "_selects")  # what was asked before
    dtype: DType

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
        """Everything that identifies the node, except for its operands."""
        return (self.dtype.name,)

    def text(self, inner: Sequence[Text]) -> Text:
        """With and without the parentheses around it; `inner` has the same of the operands."""
        raise NotImplementedError

    def operands(self) -> tuple[Node, ...]:
        return children(self)  # type: ignore[arg-type]

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles a table of nodes, because the expression may be deeper than Python's stack."""
        if not _operands(self):
            return type(self), tuple(getattr(self, f) for f in self.__dataclass_fields__)  # type: ignore[attr-defined]
        rows: list[object] = []
        place: dict[int, int] = {}
        for k, x in enumerate(postorder(self, _operands)):
            place[id(x)] = k
            inner = tuple(place[id(y)] for y in _operands(x))
            op = (x.op,) if isinstance(x, Unary | Binary) else ()
            rows.append((type(x), op, inner, x.dtype) if inner else x)
        return _assemble, (rows,)

    def __repr__(self) -> str:
        return brief(self)


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
        return repr(self.value), self.dtype.name  # distinguishes 0.0 from -0.0; NaN equals itself

    def text(self, inner: Sequence[Text]) -> Text:
        return repr(self.value), repr(self.value)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class IntValue(Node):
    """An integer over iterators, as a value; it never leaves the range of its dtype."""

    value: Int
    dtype: DType

    def _own(self) -> tuple[object, ...]:
        return self.value, self.dtype.name

    def text(self, inner: Sequence[Text]) -> Text:
        text = str(self.value) if len(self.value.terms) == 1 else f"({self.value})"
        return text, strip(text)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Arg(Node):
    """A parameter of a combiner: `x0`, `x1` on the left, `y0`, `y1` on the right."""

    name: str
    dtype: DType

    def _own(self) -> tuple[object, ...]:
        return self.name, self.dtype.name

    def text(self, inner: Sequence[Text]) -> Text:
        return self.name, self.name


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Load(Node):
    buffer: str
    index: tuple[Int, ...]
    dtype: DType

    def _own(self) -> tuple[object, ...]:
        return self.buffer, self.index, self.dtype.name

    def text(self, inner: Sequence[Text]) -> Text:
        text = f"{self.buffer}[{', '.join(map(str, self.index))}]"
        return text, text


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Unary(Node):
    op: str  # one of UNARY
    x: Expr
    dtype: DType

    def _own(self) -> tuple[object, ...]:
        return self.op, self.dtype.name

    def text(self, inner: Sequence[Text]) -> Text:
        match self.op:
            case "neg":
                text = f"-{inner[0][0]}"
            case "not" | "bitnot":
                text = f"~{inner[0][0]}"
            case op:
                text = f"{op}({inner[0][1]})"
        return text, text


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Binary(Node):
    op: str  # one of BINARY
    a: Expr
    b: Expr
    dtype: DType

    def _own(self) -> tuple[object, ...]:
        return self.op, self.dtype.name

    def text(self, inner: Sequence[Text]) -> Text:
        if self.op not in SIGNS:
            text = f"{self.op}({inner[0][1]}, {inner[1][1]})"
            return text, text
        bare = f"{inner[0][0]} {SIGNS[self.op]} {inner[1][0]}"
        return f"({bare})", bare


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Select(Node):
    cond: Expr
    a: Expr
    b: Expr
    dtype: DType

    def text(self, inner: Sequence[Text]) -> Text:
        text = f"where({', '.join(bare for _, bare in inner)})"
        return text, text


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cast(Node):
    x: Expr
    dtype: DType

    def text(self, inner: Sequence[Text]) -> Text:
        text = f"{self.dtype.name}({inner[0][1]})"
        return text, text


LEAVES = frozenset({Const, IntValue, Arg, Load})
Expr = Const | IntValue | Arg | Load | Unary | Binary | Select | Cast

FLOAT_FUNCTIONS = (
    "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "sin", "cos", "atan",
    "expm1", "log2", "log10",
)  # fmt: skip
UNARY = (*FLOAT_FUNCTIONS, "neg", "abs", "floor", "ceil", "round", "trunc", "not", "bitnot")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
BITWISE = ("bitand", "bitor", "bitxor", "shl", "shr")  # operations on integers
ARITHMETIC = (
    "add", "sub", "mul", "div", "floordiv", "mod", "truncdiv", "fmod", "max", "min", "pow",
    *BITWISE,
)  # fmt: skip
BINARY = (*ARITHMETIC, *COMPARISONS, "and", "or")
SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "and": "&", "or": "|",
    "bitand": "&", "bitor": "|", "bitxor": "^", "shl": "<<", "shr": ">>",
}  # fmt: skip


def binary_dtype(op: str, a: DType, b: DType) -> DType:
    return BOOL if op in COMPARISONS or op in ("and", "or") else promote(a, b)


# Runs for every node of every candidate: plain tests, because a match takes three times as long.
def children(e: Expr) -> tuple[Expr, ...]:
    kind = type(e)
    if kind in LEAVES:
        return ()
    if kind is Binary:
        return e.a, e.b  # type: ignore[union-attr]
    if kind is Select:
        return e.cond, e.a, e.b  # type: ignore[union-attr]
    return (e.x,)  # type: ignore[union-attr]


def _operands(e: Node) -> tuple[Node, ...]:
    return children(e)  # type: ignore[arg-type]


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
    """Applies f to each distinct node, operands first: f gets the node with its rewritten operands.
    Shared nodes stay shared, and nodes that do not change stay the same object.
    """
    if type(e) in LEAVES:
        return f(e)
    new: dict[int, Expr] = {}

    def put(x: Expr) -> Expr:
        return new[id(x)]

    for x in postorder(e, children):
        new[id(x)] = f(x if type(x) in LEAVES else map_children(x, put))
    return new[id(e)]


def map_index(index: tuple[Int, ...], f: Callable[[Int], Int]) -> tuple[Int, ...]:
    new = tuple(map(f, index))
    return index if all(x is y for x, y in zip(new, index, strict=True)) else new


def map_ints(e: Expr, f: Callable[[Int], Int]) -> Expr:
    """Applies f to every Int of the expression. f must use `Int.substitute` to reach inside of
    Dynamic atoms.
    """
    return rewrite(e, lambda x: map_own_ints(x, f))


def map_own_ints(e: Expr, f: Callable[[Int], Int]) -> Expr:
    """Applies f to the Ints of this node alone."""
    if isinstance(e, Load):
        new = map_index(e.index, f)
        return e if new is e.index else Load(e.buffer, new, e.dtype)
    if isinstance(e, IntValue):
        p = f(e.value)
        return e if p is e.value else IntValue(p, e.dtype)
    return e


def own_ints(e: Expr) -> tuple[Int, ...]:
    if isinstance(e, Load):
        return e.index
    return (e.value,) if isinstance(e, IntValue) else ()


def ints_of(e: Expr) -> Iterator[Int]:
    for x in preorder(e, children):
        yield from own_ints(x)


def substitute(e: Expr, env: Mapping[str, Int]) -> Expr:
    return map_ints(e, lambda p: p.substitute(env)) if env else e


# Combiners: how a reduction joins two partial results.
COMBINERS = ("add", "mul", "max", "min")  # operators of plain reductions
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Combiner:
    """One expression per output over the Args x0.. and y0.., and the identity of each.

    It must be associative and commutative; schedules rely on it. Only updates at computed places
    may have `last_combiner`.
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


def map_args(values: tuple[Expr, ...], env: Mapping[str, Expr]) -> tuple[Expr, ...]:
    """The values with each Arg replaced by its value in `env`."""
    return tuple(rewrite(v, lambda e: env[e.name] if isinstance(e, Arg) else e) for v in values)


def join_args(x: Iterable[_T], y: Iterable[_T]) -> dict[str, _T]:
    """The Args of a combiner by name: x is the partial result so far, y what is joined to it."""
    return {f"x{k}": v for k, v in enumerate(x)} | {f"y{k}": v for k, v in enumerate(y)}


def last_combiner(dtype: DType) -> Combiner:
    """Of several updates, the last one in program order remains. It has no identity."""
    return Combiner((Arg("y0", dtype),), (Const(dtype.wrap(0), dtype),))


def plain_combiner(op: str, dtype: DType) -> Combiner:
    identity = {"add": 0, "mul": 1, "max": dtype.lowest(), "min": dtype.highest()}[op]
    value = Binary(op, Arg("x0", dtype), Arg("y0", dtype), dtype)
    return Combiner((value,), (Const(dtype.wrap(identity), dtype),))
