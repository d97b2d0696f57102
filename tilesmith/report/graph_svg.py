"""A GraphView as an SVG picture: a box for each group, input, output and node on the host, lines
for what they read. Its text comes from a model file, which may hold anything: all of it is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from tilesmith.base.dataclass import dataclass
from tilesmith.graph.kinds import Kind
from tilesmith.report.graph_view import GraphView, GroupView, HostView
from tilesmith.report.layered_layout import Layout, Line, Point, Size, layered
from tilesmith.report.quantities import dims_text, short_number

SIZE = Size(width=264, height=44, gap_x=30, gap_y=34)
COLOURS = {
    Kind.HEAVY: ("#d9822b", "convolutions and products"),
    Kind.REDUCTION: ("#3f7fbf", "reductions"),
    Kind.ELEMENTWISE: ("#6a9f4b", "element-wise"),
    Kind.VIEW: ("#8a8a8a", "copies"),
}
HOST = "#b8405e"
_BORDER = "#5a6472"
_LETTERS = 36  # of a title that fit a box
_ROUND = 8.0  # radius of a corner
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")  # which XML does not allow
_ARROW = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0 0L8 4L0 8z" fill="#8b95a3"/></marker></defs>'
)

STYLE = """
text { font: 12px sans-serif; fill: #1b2430; }
text.title { font-weight: bold; }
path.edge { fill: none; stroke: #8b95a3; stroke-width: 1.4; }
g.box rect { stroke-width: 1; }
"""


@dataclass(frozen=True, slots=True)
class Box:
    """`key` is its id in the picture, `task` the number of its task, 0 for none."""

    key: str
    title: str
    subtitle: str
    hover: str
    fill: str
    stripe: str  # the full colour of its kind; empty for inputs and outputs
    task: int = 0


def clean(text: str) -> str:
    """For XML and HTML, inside of an element or a quoted attribute."""
    return escape(_CONTROL.sub("?", text))


def graph_svg(view: GraphView) -> str:
    """The picture as the text of a file."""
    boxes, edges = _boxes(view), _edges(view)
    inputs = range(len(view.inputs))
    plan = layered(len(boxes), edges, SIZE, left=inputs)
    width, height = f"{plan.width:.0f}", f"{plan.height:.0f}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}">',
            f"<style>{STYLE}</style>",
            _ARROW,
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *(_edge(line, boxes) for line in plan.lines),
            *_drawn(boxes, plan),
            "</svg>",
        ]
    )


def _boxes(view: GraphView) -> list[Box]:
    """Inputs, then groups and nodes on the host, then outputs, as `_edges` counts them."""
    most = max((g.flops for g in view.groups), default=0) or 1
    found = [
        Box(f"input-{k}", s.name, str(s).removeprefix(f"{s.name}: "), f"input {s}", "white", "")
        for k, s in enumerate(view.inputs)
    ]
    found += [_host(b) if isinstance(b, HostView) else _group(b, most) for b in view.steps]
    for k, o in enumerate(view.outputs):
        kind = o.text.removeprefix(o.name).removeprefix(": ")
        found.append(Box(f"output-{k}", o.name, kind, f"output {o.text}", "white", ""))
    return found


def _host(h: HostView) -> Box:
    text = f"{h.number}: {h.op} {h.name!r} runs on the host\n{h.reason}"
    title = f"{h.number} {h.op}"
    return Box(f"host-{h.number}", title, "on the host", text, _mixed(HOST, 0.2), HOST)


def _group(g: GroupView, most: int) -> Box:
    colour, kind = COLOURS[g.kind]
    shape = dims_text(g.outputs[0].shape) if g.outputs else ""
    hover = [
        f"{g.number}: {g.kernel}",
        *(f"writes {v}" for v in g.outputs),
        f"{g.flops:,} FLOP, {g.nbytes:,} bytes, task {g.task}, {kind}",
        "nodes:",
        *(f"  {n}" for n in g.nodes),
    ]
    return Box(
        f"group-{g.number}", f"{g.number} {g.kernel}",
        f"{shape} · {short_number(g.flops)}FLOP · task {g.task}", "\n".join(hover),
        _mixed(colour, 0.08 + 0.72 * (g.flops / most) ** 0.5), colour, g.task,
    )  # fmt: skip


def _edges(view: GraphView) -> list[tuple[int, int]]:
    at: dict[int | str, int] = {s.name: k for k, s in enumerate(view.inputs)}
    first = len(view.inputs)
    at |= {b.number: first + b.number - 1 for b in view.steps}
    edges = [(at[r], at[b.number]) for b in view.steps for r in b.reads if r in at]
    first += len(view.steps)
    edges += [(at[r], first + k) for k, o in enumerate(view.outputs) for r in o.reads if r in at]
    return edges


def _mixed(colour: str, share: float) -> str:
    """So much of a colour in white: the more FLOP, the darker."""
    parts = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return "#" + "".join(f"{round(255 + (p - 255) * share):02x}" for p in parts)


def _drawn(boxes: Iterable[Box], plan: Layout) -> Iterable[str]:
    for box, (x, y) in zip(boxes, plan.corners, strict=True):
        w, h = SIZE.width, SIZE.height
        stripe = f'<rect width="6" height="{h}" fill="{box.stripe}"/>' if box.stripe else ""
        corner = 0 if box.stripe else h / 2
        yield (
            f'<g class="box" id="{box.key}" data-task="{box.task}" '
            f'transform="translate({x:.1f} {y:.1f})"><title>{_hover(box.hover)}</title>'
            f'<rect width="{w}" height="{h}" rx="{corner:g}" fill="{box.fill}" '
            f'stroke="{_BORDER}"/>{stripe}'
            f'<text class="title" x="14" y="18">{clean(_cut(box.title))}</text>'
            f'<text x="14" y="35">{clean(_cut(box.subtitle))}</text></g>'
        )


def _hover(text: str) -> str:
    return "\n".join(map(clean, text.split("\n")))


def _cut(text: str) -> str:
    return text if len(text) <= _LETTERS else text[: _LETTERS - 1] + "…"


def _edge(line: Line, boxes: list[Box]) -> str:
    return (
        f'<path class="edge" data-from="{boxes[line.source].key}" '
        f'data-to="{boxes[line.target].key}" d="{_path(line)}" marker-end="url(#tip)"/>'
    )


def _path(line: Line) -> str:
    points = line.points
    (x0, y0), (x1, y1) = points[0], points[-1]
    if not line.is_long:
        middle = (y0 + y1) / 2
        return f"M{_at(x0, y0)}C{_at(x0, middle)} {_at(x1, middle)} {_at(x1, y1)}"
    parts = [f"M{_at(x0, y0)}"]
    for before, here, after in zip(points, points[1:], points[2:], strict=False):
        parts.append(f"L{_at(*_toward(here, before))}Q{_at(*here)} {_at(*_toward(here, after))}")
    parts.append(f"L{_at(x1, y1)}")
    return "".join(parts)


def _toward(a: Point, b: Point) -> Point:
    """A corner's radius from a to b, at most half of the way."""
    far = abs(b[0] - a[0]) + abs(b[1] - a[1])
    share = min(_ROUND, far / 2) / far if far else 0.0
    return a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share


def _at(x: float, y: float) -> str:
    return f"{x:.1f} {y:.1f}"
