"""Sketches of what no list of operators has: extents of 0, 1, 2 and primes, rank 0 and rank 7, many
reducing axes, many outputs, mixed dtypes, and random graphs of stages that share what they read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graphs import inputs_of, random_graph
from suite import FOUR_CORES, RULES, SMALL, V100, task_of

import tilesmith as ts
from tests.schedule.test_roll import attention, scaled
from tests.support.meaning import assert_close
from tests.support.thorough import THOROUGH, TURN, drawn
from tilesmith.base.target import Target
from tilesmith.cli.operators import operator
from tilesmith.space.derive import Finishing, Rule
from tilesmith.space.domains import Rng
from tilesmith.space.spaces import (
    SketchSpace,
    some_structures,
    structural_counts,
    with_structure,
)
from tilesmith.space.variant import Variant, lower

H200 = Target.named("nvidia-h200")


def some_variant(task: ts.Task, sketch: ts.Trace, rng: Rng) -> Variant:
    """A random one of those that are not refused."""
    picks = some_structures(structural_counts(sketch), 256)
    for k in rng.permutation(len(picks)):
        try:
            return lower(task, with_structure(sketch, picks[k]))
        except ts.ScheduleError:
            continue
    raise AssertionError(f"{task.func.name}: every structure is refused: {sketch}")


def assert_sketches(func: ts.Function, rules: str, cores: int, rng: Rng, built: int) -> None:
    """A few candidates compute what the oracle says; every sketch lowers and has rows."""
    task = ts.Task(func, ts.cpu(cores))
    arrays = inputs_of(func, rng)
    want = ts.evaluate(func, *arrays)
    found = SketchSpace(RULES[rules](task.target)).derive(task).traces
    assert found
    order = rng.permutation(len(found))
    for k in order[: 4 * built]:
        v = some_variant(task, found[k], rng)
        rows = v.sample(rng, 1)
        assert len(rows), f"no valid rows: {v.limits}"
        decided, made = v.decided(rows[0]), v.function(rows[0])
        assert made == decided.apply(func), f"{decided}"
        if k in order[:built]:
            assert_close(ts.build(made, task.target)(*arrays), want, f"{decided}")


def matmul(m: int, n: int, k: int, dtype: str = "float32") -> ts.Function:
    a, b = (ts.placeholder(s, dtype=dtype, name=x) for s, x in (((m, k), "A"), ((k, n), "B")))
    r = ts.reduce_axis(k, name="r")
    c = ts.compute((m, n), lambda i, j: ts.sum(a[i, r] * b[r, j], axis=r), name="C")
    return ts.function([a, b, c], name=f"matmul_{m}_{n}_{k}_{dtype}")


def vector(n: int) -> ts.Function:
    v = ts.placeholder((n,), name="V")
    r = ts.reduce_axis(n, name="r")
    s = ts.compute((), lambda: ts.sum(v[r], axis=r), name="S")
    e = ts.compute((n,), lambda i: ts.exp(v[i]) + s[()], name="E")
    return ts.function([v, s, e], name=f"vector_{n}")


def softmax(n: int) -> ts.Function:
    x = ts.placeholder((3, n), name="X")
    return ts.function([x, ts.ops.softmax(x)], name=f"softmax_{n}")


def factor_of_rank_0() -> ts.Function:
    """Read at no axis at all, often enough that a packed copy would pay for an operand."""
    x, f = ts.placeholder((9, 16), name="X"), ts.placeholder((), name="F")
    g = ts.placeholder((), name="G")
    y = ts.compute((9, 16), lambda i, j: x[i, j] / f[()] + g[()], name="Y")
    return ts.function([x, f, g, y], name="factor_of_rank_0")


def rank_0() -> ts.Function:
    x = ts.placeholder((), name="X")
    return ts.function([x, ts.compute((), lambda: x[()] * 2, name="Y")], name="rank_0")


def rank_7() -> ts.Function:
    shape = (2, 1, 3, 2, 1, 4, 5)
    x, w = ts.placeholder((*shape, 6), name="X"), ts.placeholder((6, 7), name="W")
    r = ts.reduce_axis(6, name="r")
    y = ts.compute((*shape[:6], 7), lambda *i: ts.sum(x[(*i[:6], 1, r)] * w[r, i[6]], axis=r))
    z = ts.compute((*shape[:6], 7), lambda *i: ts.maximum(y[i], 0), name="Z")
    return ts.function([x, w, z], name="rank_7")


def reduced(shape: tuple[int, ...], width: int) -> ts.Function:
    """Four axes are summed over, one of them not in the order of memory."""
    a, b, c, d = (ts.reduce_axis(n, name=x) for n, x in zip(shape, "abcd", strict=True))
    x = ts.placeholder(shape, name="X")
    w = ts.placeholder((shape[1], shape[2], shape[3], shape[0], width), name="W")
    y = ts.compute(
        (width,), lambda j: ts.sum(x[a, b, c, d] * w[b, c, d, a, j], axis=(a, b, c, d)), name="Y"
    )
    return ts.function([x, w, y], name="reduced")


def many_outputs() -> ts.Function:
    x = ts.placeholder((7, 9), name="X")
    r = ts.reduce_axis(9, name="r")
    e = ts.compute((7, 9), lambda i, j: x[i, j] * 2, name="E")
    s = ts.compute((7,), lambda i: ts.sum(e[i, r], axis=r), name="S")
    y = ts.compute((7, 9), lambda i, j: e[i, j] + s[i], name="Y")
    z = ts.compute((9, 7), lambda i, j: y[j, i], name="Z")
    return ts.function([x, e, s, y, z], name="many_outputs")


def mixed_types() -> ts.Function:
    a = ts.placeholder((9, 11), dtype="int8", name="A")
    b = ts.placeholder((11, 13), dtype="uint8", name="B")
    c = ts.placeholder((13,), dtype="float16", name="C")
    r = ts.reduce_axis(11, name="r")
    s = ts.compute(
        (9, 13),
        lambda i, j: ts.sum(ts.cast(a[i, r], "int32") * ts.cast(b[r, j], "int32"), axis=r),
        name="S",
    )
    y = ts.compute((9, 13), lambda i, j: ts.cast(s[i, j], "float64") * ts.cast(c[j], "float64"))
    return ts.function([a, b, c, y], name="mixed_types")


SHAPES: dict[str, Callable[[], ts.Function]] = {
    **{
        "x".join(map(str, s)): (lambda s=s: matmul(*s))
        for s in [(1, 1, 1), (1, 5, 7), (5, 1, 7), (5, 7, 1), (2, 2, 2), (3, 127, 509), (509, 2, 2)]
    },
    **{"x".join(map(str, s)): (lambda s=s: matmul(*s)) for s in [(0, 5, 3), (5, 0, 3), (5, 3, 0)]},
    **{
        d: (lambda d=d: matmul(9, 13, 11, d))
        for d in ("float16", "bfloat16", "float64", "int8", "uint8", "int32", "int64")
    },
    **{f"vector {n}": (lambda n=n: vector(n)) for n in (0, 1, 2, 127, 509)},
    **{f"softmax {n}": (lambda n=n: softmax(n)) for n in (1, 2, 127)},
    "rank 0": rank_0,
    "a factor of rank 0": factor_of_rank_0,
    "rank 7": rank_7,
    "four reduce axes": lambda: reduced((3, 4, 2, 5), 6),
    "four reduce axes, one of them 1": lambda: reduced((3, 1, 2, 5), 1),
    "many outputs": many_outputs,
    "mixed types": mixed_types,
}


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", SHAPES)
def test_odd_shapes(name: str) -> None:
    rng = np.random.default_rng([3, *map(ord, name)])
    func = SHAPES[name]()
    for k, rules in enumerate(RULES):
        # Both where there is time, else by turns.
        for cores in (1, 2) if THOROUGH else (1 + (TURN + k + len(name)) % 2,):
            assert_sketches(func, rules, cores, rng, built=drawn(1, 2))


@pytest.mark.turns(4)
@pytest.mark.parametrize("seed", range(16))
def test_random_graphs(seed: int) -> None:
    rng = np.random.default_rng([seed, 5])
    func = random_graph(rng)
    for rules in RULES:
        assert_sketches(func, rules, 1 + seed % 2, rng, built=1)


def test_random_graphs_have_what_they_are_for() -> None:
    """Stages that several others read, and outputs that are read too."""
    shared = read_outputs = longest = 0
    for seed in range(16):
        func = random_graph(np.random.default_rng([seed, 5]))
        text = str(func)
        blocks = Counter(load for load in text.split() if load.startswith("S"))
        longest = max(longest, len(func.outputs) + len(func.buffers))
        shared += any(n > 2 for n in blocks.values())
        read_outputs += any(f"= {o.name}[" in text for o in func.outputs)
    assert longest >= 6
    assert shared >= 4
    assert read_outputs >= 1


# every rule is reached


class Recorded:
    """A rule that counts how often it made something."""

    def __init__(self, rule: Rule, fired: Counter[str], name: str) -> None:
        self.rule, self.fired, self.name = rule, fired, name

    def __call__(self, state: ts.State) -> ts.Derived | None:
        derived = self.rule(state)
        self.fired[self.name] += derived is not None and len(derived.states) > 0
        return derived


class RecordedFinish(Recorded):
    def finish(self, state: ts.State) -> ts.State:
        assert isinstance(self.rule, Finishing)
        done = self.rule.finish(state)
        self.fired[self.name] += done.steps != state.steps
        return done


def recorded(rules: tuple[Rule, ...], fired: Counter[str]) -> tuple[Rule, ...]:
    out: list[Rule] = []
    for rule in rules:
        name = getattr(rule, "__name__", type(rule).__name__)
        fired[name] += 0
        kind = RecordedFinish if isinstance(rule, Finishing) else Recorded
        out.append(kind(rule, fired, name))
    return tuple(out)


def column_sums() -> ts.Function:
    A, k = ts.placeholder((96, 80), name="A"), ts.reduce_axis(96, name="k")
    total = ts.compute((80,), lambda j: ts.sum(A[k, j], axis=k), name="total")
    return ts.function([A, total], name="column_sums")


def running_sums() -> ts.Function:
    """What is computed in order."""
    A = ts.placeholder((24, 80), name="A")
    return ts.function([A, ts.ops.cumsum(A, 1)], name="running_sums")


def integer_product() -> ts.Function:
    """What dot-product instructions are for."""
    a, b = ts.placeholder((32, 64), "int8", name="A"), ts.placeholder((64, 48), "int8", name="B")
    c = ts.ops.matmul(a, b, out_dtype="int32", name="C")
    return ts.function([a, b, c], name="integer_product", constants=[b])


PREPARED: dict[str, tuple[int, ...]] = {
    "conv2d": (28, 16, 20, 3, 1, 1),
    "dilated-conv2d": (14, 3, 17, 3, 1, 2),
}


def half_product() -> ts.Function:
    """What matrix instructions of GPUs are for."""
    a, b = (
        ts.placeholder((128, 64), "float16", name="A"),
        ts.placeholder((64, 256), "float16", name="B"),
    )
    return ts.function(
        [a, b, ts.ops.matmul(a, b, out_dtype="float32", name="C")], name="half_product"
    )


def half_windows() -> ts.Function:
    """The same for convolutions."""
    x = ts.placeholder((1, 8, 8, 64), "float16", name="X")
    w = ts.placeholder((3, 3, 64, 64), "float16", name="W")
    y = ts.ops.conv2d(x, w, padding=1, layout="NHWC", name="Y")
    return ts.function([x, w, y], name="half_windows")


def product_and_softmax() -> ts.Function:
    a, b = ts.placeholder((12, 16), name="A"), ts.placeholder((16, 24), name="B")
    return ts.function([a, b, ts.ops.softmax(ts.ops.matmul(a, b))], name="product_and_softmax")


@pytest.mark.parametrize("targets", [(FOUR_CORES,), (V100, H200)], ids=["cpu", "gpu"])
@pytest.mark.parametrize("rules", RULES)
def test_every_rule_is_reached(rules: str, targets: tuple[Target, ...]) -> None:
    """Else the tests of sketches would cover less than they seem to."""
    fired: Counter[str] = Counter()
    for target in targets:
        derive_all(rules, target, fired)
    assert min(fired.values()) > 0, fired


def derive_all(rules: str, target: Target, fired: Counter[str]) -> None:
    tasks = [task_of(name, target, small=True) for name in SMALL]
    tasks += [
        ts.Task(operator(name, shape, "NHWC", prepared=True), target)
        for name, shape in PREPARED.items()
    ]
    tasks.append(ts.Task(column_sums(), target))
    tasks.append(ts.Task(running_sums(), target))
    tasks.append(ts.Task(integer_product(), target))
    tasks.append(ts.Task(product_and_softmax(), target))
    tasks.append(ts.Task(half_product(), target))
    tasks.append(ts.Task(half_windows(), target))
    tasks.append(ts.Task(operator("depthwise-conv2d", (9, 20, 3, 1, 1), "NHWC"), target))
    tasks.append(ts.Task(operator("conv2d", (7, 8, 12, 1, 1, 0), "NCHW"), target))
    tasks.append(ts.Task(attention(70, 70, scaled, "float16", 64, 64), target))
    if target is H200:  # padded in a launch of its own, or filtered
        large = operator("conv2d", (56, 128, 256, 3, 1, 1), "NHWC", prepared=True)
        tasks.append(ts.Task(large, target))
    for k, task in enumerate(tasks):
        own: Any = recorded(RULES[rules](target), fired)
        traces = SketchSpace(own).derive(task).traces
        if k % 4 == 0:  # recording changes nothing
            assert traces == SketchSpace(RULES[rules](target)).derive(task).traces
