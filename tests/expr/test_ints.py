"""Integer polynomials: the laws of a ring, Python's division, bounds and proofs that are sound."""

import itertools
import pickle

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.thorough import drawn
from tilesmith.expr.intervals import Unknown, bounds, proves, reduce_modulo
from tilesmith.expr.ints import (
    ONE,
    ZERO,
    FloorDiv,
    Maximum,
    Opaque,
    atom,
    evaluate_int,
    exact_quotient,
    floordiv,
    is_size,
    loops_of,
    map_atoms,
    maximum,
    nonnegative,
    of,
    opaque_atoms,
    product,
    var,
)

LOOPS, SIZES = ("i", "j", "k"), ("#m", "#n")
i, j, k, m, n = map(var, (*LOOPS, *SIZES))

few = settings(max_examples=drawn(50, 100), deadline=None)
small = st.integers(-6, 6)


def value(p, env):
    def no_opaque(a):
        raise AssertionError(a)

    return evaluate_int(p, env, no_opaque)


polynomials = st.lists(
    st.tuples(small, st.lists(st.sampled_from((*LOOPS, *SIZES)), max_size=3)), max_size=4
).map(lambda terms: sum((of(c) * product(map(var, names)) for c, names in terms), ZERO))
points = st.fixed_dictionaries(
    {name: st.integers(0, 7) for name in LOOPS} | {name: st.integers(1, 7) for name in SIZES}
)


@st.composite
def divided(draw, depth=2):
    """A polynomial with floor divisions, remainders and maxima in it; divisors are positive."""
    if depth == 0:
        return draw(polynomials)
    p = draw(divided(depth=depth - 1))
    divisor = draw(st.one_of(st.integers(1, 9).map(of), st.sampled_from((m, n, m * n, m + 2))))
    match draw(st.sampled_from(("div", "mod", "max", "add", "mul"))):
        case "div":
            return p // divisor + draw(polynomials)
        case "mod":
            return p % divisor
        case "max":
            return maximum(p, draw(polynomials))
        case "mul":
            return p * draw(small)
        case _:
            return p + draw(polynomials)


# the ring
@few
@given(polynomials, polynomials, polynomials)
def test_ring_laws(p, q, r):
    assert p + q == q + p
    assert p * q == q * p
    assert (p + q) + r == p + (q + r)
    assert (p * q) * r == p * (q * r)
    assert p * (q + r) == p * q + p * r
    assert p + ZERO == p == p * ONE
    assert p * ZERO == ZERO
    assert p - p == ZERO
    assert p - q == -(q - p)


@few
@given(polynomials, polynomials, points)
def test_arithmetic_means_arithmetic(p, q, env):
    x, y = value(p, env), value(q, env)
    assert value(p + q, env) == x + y
    assert value(p - q, env) == x - y
    assert value(p * q, env) == x * y
    assert value(-p, env) == -x


@few
@given(polynomials, polynomials)
def test_equal_means_equal_hash_and_text(p, q):
    s = p + q - q
    assert s == p
    assert hash(s) == hash(p)
    assert str(s) == str(p)
    assert all(s.terms.values())  # no term with a factor of 0 stays behind


def test_numbers_mix_in():
    assert 2 + i == i + 2
    assert 2 - i == of(2) - i
    assert 3 * i == i + i + i
    assert 7 // of(2) == of(3)
    assert -7 % of(4) == of(1)
    assert of(True) == ONE
    assert of(10**30).const == 10**30


def test_what_is_no_number_is_left_to_the_other_side():
    class Other:
        def __radd__(self, x):
            return "added"

        def __rmul__(self, x):
            return "multiplied"

        def __rsub__(self, x):
            return "subtracted"

        def __eq__(self, x):
            return "compared"

        __hash__ = None

    assert i + Other() == "added"
    assert i * Other() == "multiplied"
    assert i - Other() == "subtracted"
    assert (i == Other()) == "compared"
    for operate in (lambda: i + 1.5, lambda: 1.5 * i, lambda: i // "2", lambda: i % None):
        with pytest.raises(TypeError):
            operate()


def test_questions():
    assert of(5).const == 5
    assert ZERO.const == 0
    assert i.const is None
    assert (i + 1).const is None
    assert i.name == "i"
    assert (2 * i).name is None
    assert (i * j).name is None
    assert (i * n + (j // 3)).names == {"i", "#n", "j"}
    assert loops_of(i * n + 2) == {"i"}
    assert is_size("#n")
    assert not is_size("n")
    assert (3 * i * n + j + 2).coefficient("i") == 3 * n
    assert (j + 2).coefficient("i") == ZERO


def test_text():
    assert str(ZERO) == "0"
    assert str(2 * i * n - j + 3) == "2*#n*i - j + 3"
    assert str(-i) == "-i"
    assert str(i // 4) == "((i) // 4)"


@few
@given(divided())
def test_polynomials_travel(p):
    again = pickle.loads(pickle.dumps(p))
    assert again == p
    assert hash(again) == hash(p)


# division
@few
@given(polynomials, st.integers(-9, 9).filter(bool), points)
def test_division_is_pythons(p, d, env):
    assert value(p // d, env) == value(p, env) // d
    assert value(p % d, env) == value(p, env) % d


@few
@given(divided(), divided(), points)
def test_division_by_polynomials(p, q, env):
    by = value(q, env)
    assume(by != 0 and q.const != 0)
    assert value(p // q, env) == value(p, env) // by
    assert value(p % q, env) == value(p, env) % by


@few
@given(polynomials, st.sampled_from([of(2), of(7), m, n, m * n, 3 * n]))
def test_quotient_and_remainder_are_the_whole(p, d):
    assert d * (p // d) + p % d == p  # by itself, without a proof


@few
@given(polynomials, st.sampled_from([of(2), of(7), m, m * n, 3 * n]))
def test_a_multiple_divides_out(p, d):
    assert (p * d) // d == p
    assert (p * d) % d == ZERO


def test_normal_forms():
    assert (4 * i + j) // 4 == i + j // 4
    assert (4 * i + 3) // 4 == i
    assert (6 * i + 5) // 4 == i + (2 * i + 5) // 4
    assert (2 * i + 1) // 4 == i // 2
    assert (i * n + j) // n == i + j // n
    assert (i // 2) // 1 == i // 2
    assert floordiv(i, of(-2)) == (-i) // 2
    assert i // 0 == of(0)  # as semantics.py has it


@few
@given(polynomials, st.sampled_from([of(3), n, m * n, 2 * i * n]))
def test_exact_quotient(p, q):
    assert exact_quotient(p * q, q) == p
    found = exact_quotient(p, q)
    assert found is None or found * q == p


def test_no_exact_quotient():
    assert exact_quotient(i + n, n) is None
    assert exact_quotient(3 * i, of(2)) is None
    assert exact_quotient(i, m + n) is None


# substitution
@few
@given(divided(), points)
def test_putting_in_numbers(p, env):
    put = p.substitute({name: of(v) for name, v in env.items()})
    assert put.const == value(p, env)


@few
@given(divided(), polynomials, points)
def test_substitution_is_composition(p, q, env):
    inner = value(q, env)
    assume(inner >= 0)  # i is a loop, which is never negative
    assert value(p.substitute({"i": q}), env) == value(p, {**env, "i": inner})


@few
@given(divided())
def test_a_substitution_of_nothing_is_the_same_object(p):
    assert p.substitute({}) is p
    assert p.substitute({"absent": ONE}) is p


@few
@given(divided(), points)
def test_numbers_commute_with_rewrites(p, env):
    some = {"i": of(env["i"]), "#m": of(env["#m"])}
    rest = {name: of(v) for name, v in env.items()}
    assert p.substitute(some).substitute(rest) == p.substitute(rest)


def test_atoms():
    p = (i + 1) // n * 2 + maximum(i, j) + 3
    kinds = [type(a) for a in opaque_atoms(p)]
    assert sorted(t.__name__ for t in kinds) == ["FloorDiv", "Maximum"]
    assert map_atoms(p, lambda a: ZERO) is p  # only data-dependent atoms are mapped
    assert FloorDiv(i, n) == FloorDiv(i, n)
    assert FloorDiv(i, n) != FloorDiv(i, m)
    assert hash(Maximum(i, j)) == hash(Maximum(i, j))


# signs and maxima
@few
@given(divided(), points)
def test_nonnegative_is_sound(p, env):
    if nonnegative(p):
        assert value(p, env) >= 0


@pytest.mark.parametrize(
    ("p", "known"),
    [
        (ZERO, True),
        (of(3), True),
        (of(-1), False),
        (i, True),
        (-i, False),
        (n - 1, True),
        (n - 2, False),
        (n * m - 1, True),
        (n * m - n, True),
        (i * n - i, True),
        (i - j, False),
        (3 * n - 3, True),
        (n * n - n, True),
        (n * i + j, True),
        (m * n - m - n + 1, True),
    ],
)
def test_nonnegative(p, known):
    assert nonnegative(p) is known


@few
@given(divided(), divided(), points)
def test_maximum(p, q, env):
    assert value(maximum(p, q), env) == max(value(p, env), value(q, env))
    assert maximum(p, q) == maximum(q, p)


def test_maximum_takes_the_one_that_is_proven_larger():
    assert maximum(n, ONE) == n
    assert maximum(i + n, i + 1) == i + n
    assert maximum(of(3), of(5)) == of(5)
    assert maximum(i + n, i + m) == i + atom(Maximum(m, n))


# bounds
extents = st.fixed_dictionaries({name: st.integers(1, 5) for name in LOOPS})


def brute(p, spans, env):
    values = []
    for at in itertools.product(*(range(v) for v in spans.values())):
        values.append(value(p, {**env, **dict(zip(spans, at, strict=True))}))
    return min(values), max(values)


@few
@given(st.tuples(small, small, small, small), extents)
def test_bounds_of_an_affine_expression_are_exact(factors, spans):
    a, b, c, d = factors
    p = a * i + b * j + c * k + d
    low, high = bounds(p, {name: of(v) for name, v in spans.items()})
    assert (low.const, high.const) == brute(p, spans, {})


@few
@given(st.tuples(small, small, small), extents, st.integers(1, 5), st.integers(1, 5))
def test_bounds_with_sizes_as_factors_are_exact(factors, spans, mv, nv):
    a, b, c = factors
    p = a * i * n + b * j * m + c * k - n + 4
    low, high = bounds(p, {name: of(v) for name, v in spans.items()})
    env = {"#m": mv, "#n": nv}
    assert (value(low, env), value(high, env)) == brute(p, spans, env)


@settings(max_examples=drawn(100, 200), deadline=None)
@given(divided(), extents, st.integers(1, 5), st.integers(1, 5))
def test_bounds_contain_every_value(p, spans, mv, nv):
    env = {"#m": mv, "#n": nv}
    try:
        low, high = bounds(p, {name: of(v) for name, v in spans.items()})
    except Unknown:
        return
    assert not loops_of(low)
    assert not loops_of(high)
    least, greatest = brute(p, spans, env)
    assert value(low, env) <= least
    assert value(high, env) >= greatest


@few
@given(st.integers(1, 9), st.integers(1, 30), st.integers(0, 9))
def test_bounds_of_division_and_remainder(d, extent, offset):
    spans = {"i": of(extent)}
    low, high = bounds((i + offset) // d, spans)
    assert (low.const, high.const) == (offset // d, (extent - 1 + offset) // d)
    low, high = bounds((i + offset) % d, spans)
    least, greatest = brute((i + offset) % d, {"i": extent}, {})
    assert low.const <= least
    assert greatest <= high.const < max(d, greatest + 1)


def test_bounds_are_symbolic():
    assert bounds(i * 4 + j, {"i": n, "j": of(4)}) == (ZERO, 4 * n - 1)
    assert bounds(i * 4 + j, {"j": of(4)}) == (4 * i, 4 * i + 3)
    assert bounds(i % n, {"i": m}) == (ZERO, n - 1)
    assert bounds(i % n, {"i": n}) == (ZERO, n - 1)
    assert bounds(i // n, {"i": m * n}) == (ZERO, (m * n - 1) // n)
    assert bounds(n, {"i": m}) == (n, n)
    assert bounds(i % 64 % n, {"i": of(256)}) == (ZERO, n - 1)  # a remainder of a remainder


@pytest.mark.parametrize("p", [i * j, i // (j + 1), maximum(i, n), (n - m) * i])
def test_bounds_that_are_not_known(p):
    with pytest.raises(Unknown):
        bounds(p, {"i": of(3), "j": of(3)})


# facts
def test_reduce_modulo():
    rules = {("#a", "#b"): of(12), ("#c", "#d", "#e"): n}
    a, b, c, d, e = map(var, ("#a", "#b", "#c", "#d", "#e"))
    assert reduce_modulo(a * b, rules) == of(12)
    assert reduce_modulo(a * b * i + a, rules) == 12 * i + a
    assert reduce_modulo(a * a * b * b, rules) == of(144)
    assert reduce_modulo(c * d * e * a * b - 12 * n, rules) == ZERO
    assert reduce_modulo(a * c, rules) == a * c
    assert reduce_modulo(a, {}) is a


@few
@given(polynomials, st.integers(1, 6), st.integers(1, 6), points)
def test_reduce_modulo_keeps_the_value(p, a, b, env):
    rules = {("#m", "#n"): of(a * b)}
    env = {**env, "#m": a, "#n": b}
    reduced = reduce_modulo(p, rules)
    assert value(reduced, env) == value(p, env)
    assert not any("#m" in t and "#n" in t for t in reduced.terms)


def test_proofs():
    spans = {"i": m, "j": n}
    assert proves(m * n - 1 - (i * n + j), spans, {})
    assert not proves(m * n - 2 - (i * n + j), spans, {})
    assert proves(of(12) - 1 - (i * n + j), spans, {("#m", "#n"): of(12)})
    assert not proves(of(11) - 1 - (i * n + j), spans, {("#m", "#n"): of(12)})
    assert not proves(of(12) - 1 - (i * n + j), spans, {})
    assert not proves(i * j - 1, spans, {})


@few
@given(divided(), extents, st.integers(1, 6), st.integers(1, 6))
def test_proofs_are_sound(p, spans, a, b):
    if proves(p, {name: of(v) for name, v in spans.items()}, {("#m", "#n"): of(a * b)}):
        assert brute(p, spans, {"#m": a, "#n": b})[0] >= 0


def test_evaluating_data_dependent_atoms():
    class Read(Opaque):
        __slots__ = ()

        def __init__(self):
            self.key = "ids[0]"

    p = 2 * atom(Read()) * i + maximum(i, j) // 2
    assert evaluate_int(p, {"i": 3, "j": 5}, lambda a: 10 if isinstance(a, Read) else 0) == 62


def test_bounds_of_a_remainder_of_a_quotient() -> None:
    d = var("d")
    p = d // 32 - 4 * (d // 128)  # (d // 32) % 4
    assert bounds(p, {"d": of(512)}) == (of(0), of(3))
    assert {v // 32 - 4 * (v // 128) for v in range(512)} == {0, 1, 2, 3}
    assert bounds(5 * p + var("e"), {"d": of(512), "e": of(2)}) == (of(0), of(16))


def test_bounds_of_parts_of_a_remainder() -> None:
    """A tile that does not divide a group: the quotient's normal form spreads over two terms."""
    d = var("d")
    for n in range(1, 20):
        for m in range(1, 20):
            quotient, rest = (d % n) // m, (d % n) % m
            for p, f in (
                (quotient, lambda v, n=n, m=m: v % n // m),
                (rest, lambda v, n=n, m=m: v % n % m),
            ):
                values = [f(v) for v in range(4 * n)]
                low, high = bounds(p, {"d": of(4 * n)})
                assert (low.const, high.const) == (0, high.const)
                assert max(values) <= high.number <= max(values + [m - 1] * (p == rest))
