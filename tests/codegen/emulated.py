"""Kernels of another architecture run here: our objects, linked with a driver in C and carried out
by qemu. Functions with their inputs go in, outputs come out.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tilesmith as ts
from tilesmith.base.target import MACHINES
from tilesmith.codegen.artifact import Artifact
from tilesmith.runtime.build import compile_function

Array = np.ndarray[Any, Any]


class Tools(NamedTuple):
    compiler: str
    emulator: str
    package: str  # of Debian
    libraries: str  # where that package puts the C library


TOOLS = {
    arch: Tools(
        m.cross_compiler, m.emulator, m.compiler_package,
        f"/usr/{m.cross_compiler.removesuffix('-gcc')}",
    )
    for arch, m in MACHINES.items()
}  # fmt: skip

_DRIVER = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* The parts of all threads, one after the other. */
void tilesmith_parallel_for(void (*body)(void *, int64_t, int64_t, int64_t), void *box,
                            int64_t n, int64_t threads) {
  int64_t begin = 0;
  for (int64_t t = 0; t < threads; t++) {
    int64_t end = n * (t + 1) / threads;
    if (begin < end) body(box, begin, end, t);
    begin = end;
  }
}

static void *room(int64_t nbytes) {
  void *p = aligned_alloc(64, (nbytes + 127) / 64 * 64);
  if (!p) exit(3);
  return p;
}

typedef void kernel(void **args, void *workspace);

/* sizes: inputs, then outputs */
static void run(kernel *f, int inputs, int outputs, const int64_t *sizes, int64_t workspace,
                FILE *in, FILE *out) {
  void *args[64];
  for (int k = 0; k < inputs + outputs; k++) {
    args[k] = room(sizes[k]);
    if (k < inputs && fread(args[k], 1, sizes[k], in) != (size_t)sizes[k]) exit(4);
  }
  void *scratch = room(workspace);
  f(args, scratch);
  for (int k = inputs; k < inputs + outputs; k++) fwrite(args[k], 1, sizes[k], out);
  for (int k = 0; k < inputs + outputs; k++) free(args[k]);
  free(scratch);
}

$DECLARATIONS
int main(int argc, char **argv) {
  FILE *in = fopen(argv[1], "rb"), *out = fopen(argv[2], "wb");
  if (!in || !out) return 2;
$CALLS
  return fclose(out);
}
"""


def obstacle(arch: str) -> str | None:
    """Why kernels of an architecture cannot be emulated here."""
    tools = TOOLS[arch]
    if shutil.which(tools.compiler) is None:
        return f"{tools.compiler} is not installed (Debian: {tools.package})"
    if shutil.which(tools.emulator) is None:
        return f"{tools.emulator} is not installed (Debian: qemu-user)"
    return None


def run_emulated(
    programs: Sequence[tuple[Any, Sequence[Array]]], target: ts.Target, folder: Path
) -> list[tuple[Array, ...]]:
    """The outputs of each Function or Schedule, built for the target, on these arrays."""
    made = [compile_function(what, target) for what, _ in programs]
    objects = {a.symbol: folder / f"{a.symbol}.o" for a in made}  # equal kernels are one
    for a in made:
        objects[a.symbol].write_bytes(a.code)
    (folder / "driver.c").write_text(_driver(made))
    with (folder / "in").open("wb") as f:
        for _, arrays in programs:
            for x in arrays:
                f.write(np.ascontiguousarray(x).tobytes())
    tools = TOOLS[target.arch]
    program = folder / "program"
    _call(tools.compiler, "-o", program, folder / "driver.c", *objects.values(), "-lm")
    emulator = (tools.emulator, "-L", tools.libraries, "-cpu", "max")
    _call(*emulator, program, folder / "in", folder / "out")
    return _split(made, (folder / "out").read_bytes())


def _call(*words: Any) -> None:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{words[0]} ended with {done.returncode}: {done.stderr[-2000:]}"


def _driver(made: Sequence[Artifact]) -> str:
    declarations = [f"kernel {symbol};" for symbol in sorted({a.symbol for a in made})]
    calls = []
    for a in made:
        sizes = ", ".join(str(p.nbytes) for p in a.parameters)
        counts = f"{len(a.inputs)}, {len(a.outputs)}"
        calls.append(
            f"  {{ const int64_t sizes[] = {{{sizes}}}; "
            f"run({a.symbol}, {counts}, sizes, {a.workspace_nbytes}, in, out); }}"
        )
    text = _DRIVER.replace("$DECLARATIONS", "\n".join(declarations))
    return text.replace("$CALLS", "\n".join(calls))


def _split(made: Sequence[Artifact], data: bytes) -> list[tuple[Array, ...]]:
    found, at = [], 0
    for a in made:
        outputs = []
        for p in a.outputs:
            piece = np.frombuffer(data[at : at + p.nbytes], p.dtype.numpy).reshape(p.shape)
            outputs.append(piece)
            at += p.nbytes
        found.append(tuple(outputs))
    assert at == len(data)
    return found
