"""Loops belong to blocks, whatever they are called: no name that a user gives confuses legality."""

from __future__ import annotations

import numpy as np
import pytest
from cases import assert_kept

import tilesmith as ts
from tests.support.strict import races
from tests.support.traces import GPU_WEIGHTS, random_trace
from tilesmith.ir.deserialize import function_from_json
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import walk
from tilesmith.ir.serialize import function_to_json
from tilesmith.schedule.schedule import Schedule
from tilesmith.schedule.trace import Trace

# What primitives put behind a name, or what a generated name consists of.
DERIVED = ("local", "shared", "global", "rf", "init", "pad", "tiles", "products", "outer", "inner",
           "ax0", "i_outer", "i_1", "C", "D", "update")  # fmt: skip


def sums(i: str, j: str, k: str, first: str = "C", second: str = "D") -> Function:
    """Two stages whose axes are called as they are told."""
    a, b = ts.placeholder((6, 5), name="A"), ts.placeholder((5, 4), name="B")
    r = ts.reduce_axis(5, name=k)
    c = ts.compute((6, 4), lambda x, y: ts.sum(a[x, r] * b[r, y], axis=r), name=first, axes=[i, j])
    d = ts.compute((6, 4), lambda x, y: ts.maximum(c[x, y], 0), name=second, axes=[i, j])
    return ts.function([a, b, d], name="sums")


def refusal(func: Function, steps) -> str | None:
    sch = Schedule(func)
    try:
        steps(sch)
    except ts.ScheduleError as e:
        return str(e)
    assert_kept(sch)
    assert races(sch.func) == []
    return None


@pytest.mark.parametrize("scope", ["local", "shared", "global"])
def test_an_axis_that_is_called_like_a_copy(scope):
    """The loops of C.local are not C's, also where C has an axis that is called local."""

    def steps(sch: Schedule) -> None:
        copy = sch.cache_write("C", scope)
        i, j, k = sch.loops(copy)
        sch.reorder(i, k, j)
        sch.reverse_compute_at("C", i)
        sch.parallel(i)

    def inside(sch: Schedule) -> None:
        """C cannot be inside the sum that it reads."""
        copy = sch.cache_write("C", scope)
        sch.reverse_compute_at("C", sch.loops(copy)[2])

    for act in (steps, inside):
        plain = refusal(sums("i", "j", "k"), act)
        for names in ((scope, "j", "k"), ("i", scope, "k"), ("i", "j", scope)):
            found = refusal(sums(*names), act)
            assert (found is None) == (plain is None), found


def test_the_copy_inside_loops_of_its_source():
    """A sum that is computed anew in loops of its consumer: that these are called after the
    consumer's axis does not make them its own.
    """

    def steps(sch: Schedule) -> None:
        copy = sch.cache_write("D", "local")
        sch.compute_at("C", sch.loops(copy)[1])
        sch.reorder(*reversed([n for n in sch.loops("C") if n.startswith("C.")]))
        sch.reverse_compute_at("D", sch.loops(copy)[0])
        sch.parallel(sch.loops(copy)[0])

    for names in (("i", "j", "k"), ("local", "j", "k"), ("i", "local", "k"), ("local", "C", "D")):
        assert refusal(sums(*names), steps) is None


@pytest.mark.parametrize("name", DERIVED)
def test_decomposing_and_factoring_with_any_axis_name(name):
    def steps(sch: Schedule) -> None:
        _, inner = sch.split(sch.loops("C")[2], [None, 2])
        part = sch.rfactor(inner)
        sch.decompose_reduction("C", sch.loops("C")[0])
        sch.decompose_reduction(part, sch.loops(part)[1])
        sch.parallel(sch.loops("C")[0])

    plain = refusal(sums("i", "j", "k"), steps)
    for names in ((name, "j", "k"), ("i", name, "k"), ("i", "j", name), ("rf", "init", name)):
        if len(set(names)) == 3:
            assert refusal(sums(*names), steps) == plain


@pytest.mark.parametrize("seed", range(30))
def test_random_schedules_do_not_depend_on_names(seed):
    """Any trace that is accepted keeps the meaning, and the text of the result is read back."""
    rng = np.random.default_rng([17, seed])
    i, j, k = (str(n) for n in rng.choice(np.array(DERIVED), 3, replace=False))
    stages = [str(n) for n in rng.choice(np.array(("C", "local", "rf", "init")), 2, replace=False)]
    func = sums(i, j, k, *stages)
    sch = random_trace(func, rng, 8, GPU_WEIGHTS)
    assert_kept(sch)
    assert races(sch.func) == []
    assert Trace.from_json(sch.trace.to_json()).apply(func) == sch.func
    again = function_from_json(function_to_json(sch.func))
    assert again == sch.func
    assert owners(again) == owners(sch.func)


def owners(func: Function) -> dict[str, str]:
    return {f.name: f.owner for path, _ in walk(func.body) for f in path}


def test_owners_follow_the_blocks():
    sch = Schedule(sums("i", "j", "k"))
    sch.split("C.i", [None, 2])
    sch.fuse("C.i.0", "C.i.1")
    sch.cache_write("C")
    sch.compute_at("C.local", "C.i")
    found = owners(sch.func)
    assert {n: o for n, o in found.items() if n.startswith("C.local.")}.keys() == {
        n for n, o in found.items() if o == "C.local"
    }
    assert found["C.i"] == "C"
    assert found["D.i"] == "D"


def test_ordinary_text_does_not_name_owners():
    """So that keys of tasks stay as they are."""
    sch = Schedule(sums("i", "j", "k"))
    assert '"D"]' not in function_to_json(sch.func)
    sch.split("C.i", [None, 2])
    sch.compute_at("C", "D.i")
    plain = function_to_json(sch.func)
    assert function_to_json(function_from_json(plain)) == plain
