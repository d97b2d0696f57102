"""A network from C beside the same one from Python: `python -m bench.export [--network resnet50]`.

The model is exported and linked with a small C program. Both run the same input, the outputs are
compared bit for bit, and then they are timed in turns: processor time, because others may use the
machine too.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO

import numpy as np

import tilesmith as ts
from bench.networks import cache_folder, exported
from bench.table import Row, arguments, finish
from tilesmith_contest.networks.catalogue import NETWORKS

# Reads the input, writes the output, and then times a call for each byte that it is sent.
_PROGRAM = r"""
#define _POSIX_C_SOURCE 199309L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "model.h"

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv) {
  size_t in_bytes = (size_t)atol(argv[2]), out_bytes = (size_t)atol(argv[3]);
  void *in = malloc(in_bytes), *out = malloc(out_bytes);
  const void *inputs[] = {in};
  void *outputs[] = {out};
  tilesmith_model *model = tilesmith_model_open(argv[1]);
  if (argc != 4 || !model || fread(in, 1, in_bytes, stdin) != in_bytes) return 1;
  if (tilesmith_model_run(model, inputs, outputs)) return 2;
  fwrite(out, 1, out_bytes, stdout);
  fflush(stdout);
  while (getchar() != EOF) {
    double start = now();
    if (tilesmith_model_run(model, inputs, outputs)) return 3;
    printf("%.9f\n", now() - start);
    fflush(stdout);
  }
  tilesmith_model_close(model);
  return 0;
}
"""


def linked(folder: Path) -> Path:
    source, program = folder / "timed.c", folder / "timed"
    source.write_text(_PROGRAM)
    words = ["cc", "-O2", str(source), f"-I{folder}", f"-L{folder}", "-lmodel"]
    subprocess.run([*words, f"-Wl,-rpath,{folder}", "-o", str(program)], check=True)
    return program


def sent(pipe: IO[bytes] | None, data: bytes) -> None:
    assert pipe is not None
    pipe.write(data)
    pipe.flush()


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--network", choices=NETWORKS, default="resnet50")
    parser.add_argument("--small", action="store_true", help="a small network of the same kind")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--db", help="a database of tuned kernels")
    parser.add_argument("--turns", type=int, default=30)
    options = parser.parse_args()
    path = exported(options.network, 1, options.small, cache_folder())
    arrays, database = np.load(path.with_suffix(".npz")), None
    if options.db:
        database = ts.open_database(options.db)
    model = ts.compile_model(ts.load_onnx(path), ts.cpu(options.threads), database=database)
    (given,) = model.inputs
    x = np.ascontiguousarray(arrays[given.name])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = model.export(folder, name="model")
        (y,) = model({given.name: x}).values()
        words = [linked(folder), files.weights, str(x.nbytes), str(y.nbytes)]
        c = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert c.stdout is not None
        sent(c.stdin, x.tobytes())
        if c.stdout.read(y.nbytes) != y.tobytes():
            raise SystemExit("C and Python compute different bits")
        print("C and Python compute the same bits")
        pairs = []
        for _ in range(options.turns):
            sent(c.stdin, b"\n")
            ours = float(c.stdout.readline())
            start = time.process_time()
            model({given.name: x})
            pairs.append((ours, time.process_time() - start))
        assert c.stdin is not None
        c.stdin.close()
        c.wait()
        mine, theirs = (1e3 * statistics.median(p[k] for p in pairs) for k in range(2))
        ratio = statistics.median(p / o for o, p in pairs)
        library, weights = (folder / "libmodel.so").stat().st_size, files.weights.stat().st_size
    finish(
        [
            Row("a call from C, processor time", mine, "ms", "from Python", theirs, ratio),
            Row("the library without weights", library / 1e6, "MB"),
            Row("the weights", weights / 1e6, "MB"),
        ],
        options,
    )
    if database is not None:
        database.close()


if __name__ == "__main__":
    main()
