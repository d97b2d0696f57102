"""A GraphView as a page: the picture with hover text and zoom, and beside it the inputs, outputs
and tasks. The page needs no other file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilesmith.report.graph_svg import COLOURS, HOST, clean, graph_svg
from tilesmith.report.graph_view import GraphView
from tilesmith.report.quantities import dims_text, short_number

_STYLE = """
body { margin: 0; display: flex; height: 100vh; font: 13px sans-serif; color: #1b2430; }
#picture { flex: 1; overflow: auto; user-select: none; }
#picture svg { display: block; margin: 0 auto; }
aside { width: 25em; overflow: auto; padding: 0 1em 1em; border-left: 1px solid #ccd3dc; }
h1 { font-size: 1.3em; overflow-wrap: anywhere; } h2 { font-size: 1.05em; margin: 1.2em 0 .3em; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: right; padding: 1px 5px; }
td.left, th.left { text-align: left; overflow-wrap: anywhere; }
tr[data-task]:hover { background: #eef2f7; cursor: pointer; }
p { margin: .2em 0; overflow-wrap: anywhere; }
.chip { display: inline-block; width: 1em; height: 1em; margin-right: .4em; vertical-align: -2px; }
#tip-text { position: fixed; display: none; white-space: pre-wrap; max-width: 44em;
  padding: 6px 9px; background: #1b2430; color: white; border-radius: 4px;
  pointer-events: none; z-index: 2; }
#zoom { position: fixed; left: 12px; top: 12px; z-index: 1; } #zoom button { min-width: 2.4em; }
path.edge.on { stroke: #c02942; stroke-width: 2.6; }
g.box.on > rect { stroke: #c02942; stroke-width: 2.5; }
"""

_SCRIPT = """
const area = document.getElementById("picture"), svg = area.querySelector("svg");
const tip = document.getElementById("tip-text");
const full = {w: svg.viewBox.baseVal.width, h: svg.viewBox.baseVal.height};
let scale = 1;
function zoom(to, x, y) {
  const box = svg.getBoundingClientRect();
  const px = (x - box.left) / scale, py = (y - box.top) / scale;
  scale = Math.min(4, Math.max(0.03, to));
  svg.setAttribute("width", full.w * scale); svg.setAttribute("height", full.h * scale);
  const now = svg.getBoundingClientRect();
  area.scrollLeft += now.left + px * scale - x; area.scrollTop += now.top + py * scale - y;
}
function middle(to) { const r = area.getBoundingClientRect();
  zoom(to, r.left + r.width / 2, r.top + r.height / 2); }
const acts = {
  in: () => middle(scale * 1.25), out: () => middle(scale / 1.25), one: () => middle(1),
  all: () => middle(Math.min(area.clientWidth / full.w, area.clientHeight / full.h)),
};
for (const [name, act] of Object.entries(acts))
  document.getElementById("zoom-" + name).onclick = act;
area.addEventListener("wheel", e => { if (!e.ctrlKey) return;
  e.preventDefault(); zoom(scale * (e.deltaY < 0 ? 1.15 : 1 / 1.15), e.clientX, e.clientY);
}, {passive: false});
document.addEventListener("keydown", e => {
  const act = {"+": acts.in, "-": acts.out, "1": acts.one, "0": acts.all}[e.key];
  if (act && !e.ctrlKey) act();
});
let from = null;
area.onpointerdown = e => { from = {x: e.clientX, y: e.clientY,
  left: area.scrollLeft, top: area.scrollTop}; };
window.onpointerup = () => { from = null; };
area.onpointermove = e => { if (!from) return;
  area.scrollLeft = from.left + from.x - e.clientX;
  area.scrollTop = from.top + from.y - e.clientY; };
const edges = [...svg.querySelectorAll("path.edge")], boxes = [...svg.querySelectorAll("g.box")];
for (const box of boxes) {
  const title = box.querySelector("title"), text = title.textContent;
  title.remove();
  const near = edges.filter(p => p.dataset.from === box.id || p.dataset.to === box.id);
  const mark = on => [box, ...near].forEach(p => p.classList.toggle("on", on));
  box.onmouseenter = () => { mark(true); tip.textContent = text; tip.style.display = "block"; };
  box.onmouseleave = () => { mark(false); tip.style.display = "none"; };
  box.onmousemove = e => {
    tip.style.left = Math.min(e.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = Math.min(e.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px"; };
}
for (const row of document.querySelectorAll("tr[data-task]")) {
  const its = boxes.filter(b => b.dataset.task === row.dataset.task);
  row.onmouseenter = () => its.forEach(b => b.classList.add("on"));
  row.onmouseleave = () => its.forEach(b => b.classList.remove("on"));
  row.onclick = () => its.length && its[0].scrollIntoView({block: "center", behavior: "smooth"});
}
area.scrollLeft = (area.scrollWidth - area.clientWidth) / 2;
"""

_ZOOM = (("in", "+"), ("out", "−"), ("one", "1:1"), ("all", "all"))


def graph_html(view: GraphView) -> str:
    """The page as the text of a file."""
    buttons = "".join(f'<button id="zoom-{k}">{text}</button>' for k, text in _ZOOM)
    return "\n".join(
        [
            "<!DOCTYPE html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{clean(view.name)}</title>',
            f"<style>{_STYLE}</style></head><body>",
            f'<div id="picture"><div id="zoom" title="also: Ctrl and the wheel">{buttons}</div>',
            f"{graph_svg(view)}</div><aside>{''.join(_aside(view))}</aside>",
            f'<div id="tip-text"></div><script>{_SCRIPT}</script></body></html>',
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
        yield f'<td class="left">{clean(t.task.func.name)} {dims_text(t.shape)}</td>'
        yield "".join(f"<td>{c}</td>" for c in cells) + "</tr>"
    yield "</table>"
