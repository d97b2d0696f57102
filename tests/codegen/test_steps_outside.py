"""The steps of an unrolled sum go outside of its tile, if each element is summed in the same order
as before.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tilesmith.base.dtype import FLOAT32
from tilesmith.base.target import Target
from tilesmith.codegen.passes.steps_outside import load_fragments, steps_outside
from tilesmith.expr.dynamic import loads_of
from tilesmith.expr.ints import of, parse_int
from tilesmith.expr.nodes import Binary, Expr, Load
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Alloc, Buffer, For, Stmt, Store, Write, statements
from tilesmith.ir.notes import KeepSteps

H200 = Target.named("nvidia-h200")
UNROLLED = {"i": "unroll", "k": "unroll", "j": "unroll", "q": "unroll"}
EXTENTS = {"i": 2, "k": 3, "j": 4, "q": 2}
SCOPES = {"C": "local", "A": "shared", "B": "shared"}


def load(text: str) -> Load:
    name, _, index = text.partition("@")
    return Load(name, (parse_int(index),), FLOAT32)


def nest(
    order: str, *, place: str = "4*i + j", also: str = "", kinds: dict[str, str] = UNROLLED,
    scopes: dict[str, str] = SCOPES, b: str = "2*k + q + 6*j",
) -> Function:  # fmt: skip
    """C[place] += A[i, k, q] * B[j, k, q], with loops in this order."""
    held = load(f"C@{place}")
    value: Expr = Binary("mul", load("A@6*i + 2*k + q"), load(f"B@{b}"), FLOAT32)
    if also:
        value = Binary("mul", value, load(also), FLOAT32)
    stmt: Stmt = Store((Write("C", held.index, Binary("add", held, value, FLOAT32)),))
    for name in reversed(order):
        stmt = For(name, of(EXTENTS[name]), (stmt,), kinds[name])
    buffers = [Buffer(name, (of(64),), FLOAT32, scope) for name, scope in scopes.items()]
    params = tuple(b for b in buffers if b.scope == "global")
    own = tuple(Alloc(b) for b in buffers if b.scope != "global")
    return Function("f", params, 0, (), (*own, For("t", of(1), (stmt,), "threadIdx.x")))


def loops_of(func: Function) -> list[For]:
    return [s for s in statements(func.body) if isinstance(s, For) and s.name in EXTENTS]


def order_of(func: Function) -> str:
    return "".join(f.name for f in loops_of(func))


def sums(func: Function) -> dict[str, list[str]]:
    """What is added to each element, in this order."""
    out: dict[str, list[str]] = {}

    def run(body: tuple[Stmt, ...], env: dict[str, int]) -> Iterator[tuple[str, str]]:
        for s in body:
            if isinstance(s, For):
                for n in range(s.trips):
                    yield from run(s.body, {**env, s.name: n})
            elif isinstance(s, Store):
                here = {name: of(n) for name, n in env.items()}
                (w,) = s.writes
                terms = [(x.buffer, x.index[0].substitute(here)) for x in loads_of(w.value)]
                yield str(w.index[0].substitute(here)), str(terms)

    for place, terms in run(func.body, {}):
        out.setdefault(place, []).append(terms)
    return out


@pytest.mark.parametrize("order", ["ikqj", "ikjq", "ijkq", "kijq", "kqij", "kiqj"])
def test_steps_go_outside_and_sums_stay(order: str) -> None:
    before = nest(order)
    after = steps_outside(before, H200)
    assert order_of(after) == "kqij"
    assert sums(after) == sums(before)
    assert [f.name for f in loops_of(after) if f.note(KeepSteps)] == ["q"]
    # Each element of a step is loaded once, into registers.
    (q,) = (f for f in loops_of(load_fragments(after, H200)) if f.name == "q")
    parts = {s.buffer.name: s.buffer.size.const for s in q.body if isinstance(s, Alloc)}
    assert parts == {"A.part1": 2, "B.part2": 4}


def test_loops_over_registers_count_as_unrolled() -> None:
    assert order_of(steps_outside(nest("ikqj", kinds=UNROLLED | {"i": "serial"}), H200)) == "kqij"


def test_a_step_that_stays_a_loop_stays_where_it_is() -> None:
    before = nest("ikjq", kinds=UNROLLED | {"k": "serial"})
    after = steps_outside(before, H200)
    assert order_of(after) == "ikqj"
    assert sums(after) == sums(before)
    assert [f.name for f in loops_of(after) if f.note(KeepSteps)] == ["q"]


@pytest.mark.parametrize(
    "before",
    [
        nest("ikqj", place="2*i + j"),  # elements that several tiles add to
        nest("ikqj", also="C@4*i + j + 1"),  # it reads what another one writes
        nest("ikqj", scopes=SCOPES | {"C": "shared"}),
    ],
    ids=["overlap", "reads another", "not registers"],
)
def test_what_depends_on_the_order_keeps_it(before: Function) -> None:
    after = steps_outside(before, H200)
    assert order_of(after) == order_of(before)
    assert sums(after) == sums(before)


def test_where_loads_are_few_the_order_is_the_one_that_was_chosen() -> None:
    """Four elements of B come with one load."""
    after = steps_outside(nest("ikqj", b="8*k + 4*q + j"), H200)
    assert order_of(after) == "ikqj"
    assert [f.name for f in loops_of(after) if f.note(KeepSteps)] == ["q"]


def test_loads_of_global_memory_are_not_kept_apart() -> None:
    """The compiler knows best which of them to move out of the loops."""
    after = steps_outside(nest("ikqj", scopes=SCOPES | {"A": "global"}), H200)
    assert order_of(after) == "kqij"
    assert not any(f.note(KeepSteps) for f in loops_of(after))
