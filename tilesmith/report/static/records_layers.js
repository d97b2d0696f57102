// The layers of a network as boxes, each as wide as its share of the time, inside of its modules.
function layersOf(n) {  // a tree: name, time in microseconds, and below a map by name, or a task
  const root = {name: n.name, time: 0, below: new Map(), path: []};
  for (const use of n.uses) {
    const task = data.tasks[use.task];
    if (task.best === null) continue;
    const places = use.layers.length ? use.layers : [[task.name]];
    for (const place of places) {
      const time = task.best * use.weight / places.length;
      let node = root;
      node.time += time;
      place.forEach((name, k) => {
        const key = k + 1 < place.length ? name : name + ' ' + use.task;  // a kernel has no parts
        if (!node.below.has(key)) node.below.set(key,
          {name, time: 0, below: new Map(), path: [...node.path, key]});
        node = node.below.get(key);
        node.time += time;
      });
      node.task = task;
    }
  }
  return root;
}
function joinedLayers(node) {  // a module with one part is one box with it
  const below = [...node.below.values()].map(joinedLayers);
  if (below.length === 1 && node.path.length)
    return Object.assign({}, below[0], {name: node.name + '/' + below[0].name});
  below.sort((a, b) => a.name.localeCompare(b.name, 'en', {numeric: true}));
  return Object.assign({}, node, {below});
}
const inside = (a, b) => b.every((name, k) => a[k] === name);  // whether path b is around a
const pathText = node => node.path.map(p => p.replace(/ \d+$/, '')).join(' › ');
function drawPrecision() {  // the types of a network in narrow numbers
  const n = network() || data.networks.find(n => n.precision.length);
  const on = Boolean(n && n.precision.length);
  at('precision').style.display = on ? '' : 'none';
  if (!on) return;
  const counts = new Map();
  for (const r of n.precision) counts.set(r.precision, (counts.get(r.precision) || 0) + 1);
  at('precision-of').textContent = short(n.name, 60);
  at('precision-counts').textContent = [...counts].map(([t, k]) => k + ' in ' + t).join(', ');
  const shown = (v, text) => cell('td', v === null ? '' : text(v));
  rows('precision-body', n.precision.map(r => {
    const task = data.tasks[r.task];
    return [[cell('td', r.name, 'text'), cell('td', r.precision, 'text'), shown(r.time, timeText),
      shown(r.error, v => digits(v, 2)), shown(r.share, v => digits(100 * v, 2) + ' %'),
      cell('td', r.why, 'text')], () => choose({task: task.key}), task.key === state.task];
  }));
}
function drawLayers() {
  drawPrecision();
  const n = network() || data.networks.find(n => n.uses.length);
  const root = n && joinedLayers(layersOf(n)), on = Boolean(root && root.time > 0);
  at('layers').style.display = on ? '' : 'none';
  document.querySelector('a[href="#layers"]').style.display = on ? '' : 'none';
  if (!on) return;
  at('layers-of').textContent = short(n.name, 60);
  const zoom = state.zoom && state.zoom.of === n.name ? state.zoom.path : [], boxes = [];
  const operators = [...new Set(n.uses.map(u => data.tasks[u.task].name.split(' ')[0]))];
  const kernels = [];
  let deepest = 0;
  const say = node => {
    const parts = [pathText(node) || node.name,
      timeText(node.time) + ', ' + digits(100 * node.time / root.time) + ' %'];
    if (node.task) parts.splice(1, 0, node.task.name);
    return parts.join(': ');
  };
  const place = (node, left, width, depth) => {
    if (!(inside(node.path, zoom) || inside(zoom, node.path)) || width < 1e-5) return;
    const text = (node.task ? node.task.name.split(' ')[0] + ' ' : '') + node.name + ' '
      + digits(100 * node.time / root.time, 2) + ' %';
    const box = cell('div', width * at('flame').clientWidth < 36 ? '' : text);
    box.style.cssText = 'left:' + 100 * left + '%;width:' + 100 * width + '%;top:' + 26 * depth
      + 'px;background:' + (node.task ? colour(operators.indexOf(node.task.name.split(' ')[0]))
        + '66' : '#dfe5ea');
    if (node.task && node.task.key === state.task) box.className = 'on';
    box.title = say(node);
    box.addEventListener('mouseenter', () => { at('layer').textContent = say(node); });
    box.addEventListener('click', () => {
      at('layer').textContent = say(node);
      if (node.task) choose({task: node.task.key === state.task ? 'all' : node.task.key});
      else { state.zoom = {of: n.name, path: node.path}; drawLayers(); }
    });
    boxes.push(box);
    if (node.task) kernels.push(node);
    deepest = Math.max(deepest, depth);
    let start = left;
    for (const b of node.below) {
      const share = zoom.length > node.path.length ? inside(zoom, b.path) ? width : 0
        : width * b.time / node.time;
      place(b, start, share, depth + 1);
      start += share;
    }
  };
  place(root, 0, 1, 0);
  at('flame').replaceChildren(...boxes);
  at('flame').style.height = 26 * (deepest + 1) + 'px';
  const most = Math.max(...kernels.map(k => k.time));
  rows('layers-body', kernels.map(k => {
    const share = cell('td', digits(100 * k.time / root.time, 2) + ' % '), bar = cell('span', '');
    bar.className = 'share';
    bar.style.width = 60 * k.time / most + 'px';
    share.append(bar);
    share.style.textAlign = 'left';
    return [[cell('td', pathText(k), 'text'), cell('td', k.task.name, 'text'),
      cell('td', timeText(k.time)), share], () => choose({task: k.task.key}),
    k.task.key === state.task];
  }));
}
