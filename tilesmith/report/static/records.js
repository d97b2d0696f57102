// The page of a database: filters, text and live updates. Names are any text: elements get them as
// textContent, charts through `safe`, because plotly reads its labels as a kind of HTML.
'use strict';
let data = JSON.parse(document.getElementById('data').textContent);
const at = id => document.getElementById(id);
const safe = t => String(t).replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');
const short = (t, n) => t.length <= n ? t
  : t.slice(0, Math.ceil(n * .6)) + '…' + t.slice(t.length - Math.floor(n * .4) + 1);
const narrow = () => innerWidth < 700;
// A name beside a chart: without the most common dtype and the layout, so that shapes have room.
const brief = t => short(t.replace(/ float32( N\w+)?$/, ''), narrow() ? 20 : 46);
const label = (t, n) => safe(n ? short(t, n) : brief(t));
const digits = (v, n = 3) => String(Number(v.toPrecision(n)));  // 160, never 1.6e+2
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
  return digits(us * u.per, 4) + ' ' + u.name;
}
function spreadText(t) {  // how far the 95 % interval reaches to either side
  const [low, high] = t.interval;
  return high > low && t.best ? ' ± ' + digits(50 * (high - low) / t.best, 2) + ' %' : '';
}
const rate = t => t.best && t.flops ? t.flops / t.best / 1e3 : null;  // GFLOP/s
function ofPeak(t) {
  const r = data.roofs[t.roof];
  return r && rate(t) ? rate(t) / r.gflops : null;
}

const state = {network: 'all', task: 'all', find: '', column: '', sort: 'best', up: false,
  zoom: null};
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
    named(t), cell('td', timeText(t.best) + spreadText(t)),
    cell('td', rate(t) === null ? '–' : digits(rate(t))),
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
  for (const id of ['loops', 'schedule']) {
    show(id, x ? x[id] : none);
    showChanges(id + '-changes', x ? x[id + '_changes'] : none);
  }
  show('source', x ? x.source : none);
}
function drawRuns() {
  const own = data.networks.filter(n => state.network === 'all' || '=' + n.name === state.network);
  const all = [...own, ...chosen()].flatMap(x => {
    const end = c => c.best[c.best.length - 1], best = Math.min(...x.curves.map(end));
    return x.curves.map(c => [x.name, c, end(c), end(c) / best - 1]);
  });
  at('runs-of').textContent = all.length > 200 ? '200 of ' + all.length + ' are shown.' : '';
  rows('runs-body', all.slice(0, 200).map(([name, c, end, behind]) => {
    const text = cell('td', short(name, 90), 'text'), last = c.trials.length - 1;
    text.append(document.createElement('br'), cell('small', c.label));
    const near = c.seconds[c.best.findIndex(b => b <= 1.05 * end)];
    return [[text, cell('td', c.started), cell('td', c.trials[last]),
      cell('td', digits(c.seconds[last])), cell('td', timeText(c.best[0])),
      cell('td', timeText(end)), cell('td', behind ? (100 * behind).toFixed(1) + ' %' : 'best'),
      cell('td', near === undefined ? '–' : digits(near) + ' s')]];
  }));
}
let step = null;  // of a run that tunes networks while the page is open
function drawStep() {
  const s = step, age = s ? Date.now() / 1e3 - s.when : 0, on = s && s.label && age < 600;
  at('now').style.display = on ? '' : 'none';
  if (!on) return;
  const us = v => timeText(v === null ? null : 1e6 * v);
  const lines = [['task', s.label], ['why', s.reason || 'the scheduler gives no reason']];
  if (s.best !== null) lines.push(['best so far', us(s.best)
    + (s.bound ? ', ' + digits(s.best / s.bound) + ' times its lower bound of ' + us(s.bound) : '')
    + (s.weight > 1 ? '; the network runs it ' + s.weight + ' times' : '')]);
  lines.push(['expected, at best', s.gain === null ? 'a first time of it'
    : us(s.best - s.gain) + ' a call' + (s.latency ? ', which takes ' + us(s.gain * s.weight) + ' or '
      + digits(100 * s.gain * s.weight / s.latency, 2) + ' % off the whole' : '')]);
  lines.push(['the run', s.networks.join(', ') + ': ' + (s.latency === null
    ? 'not every task has a time yet' : us(s.latency)) + ' after ' + s.trials + ' trials in '
    + Math.round(s.seconds) + ' s' + (s.budget_seconds === null ? ''
      : ' of ' + Math.round(s.budget_seconds) + ' s')
    + (age > 60 ? '; no news for ' + Math.round(age) + ' s' : '')]);
  at('step').replaceChildren(...lines.flatMap(([what, text]) => [cell('dt', what),
    cell('dd', text)]));
}
function drawPortfolios() {
  const every = data.portfolios, on = every.length > 0;
  at('sizes').style.display = on ? '' : 'none';
  document.querySelector('a[href="#sizes"]').style.display = on ? '' : 'none';
  at('portfolios').replaceChildren(...every.map(p => {
    const box = document.createElement('div'), picture = document.createElement('div');
    picture.innerHTML = p.picture;  // names are escaped in it
    box.append(cell('h3', p.name), cell('p', p.text), picture);
    return box;
  }));
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
function drawAll() {
  drawHead(); drawPortfolios(); drawLayers(); drawCharts(); drawRuns(); drawText(); drawTable();
}

const apartFromTime = d => JSON.stringify(Object.assign({}, d, {made: ''}));
async function followStep() {  // apart from the records, which take longer to read
  for (;;) {
    const answer = await fetch('step', {cache: 'no-store'}).catch(() => null);
    step = answer && answer.ok ? await answer.json() : step;
    drawStep();
    await new Promise(done => setTimeout(done, 1000 * live));
  }
}
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
