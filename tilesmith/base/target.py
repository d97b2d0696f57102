"""`Target`: a description of the hardware, detected on this machine or named for another one.

A Target holds everything that may change the result of a build or a search, and nothing else: its
`fingerprint` is part of every key.
"""

from __future__ import annotations

import json
import os
import platform
import re
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path

from tilesmith.base.digest import digest
from tilesmith.base.errors import TargetError
from tilesmith.base.given import checks_given


@checks_given(error=TargetError)
@dataclass(frozen=True, slots=True)
class Target:
    """A description of hardware: all that may change generated code or its speed. `ts.cpu()`,
    `ts.cuda()` and `ts.opencl()` describe what is here; `ts.Target.named` describes machines that
    need not be.

    Example:

        print(ts.Target.named("neoverse-n1").lanes(32))
    """

    kind: str  # "cpu" | "cuda" | "opencl"
    arch: str  # "x86-64", "aarch64", "sm_90a"
    cpu: str  # LLVM's name of the processor; "native" is this machine's
    num_cores: int = 1
    features: frozenset[str] = frozenset()  # those that the code generator uses, see FEATURES
    vector_bits: int = 128
    num_vector_registers: int = 32
    l1_nbytes: int = 32 << 10
    l2_nbytes: int = 1 << 20
    l3_nbytes: int = 32 << 20  # shared by all cores
    # of a GPU
    num_multiprocessors: int = 0
    shared_nbytes: int = 0  # per block
    max_threads: int = 0  # per block
    warp_size: int = 1
    registers_per_block: int = 0
    model: str = ""  # the machine's own name of its model; timings are valid for that model only
    # Which of several GPUs of this machine. Equal ones share their records, so it is no part of the
    # fingerprint.
    device: int = field(default=0, compare=False)

    @property
    def fingerprint(self) -> str:
        """A hash of all fields except for `device`; part of the key of every record."""
        fields = (repr(sorted(v)) if isinstance(v, frozenset) else repr(v) for v in self._values())
        return digest(*fields)

    def _values(self) -> list[object]:
        return [getattr(self, name) for name in self.__dataclass_fields__ if name != "device"]

    def to_json(self) -> str:
        """The text that `from_json` reads."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "device"}
        values["features"] = sorted(self.features)
        return json.dumps(values, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Target:
        """Fields that are missing in the text, as an older version wrote it, get their default."""
        try:
            values = dict(json.loads(text))
            values["features"] = frozenset(values["features"])
            target = Target(**values)
        except (ValueError, KeyError, TypeError) as e:
            raise TargetError(f"this is not the text of a target: {e}") from None
        for f in fields(Target):
            kind = str if f.type == "str" else int if f.type == "int" else frozenset
            if type(value := getattr(target, f.name)) is not kind:
                raise TargetError(f"this is not the text of a target: {f.name} is {value!r}")
        return target

    def lanes(self, bits: int) -> int:
        """The number of elements of this width that a vector register holds."""
        return max(1, self.vector_bits // bits)

    @staticmethod
    def named(name: str) -> Target:
        """A machine that need not be present, for sketches, scores and cross-compilation."""
        if name not in NAMED:
            raise TargetError(f"unknown target {name!r}; known are {', '.join(sorted(NAMED))}")
        return NAMED[name]

    def with_cores(self, num_cores: int) -> Target:
        """The same machine with another number of cores."""
        if num_cores < 1:
            raise TargetError(f"num_cores is {num_cores}; a target has at least one core")
        return replace(self, num_cores=num_cores)


# The features that the code generator uses, by their names in /proc/cpuinfo.
FEATURES = {
    "avx2": "avx2", "fma": "fma", "f16c": "f16c", "avx512f": "avx512f", "avx512vl": "avx512vl",
    "avx512bw": "avx512bw", "avx512_vnni": "vnni", "avx512_fp16": "fp16", "avx512_bf16": "bf16",
    "avx_vnni": "avxvnni", "amx_int8": "amx", "amx_bf16": "amxbf16", "asimd": "neon",
    "asimddp": "dotprod", "asimdhp": "fp16", "i8mm": "i8mm", "bf16": "bf16", "sve": "sve",
}  # fmt: skip

# The same features by LLVM's names.
LLVM_FEATURES = {
    "x86-64": {
        "avx2": "avx2", "fma": "fma", "f16c": "f16c", "avx512f": "avx512f",
        "avx512vl": "avx512vl", "avx512bw": "avx512bw", "vnni": "avx512vnni",
        "fp16": "avx512fp16", "bf16": "avx512bf16", "amx": "amx-int8", "amxbf16": "amx-bf16",
        "avxvnni": "avxvnni",
    },
    "aarch64": {
        "neon": "neon", "dotprod": "dotprod", "fp16": "fullfp16", "i8mm": "i8mm", "bf16": "bf16",
        "sve": "sve",
    },
}  # fmt: skip


@checks_given(error=TargetError)
def cpu(num_cores: int | None = None) -> Target:
    """This machine's processor, with all cores this process may use, or `num_cores` of them. A
    kernel runs on as many threads as its target has cores.

    Example:

        one = ts.cpu(num_cores=1)
        print(one.vector_bits, one.l2_nbytes, sorted(one.features))
    """
    detected = _detect()
    return detected if num_cores is None else detected.with_cores(num_cores)


@cache
def _detect() -> Target:
    arch = {"x86_64": "x86-64", "AMD64": "x86-64", "arm64": "aarch64"}.get(
        platform.machine(), platform.machine()
    )
    if arch not in ("x86-64", "aarch64"):
        raise TargetError(f"processor architecture {arch!r}; supported are x86-64 and aarch64")
    flags = _cpuinfo_flags()
    features = frozenset(FEATURES[f] for f in flags if f in FEATURES)
    wide = arch == "x86-64" and {"avx512f", "avx512vl", "avx512bw"} <= features
    bits = 512 if wide else 256 if "avx2" in features else 128
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Target(
        kind="cpu",
        arch=arch,
        cpu="native",
        num_cores=cores or 1,
        features=features,
        vector_bits=bits,
        num_vector_registers=32 if bits == 512 or arch == "aarch64" else 16,
        l1_nbytes=_cache_nbytes(1, 32 << 10),
        l2_nbytes=_cache_nbytes(2, 1 << 20),
        l3_nbytes=_cache_nbytes(3, 32 << 20),
        model=_cpu_model(),
    )


def _cpu_model() -> str:
    """The model's name, or on ARM the numbers that stand for it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    keys = ("model name", "CPU implementer", "CPU part", "CPU variant")
    matches = [re.search(rf"^{k}\s*:\s*(.*)$", text, re.MULTILINE) for k in keys]
    return " ".join(m.group(1).strip() for m in matches if m)


def _cpuinfo_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return set(match.group(1).split()) if match else set()


def _cache_nbytes(level: int, default: int) -> int:
    root = Path("/sys/devices/system/cpu/cpu0/cache")
    for index in sorted(root.glob("index*")):
        try:
            kind = (index / "type").read_text().strip()
            if int((index / "level").read_text()) == level and kind != "Instruction":
                size = (index / "size").read_text().strip()
                return int(size.rstrip("KM")) << (20 if size.endswith("M") else 10)
        except (OSError, ValueError):
            continue
    return default


_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512vl", "avx512bw"}


def _x86(cpu: str, cores: int, features: frozenset[str], l2: int, l3: int, l1: int = 32) -> Target:
    wide = "avx512f" in features
    bits = 512 if wide else 256 if "avx2" in features else 128
    return Target(
        "cpu", "x86-64", cpu, cores, features, bits, 32 if wide else 16,
        l1 << 10, l2 << 10, l3 << 20,
    )  # fmt: skip


def _arm(cpu: str, cores: int, features: frozenset[str], l2: int, l3: int) -> Target:
    return Target(
        "cpu", "aarch64", cpu, cores, features | {"neon"}, 128, 32, 64 << 10, l2 << 10, l3 << 20
    )


def _nvidia(arch: str, sms: int, shared_kb: int, l2_mb: int) -> Target:
    return Target(
        "cuda", arch, arch, sms, num_multiprocessors=sms, shared_nbytes=shared_kb << 10,
        max_threads=1024, warp_size=32, registers_per_block=65536, l2_nbytes=l2_mb << 20,
    )  # fmt: skip


NAMED = {
    "x86-64": _x86("x86-64", 4, frozenset(), 256, 8),  # SSE2, which all of them have
    "x86-64-v3": _x86("x86-64-v3", 4, _AVX2, 256, 8),
    "haswell": _x86("haswell", 4, _AVX2, 256, 8),
    "zen3": _x86("znver3", 8, _AVX2, 512, 32),
    "skylake-avx512": _x86("skylake-avx512", 18, _AVX512, 1024, 24),
    "cascadelake": _x86("cascadelake", 18, _AVX512 | {"vnni"}, 1024, 24),
    "icelake-server": _x86("icelake-server", 32, _AVX512 | {"vnni"}, 1280, 48, 48),
    "sapphirerapids": _x86(
        "sapphirerapids", 16, _AVX512 | {"vnni", "fp16", "bf16", "amx", "amxbf16"}, 2048, 60, 48
    ),
    "emeraldrapids": _x86(
        "emeraldrapids", 16, _AVX512 | {"vnni", "fp16", "bf16", "amx", "amxbf16"}, 2048, 160, 48
    ),
    "cortex-a53": _arm("cortex-a53", 4, frozenset(), 512, 0),
    "cortex-a76": _arm("cortex-a76", 4, frozenset({"dotprod", "fp16"}), 512, 4),
    "neoverse-n1": _arm("neoverse-n1", 2, frozenset({"dotprod", "fp16"}), 1024, 32),
    "neoverse-v1": _arm(
        "neoverse-v1", 16, frozenset({"dotprod", "fp16", "i8mm", "bf16"}), 1024, 32
    ),
    "nvidia-v100": _nvidia("sm_70", 80, 48, 6),
    "nvidia-a100": _nvidia("sm_80", 108, 163, 40),
    "nvidia-h100": _nvidia("sm_90a", 132, 227, 50),
    "nvidia-h200": _nvidia("sm_90a", 132, 227, 60),
}
