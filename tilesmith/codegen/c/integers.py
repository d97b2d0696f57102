"""Integers over loops as C text: indices, guards and addresses.

Divisions and remainders get names, and so does the part of an address that is the same for the
whole thread. They are computed where the innermost of their loops starts. An integer is an `int`
if no sum on the way to it can overflow, else 64 bits wide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilesmith.base.dtype import INT32, INT64
from tilesmith.codegen.c import piece
from tilesmith.codegen.c.piece import ADD, MUL, UNARY, Piece
from tilesmith.codegen.c.position import Memory, Position
from tilesmith.expr.dynamic import Dynamic
from tilesmith.expr.intervals import linear
from tilesmith.expr.ints import ZERO, FloorDiv, Int, Maximum, Monomial, Opaque, is_size
from tilesmith.expr.nodes import Expr


# Finds remainders in polynomials: an Int holds a % b as a - b*(a // b).
class Remainder(Opaque):
    """a % b with a number b > 0: the value lies in [0, b)."""

    __slots__ = ("a", "b")
    __match_args__ = ("a", "b")

    def __init__(self, a: Int, b: int) -> None:
        self.a, self.b = a, b
        self.key = f"({a}) % {b}"

    def names(self) -> frozenset[str]:
        return self.a.names

    def substitute(self, env: Mapping[str, Int]) -> Int:
        return self.a.substitute(env) % self.b


def with_remainders(p: Int) -> Int:
    """The same polynomial, with `c*a - c*b*(a // b)` written as `c*(a % b)`, and
    `c*(x // a) - c*b*(x // (a*b))` as `c*(x // a % b)`.
    """
    if p.plain:
        return p
    terms = dict(p.terms)
    found = True
    while found:
        found = False
        for m, c in terms.items():
            if len(m) == 1 and isinstance(d := m[0], FloorDiv) and _replace(terms, d, c):
                found = True
                break
    return Int(terms)


def _replace(terms: dict[Monomial, int], d: FloorDiv, c: int) -> bool:
    """Replaces the remainder that ends with `c*d`, if all of it is there."""
    n = d.b.const
    if n is None or n <= 0:
        return False
    scale = -c // n
    parts = d.a.terms
    if c % n or any(terms.get(m) != scale * k for m, k in parts.items() if m):
        return _replace_digit(terms, d, n, c)
    for m, k in ((d,), c), *((m, scale * k) for m, k in parts.items()):
        left = terms.get(m, 0) - k
        terms.pop(m, None)
        if left:
            terms[m] = left
    terms[(Remainder(d.a, n),)] = scale
    return True


def _replace_digit(terms: dict[Monomial, int], d: FloorDiv, n: int, c: int) -> bool:
    """The same for a digit of a number: d is x // n, and x // a with a divisor a of n is there."""
    for m, scale in terms.items():
        if len(m) != 1 or not isinstance(e := m[0], FloorDiv) or e is d or e.a != d.a:
            continue
        a = e.b.const
        if a is None or a <= 0 or n % a or c != -scale * (n // a):
            continue
        del terms[m], terms[(d,)]
        terms[(Remainder(Int({m: 1}), n // a),)] = scale
        return True
    return False


_LIMIT = (1 << 31) - 1
_SIGNS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
Range = tuple[int, int]
Part = tuple[bool, Piece]  # whether it is subtracted


class Integers:
    def __init__(self, position: Position) -> None:
        self.position = position
        # The value of a data-dependent atom; set by Expressions.
        self.value: Callable[[Expr], Piece]

    def form(self, p: Int) -> Int:
        """As it is written: with remainders, and without loops of one iteration."""
        p = with_remainders(p)
        single = self.position.single
        if not single or single.isdisjoint(p.names):
            return p
        return Int({m: c for m, c in p.terms.items() if single.isdisjoint(m)})

    # ranges
    def range_of(self, p: Int) -> Range | None:
        """The least and the greatest value; None if it depends on data."""
        low = high = 0
        for m, c in self.form(p).terms.items():
            span = self._range_of_term(m, c)
            if span is None:
                return None
            low, high = low + span[0], high + span[1]
        return low, high

    def _range_of_term(self, m: Monomial, c: int) -> Range | None:
        low = high = c
        for a in m:
            span = self._range_of_atom(a)
            if span is None:
                return None
            ends = (low * span[0], low * span[1], high * span[0], high * span[1])
            low, high = min(ends), max(ends)
        return low, high

    def _range_of_atom(self, a: str | Opaque) -> Range | None:
        match a:
            case str():
                return 0, self.position.extents[a] - 1
            case Remainder(b=b):
                return 0, b - 1
            case FloorDiv(a=x, b=y):
                span, n = self.range_of(x), y.const
                if span is None or n is None:
                    return span and (-max(map(abs, span)), max(map(abs, span)))
                return span[0] // n, span[1] // n
            case Maximum(a=x, b=y):
                left, right = self.range_of(x), self.range_of(y)
                if left is None or right is None:
                    return None
                return max(left[0], right[0]), max(left[1], right[1])
        return None

    def is_small(self, p: Int) -> bool:
        """Whether the sum of its terms in any order stays within an int."""
        total = 0
        for m, c in p.terms.items():
            span = self._range_of_term(m, c)
            if span is None:
                return False
            total += max(-span[0], span[1])
        return total <= _LIMIT

    def _is_small_apart(self, p: Int) -> bool:
        """Whether both sides of a comparison of p with 0 stay within an int."""
        if self.is_small(p):
            return True
        if not any(map(is_size, p.names)):
            return False
        signs = ((c > 0, {m: c}) for m, c in p.terms.items() if m)
        sides: tuple[dict[Monomial, int], dict[Monomial, int]] = ({}, {})
        for positive, term in signs:
            sides[positive].update(term)
        const = {(): p.terms[()]} if () in p.terms else {}
        return all(self.is_small(Int(side | const)) for side in sides)

    # text
    def integer(self, p: Int) -> Piece:
        p = self.form(p)
        return self._sum(p, self.is_small(p))

    def in_int(self, p: Int) -> str:
        """As an int, which its value is known to fit."""
        text = self.integer(p).text
        return text if self.is_int(p) else f"({self._type(True)})({text})"

    def is_int(self, p: Int) -> bool:
        """Whether `integer(p)` has the type int."""
        return self.is_small(self.form(p))

    def _sum(self, p: Int, small: bool) -> Piece:
        const = p.terms.get((), 0)
        return self._joined([(m, c) for m, c in self._ordered(p) if m], const, small)

    def _ordered(self, p: Int) -> list[tuple[Monomial, int]]:
        """Terms of outer loops first, the fastest last."""
        depth = self.position.depth

        def key(term: tuple[Monomial, int]) -> tuple[int, int, int]:
            m, c = term
            level = max((depth.get(n, 0) for a in m for n in _names(a)), default=0)
            return c < 0, level, -abs(c)

        return sorted(p.terms.items(), key=key)

    def _joined(self, terms: list[tuple[Monomial, int]], const: int, small: bool) -> Piece:
        parts = self._parts(terms, small)
        if const or not parts:
            parts.append((const < 0, self._number(abs(const), small)))
        return _summed(parts)

    def _parts(self, terms: list[tuple[Monomial, int]], small: bool) -> list[Part]:
        return [(c < 0, self._term(m, abs(c), small)) for m, c in terms]

    def _number(self, n: int, small: bool) -> Piece:
        return Piece(str(n) if small else f"{n}{self.position.dialect.long_suffix}")

    def _term(self, m: Monomial, c: int, small: bool) -> Piece:
        factors = [self._atom(a) for a in m]
        suffix = "" if small else self.position.dialect.long_suffix
        if c != 1:
            factors.append(Piece(f"{c}{suffix}"))
            if not small:  # the first factor decides in which type the product is computed
                factors.reverse()
        elif not small and not isinstance(m[0], Dynamic):
            factors[0] = piece.cast(self._type(False), factors[0])
        if len(factors) == 1:
            return factors[0]
        return Piece("*".join(f.at(UNARY) for f in factors), MUL)

    def _type(self, small: bool) -> str:
        return self.position.dialect.type_of(INT32 if small else INT64)

    def _atom(self, a: str | Opaque) -> Piece:
        match a:
            case str():
                return Piece(self.position.loops[a])
            case Remainder(a=x, b=n):
                return self._named(a, x, f"mod{n}", lambda: self._divided(x, n, "%", "mod"))
            case FloorDiv(a=x, b=y):
                if y.const is not None:
                    by = y.const
                    return self._named(
                        a, x, f"div{by}", lambda: self._divided(x, by, "/", "floordiv")
                    )
                f = self.position.helpers.binary("floordiv", INT64)
                return piece.call(f, self.integer(x), self.integer(y))
            case Maximum(a=x, b=y):
                wide = not (self.is_int(x) and self.is_int(y))
                both = [self.integer(p) for p in (x, y)]
                if wide:
                    both = [piece.cast(self._type(False), p) for p in both]
                return piece.call("max", *both)
        assert isinstance(a, Dynamic)
        v = self.value(a.expr)
        return v if a.expr.dtype is INT64 else piece.cast(self._type(False), v)

    def _divided(self, x: Int, n: int, sign: str, helper: str) -> Piece:
        """C rounds towards zero, so what may be negative needs a function."""
        span = self.range_of(x)
        if span is not None and span[0] >= 0:
            return piece.operation(sign, self.integer(x), Piece(str(n)))
        small = self.is_int(x)
        f = self.position.helpers.binary(helper, INT32 if small else INT64)
        return piece.call(f, self.integer(x), Piece(str(n)))

    def _named(self, a: Opaque, x: Int, what: str, make: Callable[[], Piece]) -> Piece:
        """A variable for a quotient or remainder of x, unless it depends on data."""
        if any(isinstance(b, Dynamic) for b in _opaque_atoms(x)):
            return make()
        first = min(x.names, key=lambda n: (-self.position.depth.get(n, 0), n), default="x")
        hint = f"{self.position.loops.get(first, first)}_{what}"
        return Piece(self.named(Int({(a,): 1}), hint, make, self.is_int(x)))

    def named(self, key: Int, hint: str, make: Callable[[], Piece], small: bool) -> str:
        """The variable that holds the value, which may have been computed before."""
        position = self.position
        for scope in position.scopes:
            if (name := scope.integers.get(key)) is not None:
                return name
        depth = max((position.depth[n] for n in key.names), default=0)
        text = make().text
        name = position.fresh(hint, depth)
        scope = position.scopes[depth]
        scope.lines.append(f"const {self._type(small)} {name} = {text};")
        scope.integers[key] = name
        return name

    def element(self, memory: Memory, index: tuple[Int, ...]) -> str:
        """An element of a buffer. Those that a thread reads in unrolled loops lie at constant
        distances from a pointer: NVRTC takes half as long as for numbers in `int`, each of which
        it widens to the width of a pointer.
        """
        if not self.position.dialect.pointer or memory.scope not in ("global", "constant"):
            return f"{memory.name}[{self.address(memory, index)}]"
        p = self.form(linear(index, memory.strides))
        fixed, moving = self._parted(p, lambda loop: loop in self.position.written_out)
        if not moving.terms:
            fixed, moving = self._parted(p, self._is_inner)
            fixed = fixed if len(fixed.terms) > 1 else ZERO
        if not fixed.terms or not moving.terms:
            return f"{memory.name}[{self._sum(p, self.is_small(p)).text}]"
        name, rest = self._pointer(memory, fixed), moving + p.terms.get((), 0)
        return f"{name}[{self._sum(rest, self.is_small(rest)).text}]"

    def _is_inner(self, loop: str) -> bool:
        return self.position.depth.get(loop, 0) > 0

    def _parted(self, p: Int, moves: Callable[[str], bool]) -> tuple[Int, Int]:
        """The terms of p without and with loops that move, or data; without its constant."""
        parts: tuple[dict[Monomial, int], dict[Monomial, int]] = ({}, {})
        for m, c in p.terms.items():
            if m:
                inner = _reads(m) or any(moves(n) for a in m for n in _names(a))
                parts[inner][m] = c
        return Int(parts[False]), Int(parts[True])

    def _pointer(self, memory: Memory, base: Int) -> str:
        """The variable that points to an element."""
        position, key = self.position, (memory.name, base)
        for scope in position.scopes:
            if (known := scope.pointers.get(key)) is not None:
                return known
        depth = max((position.depth.get(n, 0) for n in base.names), default=0)
        text = self._sum(base, self.is_small(base)).at(MUL)
        name = position.fresh(f"{memory.name}_at", depth)
        scope = position.scopes[depth]
        scope.lines.append(f"{position.dialect.pointer} {name} = {memory.name} + {text};")
        scope.pointers[key] = name
        return name

    def address(self, memory: Memory, index: tuple[Int, ...]) -> str:
        """The number of an element in its buffer."""
        p = self.form(linear(index, memory.strides))
        small = self.is_small(p)
        base, moving = self._parted(p, self._is_inner)
        if len(base.terms) < 2 or not moving.terms:
            return self._sum(p, small).text
        hint = f"{memory.name}_at"
        name = self.named(base, hint, lambda: self._sum(base, small), small)
        rest = [(False, Piece(name)), *self._parts(self._ordered(moving), small)]
        if const := p.terms.get((), 0):
            rest.append((const < 0, self._number(abs(const), small)))
        return _summed(rest).text

    def conditions(self, conds: Sequence[Int]) -> str:
        """Whether all of them are >= 0."""
        first, *others = map(self.condition, conds)
        for p in others:
            first = piece.operation("&&", first, p)
        return first.text

    def condition(self, p: Int) -> Piece:
        """p >= 0."""
        return self.comparison("ge", p)

    def comparison(self, op: str, p: Int) -> Piece:
        """p compared with 0, with every term on the side where it is positive."""
        p = self.form(p)
        small, const = self._is_small_apart(p), p.terms.get((), 0)
        more = [(m, c) for m, c in self._ordered(p) if m and c > 0]
        less = [(m, -c) for m, c in self._ordered(p) if m and c < 0]
        if less and not more:  # -x + c >= 0 is x <= c
            more, less, const, op = less, more, -const, _MIRRORED[op]
        if not less:
            if op == "le" and const == 0 and all(type(a) is str for m, _ in more for a in m):
                op = "eq"  # loops are never negative
            elif op in ("le", "gt"):  # as a person counts: x < n rather than x <= n - 1
                op, const = {"le": "lt", "gt": "ge"}[op], const - 1
            right = self._joined([], -const, small)
        else:
            right = self._joined(less, max(0, -const), small)
        left = self._joined(more, max(0, const) if less else 0, small)
        return piece.operation(_SIGNS[op], left, right)


def _summed(parts: list[Part]) -> Piece:
    minus, first = parts[0]
    if len(parts) == 1:
        return piece.prefix("-", first) if minus else first
    text = f"-{first.at(UNARY)}" if minus else first.at(ADD)
    for minus, part in parts[1:]:
        text += f" {'-' if minus else '+'} {part.at(MUL)}"
    return Piece(text, ADD)


def _names(a: str | Opaque) -> frozenset[str]:
    return frozenset((a,)) if isinstance(a, str) else a.names()


def _opaque_atoms(p: Int) -> list[Opaque]:
    out: list[Opaque] = []
    for m in p.terms:
        for a in m:
            if isinstance(a, str):
                continue
            out.append(a)
            if isinstance(a, FloorDiv | Maximum):
                out += _opaque_atoms(a.a) + _opaque_atoms(a.b)
            elif isinstance(a, Remainder):
                out += _opaque_atoms(a.a)
    return out


def _reads(m: Monomial) -> bool:
    return any(isinstance(b, Dynamic) for b in _opaque_atoms(Int({m: 1})))
