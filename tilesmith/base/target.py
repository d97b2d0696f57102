"""`Target`: a description of the hardware, detected on this machine or named for another one.

A Target holds everything that may change the result of a build or a search, and nothing else: its
`fingerprint` is part of every key.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Callable
from dataclasses import field, fields, replace
from functools import cache, lru_cache
from pathlib import Path

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import DType
from tilesmith.base.errors import TargetError
from tilesmith.base.given import checks_given
from tilesmith.base.identity import digest
from tilesmith.base.machines.aarch64 import AARCH64
from tilesmith.base.machines.cuda import MODELS, cuda_machine
from tilesmith.base.machines.machine import (
    CpuMachine,
    CpuRates,
    CpuVectors,
    GpuMachine,
    GpuModel,
    GpuRates,
)
from tilesmith.base.machines.opencl import OPENCL
from tilesmith.base.machines.x86_64 import X86_64

# The architectures of processors, by name. One that is not among them has none of their abilities.
MACHINES = {m.arch: m for m in (X86_64, AARCH64)}


@dataclass(frozen=True, slots=True)
class Lanes:
    """A vector register. If it is `scalable`, it holds a multiple of so many bits, which only the
    running machine knows.
    """

    bits: int
    scalable: bool = False

    def of(self, element: DType | int) -> int:
        """How many elements it holds at least, of a dtype or of so many bits."""
        return max(1, self.bits // (element if isinstance(element, int) else element.bits))


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
    features: frozenset[str] = frozenset()  # that the code generator uses, CpuMachine.flags
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
    # Of an architecture that is not built in (examples/custom_cpu.py).
    described: CpuMachine | None = None

    @property
    def fingerprint(self) -> str:
        """A hash of all fields except for `device`; part of the key of every record."""
        values = {**self._values(), "features": sorted(self.features)}
        own = () if self.described is None else (repr(self.described),)
        return digest(*map(repr, values.values()), *own)

    def _values(self) -> dict[str, object]:
        names = (f.name for f in fields(self) if f.name not in ("device", "described"))
        return {name: getattr(self, name) for name in names}

    def to_json(self) -> str:
        """The text that `from_json` reads."""
        if self.described is not None:
            raise TargetError(
                f"the description of {self.arch} is an object of this process, which records and "
                "other machines cannot have; to tune for it, add it to tilesmith/base/machines"
            )
        values = {**self._values(), "features": sorted(self.features)}
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
        for f in fields(Target)[:-1]:  # without `described`
            kind = str if f.type == "str" else int if f.type == "int" else frozenset
            if type(value := getattr(target, f.name)) is not kind:
                raise TargetError(f"this is not the text of a target: {f.name} is {value!r}")
        return target

    @property
    def machine(self) -> CpuMachine:
        """What is known of the processor's architecture."""
        return self.described or MACHINES.get(self.arch) or CpuMachine(arch=self.arch)

    @property
    def gpu(self) -> GpuMachine:
        """What is known of this generation of GPUs."""
        return cuda_machine(self.arch) if self.kind == "cuda" else OPENCL

    @property
    def vector(self) -> Lanes:
        """A vector register."""
        return Lanes(self.vector_bits, self.machine.scalable)

    def lanes(self, bits: int) -> int:
        """The number of elements of this width that a vector register holds."""
        return self.vector.of(bits)

    @property
    def masks_vectors(self) -> bool:
        """Whether one instruction loads or stores a part of a register."""
        wanted = self.machine.masks_with
        return self.kind == "cpu" and (not wanted or bool(wanted & self.features))

    @property
    def name(self) -> str:
        """The model, or LLVM's name of the processor if the model is unknown."""
        numbers = " ".join(self.model.split()[:2])
        return self.machine.model_names.get(numbers, self.model) or self.cpu

    @property
    def label(self) -> str:
        """The name and the number of cores."""
        cores = "1 core" if self.num_cores == 1 else f"{self.num_cores} cores"
        return f"{self.name}, {cores}"

    @staticmethod
    def named(name: str) -> Target:
        """A machine that need not be present, for sketches, scores and cross-compilation."""
        if name not in NAMED:
            raise TargetError(f"unknown target {name!r}; known are {', '.join(sorted(NAMED))}")
        return NAMED[name]

    @staticmethod
    def of(machine: CpuMachine, name: str) -> Target:
        """One of the processors that a description of an architecture names."""
        m, own = machine.models[name], MACHINES.get(machine.arch) is not machine
        vectors = _vectors(machine, m.features)
        return Target(
            "cpu", machine.arch, m.cpu, m.num_cores, m.features, vectors.bits, vectors.registers,
            m.l1_kb << 10, m.l2_kb << 10, m.l3_mb << 20, described=machine if own else None,
        )  # fmt: skip

    def oldest(self) -> Target:
        """The processor of the same architecture whose code all others run."""
        return Target.of(self.machine, self.machine.oldest)

    def with_cores(self, num_cores: int) -> Target:
        """The same machine with another number of cores."""
        if num_cores < 1:
            raise TargetError(f"num_cores is {num_cores}; a target has at least one core")
        return replace(self, num_cores=num_cores)


@checks_given(error=TargetError)
def cpu(num_cores: int | None = None) -> Target:
    """This machine's processor, with `num_cores` of its cores. A kernel runs on as many threads as
    its target has cores. By default these are all that the process may use: what
    `ts.set_num_threads` or the environment variable TILESMITH_NUM_THREADS says, or else the cores
    of its affinity (taskset), at most the processor time that its container may use.

    Example:

        one = ts.cpu(num_cores=1)
        print(one.vector_bits, one.l2_nbytes, sorted(one.features))
    """
    if num_cores is None:
        return _detect(usable_threads())
    if num_cores > _machine_cores():
        raise TargetError(
            f"num_cores is {num_cores}, and this machine has {_machine_cores()}; for code of a "
            f"machine like this one with more cores say ts.cpu().with_cores({num_cores})"
        )
    return _detect(1).with_cores(num_cores)


class ThreadLimit:
    """What `set_num_threads` sets in this process. Observers are told at once, and of changes."""

    def __init__(self) -> None:
        self.most: int | None = None
        self._observers: list[Callable[[int | None], None]] = []

    def watch(self, observer: Callable[[int | None], None]) -> None:
        self._observers.append(observer)
        observer(self.most)

    def set(self, most: int | None) -> None:
        self.most = most
        for observe in self._observers:
            observe(most)


THREAD_LIMIT = ThreadLimit()
_VARIABLE = "TILESMITH_NUM_THREADS"


@checks_given(error=TargetError)
def set_num_threads(num_threads: int | None) -> None:
    """How many threads kernels of this process use: `ts.cpu()` has so many cores from now on, and
    kernels that were compiled for more run on so many threads. None undoes it.

    Example:

        ts.set_num_threads(1)
        assert ts.cpu().num_cores == 1
        ts.set_num_threads(None)
    """
    if num_threads is not None and not 1 <= num_threads <= _machine_cores():
        raise TargetError(
            f"num_threads is {num_threads}; this machine has 1 to {_machine_cores()} cores to use"
        )
    THREAD_LIMIT.set(num_threads)


def usable_threads() -> int:
    """The threads that this process may keep busy."""
    if THREAD_LIMIT.most is not None:
        return THREAD_LIMIT.most
    text = os.environ.get(_VARIABLE, "").strip()
    if text:
        if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
            raise TargetError(f"{_VARIABLE} is {text!r}; it must be a whole number from 1 on")
        return min(int(text), _machine_cores())
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    return max(1, min(affinity or _machine_cores(), container_cores()))


def _machine_cores() -> int:
    return os.cpu_count() or 1


@cache
def container_cores(root: str = "/sys/fs/cgroup", groups: str = "/proc/self/cgroup") -> int:
    """The cores whose time a container may use, from the quota of its control groups (versions 1
    and 2), rounded up; very many without one.
    """
    found = [1 << 20]
    try:
        lines = [line.split(":", 2) for line in Path(groups).read_text().splitlines()]
    except OSError:
        return found[0]
    for number, controllers, name in (parts for parts in lines if len(parts) == 3):
        if number != "0" and "cpu" not in controllers.split(","):
            continue
        top = Path(root) if number == "0" else Path(root, "cpu")
        place = top / name.lstrip("/")
        for folder in (place, *place.parents):
            found.append(_quota(folder))
            if folder == top:
                break
    return min(found)


def _quota(folder: Path) -> int:
    """Of one control group: microseconds of processor time in each period."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        most = -(-int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):  # "max", or no such control group
        return 1 << 20
    return most if most > 0 else 1 << 20


def _vectors(machine: CpuMachine, features: frozenset[str]) -> CpuVectors:
    return next(v for v in machine.vectors if v.features <= features)


@cache
def _detect(num_cores: int) -> Target:
    here = platform.machine()
    machine = next((m for m in MACHINES.values() if here in m.system_names), None)
    if machine is None:
        known = " and ".join(MACHINES)
        raise TargetError(f"processor architecture {here!r}; supported are {known}")
    features = frozenset(machine.flags[f] for f in _cpuinfo_flags() if f in machine.flags)
    vectors = _vectors(machine, features)
    return Target(
        kind="cpu",
        arch=machine.arch,
        cpu="native",
        num_cores=num_cores,
        features=features,
        vector_bits=vectors.bits,
        num_vector_registers=vectors.registers,
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


def _of_gpu(m: GpuModel) -> Target:
    return Target(
        "cuda", m.arch, m.arch, m.num_multiprocessors, num_multiprocessors=m.num_multiprocessors,
        shared_nbytes=m.shared_kb << 10, max_threads=1024, warp_size=32, registers_per_block=65536,
        l2_nbytes=m.l2_mb << 20,
    )  # fmt: skip


NAMED = {
    **{name: Target.of(m, name) for m in MACHINES.values() for name in m.models},
    **{name: _of_gpu(model) for name, model in MODELS.items()},
}


@dataclass(frozen=True)
class Cache:
    """One level. `nbytes` is its size and `way_nbytes` that of one of its ways; the others are
    those of CpuRates.below.
    """

    nbytes: int
    way_nbytes: int
    bandwidth_below: float
    miss_nbytes: float


@checks_given(error=TargetError)
@dataclass(frozen=True, kw_only=True)
class CpuConstants(CpuRates):
    """What the analytic score needs of a machine. Sizes are in bytes and times in cycles: the sizes
    come from a Target, the others from one table for all machines of its architecture.

    Constants measured on the machine itself (latency of FMAs, bandwidth of each cache) rank
    programs slightly worse: of all pairs of random programs 0.859 are in the right order instead of
    0.861 on a Xeon (ten tasks), and 0.815 instead of 0.820 on a Neoverse-N1 (seven tasks).
    `python -m bench.constants` compares them on records of the machine it runs on. An FMA latency
    of 3 orders more pairs of random programs (0.867 and 0.832), but the programs that are tried
    first do not get faster by it (fifteen operators on the Xeon).
    """

    num_cores: int
    vector_bits: int
    num_vector_registers: int
    caches: tuple[Cache, Cache, Cache]  # L1, L2, L3

    def lanes(self, bits: int) -> int:
        return Lanes(self.vector_bits).of(bits)

    @staticmethod
    def of(target: Target) -> CpuConstants:
        return _cpu_constants(target)


@lru_cache(maxsize=64)
def _cpu_constants(target: Target) -> CpuConstants:
    rates = target.machine.rates
    sizes = (target.l1_nbytes, target.l2_nbytes, target.l3_nbytes)
    l1, l2, l3 = (
        Cache(nbytes, max(rates.smallest_way_nbytes, nbytes // ways), *below)
        for nbytes, ways, below in zip(sizes, rates.ways, rates.below, strict=True)
    )
    return CpuConstants(
        num_cores=target.num_cores,
        vector_bits=target.vector_bits,
        num_vector_registers=target.num_vector_registers,
        caches=(l1, l2, l3),
        **vars(rates),
    )


@dataclass(frozen=True, kw_only=True)
class GpuConstants(GpuRates):
    """The same of a GPU."""

    num_multiprocessors: int
    warp_size: int
    shared_nbytes: int  # of a multiprocessor, as are the next two
    threads: int
    registers: int
    l2_nbytes: int

    @staticmethod
    def of(target: Target) -> GpuConstants:
        return _gpu_constants(target)


@lru_cache(maxsize=64)
def _gpu_constants(target: Target) -> GpuConstants:
    gpu = target.gpu
    return GpuConstants(
        num_multiprocessors=max(1, target.num_multiprocessors),
        warp_size=max(1, target.warp_size),
        shared_nbytes=max(gpu.shared_nbytes or 2 * target.shared_nbytes, target.shared_nbytes),
        threads=max(gpu.threads or 2 * target.max_threads, target.max_threads),
        registers=target.registers_per_block or 65536,
        l2_nbytes=target.l2_nbytes,
        **vars(gpu.rates),
    )
