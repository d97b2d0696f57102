"""The result of tuning in, a folder with all that is needed to read the kernel and to build it
again out.
"""

from __future__ import annotations

import json
from pathlib import Path

from tilesmith.cli.schedule_text import schedule_lines
from tilesmith.ir.serialize import function_to_json
from tilesmith.tune.result import Result

_SCRIPT = '''"""{title}: builds the tuned kernel again and times it.

Call it with one array per input. Inputs that were stated to be constant are prepared once, by
kernel.pack(name, array).

The schedule, one primitive a line:

{schedule}
"""

from pathlib import Path

import tilesmith as ts

HERE = Path(__file__).parent
func = ts.function_from_json((HERE / "function.json").read_text())
trace = ts.Trace.from_json((HERE / "trace.json").read_text())
kernel = ts.build(trace.apply(func), ts.cpu(num_cores={cores}))

if __name__ == "__main__":
    print("inputs:", *(f"{{p.name}} {{p.shape}} {{p.dtype}}" for p in kernel.artifact.inputs))
    print("one call:", kernel.time())
'''


def write_folder(folder: Path, result: Result) -> None:
    """The folder exists."""
    kernel, best, task = result.kernel, result.best, result.task
    low, high = best.confidence
    schedule = "\n".join(f"    {s}" for s in schedule_lines(best.candidate.trace))
    script = _SCRIPT.format(
        title=task.func.name,
        schedule=schedule.replace("\\", "\\\\").replace('"""', "'''"),
        cores=task.target.num_cores,
    )
    summary = {
        "function": task.func.name,
        "task": task.key,
        "target": json.loads(task.target.to_json()),
        "median_seconds": best.cost,
        "confidence_seconds": [low, high],
        "samples_seconds": list(best.seconds),
        "gflops": result.gflops,
        "confirmed": best.confirmed,
        "contended": best.contended,
        "trials": result.trials,
        "tuning_seconds": result.seconds,
        "failures": {k: {"count": n, "first": t} for k, (n, t) in result.failures.items()},
        "improvements": [
            {"seconds": s, "trials": n, "best_seconds": cost} for s, n, cost in result.curve
        ],
    }
    for name, text in (
        ("function.json", function_to_json(task.func)),
        ("trace.json", best.candidate.trace.to_json()),
        ("kernel.ll", kernel.source),
        ("kernel.s", kernel.assembly),
        ("kernel.py", script),
        ("measurements.json", json.dumps(summary, indent=1) + "\n"),
    ):
        (folder / name).write_text(text)
