"""The integer type of the IR: polynomials with integer coefficients, for extents, indices, bindings
and predicates alike.

A monomial is a sorted tuple of atoms. An atom is a name or something opaque (a floor division, a
maximum, an integer loaded from a tensor). Names that begin with `#` are size variables, with values
>= 1; all other names are loops or iterators, with values >= 0. A number is a constant polynomial,
so a rewrite has one code path for numbers and for variables. Substituting numbers commutes with
every rewrite that consists of + and *.

`a % b` is not an atom: it is `a - b*(a // b)`, so that `e*(w // e) + w % e` simplifies to `w`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from math import gcd

from tilesmith.base.errors import TraceError, VerifyError


class Opaque:
    """An atom that is not a name. `key` determines equality and order."""

    __slots__ = ("key",)
    key: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return self.key

    def names(self) -> frozenset[str]:
        raise NotImplementedError

    def substitute(self, env: Mapping[str, Int]) -> Int:
        raise NotImplementedError


Atom = str | Opaque
Monomial = tuple[Atom, ...]


class FloorDiv(Opaque):
    __slots__ = ("a", "b")

    def __init__(self, a: Int, b: Int) -> None:
        self.a, self.b = a, b
        self.key = f"({a}) // {b}" if b.const is not None else f"({a}) // ({b})"

    def names(self) -> frozenset[str]:
        return self.a.names | self.b.names

    def substitute(self, env: Mapping[str, Int]) -> Int:
        return self.a.substitute(env) // self.b.substitute(env)


class Maximum(Opaque):
    """Occurs only where the bounds of two boxes cannot be ordered; numbers resolve it."""

    __slots__ = ("a", "b")

    def __init__(self, a: Int, b: Int) -> None:
        self.a, self.b = a, b
        self.key = f"max({a}, {b})"

    def names(self) -> frozenset[str]:
        return self.a.names | self.b.names

    def substitute(self, env: Mapping[str, Int]) -> Int:
        return maximum(self.a.substitute(env), self.b.substitute(env))


def _key(atom: Atom) -> str:
    return atom if type(atom) is str else atom.key  # type: ignore[union-attr]


class Int:
    __slots__ = ("_hash", "_names", "_plain", "_text", "terms")
    terms: dict[Monomial, int]

    def __init__(self, terms: dict[Monomial, int]) -> None:
        self.terms = terms
        self._hash: int | None = None
        self._text: str | None = None
        self._names: frozenset[str] | None = None
        self._plain: bool | None = None

    # arithmetic
    def __add__(self, other: IntLike) -> Int:
        o = other if isinstance(other, Int) else _number(other)
        if o is None:
            return NotImplemented
        if not o.terms:
            return self
        if not self.terms:
            return o
        terms = dict(self.terms)
        for m, c in o.terms.items():
            n = terms.get(m, 0) + c
            if n:
                terms[m] = n
            else:
                del terms[m]
        return Int(terms)

    __radd__ = __add__

    def __neg__(self) -> Int:
        return Int({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: IntLike) -> Int:
        o = other if isinstance(other, Int) else _number(other)
        if o is None:
            return NotImplemented
        if not o.terms:
            return self
        terms = dict(self.terms)
        for m, c in o.terms.items():
            n = terms.get(m, 0) - c
            if n:
                terms[m] = n
            else:
                del terms[m]
        return Int(terms)

    def __rsub__(self, other: IntLike) -> Int:
        o = _number(other)
        return NotImplemented if o is None else o - self

    def __mul__(self, other: IntLike) -> Int:
        o = other if isinstance(other, Int) else _number(other)
        if o is None:
            return NotImplemented
        if o is ONE:
            return self
        if self is ONE:
            return o
        if (times := o.const) is not None:  # by a number, as nearly always
            return Int({m: c * times for m, c in self.terms.items()}) if times else ZERO
        terms: dict[Monomial, int] = {}
        for m, c in self.terms.items():
            for n, d in o.terms.items():
                k = tuple(sorted(m + n, key=_key)) if m and n else m or n
                v = terms.get(k, 0) + c * d
                if v:
                    terms[k] = v
                else:
                    terms.pop(k, None)
        return Int(terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: IntLike) -> Int:
        o = _number(other)
        return NotImplemented if o is None else floordiv(self, o)

    def __rfloordiv__(self, other: IntLike) -> Int:
        o = _number(other)
        return NotImplemented if o is None else floordiv(o, self)

    def __mod__(self, other: IntLike) -> Int:
        o = _number(other)
        return NotImplemented if o is None else self - o * floordiv(self, o)

    def __rmod__(self, other: IntLike) -> Int:
        o = _number(other)
        return NotImplemented if o is None else o % self

    # identity
    def __eq__(self, other: object) -> bool:
        return self.terms == other.terms if isinstance(other, Int) else NotImplemented

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self.terms.items()))
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        return Int, (self.terms,)  # without cached properties

    def __repr__(self) -> str:
        if self._text is None:
            order = sorted(self.terms.items(), key=lambda t: (-len(t[0]), tuple(map(_key, t[0]))))
            text = ""
            for m, c in order:
                factors = [f"({_key(a)})" if isinstance(a, FloorDiv) else _key(a) for a in m]
                if not m or abs(c) != 1:
                    factors.insert(0, str(abs(c)))
                sign = "-" if c < 0 else "+"
                text += (f" {sign} " if text else "-" if c < 0 else "") + "*".join(factors)
            self._text = text or "0"
        return self._text

    # queries
    @property
    def const(self) -> int | None:
        """The value, if it has no variables."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    @property
    def number(self) -> int:
        """The value where it is known that no size is open: raises if it has variables, because
        whatever stood in for the value would be a wrong program.
        """
        if (n := self.const) is None:
            raise VerifyError(f"a number is needed, but {self} is open; use instantiate() first")
        return n

    @property
    def name(self) -> str | None:
        """The name, if it is exactly one name."""
        if len(self.terms) == 1:
            ((m, c),) = self.terms.items()
            if c == 1 and len(m) == 1 and isinstance(m[0], str):
                return m[0]
        return None

    @property
    def names(self) -> frozenset[str]:
        """All names, including those inside of opaque atoms."""
        if self._names is None:
            names: set[str] = set()
            for m in self.terms:
                for a in m:
                    if isinstance(a, str):
                        names.add(a)
                    else:
                        names |= a.names()
            self._names = frozenset(names)
        return self._names

    @property
    def plain(self) -> bool:
        """Whether it consists of names alone, without opaque atoms."""
        if self._plain is None:
            self._plain = all(type(a) is str for m in self.terms for a in m)
        return self._plain

    def substitute(self, env: Mapping[str, Int]) -> Int:
        """Replaces names. Opaque atoms are constructed anew, so that they simplify."""
        if not env or self.names.isdisjoint(env):
            return self
        terms: dict[Monomial, int] = {}
        for m, c in self.terms.items():
            new: Int | None = None
            if len(m) == 1 and type(m[0]) is str:
                new, factor = env.get(m[0]), c
            elif m:
                new, factor = self._product(m, env), c
            for k, d in ((m, c),) if new is None else new.terms.items():
                n = terms.get(k, 0) + (d if new is None else d * factor)
                if n:
                    terms[k] = n
                else:
                    del terms[k]
        return Int(terms)

    def _product(self, m: Monomial, env: Mapping[str, Int]) -> Int:
        out = ONE
        for a in m:
            if isinstance(a, str):
                out = out * (env[a] if a in env else Int({(a,): 1}))
            else:
                out = out * a.substitute(env)
        return out

    def coefficient(self, name: str) -> Int:
        """The factor of `name`, which must not occur squared or inside of an opaque atom."""
        out: dict[Monomial, int] = {}
        for m, c in self.terms.items():
            if name in m:
                rest = list(m)
                rest.remove(name)
                out[tuple(rest)] = c
        return Int(out)


ZERO, ONE = Int({}), Int({(): 1})
_SMALL = {0: ZERO, 1: ONE, **{n: Int({(): n}) for n in (-1, *range(2, 65))}}


IntLike = Int | int


def of(value: IntLike) -> Int:
    """A number as an Int."""
    if isinstance(value, Int):
        return value
    value = int(value)
    return _SMALL.get(value) or Int({(): value} if value else {})


def _number(value: object) -> Int | None:
    """`of` for an operand: None for anything but a whole number, such as a Value, whose operator is
    then called.
    """
    if isinstance(value, Int):
        return value
    return of(value.__index__()) if hasattr(value, "__index__") else None


def var(name: str) -> Int:
    return Int({(name,): 1})


def atom(a: Atom) -> Int:
    return Int({(a,): 1})


def opaque_atoms(p: Int) -> Iterator[Opaque]:
    """Every opaque atom, including those inside of others."""
    for m in () if p.plain else p.terms:
        for a in m:
            if isinstance(a, Opaque):
                yield a
                if isinstance(a, FloorDiv | Maximum):
                    yield from opaque_atoms(a.a)
                    yield from opaque_atoms(a.b)


def map_atoms(p: Int, f: Callable[[Opaque], Int]) -> Int:
    """Applies f to the opaque atoms other than floor divisions and maxima, which are constructed
    anew around the result.
    """
    if p.plain:
        return p
    out = ZERO
    for m, c in p.terms.items():
        term = Int({(): c})
        for a in m:
            if isinstance(a, str):
                term = term * atom(a)
            elif isinstance(a, FloorDiv):
                term = term * (map_atoms(a.a, f) // map_atoms(a.b, f))
            elif isinstance(a, Maximum):
                term = term * maximum(map_atoms(a.a, f), map_atoms(a.b, f))
            else:
                term = term * f(a)
        out = out + term
    return p if out == p else out


def is_size(a: Atom) -> bool:
    """Whether an atom is a size variable, a value >= 1."""
    return isinstance(a, str) and a[0] == "#"


def loops_of(p: Int) -> frozenset[str]:
    """The names in p that are not size variables."""
    return frozenset(n for n in p.names if n[0] != "#")


def product(values: Iterable[IntLike]) -> Int:
    out = ONE
    for v in values:
        out = out * v
    return out


def exact_quotient(p: Int, q: Int) -> Int | None:
    """p / q if q is a single term that divides every term of p, else None."""
    if len(q.terms) != 1:
        return None
    ((mq, cq),) = q.terms.items()
    out: dict[Monomial, int] = {}
    for m, c in p.terms.items():
        rest = list(m)
        for a in mq:
            if a not in rest:
                return None
            rest.remove(a)
        if c % cq:
            return None
        out[tuple(rest)] = c // cq
    return Int(out)


def floordiv(a: Int, b: Int) -> Int:
    """The normal form `q + r // b`, in which no term of r is a multiple of b (0 <= coefficient < b
    if b is a number).
    """
    if b is ONE or b == ONE:
        return a
    n = b.const
    if n == 0:  # a size of 0, where nothing is computed; see semantics.py
        return ZERO
    if n is not None and n < 0:
        return floordiv(-a, of(-n))
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    q = ZERO
    for m, c in a.terms.items():
        if n is not None:
            if c // n:
                quotient[m] = c // n
            if c % n:
                rest[m] = c % n
        elif (d := exact_quotient(Int({m: c}), b)) is not None:
            q = q + d
        else:
            rest[m] = c
    q = q + Int(quotient)
    r = Int(rest)
    if not rest:
        return q
    if n is not None:
        if r.const is not None:
            return q + r.const // n
        # A common factor g of b and of every variable term: (g*x + c) // (g*m) = (x + c//g) // m.
        g = n
        for m, c in rest.items():
            if m:
                g = gcd(g, c)
        if g > 1:
            return q + floordiv(Int({m: c // g for m, c in rest.items() if c // g}), of(n // g))
    return q + atom(FloorDiv(r, b))


@lru_cache(200_000)
def nonnegative(p: Int) -> bool:
    """A sound, incomplete test of p >= 0 for all sizes >= 1 and all loops >= 0: substitutes size +
    1 for each size, and looks at the signs of the coefficients.
    """
    if all(c >= 0 for c in p.terms.values()):
        return p.plain
    if len(p.terms) == 1 or not any(map(is_size, p.names)):
        return False
    shifted = ZERO
    for m, c in p.terms.items():
        if any(isinstance(a, Opaque) for a in m):
            return False
        shifted = shifted + product([of(c), *(atom(a) + 1 if is_size(a) else atom(a) for a in m)])
    return all(c >= 0 for c in shifted.terms.values())


def maximum(a: Int, b: Int) -> Int:
    """The larger one, if that can be proven; else a Maximum. Common terms are pulled out of it, so
    that it does not depend on loops.
    """
    if nonnegative(a - b):
        return a
    if nonnegative(b - a):
        return b
    common = Int({m: c for m, c in a.terms.items() if b.terms.get(m) == c})
    x, y = sorted((a - common, b - common), key=repr)
    if (nx := x.const) is not None and (ny := y.const) is not None:
        return common + max(nx, ny)
    return common + atom(Maximum(x, y))


def most(p: Int) -> Int:
    """An upper bound that is a number, of a minimum of a number and something else; else p."""
    if p.const is not None or p.plain:
        return p
    for a in opaque_atoms(p):
        if isinstance(a, Maximum) and p.terms.get((a,)) == -1:
            for x in (a.a, a.b):
                if (n := (p + atom(a) - x).const) is not None:  # it is x + n - max(x, ...)
                    return of(n)
    return p


def evaluate_int(p: Int, env: Mapping[str, int], opaque: Callable[[Opaque], int]) -> int:
    """The value of p for given values of names; `opaque` gives those of data-dependent atoms."""
    total = 0
    for m, c in p.terms.items():
        value = c
        for a in m:
            if isinstance(a, str):
                value *= env[a]
            elif isinstance(a, FloorDiv):
                divisor = evaluate_int(a.b, env, opaque)
                value *= evaluate_int(a.a, env, opaque) // divisor if divisor else 0
            elif isinstance(a, Maximum):
                value *= max(evaluate_int(a.a, env, opaque), evaluate_int(a.b, env, opaque))
            else:
                value *= opaque(a)
        total += value
    return total


# The text of integers: `j // 16`, `3*i + r - 1`. Only what an Int can represent is accepted.
Size = int | str  # a number, or the name of a size variable such as "#C.i.0"

# The name of a fused loop contains a plus: #C.i.0+j.0.1 is one size. Sums are written with spaces.
_SIZE = re.compile(r"#[A-Za-z_][\w.]*(?:\+[A-Za-z_][\w.]*)*")


@lru_cache(maxsize=4096)  # all candidates share the layouts of their sketch
def parse_int(text: str) -> Int:
    """Names may be size variables, which start with #."""
    sizes: dict[str, str] = {}

    def stand_in(m: re.Match[str]) -> str:
        name = f"_size{len(sizes)}"
        sizes[name] = m.group()
        return name

    try:
        tree = ast.parse(_SIZE.sub(stand_in, text), mode="eval").body
    except SyntaxError:
        raise TraceError(f"{text!r} is not an integer expression") from None

    def go(node: ast.expr) -> Int:
        match node:
            case ast.Constant(value=int(v)):
                return of(v)
            case ast.Name(id=name):
                return var(sizes.get(name, name))
            case ast.UnaryOp(op=ast.USub(), operand=x):
                return -go(x)
            case ast.Call(func=ast.Name(id="max"), args=[left, right], keywords=[]):
                return maximum(go(left), go(right))
            case ast.BinOp(left=left, op=op, right=right):
                a, b = go(left), go(right)
                if isinstance(op, ast.FloorDiv | ast.Mod) and b.const == 0:
                    raise ZeroDivisionError(f"({a}) // 0")
                match op:
                    case ast.Add():
                        return a + b
                    case ast.Sub():
                        return a - b
                    case ast.Mult():
                        return a * b
                    case ast.FloorDiv():
                        return a // b
                    case ast.Mod():
                        return a % b
        raise TraceError(f"{text!r}: {ast.unparse(node)} is not made of + - * // % max and names")

    return go(tree)


def as_int(size: Size) -> Int:
    if not isinstance(size, str):
        return of(size)
    # The name of a fused loop may contain a plus, but only expressions contain stars or spaces.
    return var(size) if size[:1] == "#" and not set(size) & set("* (") else parse_int(size)
