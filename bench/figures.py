"""The figures that the documentation shows: one file of docs/figures each, which the benchmark that
measured it writes with `--figure docs/figures/NAME.json`, with its date, machine and command.

    python -m bench.figures            # writes the pages that show them, and docs/reached.svg
    python -m bench.figures --check    # whether they are what the files say

A file may be edited to give it a title, words around it and the `page` it stands on.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tilesmith.base.whole_file import write_whole

DOCS = Path(__file__).parent.parent / "docs"
BEGIN, END = "<!-- bench.figures: begin -->", "<!-- bench.figures: end -->"
PAGES = ("performance", "networks")


@dataclass(frozen=True)
class Figure:
    """A table that was measured."""

    page: str
    title: str
    date: str
    machine: str
    command: str
    before: str
    header: list[str]
    rows: list[list[str]]
    after: str

    def markdown(self) -> str:
        parts = [f"### {self.title}", self.before]
        parts.append("\n".join(map(_line, [self.header, ["---"] * len(self.header), *self.rows])))
        commands = ", ".join(f"`{c.strip()}`" for c in self.command.split(";"))
        parts += [self.after, f"Measured on {self.date}, {self.machine}: {commands}."]
        return "\n\n".join(p for p in parts if p)


def save_figure(path: str, machine: str, header: list[str], rows: list[list[str]]) -> None:
    """Writes what a benchmark has measured just now. Title, page and words of an older file at this
    place are kept.
    """
    place = Path(path)
    words = {"page": "performance", "title": place.stem, "before": "", "after": ""}
    if place.exists():
        old = json.loads(place.read_text())
        words = {name: old[name] for name in words}
    module = Path(sys.argv[0]).stem
    command = shlex.join(["python", "-m", f"bench.{module}", *sys.argv[1:]])
    date = datetime.date.today().isoformat()
    figure = Figure(date=date, machine=machine, command=command, header=header, rows=rows, **words)
    write_whole(place, json.dumps(asdict(figure), indent=1, ensure_ascii=False) + "\n")


def figures() -> dict[str, Figure]:
    """By the name of the file, in the order of the pages."""
    return {
        p.stem: Figure(**json.loads(p.read_text())) for p in sorted(DOCS.glob("figures/*.json"))
    }


def page(name: str, text: str) -> str:
    """The page with all its figures between the two marks."""
    head, rest = text.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    shown = "\n\n".join(f.markdown() for f in figures().values() if f.page == name)
    return f"{head}{BEGIN}\n{shown}\n{END}{tail}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


_INK, _SOFT, _OURS = "#1f2933", "#52606d", "#d1495b"
_WIDTH, _LEFT, _ROW = 760, 230, 20
_MOST = 6.0  # longer bars end here


def picture() -> str:
    """How many times as fast as the best library we are, by operator and by network, as SVG."""
    known = figures()
    xeon, h200 = known["01_suite_xeon"].rows, known["04_suite_h200"].rows
    networks = known["10_networks_tuned"].rows
    panels = [
        ("Operators, one core of a Xeon, beside the best library", [(r[0], r[1]) for r in xeon]),
        ("Operators, NVIDIA H200, beside PyTorch with cuDNN", [(r[0], r[1]) for r in h200]),
        (
            "Networks, two cores of a Neoverse-N1, beside the fastest engine",
            [(r[0], str(min(float(x) for x in r[2:]))) for r in networks],
        ),
    ]
    parts: list[str] = []
    y = 8
    for title, bars in panels:
        y += 18
        parts.append(f'<text x="8" y="{y}" font-weight="bold" fill="{_INK}">{title}</text>')
        for name, ratio in bars:
            parts += _bar(y := y + _ROW, name.replace("*", ""), float(ratio.replace("*", "")))
        y += 14
    one = _LEFT + (_WIDTH - _LEFT - 60) / _MOST
    parts.append(f'<path d="M{one:.0f} 30V{y - 8}" stroke="{_INK}" stroke-dasharray="3 3"/>')
    parts.append(
        f'<text x="{one:.0f}" y="{y + 6}" fill="{_SOFT}" text-anchor="middle">1: the peer</text>'
    )
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y + 14}" '
        f'viewBox="0 0 {_WIDTH} {y + 14}" font-family="sans-serif" font-size="13">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _bar(y: int, name: str, ratio: float) -> list[str]:
    length = min(ratio, _MOST) / _MOST * (_WIDTH - _LEFT - 60)
    return [
        f'<text x="{_LEFT - 8}" y="{y}" fill="{_SOFT}" text-anchor="end">{name}</text>',
        f'<rect x="{_LEFT}" y="{y - 11}" width="{length:.1f}" height="13" fill="{_OURS}"/>',
        f'<text x="{_LEFT + length + 6:.1f}" y="{y}" fill="{_INK}">{ratio:.2f}</text>',
    ]


def written() -> dict[Path, str]:
    """What the documents should be."""
    pages = {p: page(p.stem, p.read_text()) for p in (DOCS / f"{name}.md" for name in PAGES)}
    return {**pages, DOCS / "reached.svg": picture()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a page differs")
    options = parser.parse_args()
    for path, text in written().items():
        if path.exists() and path.read_text() == text:
            continue
        if options.check:
            raise SystemExit(f"{path.name} is not what docs/figures says: python -m bench.figures")
        write_whole(path, text)


if __name__ == "__main__":
    main()
