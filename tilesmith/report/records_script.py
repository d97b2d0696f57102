"""The script and the style of the page of a database. The script draws with plotly.js what stands
in the page as JSON, and draws again when another task or decision is chosen.
"""

from __future__ import annotations

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 0 auto;
  padding: 0 16px 48px; color: #222; background: #fff; }
h2 { margin: 2em 0 .2em; font-size: 1.25em; } p { margin: .2em 0 .6em; color: #555; }
nav { position: sticky; top: 0; z-index: 9; background: #fffd; padding: 8px 0;
  border-bottom: 1px solid #ddd; }
select { font: inherit; max-width: 30em; } .two { display: flex; flex-wrap: wrap; }
.two > div { flex: 1 1 480px; min-width: 0; } .chart { height: 380px; }
pre { background: #f6f6f4; padding: 10px; overflow: auto; max-height: 420px; font-size: 12.5px; }
pre .add { color: #17691f; background: #e5f5e5; } pre .del { color: #9b1c1c; background: #fbe9e9; }
table { border-collapse: collapse; font-size: 13.5px; }
td, th { padding: 2px 12px 2px 0; text-align: right; }
td:first-child, th:first-child { text-align: left; } .scroll { max-height: 420px; overflow: auto; }
"""

SCRIPT = r"""
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const at = id => document.getElementById(id);
const colours = ['#4878a8', '#d98c3f', '#7a9e59', '#a85a8c', '#6b6bb3', '#b34d4d',
  '#4da3a3', '#8c7a4d'];
const colour = k => colours[k % colours.length];
const settings = {responsive: true, displaylogo: false};
const below = {orientation: 'h', y: -0.25};  // where a legend stands
const most = 60;  // lines of one chart

function draw(id, traces, layout) {
  const base = {margin: {l: 70, r: 20, t: 30, b: 50}, hovermode: 'closest', showlegend: false};
  if (!traces.length) base.annotations = [{text: 'nothing to show', showarrow: false}];
  Plotly.react(id, traces, Object.assign(base, layout), settings);
}
function chosen() {
  const k = at('task').value;
  return k === 'all' ? data.tasks.map((t, n) => [t, n]) : [[data.tasks[+k], +k]];
}
function options(menu, pairs) {
  menu.replaceChildren(...pairs.map(([value, text]) => {
    const o = document.createElement('option');
    o.value = value; o.textContent = text;
    return o;
  }));
}
function drawCurves() {
  const lines = chosen().flatMap(([t, n]) => t.curves.map((c, k) => [t, c, n + k])).slice(0, most);
  const log = {title: {text: 'best so far, us'}, type: 'log'};
  const few = lines.length > 1 && lines.length < 13;
  for (const [id, axis] of [['time', 'seconds'], ['trials', 'trials']]) {
    draw(id, lines.map(([t, c, k]) => ({
      x: c[axis], y: c.best, name: t.name, mode: 'lines+markers', marker: {size: 4},
      line: {shape: 'hv', color: colour(k)},
      hovertemplate: '%{y:.4g} us after %{x} ' + axis + '<br>' + c.label,
    })), {xaxis: {title: {text: axis}}, yaxis: log, showlegend: few, legend: below});
  }
}
function drawShares() {
  const timed = data.tasks.filter(t => t.best !== null).slice(0, 100);
  const total = timed.reduce((s, t) => s + t.best, 0);
  const height = Math.max(200, 90 + 22 * timed.length);
  at('shares').style.height = height + 'px';
  draw('shares', timed.length ? [{
    type: 'bar', orientation: 'h', x: timed.map(t => t.best), y: timed.map(t => t.name),
    text: timed.map(t => (100 * t.best / total).toFixed(1) + ' %'), marker: {color: colour(0)},
    hovertemplate: '%{y}: %{x:.5g} us, %{text} of the sum<extra></extra>',
  }] : [], {height, xaxis: {title: {text: 'best time, us'}},
    yaxis: {autorange: 'reversed', automargin: true, type: 'category'}});
}
function drawRoofline() {
  const timed = data.tasks.filter(t => t.gflops > 0 && t.intensity > 0);
  const traces = timed.length ? [{
    x: timed.map(t => t.intensity), y: timed.map(t => t.gflops), text: timed.map(t => t.name),
    mode: 'markers', name: 'best kernels', marker: {size: 9, color: colour(0)},
    hovertemplate: '%{text}<br>%{y:.4g} GFLOP/s at %{x:.3g} FLOP/byte<extra></extra>',
  }] : [];
  const xs = timed.map(t => t.intensity);
  const ends = [Math.min(...xs) / 2, Math.max(...xs) * 2];
  if (timed.length) data.peaks.forEach((p, k) => traces.push({
    x: ends, y: [p.gflops, p.gflops], mode: 'lines', name: p.label,
    line: {dash: 'dash', color: colour(k + 1)},
    hovertemplate: '%{y:.4g} GFLOP/s<extra>' + p.label + '</extra>',
  }));
  draw('roofline', traces, {xaxis: {type: 'log', title: {text: 'FLOP per byte'}},
    yaxis: {type: 'log', title: {text: 'GFLOP/s'}}, showlegend: true, legend: below});
}
function drawFailures() {
  const kinds = new Map();
  for (const [t] of chosen()) for (const f of t.failures) {
    const old = kinds.get(f.kind) || [0, f.text];
    kinds.set(f.kind, [old[0] + f.count, old[1]]);
  }
  const names = [...kinds.keys()];
  draw('failures', names.length ? [{
    type: 'bar', x: names, y: names.map(k => kinds.get(k)[0]), marker: {color: colour(5)},
    text: names.map(k => kinds.get(k)[0]), hovertext: names.map(k => kinds.get(k)[1].slice(0, 100)),
    hovertemplate: '%{x}: %{y}<br>the first: %{hovertext}<extra></extra>',
  }] : [], {xaxis: {type: 'category'}, yaxis: {title: {text: 'candidates'}}});
}
function one() { const [[t]] = chosen(); return t; }
function drawDecision() {
  const d = one().decisions, c = d.columns[+at('column').value || 0];
  const count = d.times.length + ' of ' + d.total + ' measured candidates.';
  at('of').textContent = 'Task ' + one().name + ': ' + count;
  if (!c) { draw('decision', [], {}); return; }
  const x = [], y = [], best = new Map();
  c.values.forEach((v, k) => {
    if (v === null) return;
    x.push(String(v)); y.push(d.times[k]);
    best.set(v, Math.min(best.get(v) ?? Infinity, d.times[k]));
  });
  const values = [...best.keys()].sort((a, b) => a - b);
  draw('decision', [
    {x, y, mode: 'markers', name: 'candidates', marker: {size: 6, opacity: .5, color: colour(0)},
      hovertemplate: c.name + ' = %{x}: %{y:.4g} us<extra></extra>'},
    {x: values.map(String), y: values.map(v => best.get(v)), mode: 'lines',
      name: 'the best of each', line: {color: colour(1)},
      hovertemplate: 'best with %{x}: %{y:.4g} us<extra></extra>'},
  ], {xaxis: {type: 'category', categoryorder: 'array', categoryarray: values.map(String),
    title: {text: c.name}}, yaxis: {type: 'log', title: {text: 'time, us'}}});
}
function show(id, text, isDiff) {
  const box = at(id);
  box.replaceChildren();
  for (const line of (text || 'nothing to show').split('\n')) {
    const span = document.createElement('span');
    if (isDiff && line.startsWith('+')) span.className = 'add';
    if (isDiff && line.startsWith('-')) span.className = 'del';
    span.textContent = line + '\n';
    box.append(span);
  }
}
function drawText() {
  const t = one(), x = t.text;
  const none = x ? '' : 'not on this page; see `tilesmith show trace` and `tilesmith show source`';
  at('whose').textContent = 'Task ' + t.name + '.';
  show('schedule', x ? x.schedule : none, false);
  show('schedule-changes', x ? x.schedule_changes : none, true);
  show('source', x ? x.source : none, false);
  show('source-changes', x ? x.source_changes : none, true);
}
function drawComparison() {
  const c = data.comparison;
  if (!c) return;
  const rows = [...c.ratios].sort((a, b) => b.ratio - a.ratio).slice(0, 100);
  const height = Math.max(200, 90 + 22 * rows.length);
  at('comparison').style.height = height + 'px';
  draw('comparison', rows.length ? [{
    type: 'bar', orientation: 'h', x: rows.map(r => r.ratio), y: rows.map(r => r.name),
    marker: {color: rows.map(r => r.ratio >= 1 ? colour(2) : colour(5))},
    hovertemplate: '%{y}: %{x:.3f}<extra></extra>',
  }] : [], {height, xaxis: {title: {text: 'its time / the time here'}},
    yaxis: {autorange: 'reversed', automargin: true, type: 'category'},
    shapes: [{type: 'line', x0: 1, x1: 1, yref: 'paper', y0: 0, y1: 1, line: {width: 1}}]});
}
function drawTask() {
  options(at('column'), one().decisions.columns.map((c, k) =>
    [k, c.name + ' (explains ' + (100 * c.share).toFixed(0) + ' %)']));
  drawCurves(); drawFailures(); drawDecision(); drawText();
}
options(at('task'), [['all', 'all tasks'], ...data.tasks.map((t, k) => [k, t.name])]);
// The address keeps the task, so that it is still chosen when the page is loaded again.
const wanted = location.hash.slice(1);
if (data.tasks[+wanted] && wanted) at('task').value = wanted;
at('task').addEventListener('change', () => { location.hash = at('task').value; drawTask(); });
at('column').addEventListener('change', drawDecision);
drawTask(); drawShares(); drawRoofline(); drawComparison();
"""
