"""x86-64: SSE2 to AVX-512, VNNI and the tiles of AMX."""

from __future__ import annotations

from tilesmith.base.machines.machine import (
    NONE,
    CpuMachine,
    CpuModel,
    CpuRates,
    CpuVectors,
    DotProduct,
    Tiles,
)

_AVX2 = frozenset({"avx2", "fma", "f16c"})
_WIDE = frozenset({"avx512f", "avx512vl", "avx512bw"})
_AVX512 = _AVX2 | _WIDE
_VNNI = _AVX512 | {"vnni"}
_AMX = _VNNI | {"fp16", "bf16", "amx", "amxbf16"}


# VPDPBUSD, which takes unsigned bytes first, of AVX-512 and of AVX-VNNI, and VDPBF16PS.
_DOTS = tuple(
    DotProduct(
        family, bits // 32, left, right, features, f"llvm.x86.avx512.vpdpbusd.{bits}",
        left == "uint8",
    )
    for family, bits, features in (
        ("avx512", 512, frozenset({"avx512f", "vnni"})),
        ("avx", 256, frozenset({"avx2", "avxvnni"})),
    )
    for left, right in (("uint8", "int8"), ("int8", "uint8"))
) + (
    DotProduct(
        "avx512", 16, "bfloat16", "bfloat16", frozenset({"avx512f", "bf16"}),
        "llvm.x86.avx512bf16.dpbf16ps.512", True,
    ),
)  # fmt: skip


X86_64 = CpuMachine(
    arch="x86-64",
    triple="x86_64-unknown-linux-gnu",
    system_names=("x86_64", "AMD64"),
    flags={
        "avx2": "avx2", "fma": "fma", "f16c": "f16c", "avx512f": "avx512f",
        "avx512vl": "avx512vl", "avx512bw": "avx512bw", "avx512_vnni": "vnni",
        "avx512_fp16": "fp16", "avx512_bf16": "bf16", "avx_vnni": "avxvnni", "amx_int8": "amx",
        "amx_bf16": "amxbf16",
    },
    llvm_features={
        "avx2": "avx2", "fma": "fma", "f16c": "f16c", "avx512f": "avx512f",
        "avx512vl": "avx512vl", "avx512bw": "avx512bw", "vnni": "avx512vnni",
        "fp16": "avx512fp16", "bf16": "avx512bf16", "amx": "amx-int8", "amxbf16": "amx-bf16",
        "avxvnni": "avxvnni",
    },
    vectors=(
        CpuVectors(_WIDE, 512, 32),
        CpuVectors(frozenset({"avx2"}), 256, 16),
        CpuVectors(NONE, 128, 16),
    ),
    models={
        "x86-64": CpuModel("x86-64", 4, NONE, 256, 8),  # SSE2, which all of them have
        "x86-64-v3": CpuModel("x86-64-v3", 4, _AVX2, 256, 8),
        "haswell": CpuModel("haswell", 4, _AVX2, 256, 8),
        "zen3": CpuModel("znver3", 8, _AVX2, 512, 32),
        "zen4": CpuModel("znver4", 8, _VNNI | {"bf16"}, 1024, 32),
        "skylake-avx512": CpuModel("skylake-avx512", 18, _AVX512, 1024, 24),
        "cascadelake": CpuModel("cascadelake", 18, _VNNI, 1024, 24),
        "icelake-server": CpuModel("icelake-server", 32, _VNNI, 1280, 48, 48),
        "sapphirerapids": CpuModel("sapphirerapids", 16, _AMX, 2048, 60, 48),
        "emeraldrapids": CpuModel("emeraldrapids", 16, _AMX, 2048, 160, 48),
    },
    oldest="x86-64",
    calls="llvm.x86.",
    needs=(
        (r"llvm\.x86\.avx512\.vpdp\w+\.512", frozenset({"avx512f", "vnni"})),
        (r"llvm\.x86\.avx512\.vpdp", frozenset({"avx512f", "avx512vl", "vnni"})),
        (r"llvm\.x86\.avx512fp16\.", frozenset({"fp16"})),
        (r"llvm\.x86\.avx512bf16\.", frozenset({"bf16"})),
        (r"llvm\.x86\.avx512\.", frozenset({"avx512f"})),
        (r"llvm\.x86\.(avx2|avx)\.", frozenset({"avx2"})),
        (r"llvm\.x86\.fma\.", frozenset({"fma"})),
        (r"llvm\.x86\.vcvtp[hs]2p[hs]", frozenset({"f16c"})),
        (r"llvm\.x86\.tdpbf16", frozenset({"amx", "amxbf16"})),
        (r"llvm\.x86\.(tile|tdp)", frozenset({"amx"})),
    ),
    # AVX-VNNI has the short forms of what AVX-512 introduced, under LLVM's same names.
    also={
        f"llvm.x86.avx512.vpdpbusd.{bits}": frozenset({"avx2", "avxvnni"}) for bits in (128, 256)
    },
    dots=_DOTS,
    # arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
    tiles=Tiles("amx", 16, 64, (158, 0x1023, 18), "llvm.x86.tile"),
    halves_with=frozenset({"f16c", "fp16"}),
    rounds_within_int32=True,
    # By the speed of drafts of drawn products on a Cascade Lake: 1.03 of that with the defaults, on
    # two draws of 54 and 59; on a draw of other families the same.
    rates=CpuRates(
        scratch_registers=1, streams=16, below=((32.0, 256.0), (10.0, 256.0), (4.0, 256.0))
    ),
    futex=202,
    # The time stamp counter runs at 2 to 4 GHz.
    spin="""
declare void @llvm.x86.sse2.pause()
declare i64 @llvm.readcyclecounter()
define internal void @relax() alwaysinline nounwind {
  call void @llvm.x86.sse2.pause()
  ret void
}
define internal i64 @now() alwaysinline nounwind {
  %t = call i64 @llvm.readcyclecounter()
  ret i64 %t
}
define internal i64 @spin_ticks() nounwind {
  ret i64 120000
}
""",
    # The first two words of features that libgcc and compiler-rt know by the same numbers. What
    # both have known for long is asked for; processors that have it have the rest.
    feature_words="""
@__cpu_model = external global [4 x i32]
@__cpu_features2 = external global i32
declare i32 @__cpu_indicator_init()
define internal i1 @processor_fits() nounwind {
  %e0 = call i32 @__cpu_indicator_init()
  %a.p = getelementptr i32, ptr @__cpu_model, i64 3
  %a.32 = load i32, ptr %a.p
  %a = zext i32 %a.32 to i64
  %b.32 = load i32, ptr @__cpu_features2
  %b = zext i32 %b.32 to i64
""",
    feature_bits={
        "avx2": (0, 1 << 10), "fma": (0, 1 << 14), "avx512f": (0, 1 << 15),
        "avx512vl": (0, 1 << 20), "avx512bw": (0, 1 << 21), "vnni": (1, 1 << 2),
        "bf16": (1, 1 << 4),
    },
    cross_compiler="x86_64-linux-gnu-gcc",
    compiler_package="gcc-x86-64-linux-gnu",
    emulator="qemu-x86_64",
)  # fmt: skip
