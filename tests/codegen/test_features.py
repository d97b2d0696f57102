"""What a target's features do: LLVM is told of them, an instruction that lacks one is refused, and
nothing that a Target may say ends the process.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.base.target import NAMED
from tilesmith.codegen.llvm.compiler import assembly, compile_ir, is_known_cpu
from tilesmith.ir.intrinsics import INTRINSICS, Intrinsic
from tilesmith.schedule.unit import Tensorize

CPUS = {name: t for name, t in NAMED.items() if t.kind == "cpu"}
OF_CPUS = [u for u in INTRINSICS if u.fragment is None]


def tensorized(unit: Intrinsic) -> ts.Schedule:
    """One tile of the instruction."""
    (out,) = unit.description.outputs
    if len(out.shape) == 2:  # a product of whole tiles, in layouts of its own
        sch = ts.Schedule(unit.description)
        loop = sch.loops(out.name)[0]
        sch.decompose_reduction(out.name, loop)
        sch.tensorize(loop, unit)
        return sch
    lanes, total = out.shape[0].number, out.dtype.name
    left, right = (b.dtype.name for b in unit.description.inputs)
    n = unit.description.inputs[1].shape[-1].number
    a, b = ts.placeholder((5, n), left, name="a"), ts.placeholder((lanes, n), right, name="b")
    k = ts.reduce_axis(n, name="k")
    c = ts.compute(
        (5, lanes),
        lambda i, j: ts.sum(ts.cast(a[i, k], total) * ts.cast(b[j, k], total), axis=k),
        name="c",
    )
    sch = ts.Schedule(ts.function([a, b, c]))
    sch.decompose_reduction("c", sch.loops("c")[1])
    sch.tensorize(sch.loops("c")[1], unit)
    return sch


@pytest.mark.parametrize("unit", OF_CPUS, ids=lambda u: u.name)
@pytest.mark.parametrize("name", CPUS)
def test_an_instruction_is_built_or_refused(name: str, unit: Intrinsic) -> None:
    target, sch = CPUS[name], tensorized(unit)
    if unit.features <= target.features:
        assert ts.build(sch, target).artifact.code
    else:
        with pytest.raises(ts.BuildError, match=f"{unit.name} needs"):
            ts.build(sch, target)


@pytest.mark.parametrize("unit", OF_CPUS, ids=lambda u: u.name)
@pytest.mark.parametrize("name", ["x86-64", "haswell", "cortex-a53", "neoverse-n1"])
def test_features_that_are_added_reach_llvm(name: str, unit: Intrinsic) -> None:
    """A processor that has the instruction although its name does not say so."""
    target = CPUS[name]
    more = replace(target, features=target.features | unit.features)
    if unit.features <= target.machine.llvm_features.keys():
        assert ts.build(tensorized(unit), more).artifact.code
    else:
        with pytest.raises(ts.BuildError, match=r"unknown feature|of aarch64|of x86-64"):
            ts.build(tensorized(unit), more)


@pytest.mark.parametrize("unit", OF_CPUS, ids=lambda u: u.name)
@pytest.mark.parametrize("name", CPUS)
def test_an_instruction_that_hides_what_it_needs(name: str, unit: Intrinsic) -> None:
    """As a user's own may: LLVM would end the process."""
    target = CPUS[name]
    sch = tensorized(replace(unit, features=frozenset()))
    # AVX-512 has what AVX-VNNI has
    has = target.features | ({"avxvnni"} if {"avx512vl", "vnni"} <= target.features else set())
    if unit.features <= has:
        assert ts.build(sch, target).artifact.code
    else:
        with pytest.raises(ts.BuildError, match=r"llvm\.(x86|aarch64)\."):
            ts.build(sch, target)


def test_features_that_are_taken_away_reach_llvm() -> None:
    text = """
define void @tilesmith_entry(ptr %args, ptr %workspace) {
  %a = load ptr, ptr %args
  %x = load <8 x float>, ptr %a, align 4
  %y = fadd <8 x float> %x, %x
  store <8 x float> %y, ptr %a, align 4
  ret void
}
"""
    wide = CPUS["haswell"]
    assert "%ymm" in assembly(compile_ir("f", text, wide, ()))
    fused = text.replace("fadd <8 x float> %x, %x", "call <8 x float> @llvm.fma.v8f32("
                         "<8 x float> %x, <8 x float> %x, <8 x float> %x)")  # fmt: skip
    fused += "declare <8 x float> @llvm.fma.v8f32(<8 x float>, <8 x float>, <8 x float>)\n"
    assert "vfmadd" in assembly(compile_ir("f", fused, wide, ()))
    poor = replace(wide, features=wide.features - {"fma"})
    assert "vfmadd" not in assembly(compile_ir("f", fused, poor, ()))


@pytest.mark.parametrize("name", CPUS)
def test_llvm_knows_the_processors_that_have_names(name: str) -> None:
    target = CPUS[name]
    assert target.features <= target.machine.llvm_features.keys()
    assert is_known_cpu(target.machine, target.cpu)


SUM = "define void @tilesmith_entry(ptr %args, ptr %workspace) nounwind {\n  ret void\n}\n"


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (replace(CPUS["haswell"], cpu="pentium-9"), "no x86-64 processor named 'pentium-9'"),
        (replace(CPUS["haswell"], cpu=""), "no x86-64 processor named ''"),
        (replace(CPUS["haswell"], cpu="help"), "no x86-64 processor named 'help'"),
        (replace(CPUS["haswell"], cpu="cortex-a53"), "no x86-64 processor named 'cortex-a53'"),
        (replace(CPUS["cortex-a53"], cpu="haswell"), "no aarch64 processor named 'haswell'"),
        (replace(CPUS["haswell"], features=frozenset({"mmx3"})), "unknown feature 'mmx3'"),
        (replace(CPUS["haswell"], features=frozenset({"dotprod"})), "unknown feature 'dotprod'"),
        (replace(CPUS["haswell"], arch="riscv64"), "architecture 'riscv64'"),
    ],
)
def test_what_llvm_does_not_know_is_said(target: ts.Target, says: str) -> None:
    with pytest.raises(ts.BuildError, match=says):
        compile_ir("f", SUM, target, ())


def test_a_processor_that_has_no_name_here() -> None:
    target = replace(CPUS["haswell"], cpu="broadwell")
    assert compile_ir("f", SUM, target, ()).cpu == "broadwell"


def test_this_machine_with_other_features() -> None:
    """They differ from what was detected: the code is theirs, and does not run here."""
    here = ts.cpu(1)
    known = here.machine.llvm_features.keys()
    x = ts.placeholder((37,), "float16", name="x")
    func = ts.function([x, ts.compute((37,), lambda i: x[i] * x[i] + 1, name="y")])
    a: Any = np.linspace(-2, 2, 37).astype(np.float16)
    poor = replace(here, features=here.features - {"fp16"})
    want = ts.evaluate(func, a).astype(np.float64)
    np.testing.assert_allclose(
        ts.build(ts.Schedule(func), poor)(a).astype(np.float64), want, rtol=2e-3
    )
    if missing := known - here.features:
        rich = replace(here, features=here.features | missing)
        kernel = ts.build(ts.Schedule(func), rich)
        assert all(f"+{here.machine.llvm_features[f]}" in kernel.artifact.features for f in missing)
        with pytest.raises(ts.BuildError, match="which this machine's has not"):
            kernel(a)


@pytest.mark.parametrize("name", CPUS)
def test_no_candidate_has_an_instruction_of_another_architecture(name: str) -> None:
    """Both have a feature called bf16."""
    target = CPUS[name]
    a, b = (ts.placeholder((64, 64), "bfloat16", name=n) for n in "AB")
    func = ts.function([a, b, ts.ops.matmul(a, b, out_dtype="float32")], constants=[b])
    for sketch in ts.SketchSpace().sketches(ts.Task(func, target)):
        for step in sketch.steps:
            if isinstance(step, Tensorize):
                assert step.intrinsic.features <= target.features
                assert step.intrinsic.name.startswith("neon") == (target.arch == "aarch64")
