"""Windows with fewer products, and without zeros: where rules offer them, and that such candidates
are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from test_properties import legal_variants, offspring

import tilesmith as ts
from tests.support.meaning import assert_close
from tests.support.thorough import THOROUGH
from tilesmith.base.target import Target
from tilesmith.cli.operators import operator
from tilesmith.ir.nodes import Buffer
from tilesmith.schedule.kinds import Unroll
from tilesmith.schedule.loops import Fuse
from tilesmith.schedule.sample import SampleTile
from tilesmith.schedule.winograd import Winograd
from tilesmith.schedule.zeros import SkipZeros
from tilesmith.space.spaces import SketchSpace

CASES = {
    "conv1d": (10, 16, 18, 3, 1, 1),
    "conv2d": (5, 16, 20, 3, 1, 1),
    "conv3d": (4, 16, 16, 3, 1, 1, 3),
    "group-conv2d": (4, 32, 32, 3, 1, 1, 2),
    "conv2d-bn-relu": (5, 16, 16, 3, 1, 1),
}


def filtered(func: ts.Function, cores: int = 1) -> tuple[list[ts.Trace], int]:
    sketches = SketchSpace().sketches(ts.Task(func, ts.cpu(cores)))
    made = [s for s in sketches if any(isinstance(x, Winograd) for x in s.steps)]
    return made, len(sketches) - len(made)


def drawn(b: Buffer, rng: np.random.Generator) -> Any:
    """Numbers whose sums are exact, if the type is a short one."""
    shape = [n.number for n in b.shape]
    if b.dtype.name == "float32":
        return rng.standard_normal(shape, np.float32)
    return rng.integers(-3, 4, shape).astype(b.dtype.numpy)


def check_candidates(task: ts.Task, sketches: Sequence[ts.Trace], rng: np.random.Generator) -> None:
    """Rows of two of the sketches, and what is bred from them, against the oracle: of one what is
    sampled and crossed, of the other what is mutated before and after that.
    """
    func = task.func
    arrays = [drawn(b, rng) for b in func.inputs]
    want = ts.evaluate(func, *arrays)
    for turn, k in enumerate(rng.integers(len(sketches), size=2)):
        for v in legal_variants(task, sketches[k], rng, 1):
            bred = offspring(v, rng, 4)[::5]
            for row in bred if THOROUGH else bred[turn::2]:
                made = v.function(row)
                assert made == v.decided(row).apply(func)
                kernel = ts.build(made, task.target)
                given = [kernel.pack(b.name, a) for b, a in zip(func.inputs, arrays, strict=True)]
                assert_close(kernel(*given), want, f"{v.decided(row)}")


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_candidates_match_the_oracle(name: str, layout: str) -> None:
    rng = np.random.default_rng([7, *map(ord, name)])
    func = operator(name, CASES[name], layout, prepared=True)
    sketches, plain = filtered(func, 2)
    assert sketches
    assert plain
    task = ts.Task(func, ts.cpu(2))
    check_candidates(task, sketches, rng)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("conv2d", (8, 16, 16, 3, 2, 1)),  # every other place: little is saved
        ("conv2d", (16, 3, 16, 7, 2, 3)),  # a sum is done before its products are joined
        ("conv2d", (8, 4, 16, 3, 1, 1)),  # a sum is soon done
        ("conv2d", (8, 16, 4, 3, 1, 1)),  # an element is not used often
        ("conv2d", (1, 16, 16, 3, 1, 1)),  # one result of two is wanted
        ("dilated-conv2d", (8, 16, 16, 3, 1, 2)),
        ("depthwise-conv2d", (8, 16, 3, 1, 1)),
    ],
)
def test_where_it_does_not_pay_there_is_none(name: str, shape: tuple[int, ...]) -> None:
    assert not filtered(operator(name, shape, "NHWC", prepared=True))[0]


LONGER = {
    "conv1d": (26, 64, 18, 7, 2, 3),
    "conv2d": (18, 10, 20, 7, 2, 3),
    "conv3d": (15, 3, 18, 5, 1, 2, 4),
    "dilated-conv2d": (18, 13, 16, 5, 2, 4),
}


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", LONGER)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_longer_windows_match_the_oracle(name: str, layout: str) -> None:
    rng = np.random.default_rng([8, *map(ord, name)])
    func = operator(name, LONGER[name], layout, prepared=True)
    sketches, plain = filtered(func, 2)
    assert plain
    if (name, layout) == ("conv1d", "NCHW"):  # no rows lie behind its only window
        assert not sketches
        return
    for sketch in sketches:
        (step,) = (s for s in sketch.steps if isinstance(s, Winograd))
        assert len(step.taps) == 1
    check_candidates(ts.Task(func, ts.cpu(2)), sketches, rng)


@pytest.mark.parametrize(
    ("target", "window", "row"),
    [
        # Ten channels are ten lanes of sixteen: columns and channels are one row.
        ("skylake-avx512", "rh", ("Y.tiles.ax2", "Y.tiles.ax3")),
        # They fill two vectors of four: the channels are a row already.
        ("neoverse-n1", "rw", ("Y.tiles.ax3",)),
    ],
)
def test_rows_behind_a_longer_window_are_whole_vectors(
    target: str, window: str, row: tuple[str, ...]
) -> None:
    func = operator("conv2d", (16, 10, 16, 7, 2, 3), "NHWC", prepared=True)
    sketches = SketchSpace().sketches(ts.Task(func, Target.named(target).with_cores(1)))
    made = [s for s in sketches if any(isinstance(x, Winograd) for x in s.steps)]
    assert made
    for sketch in made:
        assert Unroll(f"Y.tiles.{window}") in sketch.steps
        assert (Fuse(row) in sketch.steps) == (len(row) > 1)


def test_weights_that_change_from_call_to_call_stay_as_they_are() -> None:
    assert not filtered(operator("conv2d", (8, 16, 16, 3, 1, 1), "NHWC"))[0]


def test_tuning_finds_and_measures_them() -> None:
    func = operator("conv2d", (8, 16, 16, 3, 1, 1), "NHWC", prepared=True)
    task = ts.Task(func, ts.cpu(1))
    space = type("Filtered", (), {"sketches": lambda self, task: filtered(task.func)[0]})()
    result = ts.tune(func, task.target, budget=ts.Budget(trials=4), space=space, quiet=True)
    assert not result.failures, result.failures
    trace = result.best.candidate.trace
    assert any(isinstance(s, Winograd) for s in trace.steps)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("conv3d", (15, 2, 18, 5, 1, 2, 4)),
        ("conv2d", (28, 3, 20, 7, 2, 3)),
        ("dilated-conv2d", (14, 3, 17, 3, 1, 2)),
    ],
)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_what_padding_put_in_is_left_out(name: str, shape: tuple[int, ...], layout: str) -> None:
    rng = np.random.default_rng([9, *map(ord, name)])
    func = operator(name, shape, layout, prepared=True)
    task = ts.Task(func, ts.cpu(2))
    sketches = SketchSpace().sketches(task)
    plain = [s for s in sketches if not any(isinstance(x, Winograd) for x in s.steps)]
    assert plain
    assert all(any(isinstance(x, SkipZeros) for x in s.steps) for s in plain)
    check_candidates(task, sketches, rng)


def test_what_the_zeros_depend_on_is_no_part_of_the_register_tile() -> None:
    func = operator("conv2d", (28, 3, 20, 7, 2, 3), "NHWC", prepared=True)
    for sketch in SketchSpace().sketches(ts.Task(func, ts.cpu(1))):
        if any(isinstance(x, Winograd) for x in sketch.steps):
            continue
        tiles = {s.loop: s.max_innermost for s in sketch.steps if isinstance(s, SampleTile)}
        assert (tiles["Y.h"], tiles["Y.rh"]) == (1, 1)
        assert tiles["Y.w"] > 1


def test_zeros_of_the_other_windows_are_left_out_too() -> None:
    func = operator("conv3d", (32, 3, 20, 7, 2, 3, 8), "NHWC", prepared=True)
    sketches, _ = filtered(func)
    assert sketches
    for sketch in sketches:
        assert SkipZeros("Y", ("rd",)) in sketch.steps
        tiled = {s.loop for s in sketch.steps if isinstance(s, SampleTile)}
        assert "Y.products.rh" not in tiled  # the products share nothing


@pytest.mark.parametrize("shape", [(56, 16, 16, 3, 2, 1), (7, 16, 16, 3, 2, 1)])
def test_few_zeros_and_short_rows_are_not_worth_it(shape: tuple[int, ...]) -> None:
    func = operator("conv2d", shape, "NHWC", prepared=True)
    for sketch in SketchSpace().sketches(ts.Task(func, ts.cpu(1))):
        assert not any(isinstance(x, SkipZeros) for x in sketch.steps)


def test_the_products_are_tiled_where_elements_are_used_again() -> None:
    func = operator("conv2d", CASES["conv2d"], "NHWC", prepared=True)
    for sketch in filtered(func)[0]:
        tiled = {s.loop for s in sketch.steps if isinstance(s, SampleTile)}
        assert tiled == {f"Y.products.{axis}" for axis in ("n", "h_w", "f", "rc")}
