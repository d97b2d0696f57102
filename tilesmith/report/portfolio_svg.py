"""A Portfolio as an SVG picture: the measured time of every kernel over each open size, and below
that which kernel runs where. Both axes are logarithmic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import floor, isnan, log, log10

from tilesmith.base.dataclass import dataclass
from tilesmith.report.graph_svg import clean
from tilesmith.runtime.dispatch import Branch, Choice, Region, choice_of, member_of
from tilesmith.tune.open_build import limits_of
from tilesmith.tune.portfolio import Portfolio

COLOURS = (  # of the members, which are at most eight
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a4fb5", "#1f2933",
)  # fmt: skip
OTHERS = "#c3cad2"
_WIDTH, _HEIGHT = 640, 330  # of the picture of one size
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 16, 30, 74
_BAND = 12  # the height of the strip that shows where each member runs
_LEGEND = 18  # the height of a line
_LETTERS = 88  # of such a line
_TICK_GAP = 34  # between the numbers below an axis
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


@dataclass(frozen=True, slots=True)
class Panel:
    """The picture of one size: `at` has the values of the others, `samples` the numbers of the
    samples there, in order of the size.
    """

    size: str
    at: Mapping[str, int]
    samples: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """The member that runs at sizes from `low` to `high`, both included."""

    low: int
    high: int
    member: int


def portfolio_svg(p: Portfolio) -> str:
    """The picture as the text of a file; empty if no size has two samples."""
    shown = panels(p)
    if not shown:
        return ""
    legend = _legend(p)
    height = _HEIGHT * len(shown) + _LEGEND * (len(legend) + 1)
    drawn = [
        f'<g transform="translate(0 {_HEIGHT * k})">{"".join(_panel(p, panel))}</g>'
        for k, panel in enumerate(shown)
    ]
    below = "".join(
        f'<rect x="{_LEFT}" y="{k * _LEGEND}" width="22" height="10" fill="{colour}"/>'
        f'<text x="{_LEFT + 30}" y="{k * _LEGEND + 9}">{clean(text)}</text>'
        for k, (colour, text) in enumerate(legend)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="portfolio" viewBox="0 0 {_WIDTH} {height}"'
        f' width="{_WIDTH}" font-family="sans-serif" font-size="12" fill="#1f2933">{"".join(drawn)}'
        f'<g transform="translate(0 {_HEIGHT * len(shown)})">{below}</g></svg>'
    )


def panels(p: Portfolio) -> list[Panel]:
    """One for each size with several samples, where the other sizes have the values that most of
    the samples have.
    """
    found = []
    for size in limits_of(p.func):
        groups: dict[tuple[tuple[str, int], ...], dict[int, int]] = {}
        for s, sample in enumerate(p.samples):
            others = tuple(pair for pair in sample if pair[0] != size)
            groups.setdefault(others, {})[dict(sample)[size]] = s
        at, own = max(groups.items(), key=lambda item: (len(item[1]), item[0]))
        if len(own) > 1:
            found.append(Panel(size, dict(at), tuple(own[v] for v in sorted(own))))
    return found


def served(p: Portfolio, panel: Panel) -> list[Piece]:
    """Which member runs where in the range of a panel's size, as calls choose it."""
    place = {k: i for i, k in enumerate(p.members)}
    regions = [Region(s, place[k]) for s, k in zip(p.samples, p.chosen, strict=True)]
    limits = limits_of(p.func)
    choice = choice_of(regions, limits)
    low, high = limits[panel.size]
    cuts = sorted({low, high + 1, *(v for v in _cuts(choice, panel.size) if low < v <= high)})
    pieces: list[Piece] = []
    for start, end in pairwise(cuts):
        member = member_of(choice, {**panel.at, panel.size: start})
        if pieces and pieces[-1].member == member:
            pieces[-1] = Piece(pieces[-1].low, end - 1, member)
        else:
            pieces.append(Piece(start, end - 1, member))
    return pieces


def _cuts(choice: Choice, size: str) -> Iterator[int]:
    if isinstance(choice, Branch):
        if choice.size == size:
            yield choice.least
        yield from _cuts(choice.below, size)
        yield from _cuts(choice.other, size)


@dataclass(frozen=True, slots=True)
class _Axis:
    """Numbers between `low` and `high`, by their logarithms, between two places."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = log(max(value, self.low) / self.low) / log(self.high / self.low)
        return self.start + min(share, 1.0) * (self.end - self.start)


def _panel(p: Portfolio, panel: Panel) -> Iterator[str]:
    values = [dict(p.samples[s])[panel.size] for s in panel.samples]
    low, high = limits_of(p.func)[panel.size]
    times = [row[s] for row in p.seconds for s in panel.samples if not isnan(row[s])]
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    x = _Axis(max(1, low), max(high, 2, low + 1), _LEFT, right)
    y = _Axis(min(times) / 1.15, max(times) * 1.15, bottom, _TOP)
    scale, unit = next((u for u in _UNITS if max(times) >= u[0]), _UNITS[-1])
    rest = "".join(f", {n} = {v}" for n, v in panel.at.items())
    yield f'<text x="{_LEFT}" y="18">time in {unit} over {clean(panel.size + rest)}</text>'
    for tick in _decades(y.low / scale, y.high / scale):
        at = y(tick * scale)
        yield f'<path d="M{_LEFT} {at:.1f}H{right}" stroke="#e8ecf0"/>'
        yield f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{tick:.5g}</text>'
    last = float("-inf")
    for v in values:
        yield f'<path d="M{(at := x(v)):.1f} {bottom}v6" stroke="#52606d"/>'
        if at - last >= _TICK_GAP:
            last = at
            yield f'<text x="{at:.1f}" y="{bottom + 44}" text-anchor="middle">{v}</text>'
    yield f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="#52606d"/>'
    place = {k: i for i, k in enumerate(p.members)}
    for k in sorted(range(len(p.seconds)), key=lambda k: -place.get(k, len(p.members))):
        yield from _curve(p, panel, k, place.get(k), x, y)
    for piece in served(p, panel):
        # A length lies in the middle of its part of the strip.
        left, end = x(piece.low - 0.5), x(piece.high + 0.5)
        where = f"{panel.size} from {piece.low} to {piece.high}"
        yield (
            f'<rect class="served" x="{left:.1f}" y="{bottom + 12}" height="{_BAND}" '
            f'width="{max(1.0, end - left):.1f}" fill="{COLOURS[piece.member % len(COLOURS)]}">'
            f"<title>kernel {piece.member} runs for {clean(where)}</title></rect>"
        )
    yield f'<text x="{_LEFT}" y="{bottom + 62}">{clean(panel.size)}, from {low} to {high}</text>'


def _curve(
    p: Portfolio, panel: Panel, k: int, member: int | None, x: _Axis, y: _Axis
) -> Iterator[str]:
    """Lines between neighbouring samples that were timed, and larger points where it is chosen."""
    colour = OTHERS if member is None else COLOURS[member % len(COLOURS)]
    name = f"kernel {member}" if member is not None else "a kernel that is not kept"
    line, is_down = [], False
    for s in panel.samples:
        seconds = p.seconds[k][s]
        if isnan(seconds):
            is_down = False
            continue
        value = dict(p.samples[s])[panel.size]
        at = f"{x(value):.1f} {y(seconds):.1f}"
        line.append(f"{'L' if is_down else 'M'}{at}")
        is_down = True
    width = 1.0 if member is None else 2.0
    yield f'<path d="{"".join(line)}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
    for s in panel.samples:
        if not isnan(seconds := p.seconds[k][s]):
            value = dict(p.samples[s])[panel.size]
            best = min(row[s] for row in p.seconds if not isnan(row[s]))
            hover = f"{name} at {panel.size} = {value}: {seconds * 1e6:.4g} µs, "
            hover += f"{seconds / best:.3f} of the fastest"
            radius = 4.5 if p.chosen[s] == k else 2.0
            yield (
                f'<circle cx="{x(value):.1f}" cy="{y(seconds):.1f}" r="{radius}" fill="{colour}">'
                f"<title>{clean(hover)}</title></circle>"
            )


def _legend(p: Portfolio) -> list[tuple[str, str]]:
    lines = [
        (COLOURS[i % len(COLOURS)], _cut(f"kernel {i}: {p.kernels[k]}"))
        for i, k in enumerate(p.members)
    ]
    others = len(p.kernels) - len(p.members)
    if others:
        lines.append((OTHERS, f"{others} more that were timed and are not needed"))
    return lines


def _cut(text: str) -> str:
    return text if len(text) <= _LETTERS else text[: _LETTERS - 1] + "…"


def _decades(low: float, high: float) -> Sequence[float]:
    """1, 2 and 5 times powers of ten between two numbers; powers alone where these are many."""
    powers = range(floor(log10(low)), floor(log10(high)) + 1)
    steps = (1, 2, 5) if len(powers) < 4 else (1,)
    return [t for e in powers for m in steps if low <= (t := m * 10.0**e) <= high]
