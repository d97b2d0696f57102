"""Compiles CUDA C with NVRTC, NVIDIA's compiler as a library, and reads what each kernel uses."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any, Protocol

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import BuildError
from tilesmith.codegen.artifact import Resources

_LOG_LINES = 8  # of the compiler's messages in an error


@dataclass(frozen=True, slots=True)
class Compiled:
    cubin: bytes
    resources: Mapping[str, Resources]  # by kernel


class Store(Protocol):
    """Code that was compiled before, by the text that it was compiled from."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, code: bytes) -> None: ...


def compile_cuda(
    name: str, source: str, arch: str, store: Store | None = None, lines: bool = False
) -> Compiled:
    """`arch` is an architecture such as sm_90a. Raises a BuildError with the compiler's message.
    What the `store` has is not compiled again. With `lines`, debuggers and sanitizers name lines of
    the source, in a file {name}.cu; the machine code is the same.
    """
    key = f"{name}\n{arch}{' lines' if lines else ''}\n{source}"
    if store is not None and (code := store.get(key)) is not None:
        stored: Compiled = pickle.loads(code)
        return stored
    compiled = _compile(name, source, arch, lines)
    if store is not None:
        store.put(key, pickle.dumps(compiled))
    return compiled


def _compile(name: str, source: str, arch: str, lines: bool) -> Compiled:
    nvrtc = _nvrtc()
    _, *version = nvrtc.nvrtcVersion()
    options = options_of(arch, (version[0], version[1]))
    options += [b"--generate-line-info"] if lines else []
    error, program = nvrtc.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), 0, [], [])
    _require(nvrtc, error, name)
    try:
        (error,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _text(nvrtc, program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
        if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            logged = [x for x in log.decode(errors="replace").splitlines() if x.strip()]
            said = "\n  ".join(logged[:_LOG_LINES]) or str(error)
            raise BuildError(f"NVRTC does not compile {name!r} for {arch}:\n  {said}")
        cubin = _text(nvrtc, program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Compiled(cubin, resources_of(log.decode(errors="replace")))


def options_of(arch: str, version: tuple[int, int]) -> list[bytes]:
    """By default divisions and roots are rounded correctly and denormals are kept. A product and a
    sum may become one fused multiply-add, as on a CPU. `minimal` leaves out declarations that the
    text does not use, a tenth of the time of a small kernel.

    Where there is a driver, NVRTC keeps what it compiles in the user's cache, and does not say what
    kernels use when it takes them from there. Thousands of candidates do not belong there.
    """
    options = [f"--gpu-architecture={arch}".encode(), b"--minimal", b"--ptxas-options=-v"]
    return [*options, b"--no-cache"] if version >= (12, 9) else options


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()  # the bindings look for the library at their first call
    except (ImportError, RuntimeError) as error:
        raise BuildError(
            "CUDA kernels need NVRTC, which is not installed "
            f"({str(error).strip()}); pip install 'tilesmith[cuda]'"
        ) from None
    return nvrtc


def _require(nvrtc: Any, error: Any, name: str) -> None:
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise BuildError(f"NVRTC does not start on {name!r}: {error}")


def _text(nvrtc: Any, program: Any, size: Any, get: Any) -> bytes:
    error, n = size(program)
    _require(nvrtc, error, "a program")
    # NVRTC writes into it. An empty log is one byte 0, and Python has a single object for any bytes
    # of length 1: it must be this one, or else all others of its kind would change as well.
    text = bytes(n)
    get(program, text)
    return text


_KERNEL = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def resources_of(log: str) -> dict[str, Resources]:
    """What each kernel uses, as the assembler's log says."""
    out: dict[str, Resources] = {}
    name = ""
    stack = spilled = 0
    for line in log.splitlines():
        if m := _KERNEL.search(line):
            name, stack, spilled = m.group(1), 0, 0
        elif m := _SPILLS.search(line):
            stack, spilled = int(m.group(1)), int(m.group(2)) + int(m.group(3))
        elif (m := _USED.search(line)) and name:
            shared = _SHARED.search(line)
            out[name] = Resources(
                int(m.group(1)), spilled, int(shared.group(1)) if shared else 0, stack
            )
    return out


# Several cubins as the code of one artifact. Each launch is compiled by itself, because those of
# different candidates are often the same: such as launches that transform windows. A single cubin
# is its own container.
_MAGIC = b"tilesmith cubins"
_NUMBER = Struct("<Q")


def joined(cubins: Sequence[bytes]) -> bytes:
    """The cubins after their number and their lengths."""
    if len(cubins) == 1:
        return cubins[0]
    numbers = (len(cubins), *map(len, cubins))
    return b"".join((_MAGIC, *map(_NUMBER.pack, numbers), *cubins))


def parted(code: bytes) -> list[bytes]:
    """The cubins in an artifact's code."""
    if not code.startswith(_MAGIC):
        return [code]
    start = len(_MAGIC) + _NUMBER.size
    (count,) = _NUMBER.unpack_from(code, len(_MAGIC))
    at, out = start + count * _NUMBER.size, []
    for k in range(count):
        (length,) = _NUMBER.unpack_from(code, start + k * _NUMBER.size)
        out.append(code[at : at + length])
        at += length
    return out
