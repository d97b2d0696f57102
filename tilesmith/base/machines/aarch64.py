"""aarch64: Neon, with the dot products of bytes (SDOT, UDOT, USDOT) and of bfloat16 (BFDOT), the
products of blocks (SMMLA, UMMLA, USMMLA, BFMMLA) and the sums of float16 in float32 (FMLAL) that
later versions added.
"""

from __future__ import annotations

from tilesmith.base.machines.machine import (
    BlockProduct,
    CpuMachine,
    CpuModel,
    CpuRates,
    DotProduct,
    WideningProduct,
)

_NEON = frozenset({"neon"})
_DOT = _NEON | {"dotprod", "fp16"}
_BF16 = frozenset({"bf16", "neon"})  # x86-64 has another one of that name
_V1 = _DOT | {"fp16fml", "i8mm", "bf16"}


# LLVM selects the form with a lane of a register for the last operand; for both in case of usdot,
# which takes unsigned bytes first.
_DOTS = tuple(
    DotProduct(
        "neon", 4, left, right, frozenset({feature}), f"llvm.aarch64.neon.{name}.v4i32.v16i8",
        (left, right) == ("uint8", "int8"),
    )
    for left, right, feature, name in (
        ("int8", "int8", "dotprod", "sdot"),
        ("uint8", "uint8", "dotprod", "udot"),
        ("uint8", "int8", "i8mm", "usdot"),
        ("int8", "uint8", "i8mm", "usdot"),
    )
) + (
    DotProduct(
        "neon", 4, "bfloat16", "bfloat16", _BF16,
        "llvm.aarch64.neon.bfdot.v4f32.v8bf16", True,
    ),
)  # fmt: skip

# Twice as many products as a dot product, in the same time.
_BLOCKS = tuple(
    BlockProduct(
        "neon", left, right, "int32", frozenset({"i8mm"}),
        f"llvm.aarch64.neon.{name}.v4i32.v16i8",
    )
    for left, right, name in (
        ("int8", "int8", "smmla"),
        ("uint8", "uint8", "ummla"),
        ("uint8", "int8", "usmmla"),
    )
) + (
    BlockProduct(
        "neon", "bfloat16", "bfloat16", "float32", _BF16, "llvm.aarch64.neon.bfmmla"
    ),
)  # fmt: skip


AARCH64 = CpuMachine(
    arch="aarch64",
    triple="aarch64-unknown-linux-gnu",
    system_names=("aarch64", "arm64"),
    flags={
        "asimd": "neon", "asimddp": "dotprod", "asimdhp": "fp16", "i8mm": "i8mm", "bf16": "bf16",
        "asimdfhm": "fp16fml", "sve": "sve",
    },
    llvm_features={
        "neon": "neon", "dotprod": "dotprod", "fp16": "fullfp16", "i8mm": "i8mm", "bf16": "bf16",
        "fp16fml": "fp16fml", "sve": "sve",
    },
    always=_NEON,
    models={
        "cortex-a53": CpuModel("cortex-a53", 4, _NEON, 512, 0, 64),
        "cortex-a76": CpuModel("cortex-a76", 4, _DOT, 512, 4, 64),
        "neoverse-n1": CpuModel("neoverse-n1", 2, _DOT, 1024, 32, 64),
        "neoverse-v1": CpuModel("neoverse-v1", 16, _V1, 1024, 32, 64),
    },
    # The system reports numbers of the implementer and the part instead of a name.
    model_names={
        "0x41 0xd03": "Arm Cortex-A53",
        "0x41 0xd05": "Arm Cortex-A55",
        "0x41 0xd08": "Arm Cortex-A72",
        "0x41 0xd0b": "Arm Cortex-A76",
        "0x41 0xd0c": "Arm Neoverse-N1",
        "0x41 0xd40": "Arm Neoverse-V1",
        "0x41 0xd49": "Arm Neoverse-N2",
        "0x41 0xd4f": "Arm Neoverse-V2",
        "0x41 0xd8e": "Arm Neoverse-N3",
        "0x41 0xd84": "Arm Neoverse-V3",
    },
    oldest="cortex-a53",
    calls="llvm.aarch64.",
    needs=(
        (r"llvm\.aarch64\.neon\.[su]dot", frozenset({"dotprod"})),
        (r"llvm\.aarch64\.neon\.(usdot|[su]mmla|usmmla)", frozenset({"i8mm"})),
        (r"llvm\.aarch64\.neon\.bf", frozenset({"bf16"})),
        (r"llvm\.aarch64\.neon\.fmlal", frozenset({"fp16fml"})),
        (r"llvm\.aarch64\.sve\.", frozenset({"sve"})),
    ),
    dots=_DOTS,
    blocks=_BLOCKS,
    widening=WideningProduct(
        frozenset({"fp16fml"}), "llvm.aarch64.neon.fmlal.v4f32.v8f16",
        "llvm.aarch64.neon.fmlal2.v4f32.v8f16",
    ),
    fuses_with=frozenset(),
    halves_with=frozenset(),
    propagates_nan=True,
    saturates=True,
    rounds_to_int32="llvm.aarch64.neon.fcvtns",
    overwrites_addend=True,
    subtracts_addend=False,
    tests_masks=False,
    # A function takes two thirds of the time if each of its steps is issued for eight registers: on
    # Neoverse-N1 that hides the latency of a step, and LLVM's scheduler does not interleave as many
    # by itself.
    function_vectors=8,
    stream_ahead_nbytes=1024,  # matrix products on Neoverse-N1 gain 1 to 3 % from it
    rates=CpuRates(ways=(4, 16, 16), lane_factors=True),  # Neoverse and Cortex-A7x cores
    futex=98,
    spin="""
declare void @llvm.aarch64.hint(i32)
declare i64 @llvm.read_volatile_register.i64(metadata)
define internal void @relax() alwaysinline nounwind {
  call void @llvm.aarch64.hint(i32 1)
  ret void
}
define internal i64 @now() alwaysinline nounwind {
  %t = call i64 @llvm.read_volatile_register.i64(metadata !0)
  ret i64 %t
}
define internal i64 @spin_ticks() nounwind {
  %hz = call i64 @llvm.read_volatile_register.i64(metadata !1)
  %t = udiv i64 %hz, 25000
  ret i64 %t
}
!0 = !{!"cntvct_el0"}
!1 = !{!"cntfrq_el0"}
""",
    # AT_HWCAP and AT_HWCAP2 of Linux
    feature_words="""
declare i64 @getauxval(i64)
define internal i1 @processor_fits() nounwind {
  %a = call i64 @getauxval(i64 16)
  %b = call i64 @getauxval(i64 26)
""",
    feature_bits={
        "neon": (0, 1 << 1), "fp16": (0, 1 << 9 | 1 << 10), "dotprod": (0, 1 << 20),
        "fp16fml": (0, 1 << 23),
        "sve": (0, 1 << 22), "i8mm": (1, 1 << 13), "bf16": (1, 1 << 14),
    },
    cross_compiler="aarch64-linux-gnu-gcc",
    compiler_package="gcc-aarch64-linux-gnu",
    emulator="qemu-aarch64",
)  # fmt: skip
