// The charts of the page of a database, drawn with plotly.js, in the colours of Okabe and Ito, which
// colour-blind people can tell apart.
const colours = ['#0072b2', '#e69f00', '#009e73', '#d55e00', '#cc79a7', '#56b4e9', '#7f7f7f'];
const dashes = ['solid', 'dash', 'dot', 'dashdot'];
const symbols = ['circle', 'square', 'diamond', 'cross', 'triangle-up', 'star', 'x'];
const colour = k => colours[k % colours.length];
const dash = k => dashes[Math.floor(k / colours.length) % dashes.length];
const settings = {responsive: true, displaylogo: false,
  modeBarButtonsToRemove: ['select2d', 'lasso2d', 'autoScale2d']};
const below = {orientation: 'h', yref: 'container', y: 0, yanchor: 'bottom', font: {size: 12}};
const most = 60;  // lines or bars of one chart
const grid = {gridcolor: '#e8ecf0', zeroline: false, linecolor: '#9aa5b1', ticks: 'outside',
  tickcolor: '#9aa5b1', automargin: true};
const axis = (text, more) => Object.assign({title: {text, standoff: 10}}, grid, more);
const plain = v => v >= 1e6 || v < 1e-4 ? v.toExponential() : digits(v, 6);
function ticked(range, most) {  // labels at 1, 2, 5, at powers of ten, or evenly for a short range
  const [low, high] = range.map(v => 10 ** v), wide = range[1] - range[0], tickvals = [];
  if (wide < 1) {
    const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(f => f * power).find(s => s >= rough);
    for (let k = Math.ceil(low / step); k * step <= high; k++)
      tickvals.push(Number((k * step).toPrecision(6)));
  } else {
    const every = Math.ceil(wide / most);
    for (let e = Math.floor(range[0]); e <= range[1]; e++)
      for (const d of 3 * wide <= most ? [1, 2, 5] : [1])
        if (e % every === 0 && d * 10 ** e >= low && d * 10 ** e <= high)
          tickvals.push(Number((d + 'e' + e)));
  }
  return {tickvals, ticktext: tickvals.map(plain)};
}
const mostTicks = name => name === 'yaxis' ? 8 : narrow() ? 4 : 8;
// A range of less than a quarter is not stretched: small differences look small.
function logAxis(text, values, name = 'yaxis') {
  const logs = values.filter(v => v > 0 && isFinite(v)).map(Math.log10);
  if (!logs.length) return axis(text, {type: 'log'});
  const ends = [Math.min(...logs), Math.max(...logs)];
  const pad = Math.max(.05 * (ends[1] - ends[0]), (Math.log10(1.25) - ends[1] + ends[0]) / 2);
  const range = [ends[0] - pad, ends[1] + pad];
  return axis(text, Object.assign({type: 'log', range}, ticked(range, mostTicks(name))));
}
function retick(id) {  // after a zoom
  const change = {};
  for (const name of ['xaxis', 'yaxis']) {
    const now = at(id)._fullLayout[name], own = at(id).layout[name];
    if (!now || now.type !== 'log' || !own.tickvals) continue;
    const {tickvals, ticktext} = ticked(now.range, mostTicks(name));
    if (String(tickvals) !== String(own.tickvals))
      Object.assign(change, {[name + '.tickvals']: tickvals, [name + '.ticktext']: ticktext});
  }
  if (Object.keys(change).length) Plotly.relayout(id, change);
}

// As large as labels and titles need: where they need more, plotly draws the chart twice.
const margins = {l: 72, r: 16, t: 34, b: 60};
const withLegend = Object.assign({}, margins, {b: 92});
const pen = document.createElement('canvas').getContext('2d');
pen.font = '13px system-ui, "DejaVu Sans", sans-serif';
const besides = names => Object.assign({}, margins,  // with place for names at the left
  {l: 16 + Math.ceil(Math.max(56, ...names.map(n => pen.measureText(brief(n)).width)))});
function draw(id, traces, layout, none = 'nothing to show') {
  watcher.observe(at(id));
  const base = {margin: margins, hovermode: 'closest', showlegend: false,
    font: {family: 'system-ui, DejaVu Sans, sans-serif', size: 13, color: '#1f2933'},
    paper_bgcolor: '#fff', plot_bgcolor: '#fff',
    uirevision: state.network + state.task + state.column,  // zoom stays while data changes
    hoverlabel: {align: 'left', namelength: -1}};
  if (!traces.length) Object.assign(base, {xaxis: {visible: false}, yaxis: {visible: false},
    annotations: [{text: safe(none), showarrow: false, x: .5, y: .5, xref: 'paper', yref: 'paper',
      font: {size: 15, color: '#7b8794'}}]});
  waiting.set(id, [traces, traces.length ? Object.assign(base, layout) : base]);
  pump();
}
// A chart is drawn when it is scrolled near to the window, because each takes some 50 ms, and one
// after the other, so that the first can be seen while the next is drawn.
const waiting = new Map(), near = new Set();
let pumping = false;
function paint(id) {
  const chart = waiting.get(id);
  waiting.delete(id);
  if (!chart) return;
  const first = !at(id).classList.contains('js-plotly-plot');
  Plotly.react(id, ...chart, settings);
  if (first) at(id).on('plotly_relayout', () => retick(id));
  retick(id);
}
function pump() {
  if (pumping || !window.Plotly) return;
  pumping = true;
  setTimeout(() => {
    pumping = false;
    const next = [...near].find(id => waiting.has(id));
    if (next) { paint(next); pump(); }
  });
}
const watcher = new IntersectionObserver(entries => {
  for (const e of entries) near[e.isIntersecting ? 'add' : 'delete'](e.target.id);
  pump();
}, {rootMargin: '300px'});
window.addEventListener('beforeprint', () => { for (const id of waiting.keys()) paint(id); });
function joined(every) {  // lines of the same colour as one with gaps: plotly is slow with many
  return colours.map((c, k) => every.filter((l, n) => n % colours.length === k))
    .filter(own => own.length).map(own => {
      const gap = values => own.flatMap((l, n) => n ? [null, ...values(l)] : values(l));
      return {name: '', text: gap(l => l.curve.best.map(() => l.text)), seconds: gap(
        l => l.curve.seconds), trials: gap(l => l.curve.trials), best: gap(l => l.curve.best)};
    });
}
function lines(ids, every, what) {
  const shown = every.slice(0, most), named = shown.length > 1 && shown.length <= 12;
  const legend = named ? 14 + 20 * Math.ceil(shown.length / 2) : 0, height = 330 + legend;
  for (const id of ids) at(id).style.height = height + 'px';
  for (const l of shown) l.text = wrap(l.name + ', ' + l.curve.label);
  const drawn = shown.length > 12 ? joined(shown)
    : shown.map(l => Object.assign({text: l.text, name: label(l.name, 30)
      + (shown.some(m => m !== l && m.name === l.name) ? ', ' + label(l.curve.label, 30) : '')},
      l.curve));
  const all = drawn.flatMap(l => l.best), u = unit(all), few = all.length <= 100 * drawn.length;
  for (const [id, by, text] of [[ids[0], 'seconds', 'seconds of tuning'],
    [ids[1], 'trials', 'measured candidates']])
    draw(id, drawn.map((l, k) => ({
      x: l[by], y: l.best.map(v => v === null ? v : v * u.per), name: l.name, text: l.text,
      mode: few && shown.length <= 12 ? 'lines+markers' : 'lines', marker: {size: 4},
      line: {shape: 'hv', width: 2, color: colour(k), dash: dash(k)},
      hovertemplate: '%{y:.4~r} ' + u.name + ' after %{x:.4~f} ' + (by === 'trials' ? by : 's')
        + '<br>%{text}<extra></extra>',
    })), {xaxis: axis(text, {rangemode: 'tozero'}), yaxis: logAxis(what + ', ' + u.name,
        all.map(v => v * u.per)),
      height, margin: Object.assign({}, margins, {b: margins.b + legend}), showlegend: named,
      legend: below}, 'no tuning run has measured anything here');
}
function drawNetworks() {
  at('networks').style.display = data.networks.length ? '' : 'none';
  if (!data.networks.length) return;
  const own = data.networks.filter(n => state.network === 'all' || '=' + n.name === state.network);
  const missing = own.reduce((s, n) => s + n.missing, 0);
  at('networks-missing').textContent = missing
    ? missing + (missing === 1 ? ' task has' : ' tasks have') + ' no time yet and count as 0.' : '';
  lines(['network-time', 'network-trials'],
    own.flatMap(n => n.curves.map(curve => ({name: n.name, curve}))), 'latency');
}
function drawCurves() {
  lines(['time', 'trials'], chosen().flatMap(t => t.curves.map(curve => ({name: t.name, curve}))),
    'best time so far');
}
function bars(id, names, trace, layout) {  // by number, because names may be equal when shortened
  const height = Math.max(160, 90 + 24 * names.length);
  at(id).style.height = height + 'px';
  const numbers = names.map((n, k) => k);
  draw(id, names.length ? [Object.assign({type: 'bar', orientation: 'h', y: numbers,
    customdata: names.map(wrap)}, trace)] : [], Object.assign({height, bargap: .3,
    margin: besides(names), yaxis: {tickvals: numbers, ticktext: names.map(n => label(n) + ' '),
      automargin: true, range: [names.length - .5, -.5], fixedrange: true, zeroline: false}},
    layout));
}
function drawShares() {
  const own = weights(), all = timed(listed());
  const latency = t => t.best * own.get(t.key);
  const total = all.reduce((s, t) => s + latency(t), 0);
  const shown = [...all].sort((a, b) => latency(b) - latency(a)).slice(0, most);
  const u = unit(shown.map(latency));
  at('shares-of').textContent = network()
    ? 'Each task is counted as often as ' + short(network().name, 60) + ' runs it.'
    : 'Each task counts once.'
      + (data.networks.length ? ' Choose a network above to count how often it runs each.' : '');
  at('shares-of').textContent += ' In all: ' + timeText(total) + '.';
  bars('shares', shown.map(t => t.name), {
    x: shown.map(t => latency(t) * u.per),
    text: shown.map(t => (100 * latency(t) / total).toFixed(1) + ' %'), textposition: 'auto',
    marker: {color: shown.map(t => t.key === state.task ? colour(3) : colour(0))},
    meta: u.name, hovertext: shown.map(t => own.get(t.key) + ' × ' + timeText(t.best)),
    hovertemplate: '%{customdata}<br>%{hovertext} = %{x:.4~r} %{meta}, %{text}<extra></extra>',
  }, {xaxis: axis('time, ' + u.name)});
}
function drawRoofline() {
  const all = listed().filter(t => rate(t) > 0 && t.intensity > 0), task = one();
  const traces = [];
  const xs = all.map(t => t.intensity);
  const used = new Set(all.map(t => t.roof).filter(k => k !== null));
  // As far as both slopes of each roof, and the points, can be seen.
  const knees = [...used].flatMap(k => [data.roofs[k].l2, data.roofs[k].memory].map(
    band => data.roofs[k].gflops / band));
  const ends = [Math.min(...xs, ...knees) / 4, Math.max(...xs, ...knees) * 3];
  let k = 0;
  for (const n of used) {
    const r = data.roofs[n], ink = colours[(6 - k) % 7];
    for (const [band, style, what] of [[r.l2, 'dot', 'L2 cache'], [r.memory, 'dash', 'memory']]) {
      const knee = r.gflops / band;
      const x = [ends[0], ...(knee > ends[0] && knee < ends[1] ? [knee] : []), ends[1]];
      traces.push({x, y: x.map(v => Math.min(r.gflops, v * band)), mode: 'lines',
        name: what + ': ' + digits(band) + ' GB/s, ' + digits(r.gflops) + ' GFLOP/s'
          + (used.size > 1 ? ' (' + label(r.label, 40) + ')' : ''),
        line: {dash: style, color: ink, width: 1.5}, text: wrap(r.label),
        hovertemplate: '%{y:.4~r} GFLOP/s<br>%{text}<extra>' + what + '</extra>'});
    }
    k += 1;
  }
  if (state.task !== 'all' && task.flops && task.intensity > 0) {
    const y = task.decisions.times.map(us => task.flops / us / 1e3);
    traces.push({x: y.map(() => task.intensity), y, mode: 'markers',
      name: 'all candidates of this task', marker: {size: 5, color: colour(5), opacity: .45},
      hovertemplate: '%{y:.4~r} GFLOP/s<extra>a candidate</extra>'});
  }
  const machines = [...new Set(all.map(t => t.machine))].slice(0, 7);
  machines.forEach((m, k) => {
    const own = all.filter(t => t.machine === m);
    traces.push({x: own.map(t => t.intensity), y: own.map(rate), text: own.map(t => wrap(t.name)),
      customdata: own.map(t => timeText(t.best) + (ofPeak(t) === null ? ''
        : ', ' + (100 * ofPeak(t)).toFixed(0) + ' % of the peak')),
      mode: 'markers', name: label(m, 40), marker: {size: 11, symbol: symbols[k % symbols.length],
        color: own.map(t => t.key === state.task ? colour(3) : colour(k)),
        line: {color: '#fff', width: 1}},
      hovertemplate: '%{text}<br>%{y:.4~r} GFLOP/s at %{x:.3~r} FLOP/byte<br>%{customdata}'
        + '<extra></extra>'});
  });
  draw('roofline', all.length ? traces : [], {xaxis: logAxis('FLOP per byte', ends, 'xaxis'),
    yaxis: logAxis('GFLOP/s', traces.flatMap(t => t.y)), margin: withLegend, showlegend: true,
    legend: below},
    'no kernel with arithmetic has a time');
}
function drawPredictions() {
  const all = chosen().filter(t => t.predictions), t = one().predictions ? one() : all[0];
  const found = (c, what) => c === null ? '' : what + ' ' + c.toFixed(2);
  at('predicted-of').textContent = t ? 'Task ' + t.name + ': ' + t.predictions.measured.length
    + ' of ' + t.predictions.total + ' programs.' : '';
  for (const [which, k] of [['analytic', 0], ['learned', 2]]) {
    const id = 'predicted-' + which, p = t && t.predictions, x = [], y = [];
    if (p) p[which].forEach((v, k) => { if (v !== null) { x.push(v); y.push(p.measured[k]); } });
    const u = unit(y), line = [Math.min(...x, ...y) * u.per, Math.max(...x, ...y) * u.per];
    draw(id, x.length ? [
      {x: line, y: line, mode: 'lines', line: {color: '#9aa5b1', dash: 'dash', width: 1.5},
        hoverinfo: 'skip'},
      {x: x.map(v => v * u.per), y: y.map(v => v * u.per), mode: 'markers',
        marker: {size: 6, opacity: .55, color: colour(k)}, meta: u.name,
        hovertemplate: 'predicted %{x:.4~r} %{meta}<br>measured %{y:.4~r} %{meta}<extra></extra>'},
    ] : [], {xaxis: logAxis('predicted, ' + u.name, x.map(v => v * u.per), 'xaxis'), yaxis: logAxis('measured, ' + u.name, y.map(v => v * u.per)),
      annotations: x.length ? [{text: found(p[which + '_correlation'], 'rank correlation'),
        showarrow: false, x: .02, y: .98, xref: 'paper', yref: 'paper', xanchor: 'left',
        yanchor: 'top', font: {size: 14}, bgcolor: '#fffc'}] : []},
      which === 'learned' ? 'too few records to learn from' : 'too few records');
  }
  const names = all.map(t => t.name), numbers = names.map((n, k) => k);
  at('correlations').style.display = all.length > 1 ? '' : 'none';
  if (all.length < 2) return;
  const height = 160 + 26 * all.length;
  at('correlations').style.height = height + 'px';
  const both = [['analytic', 'analytic score', 0], ['learned', 'learned model', 2]];
  draw('correlations', both.map(([w, name, k]) => ({
    x: all.map(t => t.predictions[w + '_correlation']), y: numbers, mode: 'markers', name,
    customdata: names.map(wrap),
    marker: {size: 11, color: colour(k), symbol: k ? 'diamond' : 'circle'},
    hovertemplate: '%{customdata}<br>' + name + ': %{x:.2f}<extra></extra>',
  })), {height, showlegend: true, legend: below, margin: Object.assign(besides(names), {b: 92}),
    xaxis: axis('rank correlation', {range: [-1.05, 1.05]}),
    yaxis: {tickvals: numbers, ticktext: names.map(n => label(n) + ' '), automargin: true,
      range: [names.length - .5, -.5], gridcolor: '#e8ecf0', zeroline: false}});
}
function drawFailures() {
  const kinds = new Map();
  let measured = 0;
  for (const t of chosen()) {
    measured += t.measured;
    for (const f of t.failures) {
      const old = kinds.get(f.kind) || {count: 0, text: f.text, task: t.name};
      kinds.set(f.kind, Object.assign(old, {count: old.count + f.count}));
    }
  }
  const names = [...kinds.keys()].sort((a, b) => kinds.get(b).count - kinds.get(a).count);
  at('failures').style.display = names.length ? '' : 'none';
  at('failures-none').textContent = names.length ? '' : 'Nothing failed.';
  if (names.length) bars('failures', names, {
    x: names.map(k => kinds.get(k).count), marker: {color: colour(3)},
    text: names.map(k => (100 * kinds.get(k).count / Math.max(1, measured)).toFixed(1) + ' %'),
    textposition: 'auto', hovertext: names.map(k => wrap(kinds.get(k).text)),
    hovertemplate: '%{customdata}: %{x}<br>the first: %{hovertext}<extra></extra>',
  }, {xaxis: axis('candidates', {rangemode: 'tozero'})});
  rows('failures-body', names.slice(0, 30).map(k => [[
    cell('td', k, 'text'), cell('td', kinds.get(k).count),
    cell('td', short(kinds.get(k).task, 60), 'text'), cell('td', kinds.get(k).text, 'text')]]));
  at('failures-table').style.display = names.length ? '' : 'none';
}
function drawComparison() {
  const all = data.comparisons;
  at('compared').style.display = all.length ? '' : 'none';
  document.querySelector('a[href="#compared"]').style.display = all.length ? '' : 'none';
  if (!all.length) return;
  at('compared-of').textContent = all.map(c => c.other + ': ' + c.note + (c.mean === null ? ''
    : ' Geometric mean: ' + c.mean.toFixed(3) + ' times as fast here.')).join(' ');
  const listedNames = new Set(listed().map(t => t.name)), furthest = new Map();
  for (const r of all.flatMap(c => c.ratios)) if (listedNames.has(r.name)) furthest.set(r.name,
    Math.max(furthest.get(r.name) || 0, Math.abs(Math.log(r.ratio))));
  const names = [...furthest.keys()].sort((a, b) => furthest.get(b) - furthest.get(a))
    .slice(0, most);
  const row = new Map(names.map((n, k) => [n, k]));
  const height = 110 + 24 * Math.ceil(all.length / 2) + (18 + 10 * all.length) * names.length;
  at('comparison').style.height = height + 'px';
  const traces = all.map((c, k) => {
    const own = c.ratios.filter(r => row.has(r.name)), clear = r => r.low > 1 || r.high < 1;
    return {x: own.map(r => r.ratio), mode: 'markers', name: label(c.other, 40),
      y: own.map(r => row.get(r.name) + .6 * ((k + .5) / all.length - .5)),
      error_x: {symmetric: false, array: own.map(r => r.high - r.ratio),
        arrayminus: own.map(r => r.ratio - r.low), color: colour(k), thickness: 1.5},
      marker: {size: 10, color: colour(k), line: {color: colour(k), width: 2},
        symbol: own.map(r => clear(r) ? 'circle' : 'circle-open')},
      customdata: own.map(r => wrap(r.name)),
      text: own.map(r => digits(r.ratio) + ' × as fast here (' + digits(r.low) + ' to '
        + digits(r.high) + ')'),
      hovertext: own.map(r => 'here ' + timeText(r.here) + ', there ' + timeText(r.other)),
      hovertemplate: '%{customdata}<br>%{hovertext}<br>%{text}<extra></extra>'};
  });
  const far = all.flatMap(c => c.ratios.filter(r => row.has(r.name)).flatMap(r => [r.low, r.high]));
  draw('comparison', names.length ? traces : [], {height, margin: Object.assign(besides(names),
    {b: 92}), xaxis: logAxis('speed here / speed there',
    [...far, ...far.map(v => 1 / v)], 'xaxis'), showlegend: all.length > 1, legend: below,
    yaxis: {tickvals: names.map((n, k) => k), ticktext: names.map(n => label(n) + ' '),
      automargin: true, range: [names.length - .5, -.5], fixedrange: true, zeroline: false,
      gridcolor: '#e8ecf0'},
    shapes: [{type: 'line', x0: 1, x1: 1, yref: 'paper', y0: 0, y1: 1, line: {width: 1.5}}]});
}
function drawCharts() {
  drawNetworks(); drawCurves(); drawShares(); drawRoofline(); drawPredictions(); drawDecision();
  drawParallel(); drawImportance(); drawFailures(); drawComparison();
}
