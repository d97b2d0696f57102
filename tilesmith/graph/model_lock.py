"""The lock file of a model: the schedule of every kernel, and what else decides which bits they
compute. It is JSON; `tune/pinned.py` compiles a model by it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import GraphError, TilesmithError
from tilesmith.base.identity import digest
from tilesmith.base.process import version
from tilesmith.base.target import Target
from tilesmith.base.whole_file import write_whole
from tilesmith.graph.executor import Executor
from tilesmith.ir.rename import structure_of
from tilesmith.ir.serialize import function_to_json
from tilesmith.task.describe import shapes_text

_MARK, _VERSION = "tilesmith lock", 1
_ONE_VALUE = ("kind", "arch", "vector_bits")
# What reading a file may raise.
_UNREADABLE = (TilesmithError, ValueError, TypeError, LookupError, AttributeError)


@dataclass(frozen=True)
class LockedKernel:
    """The Function as it was stated, and the schedule as JSON, empty for the plain loop nest."""

    function: str
    schedule: str


@dataclass(frozen=True)
class Lock:
    """`kernels` are by the digest of what each computes. `instructions` are what `instructions_of`
    says of the target.
    """

    place: str
    codegen: str
    instructions: dict[str, Any]
    kernels: dict[str, LockedKernel]


def instructions_of(target: Target) -> dict[str, Any]:
    """What of a target decides which bits a schedule computes: not its number of cores, nor the
    sizes of its caches.
    """
    one = {name: getattr(target, name) for name in _ONE_VALUE}
    return {**one, "features": sorted(target.features)}


def other_instructions(there: dict[str, Any], here: Target) -> str:
    """Why a target computes other bits than the one that was described; empty if it does not."""
    own = instructions_of(here)
    for name in _ONE_VALUE:
        if there[name] != own[name]:
            what = name.replace("_", " ")
            return f"it is for a processor with the {what} {there[name]}, here it is {own[name]}"
    if missing := sorted({*there["features"]} - {*own["features"]}):
        return f"it is for a processor with {', '.join(missing)}, which this one does not have"
    if more := sorted({*own["features"]} - {*there["features"]}):
        return f"it is for a processor without {', '.join(more)}, whose code is another"
    return ""


def write_lock(
    name: str, executors: Sequence[Executor], codegen: str, path: str | os.PathLike[str]
) -> str:
    """Returns the digest of what was written, which is the same for the same kernels."""
    kernels: dict[str, dict[str, Any]] = {}
    target = None
    for executor in executors:
        for step, kernel in zip(executor.plan.steps, executor.kernels, strict=True):
            target, schedule = kernel.artifact.target, kernel.origin.schedule
            if not schedule and kernel.origin.kind != "naive":
                raise GraphError(
                    f"the schedule of {step.func.name} is not known, because an older version "
                    "stored its kernel; compile the model anew with cache=None"
                )
            kernels[structure_of(step.func)] = {
                "name": f"{step.func.name} {shapes_text(step.func)}",
                "schedule": json.loads(schedule) if schedule else None,
                "function": json.loads(function_to_json(step.func)),
            }
    if target is None:
        raise GraphError(f"{name} has no kernels to lock yet; call it first")
    content = {
        _MARK: _VERSION, "model": name, "library": version(), "codegen": codegen,
        "instructions": instructions_of(target), "kernels": dict(sorted(kernels.items())),
    }  # fmt: skip
    write_whole(Path(path), json.dumps(content, separators=(",", ":")).replace('},"', '},\n"'))
    return digest(json.dumps(content, sort_keys=True))


def read_lock(path: str | os.PathLike[str]) -> Lock:
    try:
        content = json.loads(Path(path).read_text())
        if content[_MARK] != _VERSION:
            raise ValueError(f"it is of version {content[_MARK]}, this library reads {_VERSION}")
        kernels = {
            str(key): LockedKernel(json.dumps(k["function"]), _schedule(k["schedule"]))
            for key, k in content["kernels"].items()
        }
        instructions = {name: content["instructions"][name] for name in (*_ONE_VALUE, "features")}
        return Lock(str(path), str(content["codegen"]), instructions, kernels)
    except OSError as error:
        raise GraphError(f"the lock file {path} cannot be read: {error}") from None
    except _UNREADABLE as error:
        raise GraphError(
            f"{path} is no lock file of a model, or is damaged ({error}); model.save_lock(path) "
            "writes one"
        ) from None


def _schedule(given: Any) -> str:
    return "" if given is None else json.dumps(given)
