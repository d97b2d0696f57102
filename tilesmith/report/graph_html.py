"""A GraphView as a page: the picture with hover text and zoom, and beside it the inputs, outputs
and tasks. The page needs no other file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilesmith.report.graph_svg import COLOURS, HOST, clean, graph_svg
from tilesmith.report.graph_view import GraphView
from tilesmith.report.quantities import short_number
from tilesmith.report.static_text import static_text
from tilesmith.task.describe import places_text, shapes_text

_ZOOM = (("in", "+"), ("out", "−"), ("one", "1:1"), ("all", "all"))


def graph_html(view: GraphView) -> str:
    """The page as the text of a file."""
    buttons = "".join(f'<button id="zoom-{k}">{text}</button>' for k, text in _ZOOM)
    return "\n".join(
        [
            "<!DOCTYPE html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{clean(view.name)}</title>',
            f"<style>{static_text('graph.css')}</style></head><body>",
            f'<div id="picture"><div id="zoom" title="also: Ctrl and the wheel">{buttons}</div>',
            f"{graph_svg(view)}</div><aside>{''.join(_aside(view))}</aside>",
            '<div id="tip-text"></div>',
            f"<script>{static_text('graph.js')}</script></body></html>",
        ]
    )


def _aside(view: GraphView) -> Iterable[str]:
    yield f"<h1>{clean(view.name)}</h1>"
    yield (
        f"<p>{len(view.groups)} groups, {len(view.tasks)} tasks, {short_number(view.flops)}FLOP, "
        f"{short_number(view.nbytes)}B read and written</p>"
    )
    yield (
        f"<p>arena of {short_number(view.arena_nbytes)}B; at least "
        f"{short_number(view.arena_lower_bound)}B are alive at once</p>"
    )
    yield from _paragraphs("Inputs", [str(s) for s in view.inputs])
    yield from _paragraphs("Outputs", [o.text for o in view.outputs])
    yield "<h2>Colours</h2>"
    for colour, text in (*COLOURS.values(), (HOST, "on the host")):
        yield f'<p><span class="chip" style="background:{colour}"></span>{text}</p>'
    yield "<p>The darker a box, the more FLOP it has.</p>"
    yield from _tasks(view)
    host = [f"{h.op} {h.name!r}: {h.reason}" for h in view.host]
    yield from _paragraphs("On the host", host)
    yield from _paragraphs("Not known", [view.unknown] if view.unknown else [])


def _paragraphs(title: str, lines: Sequence[str]) -> Iterable[str]:
    if lines:
        yield f"<h2>{title}</h2>"
        yield from (f"<p>{clean(line)}</p>" for line in lines)


def _tasks(view: GraphView) -> Iterable[str]:
    if not view.tasks:
        return
    head = '<th>task</th><th class="left">kernel</th><th>times</th><th>FLOP</th><th>share</th>'
    yield f"<h2>Tasks</h2><table><tr>{head}</tr>"
    for t in sorted(view.tasks, key=lambda t: -t.share):
        cells = (str(t.weight), short_number(t.flops), f"{100 * t.share:.1f} %")
        yield f'<tr data-task="{t.number}"><td>{t.number}</td>'
        text = f"{t.task.func.name} {shapes_text(t.task.func)}"
        yield f'<td class="left" title="{clean(places_text(t.places))}">{clean(text)}</td>'
        yield "".join(f"<td>{c}</td>" for c in cells) + "</tr>"
    yield "</table>"
