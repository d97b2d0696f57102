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
let wasNarrow = narrow();  // names and ticks have less room then
window.addEventListener('resize', () => {
  if (narrow() !== wasNarrow) drawAll(); else drawLayers();
  wasNarrow = narrow();
});
drawStep();
if (live) { follow(); followStep(); }
