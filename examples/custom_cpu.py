"""A processor of an architecture that is not built in, described by what is known of it. Code is
generated for it here; to tune for it, the description moves to tilesmith/base/machines, where
records and other processes find it by name.
"""

import sys

import numpy as np

import tilesmith as ts

BASE = frozenset({"d"})
RISCV64 = ts.CpuMachine(
    arch="riscv64",
    triple="riscv64-unknown-linux-gnu",
    system_names=("riscv64",),
    llvm_features={"d": "d", "c": "c", "v": "v", "zba": "zba"},  # our names and LLVM's
    always=BASE,
    vectors=(  # the first whose features a processor has: bits, registers
        ts.CpuVectors(frozenset({"v"}), 128, 32),
        ts.CpuVectors(frozenset(), 64, 32),
    ),
    # LLVM's name, cores, features, L2 in KiB, L3 in MiB
    models={
        "riscv64": ts.CpuModel("generic-rv64", 1, BASE | {"c"}, 256, 0),
        "spacemit-x60": ts.CpuModel("spacemit-x60", 8, BASE | {"c", "v", "zba"}, 512, 0),
    },
    oldest="riscv64",
    calls="llvm.riscv.",
    fuses_with=BASE,  # all of these have fused multiply-adds
    cross_compiler="riscv64-linux-gnu-gcc",
    compiler_package="gcc-riscv64-linux-gnu",
)


def main(name: str) -> None:
    target = ts.Target.of(RISCV64, name).with_cores(1)
    a, b = ts.placeholder((64, 64), name="A"), ts.placeholder((64, 64), name="B")
    func = ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="matmul")
    task = ts.Task(func, target)
    variant = next(iter(ts.variants(task, ts.SketchSpace().sketches(task)[0])))
    rows = variant.sample(np.random.default_rng(0), 64)
    best = rows[ts.ScoreByTarget().score(variant, rows).argmax()]  # without measuring
    text = ts.build(variant.function(best), target).assembly
    code = [line.strip() for line in text.splitlines() if line.startswith("\t")]
    fused = [line for line in code if line.startswith(("fmadd", "vfmacc", "vfmadd"))]
    print(f"{target.name}: {target.lanes(32)} floats in a vector")
    print(f"{len(code)} lines, {len(fused)} of them multiply-adds, such as {fused[0]!r}")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["spacemit-x60"])
