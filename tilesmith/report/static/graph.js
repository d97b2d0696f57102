// The picture of a model: hover text, zoom and marks.
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
