"""One row for each model and number of threads: our time and that of each engine, from one run. A
ratio above 1 means that ours is faster.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tilesmith.base.dataclass import dataclass
from tilesmith.base.whole_file import write_whole


@dataclass(frozen=True)
class EngineResult:
    """What does not apply is None. `error` is the largest difference from the reference, over the
    reference's largest value. `failed` says why there is no time.
    """

    name: str
    ms: float | None = None
    ratio: float | None = None
    spread: float | None = None
    error: float | None = None
    start_seconds: float | None = None
    start_processor_seconds: float | None = None
    failed: str | None = None


@dataclass(frozen=True)
class ModelRow:
    """The first seven fields are those that every bench writes; the peer is the fastest engine."""

    name: str
    value: float | None
    unit: str = "ms"
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    spread: float | None = None
    model: str = ""
    threads: int = 1
    precision: str = "float32"
    reference: str = ""  # what errors are against
    error: float | None = None  # of ours
    first_start_seconds: float | None = None  # with an empty cache, on all cores
    second_start_seconds: float | None = None
    second_start_processor_seconds: float | None = None
    kernels_ms: float | None = None  # sum of our kernels, each timed in its place
    whole_over_kernels: float | None = None  # a run over that sum, taken in turns
    arena_bytes: float | None = None
    machine: str = ""
    versions: str = ""
    note: str = ""  # what was not as it should be, though the figures stand
    failed: str | None = None  # why there is no figure of ours
    engines: tuple[EngineResult, ...] = ()

    def engine(self, name: str) -> EngineResult | None:
        return next((e for e in self.engines if e.name == name), None)


def write_model_rows(path: Path, rows: Sequence[ModelRow]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps([asdict(r) for r in rows], indent=1) + "\n")


MAIN_ENGINE = "onnxruntime"  # the common baseline, with a column of its own


def time_table(rows: Sequence[ModelRow]) -> list[tuple[str, ...]]:
    """Milliseconds of everyone, and the ratios to the fastest engine and to ONNX Runtime."""
    names = list(dict.fromkeys(e.name for r in rows for e in r.engines))
    header = ("model", "threads", "ours ms", *names, "best/ours", "±", "ORT/ours", "±")
    return [header, *(_times(r, names) for r in rows)]


def _named(r: ModelRow) -> str:
    """The model, with the type of its products if neither that nor float32 goes without saying."""
    plain = r.precision == "float32" or r.model.endswith(r.precision)
    return r.model if plain else f"{r.model}-{r.precision}"


def _times(r: ModelRow, names: Sequence[str]) -> tuple[str, ...]:
    found = [r.engine(name) for name in names]
    main = r.engine(MAIN_ENGINE) or EngineResult(MAIN_ENGINE)
    return (
        _named(r), str(r.threads), _number(r.value, 2),
        *("-" if e is None else _number(e.ms, 2) for e in found),
        _number(r.ratio, 2), _number(r.spread, 2),
        _number(main.ratio, 2), _number(main.spread, 2),
    )  # fmt: skip


def start_table(rows: Sequence[ModelRow]) -> list[tuple[str, ...]]:
    """Errors, and how long everyone takes to start: wall time, and processor time (of our second
    start).
    """
    lines: list[tuple[str, ...]] = [("model", "threads", "engine", "error", "start s", "cpu s")]
    for r in rows:
        case = (_named(r), str(r.threads))
        seconds = f"{_number(r.first_start_seconds, 1)} / {_number(r.second_start_seconds, 1)}"
        processor = _number(r.second_start_processor_seconds, 1)
        lines.append((*case, "tilesmith", _small(r.error), seconds, processor))
        for e in r.engines:
            if e.failed is None:
                took = (_number(e.start_seconds, 1), _number(e.start_processor_seconds, 1))
                lines.append((*case, e.name, _small(e.error), *took))
    return lines


def remarks(rows: Sequence[ModelRow]) -> list[str]:
    """What is not in the tables."""
    lines = []
    for r in rows:
        if r.failed is not None:
            lines.append(f"{r.name}: {r.failed}")
        if r.kernels_ms and r.whole_over_kernels:
            over = f"{100 * (r.whole_over_kernels - 1):+.1f} %"
            lines.append(f"{r.name}: kernels sum to {r.kernels_ms:.2f} ms, the whole is {over}")
        if r.arena_bytes:
            lines.append(f"{r.name}: arena of {r.arena_bytes / 1e6:.1f} MB")
        lines += [f"{r.name}: {e.name}: {e.failed}" for e in r.engines if e.failed is not None]
        if r.note:
            lines.append(f"{r.name}: {r.note}")
    return lines


def _number(x: float | None, digits: int) -> str:
    return "-" if x is None else f"{x:.{digits}f}"


def _small(x: float | None) -> str:
    return "-" if x is None else f"{x:.1e}"
