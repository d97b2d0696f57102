"""The texts beside an exported library: its C header, an example that runs it, and what CMake needs
to find it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tilesmith.runtime.export.library import Library, Port

_C_TYPES = {
    "float16": "IEEE half, as uint16_t", "bfloat16": "bfloat16, as uint16_t", "float32": "float",
    "float64": "double", "bool": "uint8_t, 0 or 1",
}  # fmt: skip

_HEADER = """/* $TITLE
 * for $PROCESSOR. Written by Tilesmith.
 *
 * Arrays are dense and row-major, and start at a multiple of their elements' size; outputs overlap
 * nothing else. Inputs and outputs, in the order of the lists:
 *
$PORTS
 */
#ifndef TILESMITH_$UPPER_H
#define TILESMITH_$UPPER_H

#include <stddef.h>

#define TILESMITH_$UPPER_NUM_INPUTS $NUM_INPUTS
#define TILESMITH_$UPPER_NUM_OUTPUTS $NUM_OUTPUTS
/* For `const size_t nbytes[] = ...`. */
#define TILESMITH_$UPPER_INPUT_NBYTES {$INPUT_NBYTES}
#define TILESMITH_$UPPER_OUTPUT_NBYTES {$OUTPUT_NBYTES}

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tilesmith_$NAME tilesmith_$NAME;

/* Maps the weights file and reserves memory; NULL on error.$WITHOUT_WEIGHTS
 * Handles share the weights in memory. Each may be used by one thread at a time. */
tilesmith_$NAME *tilesmith_$NAME_open(const char *weights_path);

/* Computes the outputs; 0 on success. It allocates nothing. */
int tilesmith_$NAME_run(tilesmith_$NAME *, const void *const *inputs, void *const *outputs);

/* Why the last call in this thread that failed did so; an empty text if none did. */
const char *tilesmith_$NAME_error(void);

/* Frees a handle; NULL is allowed. */
void tilesmith_$NAME_close(tilesmith_$NAME *);

/* At most so many threads in one call, for all handles; 0 is the default, one for each core that
 * the process may use. No call uses more than $NUM_THREADS. */
void tilesmith_$NAME_set_threads(int most);

#ifdef __cplusplus
}
#endif
#endif
"""

_EXAMPLE = """/* cc example.c -I. -L. -l$NAME -Wl,-rpath,. -o example
 * ./example $NAME.weights < inputs > outputs      (the bytes of the arrays, one after the other) */
#include <stdio.h>
#include <stdlib.h>
#include "$NAME.h"

int main(int argc, char **argv) {
  const size_t in[] = TILESMITH_$UPPER_INPUT_NBYTES, out[] = TILESMITH_$UPPER_OUTPUT_NBYTES;
  void *inputs[TILESMITH_$UPPER_NUM_INPUTS + 1], *outputs[TILESMITH_$UPPER_NUM_OUTPUTS + 1];
  for (int k = 0; k < TILESMITH_$UPPER_NUM_INPUTS; k++)
    if (fread(inputs[k] = calloc(1, in[k]), 1, in[k], stdin) != in[k])
      fprintf(stderr, "input %d is filled up with zeros\\n", k);
  for (int k = 0; k < TILESMITH_$UPPER_NUM_OUTPUTS; k++) outputs[k] = malloc(out[k]);
  tilesmith_$NAME *model = tilesmith_$NAME_open(argc > 1 ? argv[1] : "$NAME.weights");
  if (!model || tilesmith_$NAME_run(model, (const void *const *)inputs, outputs)) {
    fprintf(stderr, "%s\\n", tilesmith_$NAME_error());
    return 1;
  }
  for (int k = 0; k < TILESMITH_$UPPER_NUM_OUTPUTS; k++) fwrite(outputs[k], 1, out[k], stdout);
  tilesmith_$NAME_close(model);
  for (int k = 0; k < TILESMITH_$UPPER_NUM_INPUTS; k++) free(inputs[k]);
  for (int k = 0; k < TILESMITH_$UPPER_NUM_OUTPUTS; k++) free(outputs[k]);
  return 0;
}
"""

_CMAKE = """# include(.../$NAME.cmake), then target_link_libraries(app PRIVATE tilesmith_$NAME)
find_package(Threads REQUIRED)
add_library(tilesmith_$NAME_static STATIC IMPORTED)
set_target_properties(tilesmith_$NAME_static PROPERTIES
  IMPORTED_LOCATION "${CMAKE_CURRENT_LIST_DIR}/lib$NAME.a"
  INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}"
  INTERFACE_LINK_LIBRARIES "Threads::Threads;m")
"""
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
    path = "\n * It has no weights, so the path may also be NULL." if _is_empty(library) else ""
    return _filled(
        _HEADER,
        library,
        TITLE=_plain(library.title),
        PROCESSOR=_plain(f"{processor} ({target.arch})"),
        PORTS="\n".join([*_listed("input", library.inputs), *_listed("output", library.outputs)]),
        WITHOUT_WEIGHTS=path,
        NUM_THREADS=threads,
    )


def example(library: Library) -> str:
    return _filled(_EXAMPLE, library)


def cmake(library: Library, shared: bool) -> str:
    return _filled(_CMAKE + (_CMAKE_SHARED if shared else _CMAKE_STATIC), library)


def _filled(text: str, library: Library, **values: object) -> str:
    values |= {
        "NAME": library.name,
        "UPPER": library.name.upper(),
        "NUM_INPUTS": len(library.inputs),
        "NUM_OUTPUTS": len(library.outputs),
        "INPUT_NBYTES": _nbytes(library.inputs),
        "OUTPUT_NBYTES": _nbytes(library.outputs),
    }
    for name, value in values.items():
        text = text.replace(f"${name}", str(value))
    return text


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
        text = _plain(f"{p.name}: [{shape}] of {own}, {p.nbytes} bytes.{note}")
        lines.append(f" *   {kind} {k}  {text}")
    return lines


def _plain(text: str) -> str:
    """A text of the model for a comment in C: nothing in it may end the comment, begin another, or
    continue a line.
    """
    return re.sub(r"[^\w ,.:;()\[\]/+-]", "_", text, flags=re.ASCII).replace("//", "/ /")
