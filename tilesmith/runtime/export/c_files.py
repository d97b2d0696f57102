"""The texts beside an exported library: its C header, an example that runs it, and what CMake needs
to find it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tilesmith.base.template import filled, template
from tilesmith.expr.ints import Int, of
from tilesmith.runtime.export.library import LARGEST, Library, OpenPlan, Port

_C_TYPES = {
    "float16": "IEEE half, as uint16_t", "bfloat16": "bfloat16, as uint16_t", "float32": "float",
    "float64": "double", "bool": "uint8_t, 0 or 1",
}  # fmt: skip


# What depends on whether sizes are open.
_COUNTS = """/* For `const size_t nbytes[] = ...`. */
#define TILESMITH_$UPPER_INPUT_NBYTES {$INPUT_NBYTES}
#define TILESMITH_$UPPER_OUTPUT_NBYTES {$OUTPUT_NBYTES}"""
_RUN = """/* Computes the outputs; 0 on success. It allocates nothing. */
int tilesmith_$NAME_run(tilesmith_$NAME *, const void *const *inputs, void *const *outputs);"""
_OPEN_COUNTS = "#define TILESMITH_$UPPER_NUM_SIZES $NUM_SIZES"
_OPEN_RUN = """/* The bytes of the arrays at these sizes; either list may be NULL. 0 on success. */
int tilesmith_$NAME_nbytes(const int64_t *sizes, size_t *inputs, size_t *outputs);

/* The bytes of the workspace that a call with these sizes needs. */
size_t tilesmith_$NAME_workspace_nbytes(const int64_t *sizes);

/* Computes the outputs; 0 on success. The workspace is at a multiple of 64 and allocates nothing;
 * if it is NULL, the handle has one, which is allocated anew if a call needs a larger one. */
int tilesmith_$NAME_run(tilesmith_$NAME *, const int64_t *sizes, const void *const *inputs,
                        void *const *outputs, void *workspace);"""


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
    is_open = library.open is not None
    return _filled(
        "header.h.in",
        library,
        INCLUDES="\n#include <stdint.h>" if is_open else "",
        COUNTS=_OPEN_COUNTS if is_open else _COUNTS,
        RUN=_OPEN_RUN if is_open else _RUN,
        TITLE=in_comment(library.title),
        PROCESSOR=in_comment(f"{processor} ({target.arch})"),
        PORTS="\n".join(_arrays(library)),
        WITHOUT_WEIGHTS=path,
        WHERE=_WHERE[target.kind],
        SHARING=_SHARING[target.kind],
        NUM_THREADS=threads,
    )


def example(library: Library) -> str:
    if library.open is None:
        return _filled("example.c.in", library)
    return _filled("open_example.c.in", library, SIZES=" ".join(_names(library.open)))


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
        "NUM_SIZES": 0 if library.open is None else len(library.open.names),
        "INPUT_NBYTES": _nbytes(library.inputs),
        "OUTPUT_NBYTES": _nbytes(library.outputs),
    }
    # The blocks that are filled in have names to be filled in themselves.
    return filled(template(__file__, file, values), values)


def _is_empty(library: Library) -> bool:
    return library.weights.nbytes == 0


def _nbytes(ports: Sequence[Port]) -> str:
    return ", ".join(str(p.nbytes) for p in ports) or "0"


def _names(plan: OpenPlan) -> list[str]:
    return [in_comment(n.removeprefix("#")) for n in plan.names]


def _arrays(library: Library) -> list[str]:
    """What is passed, a line for each."""
    return [
        *([] if library.open is None else _sizes(library.open)),
        *_listed("input", library.inputs),
        *_listed("output", library.outputs),
    ]


def _sizes(plan: OpenPlan) -> Iterator[str]:
    for k, (name, (low, high)) in enumerate(zip(_names(plan), plan.limits, strict=True)):
        limits = f", from {low} to {high}" if high < LARGEST else ""
        yield f" *   size {k}  {name}{limits}"


def _listed(kind: str, ports: Sequence[Port]) -> list[str]:
    lines = []
    for k, p in enumerate(ports):
        own = _C_TYPES.get(p.dtype.name, f"{p.dtype.name}_t")
        shape = ", ".join(_expression(e) for e in p.extents or map(of, p.shape))
        note = f" {p.note}" if p.note else ""
        text = in_comment(f"{p.name}: [{shape}] of {own}, {_expression(p.total)} bytes.{note}")
        lines.append(f" *   {kind} {k}  {text}")
    return lines


def _expression(e: Int) -> str:
    """In a comment, where a star before a slash would end it."""
    return str(e).replace("#", "").replace("//", "div").replace("*", " x ")


def in_comment(text: str) -> str:
    """A text of the model for a comment in C: nothing in it may end the comment, begin another, or
    continue a line.
    """
    return re.sub(r"[^\w ,.:;()\[\]/+-]", "_", text, flags=re.ASCII).replace("//", "/ /")
