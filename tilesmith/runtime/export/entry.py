"""The LLVM module with the functions that a C program calls: a Library in, text out. `plan`
calls the kernels one after the other; the functions around it are in `opening.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilesmith.base.identity import digest
from tilesmith.base.template import template
from tilesmith.runtime.export.library import Address, Library
from tilesmith.runtime.export.open_entry import open_plan_source, running_source
from tilesmith.runtime.export.opening import bytes_constant, opening_source
from tilesmith.runtime.export.pool import LIMIT, PREPARE, RELEASE
from tilesmith.runtime.export.processor import processor_source
from tilesmith.runtime.export.weights import HEADER_NBYTES, MAGIC, VERSION, reading_source
from tilesmith.runtime.export.weights import header as weights_header

FUNCTIONS = ("open", "run", "error", "close", "set_threads")
OPEN_FUNCTIONS = ("nbytes", "workspace_nbytes")  # besides, with open sizes
_LARGE_NBYTES = 4 << 20  # from here on, memory is asked for in large pages, as NumPy does
_PAGE_NBYTES = 2 << 20


def functions(library: Library) -> list[str]:
    """The C functions of a library."""
    ends = FUNCTIONS if library.open is None else FUNCTIONS + OPEN_FUNCTIONS
    return [f"tilesmith_{library.name}_{end}" for end in ends]


def library_digest(library: Library) -> str:
    """A digest of the calls and offsets. Symbols of kernels contain digests of their code."""
    return digest(str(VERSION), library.name, plan_source(library), str(library.weights.nbytes))


def entry_source(library: Library) -> str:
    own = library_digest(library)
    room = library.arena_nbytes + library.workspace_nbytes
    large = room >= _LARGE_NBYTES
    threaded = library.uses_threads
    values: dict[str, object] = {
        "NAME": library.name,
        "MAGIC": MAGIC.decode(),
        "VERSION": VERSION,
        "DIGEST": own,
        "HEADER_NBYTES": HEADER_NBYTES,
        "FILE_NBYTES": HEADER_NBYTES + library.weights.nbytes,
        "BEHIND_SUMS": HEADER_NBYTES - 72,
        "WEIGHTS_AT": HEADER_NBYTES,
        "NEEDS_NO_FILE": "true" if library.weights.nbytes == 0 else "false",
        "ROOM_NBYTES": max(64, room),
        "ROOM_ALIGNMENT": _PAGE_NBYTES if large else 64,
        "IS_LARGE": "true" if large else "false",
        "LARGE_NBYTES": _LARGE_NBYTES,
        "PAGE_NBYTES": _PAGE_NBYTES,
        "ARENA_NBYTES": library.arena_nbytes,
        "NUM_INPUTS": len(library.inputs),
        "NUM_OUTPUTS": len(library.outputs),
        "PREPARE": f"call void @{PREPARE}()" if threaded else "",
        "RELEASE": f"call void @{RELEASE}()" if threaded else "",
        "LIMIT": _LIMIT if threaded else "",
    }
    parts = [
        bytes_constant("magic", MAGIC),
        bytes_constant("digest", own.encode()),
        bytes_constant("header", weights_header(library.weights, own, (0, 0))),
        _sizes("in", [p.dtype.nbytes if p.nbytes else 0 for p in library.inputs]),
        _sizes("out", [p.dtype.nbytes if p.nbytes else 0 for p in library.outputs]),
        reading_source(values),
        opening_source(values),
        _running(library, values),
        processor_source(library.target, library.uses_tiles),
        plan_source(library),
    ]
    if threaded:
        parts += [f"declare void @{f}()" for f in (PREPARE, RELEASE)]
        parts += [f"declare void @{LIMIT}(i64)"]
    return "\n".join(parts)


_LIMIT = f"""%wide = sext i32 %most to i64
  call void @{LIMIT}(i64 %wide)"""


def _sizes(name: str, sizes: list[int]) -> str:
    listed = ", ".join(f"i64 {n}" for n in sizes) or "i64 0"
    return f"@sizes.{name} = private constant [{max(1, len(sizes))} x i64] [{listed}]"


def _running(library: Library, values: dict[str, object]) -> str:
    if library.open is None:
        return template(__file__, "run.ll", values)
    return running_source(library, values)


def plan_source(library: Library) -> str:
    """void plan(inputs, outputs, arena, weights, workspace), and what it calls."""
    if library.open is not None:
        return open_plan_source(library)
    most = max((len(c.addresses) for c in library.calls), default=1)
    lines = [f"declare void @{s}(ptr, ptr)" for s in sorted({c.symbol for c in library.calls})]
    lines += [
        "declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)",
        "define internal void @plan(ptr %inputs, ptr %outputs, ptr %arena, ptr %weights, "
        "ptr %workspace) nounwind {",
        f"  %args = alloca [{most} x ptr], align 16",
        *_pointers("input", len(library.inputs)),
        *_pointers("output", len(library.outputs)),
    ]
    lines += [f"  %arg{p} = getelementptr ptr, ptr %args, i64 {p}" for p in range(most)]
    for k, call in enumerate(library.calls):
        for p, address in enumerate(call.addresses):
            value = f"%c{k}.{p}"
            lines.append(f"  {value} = {_address(address)}")
            lines.append(f"  store ptr {value}, ptr %arg{p}")
        lines.append(f"  call void @{call.symbol}(ptr %args, ptr %workspace)")
    for k, copy in enumerate(library.copies):
        lines.append(f"  %from{k} = {_address(copy.source)}")
        lines.append(
            f"  call void @llvm.memmove.p0.p0.i64(ptr %output{copy.output}, ptr %from{k}, "
            f"i64 {copy.nbytes}, i1 false)"
        )
    return "\n".join([*lines, "  ret void", "}", ""])


def _pointers(kind: str, count: int) -> Iterator[str]:
    """What the caller's list has, as %input0, %input1 and so on."""
    for k in range(count):
        yield f"  %{kind}{k}.p = getelementptr ptr, ptr %{kind}s, i64 {k}"
        yield f"  %{kind}{k} = load ptr, ptr %{kind}{k}.p"


def _address(a: Address) -> str:
    base = f"%{a.base}{a.number}" if a.base in ("input", "output") else f"%{a.base}"
    return f"getelementptr i8, ptr {base}, i64 {a.offset}"
