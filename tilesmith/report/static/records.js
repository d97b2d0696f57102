// The page of a database: filters, text and live updates. Names are any text: elements get them as
// textContent, charts through `safe`, because plotly reads its labels as a kind of HTML.
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
  const words = find.split(' ').filter(w => w);
  return data.tasks.filter(t => own.has(t.key) && words.every(
    w => (t.name + ' ' + t.places).toLowerCase().includes(w)));
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
function named(t) {  // what it computes, and below that what of a network it is
  const c = cell('td', short(t.name, 120), 'text');
  if (t.places) c.append(document.createElement('br'), cell('small', short(t.places, 120)));
  return c;
}
function drawTable() {
  const get = columns[state.sort], sign = state.up ? 1 : -1;
  const sorted = [...listed()].sort((a, b) => {
    const x = get(a), y = get(b);
    if (x === null || y === null) return (x === null) - (y === null);
    return sign * (x < y ? -1 : x > y ? 1 : 0);
  });
  rows('tasks-body', sorted.map(t => [[
    named(t), cell('td', timeText(t.best)),
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
  let text = 'Task ' + t.name + (t.places ? ', ' + t.places : '') + ': ' + timeText(t.best) + '.';
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
