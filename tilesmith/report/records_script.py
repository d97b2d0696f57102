"""The style of the page of a database, and the first half of its script: filters, text and live
updates. The charts are in records_charts.py.

Names are any text. Elements get them as `textContent`; charts get them through `safe`, because
plotly reads its labels as a kind of HTML, and never as a part of a template.
"""

from __future__ import annotations

STYLE = """
:root { --ink: #1f2933; --soft: #52606d; --line: #d9dee4; --back: #f5f7fa; --accent: #0072b2; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; margin: 0; color: var(--ink);
  background: var(--back); }
header, main { max-width: 1180px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 22px; }
h1 { font-size: 1.6em; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.25em; margin: 0; } h3 { font-size: 1em; margin: .8em 0 .3em; }
p { margin: .3em 0 .8em; color: var(--soft); max-width: 75em; overflow-wrap: anywhere; }
.cards { display: flex; flex-wrap: wrap; gap: 12px; margin: 14px 0; }
.cards div { background: #fff; border: 1px solid var(--line); border-radius: 8px;
  padding: 8px 16px; min-width: 8em; color: var(--soft); }
.cards b { display: block; font-size: 1.45em; color: var(--ink); font-weight: 600; }
nav { position: sticky; top: 0; z-index: 9; background: #fff; border-top: 1px solid var(--line);
  border-bottom: 1px solid var(--line); box-shadow: 0 1px 4px #0001; }
nav > div { max-width: 1180px; margin: 0 auto; padding: 8px 20px; display: flex; flex-wrap: wrap;
  gap: 6px 18px; align-items: center; }
nav a { color: var(--accent); text-decoration: none; font-size: .92em; }
nav a:hover { text-decoration: underline; }
select, input { font: inherit; font-size: .95em; padding: 2px 6px; border: 1px solid #b8c2cc;
  border-radius: 5px; background: #fff; max-width: 21em; }
#links { display: flex; flex-wrap: wrap; gap: 2px 14px; margin-left: auto; }
#live { font-size: .9em; color: #00785a; } #live.stale { color: #b04a00; }
section { background: #fff; border: 1px solid var(--line); border-radius: 8px; margin: 18px 0;
  padding: 16px 20px 14px; scroll-margin-top: 90px; }
.two { display: flex; flex-wrap: wrap; gap: 0 20px; }
.two > div { flex: 1 1 460px; min-width: 0; } .chart { height: 370px; }
pre { background: var(--back); border: 1px solid var(--line); border-radius: 6px; padding: 10px;
  overflow: auto; max-height: 420px; font: 12.5px/1.45 ui-monospace, "DejaVu Sans Mono", monospace;
  margin: 0; }
pre .add { color: #004a75; background: #dcedf8; } pre .del { color: #7a3a00; background: #fdeacc; }
.scroll { max-height: 460px; overflow: auto; }
table { border-collapse: collapse; font-size: .93em; width: 100%; }
th { position: sticky; top: 0; background: #fff; cursor: pointer; white-space: nowrap;
  border-bottom: 2px solid var(--line); }
td, th { padding: 4px 14px 4px 0; text-align: right; font-variant-numeric: tabular-nums; }
td.text, th.text { text-align: left; overflow-wrap: anywhere; }
tbody tr { border-bottom: 1px solid #eef1f4; } #tasks tbody tr { cursor: pointer; }
tbody tr:hover, tbody tr.on { background: #eaf4fb; }
footer { color: var(--soft); font-size: .9em; padding: 4px 0 40px; }
"""

SCRIPT = r"""
'use strict';
let data = JSON.parse(document.getElementById('data').textContent);
const at = id => document.getElementById(id);
const safe = t => String(t).replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');
const short = (t, n) => t.length <= n ? t
  : t.slice(0, Math.ceil(n * .6)) + '…' + t.slice(t.length - Math.floor(n * .4) + 1);
const label = (t, n = 38) => safe(short(t, n));
const wrap = t => (t.match(/.{1,70}/gs) || ['']).map(safe).join('<br>');
const timed = tasks => tasks.filter(t => t.best !== null);
function unit(values) {  // of times in microseconds
  const top = Math.max(0, ...values.filter(v => v !== null && isFinite(v)));
  if (top >= 2e6) return {name: 's', per: 1e-6};
  if (top >= 2e3) return {name: 'ms', per: 1e-3};
  return top >= 2 ? {name: 'µs', per: 1} : {name: 'ns', per: 1e3};
}
function timeText(us) {
  if (us === null || us === undefined) return '–';
  const u = unit([us]);
  return Number((us * u.per).toPrecision(4)) + ' ' + u.name;
}
const rate = t => t.best && t.flops ? t.flops / t.best / 1e3 : null;  // GFLOP/s
function ofPeak(t) {
  const r = data.roofs[t.roof];
  return r && rate(t) ? rate(t) / r.gflops : null;
}

const state = {network: 'all', task: 'all', find: '', column: '', sort: 'best', up: false};
function network() { return data.networks.find(n => '=' + n.name === state.network) || null; }
function weights() {  // how often the chosen network runs each task; 1 for each without one
  const n = network(), out = new Map();
  if (n) for (const u of n.uses) out.set(data.tasks[u.task].key, u.weight);
  else for (const t of data.tasks) out.set(t.key, 1);
  return out;
}
function listed() {
  const own = weights(), find = state.find.toLowerCase();
  return data.tasks.filter(t => own.has(t.key) && t.name.toLowerCase().includes(find));
}
function chosen() {
  const every = listed();
  const one = every.filter(t => t.key === state.task);
  return one.length ? one : every;
}
function one() { const c = chosen(); return timed(c)[0] || c[0] || data.tasks[0]; }
function options(menu, pairs, value) {
  menu.replaceChildren(...pairs.map(([v, text]) => {
    const o = document.createElement('option');
    o.value = v; o.textContent = short(text, 60); o.title = text;
    return o;
  }));
  menu.value = pairs.some(([v]) => v === value) ? value : pairs.length ? pairs[0][0] : '';
  return menu.value;
}
function cell(tag, text, kind) {
  const c = document.createElement(tag);
  c.textContent = text;
  if (kind) c.className = kind;
  return c;
}
function rows(id, lines) {
  at(id).replaceChildren(...lines.map(([cells, act, on]) => {
    const row = document.createElement('tr');
    row.append(...cells);
    if (act) row.addEventListener('click', act);
    if (on) row.className = 'on';
    return row;
  }));
}
const columns = {
  name: t => t.name, best: t => t.best, rate, peak: ofPeak, measured: t => t.measured,
  failed: t => t.failed, machine: t => t.machine,
};
function drawTable() {
  const get = columns[state.sort], sign = state.up ? 1 : -1;
  const sorted = [...listed()].sort((a, b) => {
    const x = get(a), y = get(b);
    if (x === null || y === null) return (x === null) - (y === null);
    return sign * (x < y ? -1 : x > y ? 1 : 0);
  });
  rows('tasks-body', sorted.map(t => [[
    cell('td', short(t.name, 80), 'text'), cell('td', timeText(t.best)),
    cell('td', rate(t) === null ? '–' : rate(t).toPrecision(3)),
    cell('td', ofPeak(t) === null ? '–' : (100 * ofPeak(t)).toFixed(0) + ' %'),
    cell('td', t.measured), cell('td', t.failed), cell('td', short(t.machine, 40), 'text'),
  ], () => choose({task: t.key === state.task ? 'all' : t.key}), t.key === state.task]));
}
function show(id, text) { at(id).textContent = text || 'nothing to show'; }
function showChanges(id, text) {
  at(id).replaceChildren(...(text || 'nothing to show').split('\n').map(line => {
    const kind = line.startsWith('+') ? 'add' : line.startsWith('-') ? 'del' : '';
    return kind ? cell('span', line + '\n', kind) : line + '\n';
  }));
}
function drawText() {
  const t = one(), x = t.text;
  const none = x ? '' : t.best === null ? 'no candidate has run yet'
    : 'not on this page; see `tilesmith show trace` and `tilesmith show source`';
  let text = 'Task ' + t.name + ': ' + timeText(t.best) + '.';
  if (t.second) text += ' The runner-up, the next fastest other program, takes '
    + timeText(t.second) + (t.second < t.best ? ', but was not confirmed' : '')
    + '. Lines with + are only in the best, lines with - only in the runner-up.';
  at('whose').textContent = text;
  show('schedule', x ? x.schedule : none);
  showChanges('schedule-changes', x ? x.schedule_changes : none);
  show('source', x ? x.source : none);
  showChanges('source-changes', x ? x.source_changes : none);
}
function drawHead() {
  const every = data.tasks, measured = every.reduce((s, t) => s + t.measured, 0);
  const failed = every.reduce((s, t) => s + t.failed, 0);
  const cards = [[every.length, every.length === 1 ? 'task' : 'tasks']];
  if (data.networks.length) cards.push([data.networks.length,
    data.networks.length === 1 ? 'network' : 'networks']);
  // toLocaleString would do, but loads tables for 40 ms.
  cards.push([String(measured).replace(/\B(?=(\d{3})+$)/g, ','), 'measurements'],
    [measured ? (100 * failed / measured).toFixed(1) + ' %' : '–', 'of them failed']);
  at('cards').replaceChildren(...cards.map(([n, what]) => {
    const box = document.createElement('div');
    box.append(cell('b', n), what);
    return box;
  }));
  at('notes').textContent = data.notes.join(' ');
  at('made').textContent = 'Made ' + data.made + ' from ' + data.place + '.';
}
function menus() {
  state.network = options(at('network'), [['all', 'all'],
    ...data.networks.map(n => ['=' + n.name, n.name])], state.network);
  state.task = options(at('task'), [['all', 'all (' + listed().length + ')'],
    ...listed().map(t => [t.key, t.name])], state.task);
  state.column = options(at('column'), one().decisions.columns.map(c =>
    [c.name, c.name + ' (explains ' + (100 * c.share).toFixed(0) + ' %)']), state.column);
}
function choose(change) {
  Object.assign(state, change);
  menus();
  // The address keeps the choice, for a page that is loaded again or sent to somebody.
  history.replaceState(null, '', '#' + new URLSearchParams(
    {network: state.network, task: state.task}));
  drawAll();
}
function drawAll() { drawHead(); drawCharts(); drawText(); drawTable(); }

const apartFromTime = d => JSON.stringify(Object.assign({}, d, {made: ''}));
async function follow() {
  for (;;) {
    await new Promise(done => setTimeout(done, 1000 * live));
    try {
      const answer = await fetch('data', {cache: 'no-store'});
      const fresh = await answer.json();
      if (fresh.error) throw new Error(fresh.error);
      const changed = apartFromTime(fresh) !== apartFromTime(data);
      data = fresh;
      if (changed) { menus(); drawAll(); }
      at('live').textContent = '● live';
      at('live').className = '';
    } catch (e) {
      at('live').textContent = '○ no news: is tilesmith report --watch still running?';
      at('live').className = 'stale';
    }
  }
}
"""

START = r"""
const wanted = new URLSearchParams(location.hash.slice(1));
for (const k of ['network', 'task']) if (wanted.has(k)) state[k] = wanted.get(k);
menus();
for (const k of ['network', 'task']) at(k).addEventListener('change', e =>
  choose(k === 'network' ? {network: e.target.value, task: 'all'} : {task: e.target.value}));
at('find').addEventListener('input', e => choose({find: e.target.value}));
at('column').addEventListener('change', e => { state.column = e.target.value; drawDecision(); });
for (const h of document.querySelectorAll('#tasks th')) h.addEventListener('click', () => {
  const same = state.sort === h.dataset.sort;
  Object.assign(state, {sort: h.dataset.sort, up: same ? !state.up : false});
  drawTable();
});
drawAll();
if (live) follow();
"""
