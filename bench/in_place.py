"""Do records predict a model? Each kernel of a network alone and in its place, in turns:
`python -m bench.in_place --db tune.db --only resnet50 mobilenet-v2 --threads 1,2`.

Without --db the kernels are drafts, and there is no column of records. `rotated` has constants that
come from memory, as in a network whose weights do not fit the caches.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import numpy as np

import tilesmith as ts
from bench.networks import cache_folder, exported
from bench.table import arguments
from tilesmith.base.whole_file import write_whole
from tilesmith_contest.in_place import in_place
from tilesmith_contest.networks.catalogue import NETWORKS, network


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", nargs="+", choices=list(NETWORKS), default=list(NETWORKS)[:2])
    parser.add_argument("--threads", default="1", help="numbers of threads, such as 1,2")
    parser.add_argument("--db", default="", help="database of our records")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--small", action="store_true", help="small versions, to try the bench")
    parser.add_argument("--cache", type=Path, default=None, help="folder of exported files")
    parser.add_argument("--processor-time", action="store_true",
                        help="count processor time where there is one thread")  # fmt: skip
    options = parser.parse_args()
    rows = []
    for count in map(int, options.threads.split(",")):
        for name in options.only:
            path = exported(name, 1, options.small, options.cache or cache_folder())
            with ExitStack() as stack:
                db = stack.enter_context(ts.open_database(options.db)) if options.db else None
                model = ts.compile_model(ts.load_onnx(path), ts.cpu(count), database=db)
            with np.load(path.with_suffix(".npz")) as arrays:
                key = network(name, options.small).input
                report = in_place(
                    model, {key: arrays[key]}, options.rounds, options.processor_time and count == 1
                )
            print(f"{name}, {count} thread{'s' * (count > 1)}\n{report}\n", flush=True)
            rows.append(
                {
                    "network": name, "threads": count, "excess": report.excess,
                    "excess_rotated": report.excess_rotated,
                    "kernels": [asdict(k) for k in report.kernels],
                }
            )  # fmt: skip
    if options.json:
        write_whole(Path(options.json), json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
