"""The central property: any trace that is accepted keeps the meaning, verifies and replays."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest

import tilesmith as ts
from tests.support.meaning import assert_close, assert_same_meaning
from tests.support.programs import random_inputs, random_program
from tests.support.strict import backwards, hardened, races, renewed
from tests.support.thorough import by_turns, drawn
from tests.support.traces import (
    CPU_WEIGHTS,
    GPU_WEIGHTS,
    MOVING_WEIGHTS,
    SYMBOLIC_WEIGHTS,
    places,
    random_sizes,
    random_step,
    random_trace,
    work,
)
from tilesmith.expr.ints import var
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, For, rewrite, walk
from tilesmith.ir.verify import verify
from tilesmith.schedule.schedule import Schedule
from tilesmith.schedule.step import Step
from tilesmith.schedule.trace import PRIMITIVES, Trace

# BATCH cases to a test, so that a failure is found again quickly.
CASES, BATCH = by_turns(225, 900), 25


def case(seed: int, weights: dict[str, float]) -> tuple[Function, Schedule]:
    rng = np.random.default_rng(seed)
    func = random_program(rng)
    return func, random_trace(func, rng, int(rng.integers(1, 13)), weights)


def check(func: Function, sch: Schedule) -> None:
    assert_same_meaning(func, sch.func)
    again = Trace.from_json(sch.trace.to_json())
    assert again == sch.trace
    assert again.apply(func) == sch.func
    assert str(sch.func).startswith(f"def {func.name}(")


@pytest.mark.parametrize("batch", range(0, len(CASES), BATCH))
def test_random_traces_keep_the_meaning(batch):
    for seed in CASES[batch : batch + BATCH]:
        check(*case(seed, CPU_WEIGHTS))


@pytest.mark.parametrize("start", range(900, 1000, BATCH))
def test_random_traces_for_gpus_keep_the_meaning(start):
    for seed in range(start, start + BATCH):
        check(*case(seed, GPU_WEIGHTS))


WANDERING = by_turns(75, 150)


@pytest.mark.parametrize("batch", range(0, len(WANDERING), BATCH))
def test_blocks_that_wander_keep_the_meaning(batch):
    for seed in WANDERING[batch : batch + BATCH]:
        check(*case(2000 + seed, MOVING_WEIGHTS))


@pytest.mark.parametrize("seed", range(25))
def test_every_legal_place_of_random_programs(seed):
    """compute_at and reverse_compute_at wherever they are accepted, after a few other steps."""
    rng = np.random.default_rng([7, seed])
    func = random_program(rng)
    sch = random_trace(func, rng, 4, {"split": 3, "reorder": 2, "cache_write": 1, "cache_read": 1})
    steps = [s for block in sch.blocks for s in places(sch.func, block)]
    for k in rng.permutation(len(steps))[:12]:
        moved = steps[k].apply(sch.func)
        if work(moved) < 4000:
            assert_same_meaning(func, moved)


@pytest.mark.parametrize("seed", range(40))
def test_random_sketches_commute_with_their_numbers(seed):
    """Numbers put into a scheduled sketch give what the schedule with numbers gives."""
    rng = np.random.default_rng([11, seed])
    func = random_program(rng, 3)
    sch = random_trace(func, rng, 8, SYMBOLIC_WEIGHTS, max_work=10**9, symbolic=True)
    verify(sch.func)
    for _ in range(4):
        row = random_sizes(sch.func, rng)
        instance = ts.instantiate(sch.func, row)
        decided = sch.trace.decide(row).apply(func)
        assert replace(instance, facts=()) == replace(decided, facts=()), row
        assert instance.sizes == ()
        if work(instance) < 3000:
            assert_same_meaning(func, instance)


def names_in(step: Step) -> list[str]:
    """The loops, blocks and buffers that a step speaks of."""
    values = [getattr(step, f.name) for f in fields(step) if f.name != "layout"]
    flat = [v for x in values for v in (x if isinstance(x, tuple) else (x,))]
    return [v for v in flat if isinstance(v, str)]


def refusal(func: Function, step: Step) -> str | None:
    try:
        step.apply(func)
    except ts.ScheduleError as e:
        return str(e)
    return None


@pytest.mark.parametrize("primitive", GPU_WEIGHTS)
def test_refusals_name_what_they_are_about(primitive):
    """Whatever is refused, the message speaks of a loop, block or buffer of the step."""
    refused = 0
    for seed in range(drawn(40, 60)):
        rng = np.random.default_rng([3, seed])
        func = random_trace(random_program(rng), rng, int(rng.integers(0, 6)), GPU_WEIGHTS).func
        step = random_step(func, rng, primitive)
        message = refusal(func, step) if step is not None else None
        if message is not None:
            refused += 1
            assert any(n in message for n in names_in(step)), f"{step}: {message}"
            assert ":" in message or ";" in message, f"no reason in: {message}"
    seldom = ("split", "annotate", "set_scope", "storage_align", "transform_layout")
    assert refused or primitive in seldom


# the generator
def test_the_generator_is_deterministic():
    a, b = case(5, CPU_WEIGHTS), case(5, CPU_WEIGHTS)
    assert a[0] == b[0]
    assert a[1].trace == b[1].trace
    x, y = (random_inputs(a[0], np.random.default_rng(1)) for _ in range(2))
    assert all(np.array_equal(p, q) for p, q in zip(x, y, strict=True))


def test_random_traces_use_every_primitive():
    used: Counter[str] = Counter()
    for seed in range(250):
        used.update(s.name for s in case(seed, CPU_WEIGHTS)[1].trace)
    assert CPU_WEIGHTS.keys() - used.keys() <= {"pipeline"}
    assert GPU_WEIGHTS.keys() <= {p.name for p in PRIMITIVES}
    assert used["compute_at"] > 50
    assert used["reverse_compute_at"] > 20


def test_random_programs_cover_the_language():
    text = "\n".join(str(random_program(np.random.default_rng(s))) for s in range(200))
    for piece in ("max=", "*=", "join=", "where(", "//", "X0[", "int8", "float32", "[] ", "% "):
        assert piece in text, piece
    several = [random_program(np.random.default_rng(s)).num_outputs for s in range(200)]
    assert {1, 2, 3} <= set(several)


def test_random_inputs_stay_within_what_they_index():
    table, ids = ts.placeholder((3, 2), name="T"), ts.placeholder((50,), "int64", name="ids")
    g = ts.compute((50, 2), lambda i, j: table[ids[i], j], name="G")
    func = ts.function([table, ids, g])
    _, index = random_inputs(func, np.random.default_rng(0))
    assert set(index.tolist()) == {0, 1, 2}


# the oracles themselves: each finds the mistake it is for
def two_stages() -> Schedule:
    x = ts.placeholder((6,), name="X")
    p = ts.compute((6,), lambda i: x[i] * 2, name="P")
    c = ts.compute((6,), lambda i: p[i] + 1, name="C")
    return Schedule(ts.function([x, c]))


def test_a_wrong_program_is_found():
    sch = two_stages()

    def less(s):
        return (
            (replace(s, extent=s.extent - 1),) if isinstance(s, For) and s.name == "C.i" else (s,)
        )

    with pytest.raises(AssertionError):
        assert_same_meaning(sch.origin, replace(sch.func, body=rewrite(sch.func.body, less)))


def test_a_value_from_the_last_iteration_is_found():
    """C reads what the iteration before has made: right only while there is one buffer."""
    x = ts.placeholder((6,), name="X")
    p = ts.compute((7,), lambda i: ts.where(i > 0, x[i - 1], 0.0), name="P")
    c = ts.compute((6,), lambda i: p[i] + 1, name="C")
    sch = Schedule(ts.function([x, c]))
    sch.compute_at("P", "C.i")
    (loop,) = sch.func.body
    early = replace(loop.body[0], name="P.first", body=loop.body[0].body)

    def shift(s):
        """P one element ahead, except in a first run of its own."""
        if not isinstance(s, Block):
            return (s,)
        (i,) = s.iters
        return (replace(s, iters=(replace(i, bind=i.bind + 1),), where=frozenset()),)

    def first(s):
        if not isinstance(s, Block):
            return (s,)
        (i,) = s.iters
        zero = i.bind.substitute({"C.i": var("P.first"), "P.i": var("P.first")})
        return (replace(s, name="P.first", iters=(replace(i, bind=zero),), where=frozenset()),)

    ahead = replace(loop, body=(loop.body[1], *rewrite((loop.body[0],), shift)))
    func = replace(sch.func, body=(*rewrite((early,), first), ahead))
    arrays = [np.arange(1.0, 7.0, dtype=np.float32)]
    want = ts.evaluate(sch.origin, *arrays)
    assert_close(ts.interpret(func, *arrays), want)
    alone = replace(func, body=(ahead,))
    with pytest.raises(AssertionError):
        assert_close(ts.interpret(renewed(alone), *arrays)[1:], want[1:])
    assert_close(ts.interpret(alone, *arrays)[1:], want[1:])


def test_races_are_found():
    sch = two_stages()
    sch.split("P.i", [None, 2])

    def mark(s):
        return (replace(s, kind="parallel"),) if isinstance(s, For) else (s,)

    marked = replace(sch.func, body=rewrite(sch.func.body, mark))
    assert races(marked) == []

    def overlap(s):
        if isinstance(s, Block) and s.name == "P":
            i = s.iters[0]
            return (replace(s, iters=(replace(i, bind=i.bind - var("P.i.1")),)),)
        return (s,)

    bad = replace(marked, body=rewrite(marked.body, overlap))
    assert races(bad) == ["iterations of P.i.1 share elements of P"]


def test_a_sum_that_nobody_reads_keeps_its_buffer():
    x = ts.placeholder((3,), name="X")
    k = ts.reduce_axis(3, name="k")
    at, _ = ts.compute((), lambda: ts.argmax(x[k], axis=k), name="M")
    func = ts.function([x, at])
    assert_same_meaning(func, renewed(func))


def test_backwards_runs_the_last_iteration_first():
    sch = two_stages()
    sch.parallel("C.i")
    (block,) = (b for _, b in walk(backwards(sch.func).body) if b.name == "C")
    assert str(block.iters[0].bind) == "-C.i + 5"
    assert_same_meaning(sch.origin, hardened(sch.func))
