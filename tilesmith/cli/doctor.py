"""`tilesmith doctor`: what this machine can run, what is missing, and whether its timings can be
trusted.
"""

from __future__ import annotations

import os
import statistics
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import typer

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import BuildError, TargetError, TilesmithError
from tilesmith.base.process import version
from tilesmith.base.target import MACHINES, Target, cpu
from tilesmith.expr.dsl import placeholder
from tilesmith.ir.lower import function
from tilesmith.ops.matmul import matmul
from tilesmith.runtime.build import build
from tilesmith.runtime.devices.open import target_of
from tilesmith.runtime.export.write import compiler_for, compilers_of
from tilesmith.runtime.kernel import Kernel
from tilesmith_contest.peers import PEERS, installed_peers


@dataclass(frozen=True)
class Package:
    """`extra` is the pip extra that installs it; empty for packages that Tilesmith requires."""

    name: str
    purpose: str
    extra: str = ""


PACKAGES = (
    Package("numpy", "arrays, and the reference that kernels are checked against"),
    Package("llvmlite", "LLVM, which generates the machine code"),
    Package("ml_dtypes", "bfloat16 arrays"),
    Package("sqlalchemy", "databases of measurements"),
    Package("xgboost", "the learned cost model of the search"),
    Package("onnx", "reads models; needed by `bench` to compare with onnxruntime", "onnx"),
    Package("torch", "PyTorch models; a library that `bench` compares with", "torch"),
    Package("onnxruntime", "a library that `bench` compares with", "peers"),
    Package("openvino", "an engine that `bench MODEL.onnx` compares with", "peers"),
    Package("MNN", "an engine that `bench MODEL.onnx` compares with", "peers"),
    Package("pyopencl", "kernels on OpenCL devices", "opencl"),
    Package("ray", "measuring on many machines", "fleet"),
    Package("psycopg", "databases on a PostgreSQL server", "postgres"),
    Package("plotly", "the page of `tilesmith report`", "report"),
    Package("matplotlib", "charts of `bench --chart` and `--page`", "report"),
)

_NOISY = 0.05  # relative spread of equal timings above which small differences mean nothing
_LABEL = 14
_NO_BREAK = "\u00a0"  # a non-breaking space


def doctor() -> None:
    """Check this machine: what works, and what is missing.

    Lists the processor, the installed packages and what each is for, builds and times a kernel, and
    says whether this machine is quiet enough for timings to be trusted.
    """
    print(f"Tilesmith {version()}, Python {sys.version.split()[0]}\n")
    _print("Processor", _processor())
    _print("Packages", _packages())
    _print("GPUs", _gpus())
    _print("Export", _export())
    try:
        x, y = (placeholder((128, 128), name=name) for name in "xy")
        kernel = build(function([x, y, matmul(x, y, name="z")], name="probe"), cpu(1))
        kernel.time(repeats=1, min_seconds=0.01)
    except TilesmithError as e:
        _print("Kernels", iter([("build", f"a kernel does not build or run: {e}")]))
        raise typer.Exit(1) from None
    _print("Kernels", iter([("build", "a kernel builds and runs")]))
    _print("Timing", _timing(kernel))


def _print(title: str, rows: Iterator[tuple[str, str]]) -> None:
    print(title)
    for label, text in rows:
        first = f"  {label:{_LABEL}}" if len(label) < _LABEL else f"  {label} "
        lines = textwrap.wrap(
            text, 80, initial_indent=first, subsequent_indent=" " * (_LABEL + 2),
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        print("\n".join(lines).replace(_NO_BREAK, " ") or first.rstrip())


def _processor() -> Iterator[tuple[str, str]]:
    t = cpu()
    yield "model", f"{t.name} ({t.arch})"
    yield "cores", f"{t.num_cores} that this process may use, {os.cpu_count()} in the machine"
    yield "vectors", f"{t.vector_bits} bits, {t.num_vector_registers} registers"
    yield "features", " ".join(sorted(t.features)) or "none that Tilesmith asks for"
    caches = (t.l1_nbytes, t.l2_nbytes, t.l3_nbytes)
    yield "caches", ", ".join(f"L{k} {_size(n)}" for k, n in enumerate(caches, 1) if n)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield "memory", f"{memory / 2**30:.1f} GiB"


def _size(n: int) -> str:
    return f"{n >> 20} MiB" if n >= 1 << 20 and n % (1 << 20) == 0 else f"{n >> 10} KiB"


def _packages() -> Iterator[tuple[str, str]]:
    owners = metadata.packages_distributions()  # once: it reads all that is installed
    for p in PACKAGES:
        if is_installed(p.name):
            yield p.name, f"{_version_of(owners.get(p.name, [p.name]))}: {p.purpose}"
        else:
            yield p.name, f"not installed: {p.purpose}; {_how_to_get(p.extra)}"
    peers, _ = installed_peers([*PEERS])
    yield (
        "bench",
        f"compares with {', '.join(peers) or 'nothing'}"
        + ("" if len(peers) > 1 else "; pip install 'tilesmith[peers]' for more"),
    )


def _how_to_get(extra: str) -> str:
    what = f"'tilesmith[{extra}]'" if extra else "tilesmith"
    return f"pip install {what}".replace(" ", _NO_BREAK)


def is_installed(module: str) -> bool:
    return find_spec(module) is not None


def _version_of(distributions: Iterable[str]) -> str:
    """Of the first of these names that is installed."""
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "of unknown version"


def _gpus() -> Iterator[tuple[str, str]]:
    """All that each kind has, or why there is none."""
    for kind in ("cuda", "opencl"):
        try:
            found = [target_of(kind, 0)]
        except TargetError as error:
            yield kind, str(error)
            continue
        with suppress(TargetError):  # the first number that is not there
            while True:
                found.append(target_of(kind, len(found)))
        for t in found:
            yield f"{kind}:{t.device}", _gpu(t)
    has_nvrtc = is_installed("cuda") and is_installed("cuda.bindings")
    missing = f"not installed; {_how_to_get('cuda')}"
    yield (
        "NVRTC",
        f"{'found' if has_nvrtc else missing}: compiles CUDA kernels, with or without a GPU",
    )


def _gpu(t: Target) -> str:
    return (
        f"{t.model} ({t.arch}), {t.num_multiprocessors} multiprocessors, {_size(t.shared_nbytes)} "
        f"shared memory and {t.max_threads} threads per block, L2 {_size(t.l2_nbytes)}"
    )


def _export() -> Iterator[tuple[str, str]]:
    """Which C compilers link exported models."""
    for arch, machine in MACHINES.items():
        try:
            yield arch, f"{compiler_for(machine)[0]} links shared libraries"
        except BuildError:
            wanted = " or ".join(compilers_of(machine))
            yield arch, f"no {wanted}: models are exported as static libraries only"


def _timing(kernel: Kernel) -> Iterator[tuple[str, str]]:
    cores = cpu().num_cores
    load = os.getloadavg()[0]
    busy = load > max(0.5, 0.25 * cores)
    stolen, samples = _probe(kernel)
    quartiles = statistics.quantiles(samples, n=4)
    spread = (quartiles[2] - quartiles[0]) / quartiles[1]
    yield "load", f"{load:.1f} busy processes on {cores} cores over the last minute"
    yield "spread", f"{100 * spread:.1f} % between the quartiles of {len(samples)} equal timings"
    if stolen is not None:
        yield "stolen", f"{100 * stolen:.1f} % of the time was given to other virtual machines"
    governor = _governor()
    if governor is not None:
        yield "frequency", f"governor {governor}"
    doubts = []
    if busy:
        doubts.append("other programs are running: end them before tuning")
    if spread > _NOISY:
        doubts.append("equal timings differ: small improvements cannot be seen")
    if stolen is not None and stolen > 0.02:
        doubts.append("the host takes the processor away at times")
    if governor in ("powersave", "conservative", "ondemand"):
        doubts.append("the clock rate changes: use the governor performance if you can")
    yield "verdict", "; ".join(doubts) or "quiet: timings can be trusted"


def _probe(kernel: Kernel) -> tuple[float | None, list[float]]:
    """The share of a second that other virtual machines took, and equal timings during it."""
    before, start = _stolen_seconds(), time.monotonic()
    samples: list[float] = []
    while time.monotonic() - start < 1.0:
        samples += kernel.time(repeats=5, min_seconds=0.005).samples
    after, seconds = _stolen_seconds(), time.monotonic() - start
    if before is None or after is None:
        return None, samples
    return (after - before) / (seconds * (os.cpu_count() or 1)), samples


def _stolen_seconds() -> float | None:
    """The time taken by the hypervisor from all cores together, since the machine started."""
    try:
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        return int(words[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _governor() -> str | None:
    try:
        return Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text().strip()
    except OSError:
        return None
