"""Knobs: numbers that a template computes with and branches on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilesmith as ts
from tests.support.meaning import assert_close
from tests.support.programs import random_inputs
from tilesmith.ir.notes import UnrollDepth
from tilesmith.schedule.sample import SampleChoice
from tilesmith.space.knobs import annotations_of, orders_of


def matmul_relu(n: int = 12, m: int = 10, k: int = 9) -> ts.Function:
    a, b = ts.placeholder((n, k), name="A"), ts.placeholder((k, m), name="B")
    return ts.function([a, b, ts.ops.relu(ts.ops.matmul(a, b, name="C"), name="D")], name="mm")


TASK = ts.Task(matmul_relu(), ts.cpu(num_cores=2))


def made(template: object, task: ts.Task = TASK) -> list[ts.Variant]:
    space = ts.TemplateSpace(template)  # type: ignore[arg-type]
    return [v for s in space.sketches(task) for v in ts.variants(task, s)]


def check(variants: list[ts.Variant], every: int = 1) -> None:
    """Rows of each variant mean what the oracle says, and go through JSON."""
    rng = np.random.default_rng(0)
    arrays = random_inputs(TASK.func, rng)
    want = ts.evaluate(TASK.func, *arrays)
    for v in variants[::every]:
        a = v.sample(rng, 20)
        assert len(a) == 20
        rows = np.concatenate([a, v.mutate(rng, a), v.cross(rng, a, a[::-1])])
        assert v.valid(rows).all()
        row = rows[rng.integers(len(rows))]
        decided = ts.Trace.from_json(v.decided(row).to_json())
        assert decided == v.decided(row)
        assert decided.apply(TASK.func) == v.function(row)
        assert_close(ts.interpret(v.function(row), *arrays), want, f"{decided}")


# computing
def test_factors_are_computed_from_knobs():
    def template(sch: ts.TemplateSchedule) -> None:
        x = sch.sample_choice([1, 2, 3], name="x")
        y = sch.sample_choice([1, 2], name="y")
        sch.split("C.i", [None, 2 * x])
        sch.split("C.j", [None, x + y])
        sch.split("C.k", [None, x * y, y + 1])

    (v,) = made(template)
    assert v.size == 6
    for k in range(v.size):
        row = v.row(k)
        x, y = (int(row[v.columns.index(c)]) for c in ("#x", "#y"))
        sch = ts.Schedule(TASK.func)
        sch.split("C.i", [None, 2 * x])
        sch.split("C.j", [None, x + y])
        sch.split("C.k", [None, x * y, y + 1])
        assert v.function(row) == sch.func
    check([v])


def test_what_may_be_zero_or_is_divided_is_branched_on():
    def template(sch: ts.TemplateSchedule) -> None:
        x = sch.sample_choice([2, 4, 8], name="x")
        sch.split("C.i", [None, x // 2])
        sch.split("C.j", [None, x - 1])

    found = made(template)
    assert [v.func.body[0].body[0].extent.const for v in found] == [1, 2, 4]  # type: ignore[union-attr]
    check(found)


def test_tile_factors_are_numbers_too():
    def template(sch: ts.TemplateSchedule) -> None:
        i0, i1 = sch.sample_tile("C.i", parts=2)
        sch.split("C.i", [i0, i1], exact=True)
        sch.split("C.j", [None, i1 + 1])
        sch.require(i1 * 2, most=12)

    (v,) = made(template)
    assert v.sample(np.random.default_rng(0), 50)[:, v.columns.index("#C.i.1")].max() == 6
    check([v])


def test_knobs_of_a_fused_loop():
    def template(sch: ts.TemplateSchedule) -> None:
        loop = sch.fuse("D.i0", "D.i1")
        parts = sch.sample_tile(loop, parts=2)
        sch.split(loop, parts, exact=True)
        sch.require(parts[1] * 1, most=24)
        if parts[1] > 4:
            sch.vectorize(f"{loop}.1")

    found = made(template)
    assert len(found) == 2
    check(found)


def test_an_annotation_takes_a_knob_or_a_computed_number():
    def template(sch: ts.TemplateSchedule) -> None:
        x = sch.sample_choice([1, 4], name="x")
        sch.annotate("C.i", "unroll_depth", x)
        sch.annotate("C.j", "unroll_depth", 2 * x)

    found = made(template)
    assert len(found) == 2
    assert {v.function(v.row(0)).body[0].body[0].count(UnrollDepth) for v in found} == {2, 8}  # type: ignore[union-attr]


# branching
def test_a_choice_of_words_is_a_real_value():
    def template(sch: ts.TemplateSchedule) -> None:
        order = sch.sample_choice(["ij", "ji", None])
        if order == "ji":
            sch.reorder("C.j", "C.i")
        elif order is not None:
            sch.split("C.i", [None, sch.sample_choice([2, 3])])
        if sch.sample_choice([True, False]):
            sch.parallel(sch.loops("C")[0])

    found = made(template)
    assert len(found) == 3 * 2
    check(found)


def test_a_comparison_runs_the_template_once_per_answer():
    seen = []

    def template(sch: ts.TemplateSchedule) -> None:
        unroll = sch.sample_choice([0, 4, 16, 64], name="unroll")
        if unroll > 16:
            sch.parallel("C.i")
        elif unroll == 0:
            sch.reorder("C.j", "C.i")
        seen.append(1)
        sch.unroll("C.k", unroll)

    found = made(template)
    values = [s.values for v in found for s in v.trace if isinstance(s, SampleChoice)]
    assert sorted(values) == [(0,), (4, 16), (64,)]
    assert len(seen) == 3
    check(found)


def test_tiles_are_compared_by_bounds():
    def template(sch: ts.TemplateSchedule) -> None:
        i = sch.sample_tile("C.i", parts=2)
        j = sch.sample_tile("C.j", parts=2)
        sch.split("C.i", i, exact=True)
        sch.split("C.j", j, exact=True)
        if i[1] >= j[1]:
            sch.vectorize("C.j.1")
        if i[1] == 5:  # no divisor of 12: never
            sch.parallel("C.k")

    found = made(template)
    assert len(found) == 2
    for v in found:
        rows = v.sample(np.random.default_rng(0), 100)
        wider = rows[:, v.columns.index("#C.i.1")] >= rows[:, v.columns.index("#C.j.1")]
        assert set(wider.tolist()) == {"vectorize" in str(v.func)}
    check(found)


def test_int_range_and_keys_ask_for_the_number():
    def template(sch: ts.TemplateSchedule) -> None:
        x = sch.sample_choice([1, 2, 3], name="x")
        depth = {1: 4, 2: 8, 3: 16}[x]
        assert [*range(x)] == [*range(int(x))]
        assert ["a", "b", "c", "d"][x] == "abcd"[int(x)]
        assert x / 2 == int(x) / 2
        assert bool(x)
        sch.split("C.i", [None, depth])

    found = made(template)
    assert sorted(v.func.body[0].body[0].extent.const for v in found) == [4, 8, 16]  # type: ignore[union-attr]


def test_two_answers_that_exclude_each_other_leave_nothing():
    def template(sch: ts.TemplateSchedule) -> None:
        x = sch.sample_choice([1, 2, 3], name="x")
        y = sch.sample_choice([1, 2, 3], name="y")
        if x + y > 5:
            sch.parallel("C.i")  # 3 and 3 alone

    found = made(template)
    assert [len(v.sample(np.random.default_rng(0), 9)) for v in found] == [9, 9]
    assert sum("parallel" in str(v.func) for v in found) == 1

    # The four middle factors are at most 12, 10, 9 and 12, so one row alone reaches their product.
    most = 12 * 10 * 9 * 12

    def rarely(above: int) -> Callable[[ts.TemplateSchedule], None]:
        def template(sch: ts.TemplateSchedule) -> None:
            tiles = [sch.sample_tile(loop, parts=3)[1] for loop in ("C.i", "C.j", "C.k", "D.i0")]
            if tiles[0] * tiles[1] * tiles[2] * tiles[3] > above:
                sch.parallel("C.i")

        return template

    assert ["parallel" in str(v.func) for v in made(rarely(most))] == [False]
    assert ["parallel" in str(v.func) for v in made(rarely(most - 1))] == [True, False]


def test_steps_that_need_numbers_get_them():
    def template(sch: ts.TemplateSchedule) -> None:
        sch.pad("C", {"i": sch.sample_choice([5, 7], name="to")})
        sch.prefetch("C.pad.k", "B", sch.sample_choice([1, 2], name="ahead"))
        sch.split("C.pad.i", [None, sch.sample_choice([2, 3], name="x")])

    found = made(template)
    assert len(found) == 4
    assert all(v.size == 2 for v in found)
    check(found)


def test_too_many_numbers_are_refused():
    def template(sch: ts.TemplateSchedule) -> None:
        int(sch.sample_choice(range(1000), name="x"))

    with pytest.raises(
        ts.ScheduleError, match=r"template asks for the value of #x, which has 1000"
    ):
        made(template)


def test_too_many_structures_are_refused():
    def template(sch: ts.TemplateSchedule) -> None:
        for _ in range(13):
            sch.sample_choice(["a", "b"])

    with pytest.raises(ts.ScheduleError, match="more than 4096 structures"):
        made(template)


# policies
def test_max_factor_and_no_tail():
    def template(sch: ts.TemplateSchedule) -> None:
        sch.split("C.i", sch.sample_tile("C.i", parts=3, policy="verbose", max_factor=4))
        sch.split("C.j", sch.sample_tile("C.j", parts=2, policy="any", no_tail=True), exact=True)

    (v,) = made(template)
    tiles, exact = (d.table for d in v.domains)
    assert tiles[:, 1:].max() == 4
    assert sorted(map(tuple, exact.tolist())) == [(1, 10), (2, 5), (5, 2), (10, 1)]
    check([v])


def test_policies_of_autotvm_count_as_there():
    """Its own golden numbers, for tiles without a tail."""
    task = ts.Task(matmul_relu(256, 224, 128), TASK.target)
    counts = []

    def template(sch: ts.TemplateSchedule) -> None:
        for loop, parts in (("C.i", 3), ("C.j", 3), ("C.k", 2)):
            sch.split(loop, sch.sample_tile(loop, parts=parts, policy="factors"), exact=True)

    (v,) = made(template, task)
    counts = [d.size for d in v.domains]
    assert counts == [45, 63, 8]


def test_orders():
    loops = ["i0", "i1", "j0", "j1", "k"]
    assert len(orders_of(loops, "all")) == 120
    some = orders_of(loops, "interval_all", (1, 3))
    assert some == (("i0", "i1", "j0", "j1", "k"), ("i0", "j0", "i1", "j1", "k"))
    chains = {"spatial": [["i0", "i1"], ["j0", "j1"]], "reduce": [["k"]]}
    assert orders_of(loops, "interleave", **chains) == (("i0", "j0", "i1", "j1", "k"),)
    assert orders_of(loops, "interleave_cuda", **chains) == (("i0", "j0", "k", "i1", "j1"),)
    long = orders_of(["a0", "a1", "a2", "k0", "k1"], "interleave",
                     spatial=[["a0", "a1", "a2"]], reduce=[["k0", "k1"]])  # fmt: skip
    assert long == (("a0", "a1", "k0", "a2", "k1"),)


def test_orders_in_a_template():
    def template(sch: ts.TemplateSchedule) -> None:
        i0, i1 = sch.split("C.i", [None, 4])
        j0, j1 = sch.split("C.j", [None, 5])
        policy = sch.sample_choice(["interleave", "interleave_cuda"])
        sch.reorder(i0, j0, i1, j1)
        sch.sample_permutation([i0, i1, j0, j1, "C.k"], policy=policy,
                               spatial=[[i0, i1], [j0, j1]], reduce=[["C.k"]])  # fmt: skip
        sch.sample_permutation(sch.loops("C"), policy="interval_all", interval=(0, 2))

    found = made(template)
    assert len(found) == 4
    check(found)


def test_annotations():
    assert annotations_of(["i", "j"], "try_unroll") == (
        ("none", "none"), ("none", "unroll"), ("unroll", "none"), ("unroll", "unroll"),
    )  # fmt: skip
    assert len(annotations_of(["i", "j"], "try_vec")) == 3
    assert len(annotations_of(["i", "j"], "try_unroll_vec")) == 8
    assert annotations_of(list("abcde"), "bind_gpu") == (
        ("blockIdx.y", "blockIdx.y", "blockIdx.x", "threadIdx.y", "threadIdx.x"),
    )
    assert annotations_of(list("abc"), "bind_gpu_virtual") == (
        ("blockIdx.x", "vthread", "threadIdx.x"),
    )

    def template(sch: ts.TemplateSchedule) -> None:
        sch.reorder("C.k", "C.i", "C.j")
        sch.sample_annotation(["C.i", "C.j"], "try_unroll_vec")

    found = made(template)
    assert len(found) == 8
    check(found, 3)


# errors
@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda s: s.sample_tile("C.q", parts=2), "no loop 'C.q'"),
        (lambda s: s.sample_tile("C.i", parts=0), "parts=0: it takes 1 or more"),
        (lambda s: s.sample_tile("C.i", parts=2.5), "parts=2.5: it takes 1 or more"),
        (lambda s: s.sample_tile("C.i", parts=2, candidates=[(3,)]), "2 factors.*got .3,."),
        (
            lambda s: s.sample_tile("C.i", parts=2, candidates=[("a", 2)]),
            "'a' is not a whole number",
        ),
        (lambda s: s.sample_tile("C.i", 2, where=lambda t: False), "filter accepts nothing"),
        (lambda s: s.sample_tile("C.i", 2, policy="primes"), "unknown policy 'primes'"),
        (lambda s: s.sample_choice([]), "nothing to choose from"),
        (lambda s: s.sample_choice([], name="x"), "of x has nothing to choose from"),
        (lambda s: s.sample_permutation([]), "no loops"),
        (lambda s: s.sample_permutation(["C.i"], []), "each once; got none"),
        (lambda s: s.sample_permutation(["C.i", "C.j"], [["C.i"]]), "each once; got C.i"),
        (lambda s: s.sample_permutation(["C.i"], policy="best"), "unknown policy 'best'"),
        (lambda s: s.sample_permutation(["C.i"], policy="interval_all"), "interval="),
        (lambda s: s.sample_permutation(["C.i"], policy="interleave"), "the loops of each axis"),
        (lambda s: s.sample_annotation(["C.i"], "try"), "unknown policy 'try'"),
        (lambda s: s.sample_annotation(["C.i"], "bind_gpu"), "2 loops or more; it is given 1"),
        (lambda s: s.sample_annotation([], "try_vec"), "at least one is needed"),
        (lambda s: s.sample_location("C", []), "give some loops"),
        (lambda s: s.split("C.i", [None, 2.5]), "by 2.5: a factor is a whole number"),
        (lambda s: s.split("C.i", [None, "four"]), "by 'four': a size variable begins with #"),
        (lambda s: s.split("C.i", [None, True]), "by True: a factor is a whole number"),
        (lambda s: s.require("#x", most=3), "#x is no decision"),
    ],
)
def test_errors_say_what_is_wanted(act, words):
    with pytest.raises(ts.ScheduleError, match=words):
        made(act)


def test_numpy_numbers_are_factors():
    sch = ts.Schedule(TASK.func)
    sch.split("C.i", [None, np.int64(4)])
    assert ts.Trace.from_json(sch.trace.to_json()) == sch.trace
