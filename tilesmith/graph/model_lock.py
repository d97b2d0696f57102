"""The lock file of a model: the schedule of every kernel, and what else decides which bits they
compute. Where sizes are open, these are the schedules of each portfolio and the samples that choose
among them. It is JSON; `tune/pinned.py` compiles a model by it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import GraphError, TilesmithError
from tilesmith.base.identity import digest
from tilesmith.base.process import version
from tilesmith.base.target import Target
from tilesmith.base.whole_file import write_whole
from tilesmith.expr.sizes import OpenSize, open_size
from tilesmith.ir.function import Function
from tilesmith.ir.rename import structure_of
from tilesmith.ir.serialize import function_to_json
from tilesmith.runtime.dispatch import Region
from tilesmith.runtime.kernel import Kernel
from tilesmith.runtime.open_kernel import PortfolioKernel
from tilesmith.task.describe import shapes_text

_MARK, _VERSION = "tilesmith lock", 1
_ONE_VALUE = ("kind", "arch", "vector_bits")
# What reading a file may raise.
_UNREADABLE = (TilesmithError, ValueError, TypeError, LookupError, AttributeError)


@dataclass(frozen=True)
class LockedKernel:
    """The schedules as JSON, empty for the plain loop nest: one, or where sizes are open those of a
    portfolio, of which `regions` says which one runs where. `function` is the one with numbers as
    it was stated.
    """

    schedules: tuple[str, ...]
    function: str = ""
    regions: tuple[Region, ...] = ()


@dataclass(frozen=True)
class Lock:
    """`kernels` are by their `lock_key`. `instructions` are what `instructions_of` says of the
    target. `sizes` are the open sizes of the model, by the names of its dimensions.
    """

    place: str
    codegen: str
    instructions: dict[str, Any]
    kernels: dict[str, LockedKernel]
    sizes: dict[str, OpenSize]


def lock_key(func: Function) -> str:
    """Of what a kernel computes. Functions with open sizes have the same names in every model."""
    return func.digest if func.sizes else structure_of(func)


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
    name: str, kernels: Iterable[tuple[Function, Kernel]], sizes: Mapping[str, OpenSize],
    codegen: str, path: str | os.PathLike[str],
) -> str:  # fmt: skip
    """`kernels` are with what each computes. Returns the digest of what was written, which is the
    same for the same kernels.
    """
    entries: dict[str, dict[str, Any]] = {}
    target = None
    for func, kernel in kernels:
        entry: dict[str, Any]
        if func.sizes:
            members = kernel.members if isinstance(kernel, PortfolioKernel) else (kernel,)
            regions = kernel.regions if isinstance(kernel, PortfolioKernel) else ()
            entry = {
                "name": func.name,
                "schedules": [_schedule_of(func, m) for m in members],
                "regions": [[[*r.sizes], r.member] for r in regions],
            }
        else:
            entry = {
                "name": f"{func.name} {shapes_text(func)}",
                "schedule": _schedule_of(func, kernel),
                "function": json.loads(function_to_json(func)),
            }
        target, entries[lock_key(func)] = kernel.artifact.target, entry
    if target is None:
        raise GraphError(f"{name} has no kernels to lock yet; call it first")
    content = {
        _MARK: _VERSION, "model": name, "library": version(), "codegen": codegen,
        "instructions": instructions_of(target), "kernels": dict(sorted(entries.items())),
    }  # fmt: skip
    if sizes:
        content["sizes"] = {n: [s.range, s.samples] for n, s in sizes.items()}
    write_whole(Path(path), json.dumps(content, separators=(",", ":")).replace('},"', '},\n"'))
    return digest(json.dumps(content, sort_keys=True))


def _schedule_of(func: Function, kernel: Kernel) -> Any:
    """As JSON values; None for the plain loop nest."""
    schedule = kernel.origin.schedule
    if not schedule and kernel.origin.kind != "naive":
        raise GraphError(
            f"the schedule of {func.name} is not known, because an older version stored its "
            "kernel; compile the model anew with cache=None"
        )
    return json.loads(schedule) if schedule else None


def read_lock(path: str | os.PathLike[str]) -> Lock:
    try:
        content = json.loads(Path(path).read_text())
        if content[_MARK] != _VERSION:
            raise ValueError(f"it is of version {content[_MARK]}, this library reads {_VERSION}")
        kernels = {str(key): _kernel(k) for key, k in content["kernels"].items()}
        instructions = {name: content["instructions"][name] for name in (*_ONE_VALUE, "features")}
        sizes = {str(n): _size(str(n), *s) for n, s in content.get("sizes", {}).items()}
        return Lock(str(path), str(content["codegen"]), instructions, kernels, sizes)
    except OSError as error:
        raise GraphError(f"the lock file {path} cannot be read: {error}") from None
    except _UNREADABLE as error:
        raise GraphError(
            f"{path} is no lock file of a model, or is damaged ({error}); model.save_lock(path) "
            "writes one"
        ) from None


def _kernel(data: Mapping[str, Any]) -> LockedKernel:
    if "schedules" not in data:
        return LockedKernel((_schedule(data["schedule"]),), json.dumps(data["function"]))
    regions = tuple(
        Region(tuple((str(n), int(v)) for n, v in sizes), int(member))
        for sizes, member in data["regions"]
    )
    schedules = tuple(map(_schedule, data["schedules"]))
    if not schedules or not all(0 <= r.member < len(schedules) for r in regions):
        raise ValueError(f"{data['name']} names a kernel that it does not have")
    return LockedKernel(schedules, regions=regions)


def _schedule(given: Any) -> str:
    return "" if given is None else json.dumps(given)


def _size(name: str, limits: Any, samples: Any) -> OpenSize:
    (checked,) = open_size("n", limits, dict(samples) or None).declared
    return OpenSize(name, checked.range, checked.samples)
