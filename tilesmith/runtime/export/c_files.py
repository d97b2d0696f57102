"""The texts beside an exported library: its C header, an example that runs it, and what CMake needs
to find it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tilesmith.base.template import template
from tilesmith.runtime.export.library import Library, Port

_C_TYPES = {
    "float16": "IEEE half, as uint16_t", "bfloat16": "bfloat16, as uint16_t", "float32": "float",
    "float64": "double", "bool": "uint8_t, 0 or 1",
}  # fmt: skip


# What the header says of memory, by the kind of target.
_WHERE = {"cpu": "", "cuda": " They lie in the memory of the host or of the GPU."}
_SHARING = {
    "cpu": "Handles share the weights in memory.",
    "cuda": "Each handle has a copy of the weights on the GPU, which is device 0.",
}

_CMAKE_SHARED = """add_library(tilesmith_$NAME SHARED IMPORTED)
set_target_properties(tilesmith_$NAME PROPERTIES
  IMPORTED_LOCATION "${CMAKE_CURRENT_LIST_DIR}/lib$NAME.so"
  INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}")
"""
_CMAKE_STATIC = """add_library(tilesmith_$NAME ALIAS tilesmith_$NAME_static)
"""


def header(library: Library) -> str:
    target = library.target
    processor = next((a.cpu for a in library.artifacts if a.cpu), target.cpu)
    threads = target.num_cores if library.uses_threads else 1
    if target.kind != "cpu":
        processor = target.name
    path = "\n * It has no weights, so the path may also be NULL." if _is_empty(library) else ""
    return _filled(
        "header.h.in",
        library,
        TITLE=in_comment(library.title),
        PROCESSOR=in_comment(f"{processor} ({target.arch})"),
        PORTS="\n".join([*_listed("input", library.inputs), *_listed("output", library.outputs)]),
        WITHOUT_WEIGHTS=path,
        WHERE=_WHERE[target.kind],
        SHARING=_SHARING[target.kind],
        NUM_THREADS=threads,
    )


def example(library: Library) -> str:
    return _filled("example.c.in", library)


def cmake(library: Library, shared: bool) -> str:
    own = _CMAKE_SHARED if shared else _CMAKE_STATIC
    linked = "m" if library.target.kind == "cpu" else "${CMAKE_DL_LIBS}"
    return _filled("library.cmake.in", library, LIBRARY=own, LINKED=linked)


def _filled(file: str, library: Library, **values: object) -> str:
    values |= {
        "NAME": library.name,
        "UPPER": library.name.upper(),
        "NUM_INPUTS": len(library.inputs),
        "NUM_OUTPUTS": len(library.outputs),
        "INPUT_NBYTES": _nbytes(library.inputs),
        "OUTPUT_NBYTES": _nbytes(library.outputs),
    }
    return template(__file__, file, values)


def _is_empty(library: Library) -> bool:
    return library.weights.nbytes == 0


def _nbytes(ports: Sequence[Port]) -> str:
    return ", ".join(str(p.nbytes) for p in ports) or "0"


def _listed(kind: str, ports: Sequence[Port]) -> list[str]:
    lines = []
    for k, p in enumerate(ports):
        own = _C_TYPES.get(p.dtype.name, f"{p.dtype.name}_t")
        shape = ", ".join(map(str, p.shape))
        note = f" {p.note}" if p.note else ""
        text = in_comment(f"{p.name}: [{shape}] of {own}, {p.nbytes} bytes.{note}")
        lines.append(f" *   {kind} {k}  {text}")
    return lines


def in_comment(text: str) -> str:
    """A text of the model for a comment in C: nothing in it may end the comment, begin another, or
    continue a line.
    """
    return re.sub(r"[^\w ,.:;()\[\]/+-]", "_", text, flags=re.ASCII).replace("//", "/ /")
