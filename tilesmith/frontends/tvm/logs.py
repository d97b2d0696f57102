"""The logs of TVM's three tuners: JSON lines of AutoTVM, records of Ansor, and databases of
MetaSchedule. Of each record that ran: what was tuned, how it was tiled, and its seconds.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite, prod
from pathlib import Path
from typing import Any

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import RecordsError
from tilesmith.frontends.tvm.workloads import (
    Shape,
    Unmapped,
    Workload,
    convolution,
    inferred,
    product,
)

_FAILED = 1e9  # seconds with which TVM notes a failure
_TUNING_RECORDS = "database_tuning_record.json"
# What reading a line may raise: it may hold anything.
_STRANGE = (ValueError, TypeError, LookupError, AttributeError)


@dataclass(frozen=True)
class TvmRecord:
    """`tiles` has the factors of axes, outermost first: of spatial ones by number, and of summed
    ones by number behind these. An axis that is not in it was not tiled. The first factor may be
    -1: what is left.
    """

    workload: Workload
    tiles: dict[int, tuple[int, ...]]
    seconds: float


class TvmLog:
    """The records of a log; `left_out` counts the others by reason."""

    def __init__(self, path: Path) -> None:
        self.path, self.left_out = path, Counter[str]()
        self.lines = 0

    def records(self) -> Iterator[TvmRecord]:
        path = self.path / _TUNING_RECORDS if self.path.is_dir() else self.path
        try:
            with path.open() as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        self.lines += 1
                        yield from self._record(line, path, number)
        except OSError as error:
            raise RecordsError(f"{path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise RecordsError(f"{path} is no text; a log of TVM has JSON lines") from None

    def _record(self, line: str, path: Path, number: int) -> Iterator[TvmRecord]:
        try:
            data = json.loads(line)
            read = _reader_of(data)
        except _STRANGE:
            read = None
        if read is None:
            if self.lines == 1:
                raise RecordsError(
                    f"{path}, line {number} is no record of AutoTVM, Ansor or MetaSchedule; of a "
                    f"database of MetaSchedule give the folder, or its {_TUNING_RECORDS}"
                )
            self.left_out["lines that are no records"] += 1
            return
        try:
            yield read(data)
        except Unmapped as why:
            self.left_out[str(why)] += 1
        except _STRANGE:
            self.left_out["records that lack something"] += 1


def _reader_of(data: Any) -> Any:
    match data:
        case {"input": [*_], "config": {}, "result": [*_]}:
            return autotvm
        case {"i": [[*_], *_], "r": [*_]}:
            return ansor
        case [int(), [[*_], *_]]:
            return metaschedule
    return None


def _seconds(costs: Any, error: Any = 0) -> float:
    """The median of what was measured."""
    times = [float(c) for c in costs or ()]
    if error or not times or not all(0 < t < _FAILED and isfinite(t) for t in times):
        raise Unmapped("candidates that failed there")
    return statistics.median(times)


def _plain_dtype(names: Sequence[str]) -> str:
    if len({*names}) != 1:
        raise Unmapped(f"inputs of the types {' and '.join(dict.fromkeys(names))}")
    return names[0]


# AutoTVM
# The knobs of its templates, by what they tile: the channels of the result, its rows and columns,
# and the channels, rows and columns that are summed over.
_KNOBS = {
    "tile_f": "f", "tile_oc": "f", "tile_co": "f", "tile_c": "f",
    "tile_y": "h", "tile_oh": "h", "tile_h": "h", "tile_x": "w", "tile_ow": "w", "tile_w": "w",
    "tile_rc": "rc", "tile_ic": "rc", "tile_ci": "rc", "tile_ry": "rh", "tile_rx": "rw",
    "tile_kh": "rh", "tile_kw": "rw", "tile_n": "n", "tile_k": "k",
}  # fmt: skip
_ORDER = {
    "NCHW": ("n", "f", "h", "w", "rc", "rh", "rw"),
    "NHWC": ("n", "h", "w", "f", "rh", "rw", "rc"),
}


def autotvm(data: Mapping[str, Any]) -> TvmRecord:
    """{"input": [target, task, args, kwargs], "config": {"entity": [[knob, kind, value], ...]},
    "result": [costs, error, ...]}
    """
    seconds = _seconds(*data["result"][:2])
    task, args = str(data["input"][1]), data["input"][2]
    workload, order = _of_template(task.partition(".")[0], args)
    tiles: dict[int, tuple[int, ...]] = {}
    for name, kind, value in data["config"]["entity"]:
        axis = _KNOBS.get(str(name))
        if kind == "sp" and axis in order:
            tiles[order.index(axis)] = tuple(map(int, value))
    return TvmRecord(workload, tiles, seconds)


def _tensors(args: Sequence[Any]) -> tuple[list[Shape], list[str]]:
    found = [x for x in args if isinstance(x, list) and x[:1] == ["TENSOR"]]
    return [tuple(map(int, x[1])) for x in found], [str(x[2]) for x in found]


def _of_template(task: str, args: Sequence[Any]) -> tuple[Workload, tuple[str, ...]]:
    """The workload, and its axes in our order."""
    shapes, dtypes = _tensors(args)
    if len(shapes) < 2:
        raise Unmapped(f"the task {task}")
    dtype = _plain_dtype(dtypes[:2])
    rest = [x for x in args if not (isinstance(x, list) and x[:1] == ["TENSOR"])]
    name = task.lower()
    if name.startswith("batch_matmul"):
        turned = rest[-1] is not False if rest and isinstance(rest[-1], bool) else True
        return product("batch_matmul", shapes[0], shapes[1], dtype, turned), ("b", "h", "w", "k")
    if name.startswith("dense"):
        return product("matmul", shapes[0], shapes[1], dtype, True), ("h", "w", "k")
    if not name.startswith(("conv", "depthwise", "group_conv")) or "winograd" in name:
        raise Unmapped(f"the task {task}")
    layout = "NHWC" if "nhwc" in name or "nwc" in name else "NCHW"
    stride, padding = rest[0], rest[1]
    x, w = shapes[0], shapes[1]
    if len(x) > 5 or ("NCHWc" in task and len(x) == 5):
        raise Unmapped("tensors whose channels are in blocks")
    if "transpose" in name:
        return convolution(x, w, dtype, layout, stride, padding, operator="conv2d_transpose"), ()
    dilation = rest[2] if len(rest) > 2 and isinstance(rest[2], list | int) else 1
    order = _ORDER[layout]
    if name.startswith("depthwise"):
        w = (*w[:2], 1, w[2] * w[3]) if layout == "NHWC" and w[2] == x[-1] else w
        made = convolution(x, w, dtype, layout, stride, padding, dilation, "depthwise_conv2d")
        return made, tuple(a for a in order if a != "rc")
    groups = 1
    if name.startswith("group_conv"):
        groups = int(rest[3])
        return convolution(x, w, dtype, layout, stride, padding, dilation, groups=groups), ()
    if layout == "NHWC" and w[2] != x[-1]:
        raise Unmapped("weights in another layout than HWIO")
    rank = len(x) - 2
    kept = {1: ("h", "rh"), 2: (), 3: ()}[rank]
    axes = () if rank == 3 else tuple(a for a in order if a not in kept)
    return convolution(x, w, dtype, layout, stride, padding, dilation), axes


# Ansor
def ansor(data: Mapping[str, Any]) -> TvmRecord:
    """{"i": [[workload_key, target, ...], [[], steps]], "r": [costs, error, ...]}"""
    seconds = _seconds(*data["r"][:2])
    key = json.loads(data["i"][0][0])
    steps = data["i"][1][1]
    axes: dict[int, list[tuple[int, ...]]] = {}
    for step in steps:
        match step:
            case ["SP", int(stage), int(), int(extent), [*lengths], *_]:
                inner = [int(n) for n in lengths]
                outer = -(-extent // max(1, prod(inner)))
                axes.setdefault(stage, []).append((outer, *inner))
    tiled = max(axes.values(), key=len, default=[])
    if not tiled:
        raise Unmapped("computations that were not tiled")
    parts = max(map(len, tiled))
    spatial = [t for t in tiled if len(t) == parts]
    reduced = [t for t in tiled if len(t) < parts]
    shapes = [tuple(map(int, x)) for x in key[1:] if _is_shape(x)]
    if not shapes and len(reduced) != 1:
        raise Unmapped("computations that are known by their hash only")
    workload = inferred(list(map(prod, spatial)), list(map(prod, reduced)), shapes, "float32")
    return TvmRecord(workload, dict(enumerate([*spatial, *reduced])), seconds)


def _is_shape(x: Any) -> bool:
    return isinstance(x, list) and bool(x) and all(isinstance(n, int) for n in x)


# MetaSchedule
def metaschedule(data: Sequence[Any]) -> TvmRecord:
    """[workload, [[instructions, decisions], seconds, target, arguments]]"""
    trace, seconds, _, arguments = data[1][:4]
    cost = _seconds(seconds)
    shapes = [tuple(map(int, a[2])) for a in arguments if a[0] == "TENSOR"]
    dtypes = [str(a[1]) for a in arguments if a[0] == "TENSOR"]
    tiles = _tiles_of(*trace[:2])
    if not tiles:
        raise Unmapped("computations that were not tiled")
    parts = max(map(len, tiles))
    spatial = [t for t in tiles if len(t) == parts]
    reduced = [t for t in tiles if len(t) < parts]
    if not reduced:
        raise Unmapped("computations that sum nothing")
    workload = inferred(
        list(map(prod, spatial)), list(map(prod, reduced)), shapes, _plain_dtype(dtypes[:2])
    )
    return TvmRecord(workload, dict(enumerate([*spatial, *reduced])), cost)


def _tiles_of(instructions: Sequence[Any], decisions: Sequence[Any]) -> list[tuple[int, ...]]:
    """The tiles of the block whose loops were tiled most, in the order of its loops."""
    chosen = {int(k): v for k, v in decisions}
    loops: dict[str, tuple[str, int]] = {}  # of which block, and which of its loops
    found: dict[str, dict[int, tuple[int, ...]]] = {}
    for number, (name, inputs, _, outputs) in enumerate(instructions):
        if name == "GetLoops":
            for k, loop in enumerate(outputs):
                loops.setdefault(str(loop), (str(inputs[0]), k))
        elif name == "SamplePerfectTile" and str(inputs[0]) in loops and number in chosen:
            block, k = loops[str(inputs[0])]
            found.setdefault(block, {})[k] = tuple(map(int, chosen[number]))
    best = max(found.values(), key=len, default={})
    return [best[k] for k in sorted(best)]
