"""Memory planning: arrays that live at the same time never overlap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tilesmith.graph.memory import ALIGNMENT, Lifetime, plan_arena


@st.composite
def lifetimes(draw: st.DrawFn) -> dict[str, Lifetime]:
    out = {}
    for k in range(draw(st.integers(0, 20))):
        first = draw(st.integers(0, 12))
        last = draw(st.integers(first, 13))
        out[f"a{k}"] = Lifetime(draw(st.integers(0, 5000)), first, last)
    return out


@given(lifetimes())
def test_what_lives_at_the_same_time_lies_apart(arrays: dict[str, Lifetime]) -> None:
    arena = plan_arena(arrays)
    assert set(arena.offsets) == set(arrays)
    for a, x in arrays.items():
        begin = arena.offsets[a]
        assert begin % ALIGNMENT == 0
        assert begin + x.nbytes <= arena.nbytes
        for b, y in arrays.items():
            if a < b and x.first <= y.last and y.first <= x.last and x.nbytes and y.nbytes:
                other = arena.offsets[b]
                assert begin + x.nbytes <= other or other + y.nbytes <= begin, (a, b)


@given(lifetimes())
def test_no_arena_is_below_the_bound(arrays: dict[str, Lifetime]) -> None:
    arena = plan_arena(arrays)
    assert arena.nbytes >= arena.lower_bound
    for step in range(14):
        live = sum(x.nbytes for x in arrays.values() if x.first <= step <= x.last)
        assert arena.lower_bound >= live


def test_a_chain_takes_two_arrays() -> None:
    arrays = {f"a{k}": Lifetime(640, k, k + 1) for k in range(50)}
    arena = plan_arena(arrays)
    assert arena.nbytes == arena.lower_bound == 1280


def test_nothing_takes_nothing() -> None:
    arena = plan_arena({})
    assert (arena.nbytes, arena.lower_bound) == (0, 0)
