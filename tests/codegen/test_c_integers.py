"""Integers over loops as C text: remainders are found again, comparisons have each term on the side
where it is positive, and what C computes is the value.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilesmith.codegen.c.dialect import CUDA
from tilesmith.codegen.c.helpers import Helpers
from tilesmith.codegen.c.integers import Integers, Remainder, with_remainders
from tilesmith.codegen.c.position import Names, Position
from tilesmith.expr.ints import Int, Opaque, evaluate_int, of, var

LOOPS = {"i": 7, "j": 12, "k": 5}
numbers = st.integers(-9, 9)


@st.composite
def integers(draw: st.DrawFn, depth: int = 3) -> Int:
    if depth == 0:
        return draw(st.sampled_from([var(n) for n in LOOPS]))
    a = draw(integers(depth - 1))
    n = draw(st.integers(2, 12))
    match draw(st.integers(0, 4)):
        case 0:
            return a + draw(numbers)
        case 1:
            return a * draw(numbers)
        case 2:
            return a // n
        case 3:
            return a % n
    return a + draw(integers(depth - 1))


def written() -> tuple[Integers, Position]:
    position = Position(CUDA, Helpers(CUDA), Names(), 1)
    for name, extent in LOOPS.items():
        position.bind(name, extent)
    return Integers(position), position


def in_python(text: str, position: Position, env: dict[str, int]) -> Any:
    """C text as Python: dividends are not negative, or a function divides them."""
    names: dict[str, Any] = dict(env)
    names["floordiv_int32"], names["mod_int32"] = int.__floordiv__, int.__mod__
    for line in position.scopes[0].lines:
        m = re.fullmatch(r"const int (\w+) = (.*);", line)
        assert m, line
        names[m[1]] = eval(m[2].replace("/", "//"), {}, names)
    return eval(text.replace("/", "//").replace("&&", "and"), {}, names)


@given(integers(), st.data())
def test_the_text_has_the_value(p: Int, data: st.DataObject) -> None:
    env = {n: data.draw(st.integers(0, extent - 1)) for n, extent in LOOPS.items()}

    def opaque(a: Opaque) -> int:
        assert isinstance(a, Remainder)
        return evaluate_int(a.a, env, opaque) % a.b

    value = evaluate_int(p, env, opaque)
    assert evaluate_int(with_remainders(p), env, opaque) == value
    emitted, position = written()
    assert in_python(emitted.integer(p).text, position, env) == value
    low, high = emitted.range_of(p) or (0, 0)
    assert low <= value <= high
    for op in ("lt", "le", "gt", "ge", "eq", "ne"):
        holds = {
            "lt": value < 0, "le": value <= 0, "gt": value > 0, "ge": value >= 0, "eq": value == 0,
            "ne": value != 0,
        }[op]  # fmt: skip
        text = emitted.comparison(op, p).text
        assert in_python(text, position, env) == holds, f"{text} for {op} of {p}"


I, J, K = (var(n) for n in "ijk")


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (J % 4, "j_mod4"),
        (3 * (J % 4) + 1, "j_mod4*3 + 1"),
        (J // 4 % 2, "j_mod2"),
        (I * 4 - K - 2, "i*4 - k - 2"),
        (of(0) - I, "-i"),
    ],
    ids=str,
)
def test_texts(p: Int, text: str) -> None:
    assert written()[0].integer(p).text == text


@pytest.mark.parametrize(
    ("op", "p", "text"),
    [
        ("ge", of(99) - J * 8 - I, "j*8 + i < 100"),
        ("ge", of(0) - J, "j == 0"),
        ("ge", J - 3, "j >= 3"),
        ("lt", J - 3, "j < 3"),
        ("ge", J - K - 1, "j >= k + 1"),
        ("ge", J - K + 1, "j + 1 >= k"),
        ("eq", J - K, "j == k"),
    ],
)
def test_comparisons(op: str, p: Int, text: str) -> None:
    assert written()[0].comparison(op, p).text == text
