"""Descriptions of architectures: each in one file, which nothing else repeats, and what a Target
makes of one that is not built in.
"""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest

import tilesmith as ts
from tilesmith.base.machines.cuda import cuda_machine, runs_on
from tilesmith.base.target import MACHINES, Lanes
from tilesmith.codegen.llvm.compiler import compile_ir

ROOT = Path(ts.__file__).parent
# An architecture, a family of processors or a kind of instructions by name, in code.
NAMES = re.compile(r"aarch64|x86[-_]64|neoverse|cortex|avx|\bneon\b|sm_\d|llvm\.x86|\briscv", re.I)
# Examples in texts for users; and the code of instructions that one architecture alone has, which
# asks for a feature.
ALLOWED = {
    "base/target.py", "cli/export.py", "cli/model_arguments.py", "cli/show.py",
    "codegen/c/nvrtc.py", "codegen/llvm/intrinsics.py", "codegen/llvm/tables.py",
    "codegen/llvm/vecmath.py", "codegen/llvm/vecmath_parts.py",
    "ir/intrinsics.py", "__init__.py", "schedule/unit.py",
}  # fmt: skip


def code_of(path: Path) -> str:
    return "\n".join(re.sub(r"(^|\s)#.*", "", line) for line in path.read_text().splitlines())


def test_an_architecture_is_named_in_its_own_file() -> None:
    found = set()
    for path in sorted(ROOT.rglob("*.py")):
        where = str(path.relative_to(ROOT))
        text = re.sub(r'"""(?:[^"]|"(?!""))*"""', "", code_of(path))
        if not where.startswith("base/machines/") and NAMES.search(text):
            found.add(where)
    assert found <= ALLOWED


RISCV64 = ts.CpuMachine(
    arch="riscv64",
    triple="riscv64-unknown-linux-gnu",
    llvm_features={"d": "d", "v": "v"},
    vectors=(ts.CpuVectors(frozenset({"v"}), 256, 32), ts.CpuVectors(frozenset(), 64, 32)),
    models={
        "old": ts.CpuModel("generic-rv64", 2, frozenset({"d"}), 256, 0),
        "new": ts.CpuModel("generic-rv64", 4, frozenset({"d", "v"}), 512, 1),
    },
    oldest="old",
    calls="llvm.riscv.",
    needs=((r"llvm\.riscv\.vf", frozenset({"v"})),),
)


def test_a_target_of_a_description() -> None:
    old, new = (ts.Target.of(RISCV64, name) for name in ("old", "new"))
    assert (old.arch, old.num_cores, old.lanes(32), old.l2_nbytes) == ("riscv64", 2, 2, 256 << 10)
    assert (new.lanes(32), new.vector, new.oldest()) == (8, Lanes(256), old)
    assert new.machine is RISCV64
    assert pickle.loads(pickle.dumps(new)) == new


def test_a_description_is_part_of_the_key() -> None:
    target = ts.Target.of(RISCV64, "new")
    other = ts.Target.of(replace(RISCV64, propagates_nan=True), "new")
    assert target != other
    assert target.fingerprint != other.fingerprint
    with pytest.raises(ts.TargetError, match=r"to tune for it, add it to tilesmith/base/machines"):
        target.to_json()


def test_code_is_built_for_a_description_and_its_instructions_are_checked() -> None:
    x = ts.placeholder((64,), name="x")
    func = ts.function([x, ts.compute((64,), lambda i: ts.exp(x[i]), name="y")])
    artifact = ts.build(func, ts.Target.of(RISCV64, "new")).artifact
    assert artifact.code[18:20] == b"\xf3\x00"  # EM_RISCV
    with pytest.raises(ts.BuildError, match="riscv64"):
        ts.build(func, ts.Target.of(replace(RISCV64, triple=""), "new"))
    called = "declare float @llvm.riscv.vfmv.f.s.f32(<4 x float>)\n"
    with pytest.raises(ts.BuildError, match="which needs v; the target generic-rv64 has d"):
        compile_ir("f", called, ts.Target.of(RISCV64, "old"), ())
    with pytest.raises(ts.BuildError, match="of aarch64, and the target is riscv64"):
        compile_ir("f", "declare void @llvm.aarch64.hint(i32)\n", ts.Target.of(RISCV64, "old"), ())


@pytest.mark.parametrize("machine", MACHINES.values(), ids=lambda m: m.arch)
def test_what_a_description_says_fits_together(machine: ts.CpuMachine) -> None:
    known = machine.llvm_features.keys()
    assert {*machine.flags.values()} == known
    assert machine.feature_bits.keys() <= known
    assert machine.always <= known
    assert machine.oldest in machine.models
    for named, needed in ((m.features, m.features) for m in machine.models.values()):
        assert named >= machine.always
        assert needed <= known
    for dot in machine.dots:
        assert dot.features <= known
        assert dot.lanes * 32 in {v.bits for v in machine.vectors}
        needs = next(n for pattern, n in machine.needs if re.match(pattern, dot.call))
        assert needs <= dot.features or machine.also[dot.call] <= dot.features


def test_lanes() -> None:
    assert (Lanes(128).of(32), Lanes(128).of(ts.dtype("float64")), Lanes(128).of(256)) == (4, 2, 1)
    scalable = replace(RISCV64, scalable=True)
    assert ts.Target.of(scalable, "new").vector == Lanes(256, scalable=True)


def test_generations_of_nvidia() -> None:
    assert not cuda_machine("sm_75").warp_products
    assert cuda_machine("sm_80").warp_products
    for arch, groups in (("sm_89", False), ("sm_90a", True), ("sm_100a", False)):
        assert cuda_machine(arch).group_products == groups
        assert cuda_machine(arch).clusters == (arch != "sm_89")
    assert runs_on("sm_80", "sm_86")
    assert not runs_on("sm_86", "sm_80")
    assert not runs_on("sm_90a", "sm_100a")
    assert not runs_on("", "sm_80")
    assert not ts.Target.named("haswell").gpu.warp_products
