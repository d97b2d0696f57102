"""Writes the rows of the suite as a page of Markdown: the table, the means, the machine, and how to
reproduce it.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from pathlib import Path

from tilesmith_contest.rows import HEADER, Row, cells, means, notes

_LEAD = """# Operator suite

This page is written by `tilesmith bench suite {files}`; do not edit it by hand.
Measured on {date}.

Each case of the operator suite (float32) is tuned for the seconds of its `budget s`, then timed
beside the libraries, in turns: peer, ours, peer, ours. Every contestant has a process of its own,
started with its number of threads and pinned to as many cores; while one runs, the others are
stopped. `ratio` is the median of the paired ratios, the peer's time over ours, so above 1 ours is
faster; `±` is half the distance between their quartiles. `cores used` is processor time over wall
time, ours / the peer's. The peer is the fastest of the libraries in its own best layout, with
weights prepared ahead, in inference mode, warm. Answers are compared with each other before
anything is timed. After `near s` seconds of tuning the kernel was within a tenth of what it ended
with. Contestants whose time in turns differs by more than 5 % from their time alone are named below
the table.
"""


def page(rows: Sequence[Row], json: Path, where: Path, chart: Path | None = None) -> str:
    """`where` is the path of the page, to which the chart's path is relative."""
    files = f"--json {_shown(json)} --page {_shown(where)}"
    parts = [_LEAD.format(files=files, date=datetime.date.today())]
    if chart is not None:
        name = os.path.relpath(chart, where.parent)
        parts.append(f"![The ratio to the best peer, by operator]({name})\n")
    parts.append("## The machine\n")
    for machine in dict.fromkeys(r.machine for r in rows):
        libraries = dict.fromkeys(r.versions for r in rows if r.machine == machine)
        parts += [f"- {machine}: {versions or 'no peers'}" for versions in libraries]
    parts += ["\n## Geometric means\n", *_means(rows), "\n## All cases\n", *_cases(rows)]
    if remarks := notes(rows):
        parts += ["\n## In turns and alone\n", *(f"- {line}" for line in remarks)]
    parts.append(
        f"\n## Again\n\n```\npip install -e '.[peers,report]'\n"
        f"tilesmith bench suite --seconds 180 --db suite.db {files}\n```\n\n"
        "A case that is in the JSON already is not run again; an interrupted suite goes on. "
        "`tilesmith bench C2D 56 64 64 1 1 0` does one case.\n"
    )
    return "\n".join(parts)


def _shown(path: Path) -> Path:
    """A path without this machine's folders, which mean nothing elsewhere."""
    return Path(*path.parts[-2:]) if path.is_absolute() else path


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _means(rows: Sequence[Row]) -> list[str]:
    header = ("op", "threads", "geometric mean", "least", "cases")
    lines = [
        (op, str(threads), f"{mean:.2f}", f"{least:.2f}", str(count))
        for op, threads, mean, least, count in means(rows)
    ]
    return _markdown(header, lines)


def _cases(rows: Sequence[Row]) -> list[str]:
    return _markdown(HEADER, [cells(r) for r in rows])
