"""Normalisations that exporters spell out: layer norm, RMS norm, softmax."""

from __future__ import annotations

from tilesmith.graph.graph import Value
from tilesmith.graph.passes.match import Match, Term
from tilesmith.ops.elementwise import add, divide, exp, multiply, reciprocal, subtract
from tilesmith.ops.group_norm import rms_norm
from tilesmith.ops.norm import layer_norm, softmax
from tilesmith.ops.reduce import reduce_max, reduce_mean, reduce_sum


def normalisation(m: Match) -> Value | None:
    return m.first(_quotient, _product, _in_two_terms, _with_vector)


def _quotient(m: Match) -> Value | None:
    """d / sqrt(mean(d^2) + epsilon), or e / sum(e)."""
    if m.root.function is not divide:
        return None
    match m.root_terms():
        case (Value() as d, Value() as s):
            return m.first(
                lambda m: _softmax(m, d, s),
                lambda m: _scaled(m, d, m.root_of(s), None),
            )
    return None


def _product(m: Match) -> Value | None:
    """d * (1 / sqrt(mean(d^2) + epsilon)), with or without gamma among the factors, or
    e * (1 / sum(e)).
    """
    if m.root.function is not multiply or (found := m.root_factors()) is None:
        return None
    if found.number != 1 or len(found.values) not in (2, 3):
        return None
    for s in found.values:
        others = [v for v in found.values if v != s]
        if len(others) + 1 != len(found.values):
            continue
        for d in others:
            gamma = next((v for v in others if v != d), None)
            out = m.first(
                lambda m, d=d, s=s, g=gamma: _scaled(m, d, m.inverse_root_of(s), g),  # type: ignore[misc]
                lambda m, d=d, s=s, g=gamma: (  # type: ignore[misc]
                    _softmax(m, d, m.of(s, reciprocal)) if g is None else None
                ),
            )
            if out is not None:
                return out
    return None


def _softmax(m: Match, e: Value, total: Value | None) -> Value | None:
    if total is None or (found := m.reduced(total, reduce_sum)) is None:
        return None
    summed, axes = found
    shifted = m.of(e, exp)
    if summed != e or len(axes) != 1 or shifted is None:
        return None
    x = m.first(lambda m: _without_maximum(m, shifted, axes)) or shifted
    if not m.holds():
        return None
    return m.e.add(softmax, x, axis=axes[0])


def _without_maximum(m: Match, shifted: Value, axes: tuple[int, ...]) -> Value | None:
    """x where `shifted` is x minus its maximum: softmax takes that off by itself."""
    match m.terms(shifted, subtract):
        case (Value() as x, Value() as top) if m.reduced(top, reduce_max) == (x, axes):
            return x if m.holds() else None
    return None


def _epsilon(m: Match, w: Term) -> tuple[float, Value] | None:
    """(epsilon, v) where w is v + epsilon."""
    found = m.plus(w)
    return found if found is not None and found[0] >= 0 else None


def _scaled(m: Match, d: Value, w: Value | None, gamma: Value | None) -> Value | None:
    """d / sqrt(w), times gamma. Where d is x minus its mean it is a layer norm, else RMS norm."""
    if w is None or (inner := _epsilon(m, w)) is None:
        return None
    epsilon, v = inner
    if (found := m.reduced(v, reduce_mean)) is None:
        return None
    squares, axes = found
    if m.squared(squares) != d:
        return None
    x = m.first(lambda m: _without_mean(m, d, axes))
    return _norm(m, x, d, axes, epsilon, gamma)


def _without_mean(m: Match, d: Value, axes: tuple[int, ...]) -> Value | None:
    match m.terms(d, subtract):
        case (Value() as x, Value() as mean) if m.reduced(mean, reduce_mean) == (x, axes):
            return x if m.holds() else None
    return None


def _norm(
    m: Match, x: Value | None, d: Value, axes: tuple[int, ...], epsilon: float, gamma: Value | None
) -> Value | None:
    """Layer norm of x, or where there is no x, RMS norm of d."""
    source = d if x is None else x
    rank = len(source.shape)
    last = axes == tuple(range(rank - len(axes), rank)) and bool(axes)
    if not m.holds() or (not last and (x is None or gamma is not None)):
        return None
    weights: list[Value] = []
    if gamma is not None:
        g = _vector(m, gamma, source.shape[axes[0] :])
        if g is None:
            return None
        weights.append(g)
    if x is None:
        return m.e.add(rms_norm, d, *weights, axis=axes[0], epsilon=epsilon)
    return m.e.add(layer_norm, x, *weights, axis=axes, epsilon=epsilon)


def _vector(m: Match, v: Value, span: tuple[int, ...]) -> Value | None:
    """v in the shape of the normalised axes, if it is that but for leading dimensions of 1."""
    extra = len(v.shape) - len(span)
    if extra < 0 or v.shape[extra:] != span or any(n != 1 for n in v.shape[:extra]):
        return None
    return m.e.reshape(v, span)


def _in_two_terms(m: Match) -> Value | None:
    """x * s + (beta - mean * s) with s = gamma / sqrt(mean((x - mean)^2) + epsilon), as TensorFlow
    writes it.
    """
    if m.root.function is not add:
        return None
    match m.root_terms():
        case (Value() as p, Value() as q):
            return m.first(lambda m: _two_terms(m, p, q), lambda m: _two_terms(m, q, p))
    return None


def _two_terms(m: Match, p: Value, q: Value) -> Value | None:
    match m.terms(p, multiply), m.terms(q, subtract):
        case (Value() as a, Value() as b), (Value() as beta, Value() as r):
            pass
        case _:
            return None
    match m.terms(r, multiply):
        case (Value() as c, Value() as d):
            pass
        case _:
            return None
    for x, s in ((a, b), (b, a)):
        if s not in (c, d):
            continue
        mean = d if s == c else c
        out = m.first(lambda m, x=x, s=s, n=mean: _with_mean(m, x, n, s, beta))  # type: ignore[misc]
        if out is not None:
            return out
    return None


def _with_mean(m: Match, x: Value, mean: Value, s: Value, beta: Value) -> Value | None:
    match m.terms(s, multiply):
        case (Value() as a, Value() as b):
            pass
        case _:
            return None
    for inverse, gamma in ((a, b), (b, a)):
        if (w := m.inverse_root_of(inverse)) is None or (inner := _epsilon(m, w)) is None:
            continue
        epsilon, v = inner
        if (found := m.reduced(v, reduce_mean)) is None:
            return None
        squares, axes = found
        d = m.squared(squares)
        if d is None or m.terms(d, subtract) not in ((x, mean), (mean, x)):
            return None
        if m.reduced(mean, reduce_mean) != (x, axes):
            return None
        b_vector = _vector(m, beta, x.shape[axes[0] :])
        y = None if b_vector is None else _norm(m, x, x, axes, epsilon, gamma)
        if y is None or b_vector is None:
            return None
        made = m.e.maker(y)
        assert made is not None
        return m.e.add(layer_norm, *m.inputs(made), b_vector, **dict(made.settings))
    return None


def _with_vector(m: Match) -> Value | None:
    """A norm without gamma times a vector, or a layer norm with gamma plus a vector."""
    counts = {multiply: 1, add: 2}  # values that the norm reads
    if m.root.function not in counts or len(m.root.inputs) != 2:
        return None
    count = counts[m.root.function]
    for y, v in (m.root.inputs, m.root.inputs[::-1]):
        out = m.first(lambda m, y=y, v=v: _extended(m, y, v, count))  # type: ignore[misc]
        if out is not None:
            return out
    return None


def _extended(m: Match, y: Value, v: Value, count: int) -> Value | None:
    """The norm that makes y, which reads `count` values, with one more."""
    node = m.made(y, layer_norm, rms_norm) if count == 1 else m.made(y, layer_norm)
    if node is None or len(node.inputs) != count or not m.holds():
        return None
    rank = len(y.shape)
    axis = node.setting("axis", -1)
    if node.function is rms_norm:
        axes = tuple(range(axis % rank, rank))
    else:
        axes = tuple(sorted(a % rank for a in ((axis,) if isinstance(axis, int) else axis)))
    if axes != tuple(range(rank - len(axes), rank)):
        return None
    vector = _vector(m, v, y.shape[axes[0] :])
    if vector is None or v.dtype is not y.dtype:
        return None
    return m.e.add(node.function, *m.inputs(node), vector, **dict(node.settings))
