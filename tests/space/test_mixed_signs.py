"""Products of int8 and uint8 in any mixture use dot instructions on every target that has one: the
automatic space shifts an operand where the instruction takes the other type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.codegen.llvm.backend import LlvmBackend
from tilesmith.ir.function import Function
from tilesmith.ir.interpreter import interpret
from tilesmith.ir.nodes import walk
from tilesmith.ir.prepare import AppendSums
from tilesmith.space.instruction_match import shifted_matches
from tilesmith.space.sets import default_rules, usable
from tilesmith.space.spaces import SketchSpace, structured
from tilesmith.space.variant import Variant, lower

HASWELL = ts.Target.named("haswell")
TARGETS = {
    **{n: ts.Target.named(n) for n in ("neoverse-n1", "neoverse-v1", "cascadelake",
                                       "sapphirerapids")},
    "avxvnni": replace(HASWELL, features=HASWELL.features | {"avxvnni"}),
}  # fmt: skip
ARM = TARGETS["neoverse-n1"].with_cores(1)
MIXES = [("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8"), ("int8", "int8")]
EXTREMES = {"uint8": (0, 1, 127, 128, 255), "int8": (-128, -1, 0, 1, 127)}
# What each target uses for a product of `left` by constant `right`, and whether it shifts.
WORDS = {
    "neoverse-n1": ("neon.sdot", "neon.udot", "neon.udot", "neon.sdot"),
    "neoverse-v1": ("neon.usmmla", "neon.usmmla", "neon.ummla", "neon.smmla"),
    "cascadelake": ("vpdpbusd.512",) * 4,
    "avxvnni": ("vpdpbusd.256",) * 4,
    "sapphirerapids": ("tdpbusd", "tdpbsud", "tdpbuud", "tdpbssd"),
}
SHIFTED = {
    "neoverse-n1": (True, True, False, False),
    "cascadelake": (False, False, True, True),
    "avxvnni": (False, False, True, True),
}


def matmul(
    m: int, n: int, k: int, left: str, right: str, *, batch: int = 0, turned: str = "",
    constant: bool = False, relu: bool = False,
) -> Function:  # fmt: skip
    """`turned` names the operands that are stored transposed."""
    lead = (batch,) if batch else ()
    a = ts.placeholder((*lead, *((k, m) if "A" in turned else (m, k))), left, name="A")
    b = ts.placeholder((*lead, *((n, k) if "B" in turned else (k, n))), right, name="B")
    c = ts.ops.batch_matmul if batch else ts.ops.matmul
    y = c(a, b, transpose_a="A" in turned, transpose_b="B" in turned, name="C")
    return ts.function([a, b, ts.ops.relu(y) if relu else y], constants=[b] if constant else [])


def conv(
    h: int, ci: int, co: int, kernel: int, left: str, right: str, *, stride: int = 1,
    padding: int = 1, groups: int = 1, layout: str = "NHWC", constant: bool = True,
) -> Function:  # fmt: skip
    """With requantisation, as in quantised networks, if the weights are constant."""
    last, each = layout == "NHWC", ci // groups
    x = ts.placeholder((1, h, h, ci) if last else (1, ci, h, h), left, name="X")
    shape = (kernel, kernel, each, co) if last else (co, each, kernel, kernel)
    w = ts.placeholder(shape, right, name="W")
    y = ts.ops.conv2d(x, w, stride=stride, padding=padding, layout=layout, groups=groups)
    if not constant:
        return ts.function([x, w, y])
    f = ts.placeholder((), "float32", name="factor")
    y = ts.ops.requantize(y, f, dtype=left)
    return ts.function([x, w, f, y], constants=[w, f])


def extremes(func: Function, rng: np.random.Generator) -> list[np.ndarray[Any, Any]]:
    out = []
    for p in func.inputs:
        shape = [e.number for e in p.shape]
        if p.dtype.is_float:
            out.append(np.full(shape, 0.001, np.float32))
        else:
            out.append(rng.choice(np.array(EXTREMES[p.dtype.name], p.dtype.numpy), shape))
    return out


def some_variants(
    func: Function, target: ts.Target, rng: np.random.Generator, count: int
) -> list[Variant]:
    """Of sketches with instructions, with random structures."""
    task = ts.Task(func, target)
    every = SketchSpace(default_rules(target)).sketches(task)
    sketches = [s for s in every if "tensorize" in str(s)]
    assert sketches
    out: list[Variant] = []
    for at in rng.permutation(len(sketches))[:count]:
        choices = list(structured(sketches[at]))
        for k in rng.permutation(len(choices)):
            try:
                out.append(lower(task, choices[k]))
                break
            except ts.ScheduleError:
                continue
    assert out
    return out


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("mix", range(4), ids=lambda k: "_".join(MIXES[k]))
def test_every_mix_has_an_instruction(name: str, mix: int) -> None:
    target = TARGETS[name].with_cores(1)
    func = matmul(32, 32, 64, *MIXES[mix], constant=True)
    task = ts.Task(func, target)
    sketches = SketchSpace(default_rules(target)).sketches(task)
    used = [s for s in sketches if "tensorize" in str(s)]
    assert used
    shifted = SHIFTED.get(name, (False,) * 4)[mix]
    assert all(("shift_operand" in str(s)) == shifted for s in used)
    variant = lower(task, next(structured(used[0])))
    row = variant.sample(np.random.default_rng(0), 1)[0]
    assert WORDS[name][mix] in LlvmBackend().compile(variant.function(row), target).source


CASES: dict[str, Callable[[str, str], Function]] = {
    "given": lambda a, b: matmul(8, 16, 8, a, b),
    "given_odd": lambda a, b: matmul(5, 7, 6, a, b, relu=True),
    "constant_odd": lambda a, b: matmul(5, 9, 7, a, b, constant=True),
    "transposed": lambda a, b: matmul(5, 8, 12, a, b, turned="AB"),
    "batch": lambda a, b: matmul(4, 6, 5, a, b, batch=2, constant=True),
    "conv": lambda a, b: conv(3, 4, 8, 3, a, b),
    "conv_of_3_channels": lambda a, b: conv(5, 3, 5, 3, a, b, stride=2),
    "conv_channels_first": lambda a, b: conv(3, 5, 4, 2, a, b, layout="NCHW"),
    "conv_given": lambda a, b: conv(3, 4, 5, 2, a, b, constant=False, stride=2),
    "conv_of_groups": lambda a, b: conv(3, 8, 8, 2, a, b, groups=2),
    "conv_of_groups_channels_first": lambda a, b: conv(
        3, 8, 8, 2, a, b, groups=2, layout="NCHW", constant=False
    ),
}


@pytest.mark.parametrize(
    ("name", "mix"),
    [(n, mix) for n in CASES for mix in MIXES[: 1 if "conv_" in n else 2]],
    ids=str,
)
def test_extreme_values_match_the_oracle(name: str, mix: tuple[str, str]) -> None:
    """The scheduled program means the same, and so does its kernel where this machine has the
    instruction.
    """
    func = CASES[name](*mix)
    rng = np.random.default_rng(sum(map(ord, name)))
    arrays = extremes(func, rng)
    want = ts.evaluate(func, *arrays)
    for variant in some_variants(func, ARM, rng, 2):
        row = variant.sample(rng, 1)[0]
        scheduled = variant.function(row)
        assert str(scheduled) == str(variant.candidate(row).trace.apply(func))
        if ARM.features <= ts.cpu().features:
            kernel = ts.build(scheduled, ts.cpu(num_cores=1))
            given = [kernel.pack(p.name, x) for p, x in zip(func.inputs, arrays, strict=True)]
            np.testing.assert_array_equal(kernel(*given), want)
    np.testing.assert_array_equal(interpret(scheduled, *arrays), want)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_groups_use_an_instruction_whose_types_fit(layout: str) -> None:
    func = conv(3, 8, 8, 2, "int8", "int8", groups=2, layout=layout)
    rng = np.random.default_rng(0)
    arrays = extremes(func, rng)
    (variant,) = some_variants(func, ARM, rng, 1)
    scheduled = variant.function(variant.sample(rng, 1)[0])
    np.testing.assert_array_equal(interpret(scheduled, *arrays), ts.evaluate(func, *arrays))


def test_sums_of_constant_weights_cost_a_kernel_nothing() -> None:
    """Of the two factors that could be shifted, the one is whose partner is a constant. What pads
    an image shifts it, too, and the weights are read in the packed layout.
    """
    func = conv(3, 4, 8, 3, "uint8", "int8")
    (b,) = (b for _, b in walk(func.body) if b.reducing)
    found = shifted_matches(func, b, usable(ts.INTRINSICS, ARM))
    buffers = {dict(m.operands)[m.shifted].buffer for every in found for m in every}
    assert buffers == {"pad"}
    for variant in some_variants(func, ARM, np.random.default_rng(0), 2):
        names = {b.name for _, b in walk(variant.func.body)}
        assert names == {"pad.shifted", "conv2d.shift", "conv2d.shifted", "requantize"}
        w = next(p for p in variant.func.params if p.name == "W")
        assert w.prepares(AppendSums)
        assert w.layout is not None
