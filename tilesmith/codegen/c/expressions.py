"""Emits value expressions: the C text of an Expr.

A node that is used more than once becomes a variable, and so does a long text. A select is
`c ? a : b`, or an `if` where a side needs variables of its own, so that each side loads only where
it is taken.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from tilesmith.base.dtype import BFLOAT16, FLOAT16, INT32, INT64, DType
from tilesmith.base.errors import BuildError
from tilesmith.codegen.c import operations, piece
from tilesmith.codegen.c.integers import Integers
from tilesmith.codegen.c.piece import BOTH, EQUAL, Piece
from tilesmith.codegen.c.position import Position
from tilesmith.codegen.expressions import Scopes, Unconditional
from tilesmith.codegen.passes.check_indices import number_of
from tilesmith.expr.dynamic import below, condition_parts, is_zero, loads_of
from tilesmith.expr.ints import Int, of
from tilesmith.expr.nodes import (
    COMPARISONS,
    Arg,
    Binary,
    Cast,
    Const,
    Expr,
    IntValue,
    Load,
    Select,
    Unary,
)
from tilesmith.expr.walk import postorder, run_deep

Steps = Generator[Expr, Piece, Piece]
# A text longer than this becomes a variable: compilers limit how deep parentheses are nested.
_LONG = 300
_SMALL = (Const, Arg, IntValue, Load)


class Expressions:
    def __init__(self, position: Position, integers: Integers) -> None:
        self.position, self.integers = position, integers
        self.operations = operations.Operations(position.dialect, position.helpers)
        # Elements that a vector load has brought into registers, by (buffer, index).
        self.fetched: dict[Load, str] = {}
        self.args: dict[str, Piece] = {}  # values of a combiner's Args
        integers.value = self.index_value
        self._root: Expr | None = None
        self._uses: dict[int, int] = {}
        self._memo: dict[int, list[tuple[str, Piece]]] = {}  # (scope, value) by id
        self._scopes: Scopes | None = None
        self._certain: Unconditional | None = None
        self._lines: list[list[str]] = []  # of each open scope

    # statements ask for these
    def value(self, e: Expr) -> Piece:
        """The value in the type it is computed in. Variables that it needs are written first."""
        if isinstance(e, _SMALL) or self._root is not None:
            return self._inner(e)
        self._root = e
        self._uses = _uses(e)
        self._memo, self._scopes, self._lines = {}, None, [[]]
        self._certain = None
        try:
            v = self._inner(e)
        finally:
            self._root = None
        self.position.scopes[-1].lines.extend(self._lines[0])
        return v

    def stored(self, e: Expr, d: DType) -> Piece:
        """The value as an element of memory. What is only moved is not converted."""
        if isinstance(e, Load) and e.dtype is d:
            return Piece(self.element(e))
        if d in (FLOAT16, BFLOAT16) and e.dtype is d and (moved := self._padded(e)) is not None:
            return moved
        if d in (FLOAT16, BFLOAT16) and isinstance(e, Cast) and e.x.dtype.is_float:
            return self.operations.narrow(self.value(e.x), e.x.dtype, d)
        return self.operations.narrow(self.value(e), e.dtype, d)

    def _padded(self, e: Expr) -> Piece | None:
        """An element as it is in memory, or 0 where conditions on iterators do not hold; None if
        the value is another one.
        """
        conditions: list[Int] = []
        while isinstance(e, Select) and is_zero(e.b):
            ints, others = condition_parts(e.cond)
            if others:
                return None
            conditions += ints
            e = e.a
        if not conditions or not isinstance(e, Load) or len(loads_of(e)) > 1:
            return None
        held = Piece(self.integers.conditions(conditions), EQUAL if len(conditions) == 1 else BOTH)
        return piece.choice(held, Piece(self.element(e)), Piece("0"))

    def element(self, e: Load) -> str:
        """An element as it is in memory."""
        if (name := self.fetched.get(e)) is not None:
            return name
        memory = self.position.memories[e.buffer]
        if memory.single:
            return memory.name
        return self.integers.element(memory, e.index)

    def index_value(self, e: Expr) -> Piece:
        """A value inside of an index."""
        return self._inner(e) if self._root is not None else self.value(e)

    # nodes
    def _inner(self, e: Expr) -> Piece:
        started = self._start(e)
        return started if isinstance(started, Piece) else run_deep(started, self._start)

    def _start(self, e: Expr) -> Piece | Steps:
        match e:
            case Const():
                return self.constant(e)
            case Arg(name=name):
                return self.args[name]
            case Load():
                return self.operations.widen(Piece(self.element(e)), e.dtype)
            case IntValue(value=p):
                have = INT32 if self.integers.is_int(p) else INT64
                return self.operations.cast(self.integers.integer(p), have, e.dtype)
        scopes = self._scopes
        for scope, v in self._memo.get(id(e), ()):
            if scopes is None or scopes.open(scope):
                return v
        if scopes is not None and (k := scopes.outermost(e)) < len(scopes) - 1:
            return self._further_out(k, e)
        return self._steps(e)

    def _further_out(self, k: int, e: Expr) -> Steps:
        """Computes a value that scope k needs in any case, there."""
        scopes, lines = self._scopes, self._lines
        assert scopes is not None
        self._scopes, self._lines = scopes.up_to(k), lines[: k + 1]
        v = yield e
        self._scopes, self._lines = scopes, lines
        return v

    def _steps(self, e: Expr) -> Steps:
        match e:
            case Unary(op=op) if number_of(op) is not None:
                raise BuildError("kernels whose indices are checked run on CPUs only")
            case Unary(op=op, x=x):
                v = self.operations.unary(op, (yield x), e.dtype)
            case Binary(op=op, a=a, b=b) if (p := _difference(op, a, b)) is not None:
                v = self.integers.comparison(op, p)
            case Binary(op=op, a=a, b=b):
                left = yield a
                v = self.operations.binary(op, left, (yield b), a.dtype)
            case Cast(x=x):
                v = self.operations.cast((yield x), x.dtype, e.dtype)
            case Select(cond=c, a=a, b=b):
                v = yield from self._select(e, c, a, b)
            case _:
                raise AssertionError(e)
        shared = self._uses.get(id(e), 1) > 1
        return self._keep(e, v) if shared or len(v.text) > _LONG else v

    def _keep(self, e: Expr, v: Piece) -> Piece:
        """A variable for a value that is used again."""
        if not v.text.isidentifier():
            name = self.position.fresh("t")
            self._lines[-1].append(f"const {self._type(e.dtype)} {name} = {v.text};")
            v = Piece(name)
        scope = "" if self._scopes is None else self._scopes.names[-1]
        self._memo.setdefault(id(e), []).append((scope, v))
        return v

    def _type(self, d: DType) -> str:
        return self.position.dialect.value_type(d)

    def _select(self, e: Expr, cond: Expr, a: Expr, b: Expr) -> Steps:
        c = yield cond
        if self._scopes is None:
            assert self._root is not None
            self._certain = Unconditional(self._root)
            self._scopes = Scopes(self._certain, "")
        x, left = yield from self._side(a)
        y, right = yield from self._side(b)
        if not left and not right:
            return piece.choice(c, x, y)
        name = self.position.fresh("t")
        self._lines[-1] += [
            f"{self._type(e.dtype)} {name};",
            f"if ({c.text}) {{",
            *(f"  {line}" for line in left),
            f"  {name} = {x.text};",
            "} else {",
            *(f"  {line}" for line in right),
            f"  {name} = {y.text};",
            "}",
        ]
        return Piece(name)

    def _side(self, e: Expr) -> Generator[Expr, Piece, tuple[Piece, list[str]]]:
        """The value of one side and the lines that it needs, which run only if it is taken."""
        scopes = self._scopes
        assert scopes is not None
        lines: list[str] = []
        self._lines.append(lines)
        scopes.push(f"{len(scopes)}.{id(lines)}", e)
        v = yield e
        scopes.pop()
        self._lines.pop()
        return v, lines

    def constant(self, e: Const) -> Piece:
        d = e.dtype
        if d.kind == "b":
            return Piece("true" if e.value else "false")
        if not d.is_float:
            text = self.position.helpers.integer(int(e.value), d)
            if d.bits < 32:
                return piece.cast(self._type(d), Piece(text, EQUAL if text[0] == "-" else 16))
            return _literal(text)
        held = d.numpy.type(e.value) if d is not BFLOAT16 else np.float32(d.numpy.type(e.value))
        if np.isnan(held) or np.isinf(held):
            name = Piece("NAN" if np.isnan(held) else "INFINITY")
            value = piece.cast("double", name) if d.bits == 64 else name
            return piece.prefix("-", value) if held < 0 else value
        wide = held if d.bits == 64 else np.float32(held)
        text = str(wide)
        if not set(text) & {".", "e"}:
            text += ".0"
        return _literal(text if d.bits == 64 else f"{text}f")


def _difference(op: str, a: Expr, b: Expr) -> Int | None:
    """a - b, if a comparison of the two is one of integers over loops."""
    if op not in COMPARISONS or (isinstance(a, Const) and isinstance(b, Const)):
        return None
    both = [
        x.value if isinstance(x, IntValue) else of(int(x.value))
        for x in (a, b)
        if isinstance(x, IntValue) or (isinstance(x, Const) and x.dtype.is_int)
    ]
    return both[0] - both[1] if len(both) == 2 else None


def _literal(text: str) -> Piece:
    return Piece(text, piece.UNARY if text[0] == "-" else piece.PRIMARY)


def _uses(root: Expr) -> dict[int, int]:
    """How many other nodes use each node."""
    uses: dict[int, int] = {}
    for x in postorder(root, below):
        for y in below(x):
            uses[id(y)] = uses.get(id(y), 0) + 1
    return uses
