// Which decisions matter: one against the time, all of a task at once, and across tasks.
function drawDecision() {
  const t = one(), d = t.decisions, c = d.columns.find(c => c.name === state.column);
  at('of').textContent = 'Task ' + t.name + ': ' + d.times.length + ' of ' + d.total
    + ' timed candidates.';
  if (!c) { draw('decision', [], {}, 'no decision with more than one value'); return; }
  const u = unit(d.times), byValue = new Map();
  c.values.forEach((v, k) => {
    if (v === null) return;
    if (!byValue.has(v)) byValue.set(v, []);
    byValue.get(v).push(d.times[k] * u.per);
  });
  const values = [...byValue.keys()].sort((a, b) => a - b), x = [], y = [];
  values.forEach((v, k) => byValue.get(v).forEach((us, n) => {
    // Beside each other, so that equal times do not hide one another; always the same way.
    x.push(k + .5 * ((n * .618034) % 1 - .5)); y.push(us);
  }));
  const text = values.flatMap(v => byValue.get(v).map(() => String(v)));
  const bests = values.map(v => Math.min(...byValue.get(v)));
  const win = bests.indexOf(Math.min(...bests));
  const step = Math.ceil(values.length / 30);
  draw('decision', [
    {x, y, text, mode: 'markers', name: 'a candidate',
      marker: {size: 6, opacity: .4, color: colour(0)}, meta: [safe(c.name), u.name],
      hovertemplate: '%{meta[0]} = %{text}<br>%{y:.4~r} %{meta[1]}<extra></extra>'},
    {x: values.map((v, k) => k), y: bests, text: values.map(v => v + ', ' + byValue.get(v).length
      + (byValue.get(v).length === 1 ? ' candidate' : ' candidates')), mode: 'lines+markers',
      name: 'the fastest with this value', line: {color: colour(3), width: 2},
      marker: {size: values.map((v, k) => k === win ? 13 : 8), symbol: values.map((v, k) =>
        k === win ? 'star' : 'diamond'), color: colour(3)}, meta: u.name,
      hovertemplate: '%{text}<br>fastest: %{y:.4~r} %{meta}<extra></extra>'},
  ], {xaxis: axis(safe(c.name), {tickvals: values.map((v, k) => k).filter(k => k % step === 0),
    ticktext: values.filter((v, k) => k % step === 0).map(String)}),
    yaxis: logAxis('time, ' + u.name, y), margin: withLegend,
    showlegend: true, legend: below});
}
function shortNames(names) {  // without what is the same in all of them
  const plain = names.map(n => n.replace(/^#/, '')), block = plain[0] && plain[0].split('.')[0] + '.';
  const same = plain.every(n => n.startsWith(block) || !n.includes('.'));
  return plain.map(n => same && n.startsWith(block) ? n.slice(block.length) : n);
}
function drawParallel() {
  const d = one().decisions, u = unit(d.times), wide = narrow() ? 4 : 8;
  const columns = d.columns.slice(0, wide), n = d.times.length, step = Math.max(1, n / 400);
  const [low, high] = [d.times[0], Math.max(...d.times)].map(Math.log);
  const axes = columns.map(c => {  // values in their order, at equal distances
    const values = [...new Set(c.values)].filter(v => v !== null).sort((a, b) => a - b);
    const at = new Map(values.map((v, k) => [v, values.length > 1 ? k / (values.length - 1) : .5]));
    return {at: k => at.get(c.values[k]), said: k => c.values[k], marks: values.map(v =>
      [at.get(v), String(v)])};
  });
  const spread = Math.max(high - low, Math.log(1.25));
  const height = us => 1 - (Math.log(us) - low) / spread;
  axes.push({at: k => height(d.times[k]), said: k => timeText(d.times[k]), marks:
    (n ? ticked([low, low + spread].map(v => v / Math.LN10 + Math.log10(u.per)), 8).tickvals : [])
      .map(v => [height(v / u.per), plain(v)])});
  const kinds = [[.25, 1.01, '#c3cbd3', 1], [.05, .25, colour(0), 1.3], [-1, .05, colour(3), 2]];
  const traces = kinds.map(([from, to, color, width]) => {
    const x = [], y = [], text = [];
    for (let i = 0; i < n; i += step) {
      const k = Math.floor(i);
      if (k / n < from || k / n >= to) continue;
      axes.forEach((a, c) => { if (a.at(k) === undefined) return;
        x.push(c); y.push(a.at(k)); text.push(a.said(k) + ', ' + timeText(d.times[k])); });
      x.push(null); y.push(null); text.push('');
    }
    return {x, y, text, mode: 'lines', line: {color, width}, opacity: color === '#c3cbd3' ? .5 : .8,
      hovertemplate: '%{text}<extra></extra>'};
  });
  const thin = marks => marks.filter((m, k) => k % Math.ceil(marks.length / 10) === 0);
  draw('parallel', columns.length ? traces : [], {
    xaxis: {tickvals: axes.map((a, k) => k), range: [-.4, axes.length - .6], fixedrange: true,
      ticktext: [...shortNames(columns.map(c => c.name)).map(t => label(t, 14)), 'time, ' + u.name],
      gridcolor: '#7b8794', zeroline: false, automargin: true},
    yaxis: {visible: false, range: [-.06, 1.06], fixedrange: true},
    margin: Object.assign({}, margins, {l: 16}),
    annotations: axes.flatMap((a, k) => thin(a.marks).map(([y, t]) => ({x: k, y, text: safe(t),
      showarrow: false, font: {size: 11}, bgcolor: '#fffd', borderpad: 1})))},
    'no decision with more than one value');
}
function drawImportance() {
  // Tasks call their blocks differently: a decision is known by its axis and level alone.
  const role = c => c.name.replace(/^#/, '').split('.').slice(-2).join('.');
  const tasks = timed(listed()).filter(t => t.decisions.total >= 8 && t.decisions.columns.length)
    .slice(0, 30), all = new Map();
  for (const t of tasks) for (const c of t.decisions.columns)
    all.set(role(c), [...(all.get(role(c)) || []), c.share]);
  const sum = n => all.get(n).reduce((a, b) => a + b, 0), mean = n => sum(n) / all.get(n).length;
  const names = [...all.keys()].sort((a, b) => sum(b) - sum(a)).slice(0, 14);
  const head = document.createElement('tr');
  head.append(cell('th', 'task', 'text'), ...names.map(n => cell('th', n)));
  at('importance-head').replaceChildren(head);
  const number = (share, title) => {
    const c = cell('td', share === null ? '' : (100 * share).toFixed(0));
    if (share !== null) c.style.background = 'rgba(0, 114, 178, ' + .6 * share + ')';
    if (title) c.title = title;
    return c;
  };
  rows('importance-body', [...(tasks.length > 1 ? [[[cell('td', 'mean of those that have it', 'text'),
    ...names.map(n => number(mean(n)))]]] : []), ...tasks.map(t => [[cell('td', short(t.name, 60),
    'text'), ...names.map(n => {
    const c = t.decisions.columns.find(c => role(c) === n);
    if (!c) return number(null);
    const box = number(c.share, c.name + ' of ' + t.name);
    box.addEventListener('click', () => { choose({task: t.key, column: c.name});
      at('tiles').scrollIntoView(); });
    return box;
  })]])]);
}
