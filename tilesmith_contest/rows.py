"""One row per case of a benchmark: stored in a JSON file as they come, shown as a table. A ratio
above 1 means that ours is faster.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import Any

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ArgumentError
from tilesmith.base.whole_file import write_whole
from tilesmith_contest.pairs import geometric_mean
from tilesmith_contest.suite import SUITE


@dataclass(frozen=True)
class Row:
    """The first seven fields are those that every benchmark writes; None if not applicable."""

    name: str
    value: float | None
    unit: str = "us"
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    spread: float | None = None
    op: str = ""
    shape: str = ""
    batch: int = 1
    threads: int = 1
    layout: str | None = None
    gflops: float | None = None
    budget_seconds: float = 0.0  # of tuning, as requested
    tuning_seconds: float = 0.0  # as spent
    near_seconds: float = 0.0  # until the kernel was within 10 % of the final one
    trials: int = 0
    share: float | None = None  # processor time / wall time of ours, over all threads
    peer_share: float | None = None
    peers: dict[str, float] = field(default_factory=dict)  # microseconds of each
    machine: str = ""
    versions: str = ""
    note: str = ""  # remarks about a valid figure
    error: str | None = None  # why there is no figure, or why it is invalid


def read_rows(path: Path) -> list[Row]:
    """Empty if there is no file yet."""
    if not path.exists():
        return []
    names = {f.name for f in fields(Row)}
    try:
        return [Row(**{k: v for k, v in r.items() if k in names}) for r in _objects(path)]
    except (ValueError, TypeError, AttributeError) as e:
        raise ArgumentError(f"{path} does not hold rows of a benchmark: {e}") from None


def _objects(path: Path) -> list[dict[str, Any]]:
    rows = json.loads(path.read_text())
    if not isinstance(rows, list):
        raise ValueError("it holds no list")
    return rows


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Writes all or nothing: a reader never sees a partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps([asdict(r) for r in rows], indent=1) + "\n")


def with_row(rows: Sequence[Row], row: Row) -> list[Row]:
    """`row` in place of the one with its name and machine, or at the end."""
    same = [(r.name, r.machine) == (row.name, row.machine) for r in rows]
    if True in same:
        return [row if s else r for r, s in zip(rows, same, strict=True)]
    return [*rows, row]


def is_done(rows: Iterable[Row], name: str, machine: str) -> bool:
    return any((r.name, r.machine, r.error) == (name, machine, None) for r in rows)


def ordered(rows: Sequence[Row]) -> list[Row]:
    """In the order of the suite; others come last, in their own order."""
    places = {
        (op, ",".join(map(str, shape))): (k, n)
        for k, (op, entry) in enumerate(SUITE.items())
        for n, shape in enumerate(entry.shapes)
    }
    last = (len(SUITE), 0)
    return sorted(rows, key=lambda r: (r.threads, r.batch, *places.get((r.op, r.shape), last)))


HEADER = (
    "op", "shape", "threads", "ours us", "GFLOP/s", "best peer", "its us", "ratio", "±",
    "cores used", "budget s", "near s", "trials",
)  # fmt: skip


def cells(r: Row) -> tuple[str, ...]:
    shape = r.shape if r.batch == 1 else f"{r.shape} x{r.batch}"
    if r.error is not None:
        return (r.op, shape, str(r.threads), "-", "-", r.error, *("-",) * (len(HEADER) - 6))
    return (
        r.op, shape, str(r.threads), _number(r.value, 1), _number(r.gflops, 1), r.peer or "-",
        _number(r.peer_value, 1), _number(r.ratio, 2), _number(r.spread, 2),
        f"{_number(r.share, 2)} / {_number(r.peer_share, 2)}",
        f"{r.budget_seconds or r.tuning_seconds:.0f}", f"{r.near_seconds:.0f}", str(r.trials),
    )  # fmt: skip


def _number(x: float | None, digits: int) -> str:
    return "-" if x is None else f"{x:.{digits}f}"


def means(rows: Sequence[Row]) -> list[tuple[str, int, float, float, int]]:
    """By operator and for all, and by threads: (name, threads, geometric mean, least, cases)."""
    out = []
    for threads in sorted({r.threads for r in rows}):
        here = [r for r in rows if r.threads == threads and r.ratio is not None and not r.error]
        for op in [*dict.fromkeys(r.op for r in here), "all"]:
            ratios = [r.ratio for r in here if op in (r.op, "all") and r.ratio is not None]
            mean = geometric_mean(ratios)
            if mean is not None:
                out.append((op, threads, mean, min(ratios), len(ratios)))
    return out


def notes(rows: Sequence[Row]) -> list[str]:
    return [f"{r.name}: {r.note}" for r in rows if r.note and not r.error]


_LEFT = (0, 1, 5)  # columns of text, which are left-aligned


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            c.ljust(w) if k in _LEFT else c.rjust(w)
            for k, (c, w) in enumerate(zip(r, widths, strict=True))
        ).rstrip()
        for r in rows
    ]


def table(rows: Sequence[Row]) -> str:
    """The rows and their means, as text for a terminal."""
    if not rows:
        return "no rows"
    lines = aligned([HEADER, *map(cells, rows)])
    lines += notes(rows)
    for op, threads, mean, least, count in means(rows):
        lines.append(
            f"geometric mean {op}, {threads} thread{'s' * (threads > 1)}: {mean:.2f} "
            f"(least {least:.2f}, {count} cases)"
        )
    return "\n".join(lines)
