"""Activations that exporters spell out: gelu by erf and by tanh, SiLU, hard swish, mish."""

from __future__ import annotations

from math import pi, sqrt

from tilesmith.graph.graph import Value
from tilesmith.graph.passes.match import Match
from tilesmith.ops.activation import hard_sigmoid, hard_swish, mish, softplus, swish
from tilesmith.ops.elementwise import add, clip, divide, erf, exp, gelu, sigmoid, silu, tanh


def activation(m: Match) -> Value | None:
    """x times a function of x, as one operator; None if it is no activation."""
    return m.first(_of_product, _of_quotient)


def _of_product(m: Match) -> Value | None:
    found = m.root_factors()
    if found is None or len(found.values) != 2:
        return None
    number = found.number
    for x, s in (found.values, found.values[::-1]):
        out = m.first(
            lambda m, x=x, s=s: _gelu(m, number, x, s),  # type: ignore[misc]
            lambda m, x=x, s=s: _silu(m, number, x, s),  # type: ignore[misc]
            lambda m, x=x, s=s: _hard_swish(m, number, x, s),  # type: ignore[misc]
            lambda m, x=x, s=s: _mish(m, number, x, s),  # type: ignore[misc]
        )
        if out is not None:
            return out
    return None


def _gelu(m: Match, number: float, x: Value, s: Value) -> Value | None:
    """number * x * s is x / 2 * (1 + erf(x / sqrt(2))), or the formula with tanh."""
    match m.plus(s):
        case (1.0, t) if m.is_near(number, 0.5):
            pass
        case _:
            return None
    if (u := m.of(t, erf)) is not None:
        inner = m.factors(u)
        if inner.values == (x,) and m.is_near(inner.number, sqrt(0.5)) and m.holds():
            return m.e.add(gelu, x)
    elif (u := m.of(t, tanh)) is not None and _is_tanh_argument(m, u, x) and m.holds():
        return m.e.add(gelu, x, approximate="tanh")
    return None


def _is_tanh_argument(m: Match, u: Value, x: Value) -> bool:
    """sqrt(2 / pi) * (x + 0.044715 * x^3), with x in front of the sum or inside of it."""
    outer = m.factors(u)
    if not m.is_near(outer.number, sqrt(2 / pi)):
        return False
    rest = [v for v in outer.values if v != x]
    if len(rest) != 1 or len(outer.values) > 2:
        return False
    if len(outer.values) == 2:
        found = m.plus(rest[0])
        return found is not None and found[0] == 1 and _is_cubic(m, found[1], x, 2)
    match m.terms(rest[0], add):
        case (Value() as a, Value() as b):
            return x in (a, b) and _is_cubic(m, b if a == x else a, x, 3)
    return False


def _is_cubic(m: Match, t: Value, x: Value, count: int) -> bool:
    inner = m.factors(t)
    return inner.values == (x,) * count and m.is_near(inner.number, 0.044715)


def _silu(m: Match, number: float, x: Value, s: Value) -> Value | None:
    u = m.of(s, sigmoid)
    if number != 1 or u is None:
        return None
    alpha = 1.0
    if u != x:
        inner = m.factors(u)
        if inner.values != (x,):
            return None
        alpha = inner.number
    if not m.holds():
        return None
    return m.e.add(silu, x) if alpha == 1 else m.e.add(swish, x, alpha=alpha)


def _hard_swish(m: Match, number: float, x: Value, s: Value) -> Value | None:
    """x times x / 6 + 1 / 2 held within [0, 1], or times x + 3 held within [0, 6], divided by 6."""
    if (node := m.made(s, hard_sigmoid)) is not None:
        alpha, beta = node.setting("alpha", 0.2), node.setting("beta", 0.5)
        fits = number == 1 and m.is_near(alpha, 1 / 6) and m.is_near(beta, 0.5)
        fits = fits and m.inputs(node)[0] == x
    elif (node := m.made(s, clip)) is not None and (sum_ := m.plus(m.inputs(node)[0])) is not None:
        beta, t = sum_
        inner = m.factors(t)
        high = node.setting("high")
        alpha = inner.number
        fits = (
            node.setting("low") == 0 and isinstance(high, int | float) and inner.values == (x,)
            and m.is_near(number * high, 1) and m.is_near(number * beta, 0.5)
            and m.is_near(number * alpha, 1 / 6)
        )  # fmt: skip
    else:
        return None
    if not fits or not m.holds():
        return None
    return m.e.add(hard_swish, x)


def _mish(m: Match, number: float, x: Value, s: Value) -> Value | None:
    """x * tanh(softplus(x))."""
    t = m.of(s, tanh)
    if number != 1 or t is None or m.of(t, softplus) != x or not m.holds():
        return None
    return m.e.add(mish, x)


def _of_quotient(m: Match) -> Value | None:
    """x / (1 + exp(-x)) is SiLU."""
    if m.root.function is not divide:
        return None
    match m.root_terms():
        case (Value() as x, Value() as s):
            m.leaves.append(x)
            match m.plus(s):
                case (1.0, t) if (u := m.of(t, exp)) is not None:
                    inner = m.factors(u)
                    if inner.number == -1 and inner.values == (x,) and m.holds():
                        return m.e.add(silu, x)
    return None
