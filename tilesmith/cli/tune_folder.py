"""`tilesmith tune --out`: writes a folder with all that is needed to read the tuned kernel and to
build it again.
"""

from __future__ import annotations

import json
from pathlib import Path

from tilesmith.base.target import Target
from tilesmith.base.whole_file import write_whole
from tilesmith.ir.serialize import function_to_json
from tilesmith.report.schedule_text import schedule_lines
from tilesmith.runtime.kernel import Kernel
from tilesmith.tune.result import Result

_SCRIPT = '''"""{title}: builds the tuned kernel again and times it.

Call it with one array per input. Inputs that were stated to be constant are prepared once, by
kernel.pack(name, array).

The schedule, one primitive a line:

{schedule}
"""

from pathlib import Path

import tilesmith as ts
{parts}
HERE = Path(__file__).parent
func = ts.function_from_json((HERE / "function.json").read_text())
trace = ts.Trace.from_json((HERE / "trace.json").read_text(), parts)
kernel = ts.build(trace.apply(func), {target}, parts=parts)

if __name__ == "__main__":
    print("inputs:", *(f"{{p.name}} {{p.shape}} {{p.dtype}}" for p in kernel.artifact.inputs))
    print("one call:", kernel.time())
'''


def _expression(target: Target) -> str:
    """What names this target in Python."""
    if target.kind == "cpu":
        return f"ts.cpu(num_cores={target.num_cores})"
    return f"ts.{target.kind}({target.device or ''})"


def _code(kernel: Kernel, target: Target) -> list[tuple[str, str]]:
    """The files of the generated code."""
    match target.kind:
        case "cpu":
            return [("kernel.ll", kernel.source), ("kernel.s", kernel.assembly)]
        case "cuda":
            return [("kernel.cu", kernel.source)]
        case _:
            return [("kernel.cl", kernel.source)]


def _import(parts: str) -> str:
    """What imports the user's own parts, from MODULE:OBJECT."""
    module, _, name = parts.partition(":")
    first, *rest = name.split(".")
    if not module:
        return "\nparts = None"
    return f"from {module} import {first}\n\nparts = {'.'.join((first, *rest))}"


def write_folder(folder: Path, result: Result, parts: str = "") -> None:
    """The folder exists."""
    kernel, best, task = result.kernel, result.best, result.task
    low, high = best.confidence
    schedule = "\n".join(f"    {s}" for s in schedule_lines(best.candidate.trace))
    script = _SCRIPT.format(
        title=task.func.name,
        schedule=schedule.replace("\\", "\\\\").replace('"""', "'''"),
        target=_expression(task.target),
        parts=_import(parts),
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
        *_code(kernel, task.target),
        ("kernel.py", script),
        ("measurements.json", json.dumps(summary, indent=1) + "\n"),
    ):
        write_whole(folder / name, text)
