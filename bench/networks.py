"""The five networks against the inference engines, all in one run: `python -m bench.networks`.

Each network is exported to ONNX, run by every engine and by us in processes of their own, and timed
in turns. Errors are against PyTorch in float64. PyTorch's own contestants run the same network from
its own program format.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.table import arguments
from tilesmith.base.target import Target, cpu
from tilesmith.cli.model_table import line_of, text_of
from tilesmith.report.engine import ModelFile
from tilesmith.report.engine_tilesmith import tune_tasks
from tilesmith.report.engines import ENGINES, usable_engines
from tilesmith.report.model_rows import ModelRow, write_model_rows
from tilesmith.report.models import TURNS, compare_ours
from tilesmith.testing.networks import catalogue
from tilesmith.testing.networks.catalogue import NETWORKS, in_float64, network
from tilesmith.testing.networks.export import export, save_program


def cache_folder() -> Path:
    """Exported files depend on how the networks are written, so that is part of their place."""
    sources = sorted(Path(catalogue.__file__).parent.glob("*.py"))
    text = b"".join(p.read_bytes() for p in sources)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tilesmith" / "networks" / hashlib.sha256(text).hexdigest()[:12]


def exported(name: str, batch: int, small: bool, folder: Path) -> Path:
    """The ONNX file of a network. Beside it are PyTorch's program, and an NPZ file with an input
    and the right outputs. What is there already is kept.
    """
    stem = f"{name}-small" if small else name
    path = folder / f"{stem}-b{batch}.onnx" if batch > 1 else folder / f"{stem}.onnx"
    net = network(name, small)
    if not path.exists():
        export(name, path, batch, small=small)
    if not path.with_suffix(".pt2").exists():
        save_program(name, path.with_suffix(".pt2"), batch, small=small)
    if not (arrays := path.with_suffix(".npz")).exists():
        right = in_float64(net, net.module(), net.inputs(batch))
        np.savez(arrays, **net.inputs(batch), **right)
    return path


def row_of(name: str, target: Target, options: argparse.Namespace, folder: Path) -> ModelRow:
    path = exported(name, options.batch, options.small, folder)
    engines, absent = usable_engines([e for e in options.against.split(",") if e], path)
    for engine, why in absent.items():
        print(f"absent: {engine}: {why}", file=sys.stderr)
    if options.seconds:
        tune_tasks(path, {}, target, options.seconds, options.db)
    database = "" if options.untuned else options.db
    net = network(name, options.small)
    with np.load(path.with_suffix(".npz")) as arrays:
        model = ModelFile(path, {net.input: arrays[net.input]}, net.outputs)
        right = {name: arrays[name] for name in net.outputs}
    turns = replace(TURNS, processor_time=options.processor_time)
    return compare_ours(model, engines, target, database, ("PyTorch in float64", right), turns)


def main(words: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=list(NETWORKS),
                        choices=list(NETWORKS), help="the networks to run")  # fmt: skip
    parser.add_argument("--threads", default="1", help="numbers of threads, such as 1,2")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--against", default=",".join(ENGINES), help="engines, by commas")
    parser.add_argument("--db", default="", help="database of our records")
    parser.add_argument("--untuned", action="store_true", help="leave the records of --db out")
    parser.add_argument("--seconds", type=float, default=0.0,
                        help="tuning time per task before the run; needs --db")  # fmt: skip
    parser.add_argument("--cache", type=Path, default=None, help="folder of exported files")
    parser.add_argument("--processor-time", action="store_true",
                        help="count processor time, for a busy machine")  # fmt: skip
    parser.add_argument("--small", action="store_true", help="small versions, to try the bench")
    options = parser.parse_args(words)
    if options.seconds and not options.db:
        parser.error("--seconds keeps its records in --db FILE; name one")
    if options.processor_time and options.threads != "1":
        parser.error("--processor-time counts all threads together; it needs --threads 1")
    folder = options.cache or cache_folder()
    rows: list[ModelRow] = []
    for count in map(int, options.threads.split(",")):
        for name in options.only:
            rows.append(row_of(name, cpu(count), options, folder))
            if options.json:
                write_model_rows(Path(options.json), rows)
            print(line_of(rows[-1]), file=sys.stderr, flush=True)
    print(text_of(rows, None))


if __name__ == "__main__":
    main()
