'use strict';
// The theme and the figures of a page. Its data is JSON in the element #data; nothing in it is ever read as HTML.
const NARROW = 600;
const touch = matchMedia('(pointer: coarse)').matches;
const data = JSON.parse(document.getElementById('data').textContent);

function isDark() {
  return document.documentElement.dataset.theme === 'dark';
}

// Colours are swapped by lightness: what is pale on white is dark on black, and hues stay.
const COLORS = new Set(['color', 'bgcolor', 'bordercolor', 'gridcolor', 'linecolor', 'tickcolor', 'fillcolor',
  'paper_bgcolor', 'plot_bgcolor', 'colorscale']);

function inverted(color) {
  if (color === '#ffffff') return '#182029';
  if (color.startsWith('rgba(255,255,255')) return color.replace('255,255,255', '24,32,41');
  const parts = /^#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})$/i.exec(color);
  if (!parts) return color;
  const rgb = parts.slice(1).map(part => parseInt(part, 16) / 255);
  const high = Math.max(...rgb), low = Math.min(...rgb);
  const light = (high + low) / 2;
  const saved = 0.16 + 0.8 * (1 - light) - light;
  // The same shift for all three keeps hue; what leaves [0, 1] loses some saturation.
  return '#' + rgb.map(part => Math.round(255 * Math.min(1, Math.max(0, part + saved))).toString(16).padStart(2, '0')).join('');
}

function recolored(value, key) {
  if (typeof value === 'string') return COLORS.has(key) ? inverted(value) : value;
  if (Array.isArray(value)) return COLORS.has(key) ? value.map(item => recolored(item, key)) : value.map(item =>
    item !== null && typeof item === 'object' ? recolored(item, '') : item);
  if (value === null || typeof value !== 'object') return value;
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, recolored(item, name)]));
}

function draw(key, figure) {
  const place = document.getElementById(key);
  if (!place || typeof Plotly === 'undefined') return;
  let layout = structuredClone(figure.layout), traces = figure.data;
  const quiet = touch || innerWidth < NARROW || !figure.zoom;
  if (quiet) layout.dragmode = false;
  if (isDark()) [traces, layout] = [recolored(traces, ''), recolored(layout, '')];
  place.style.minHeight = layout.height + 'px';
  Plotly.react(place, traces, layout, {responsive: true, displaylogo: false, ...(quiet ? {displayModeBar: false} : {}),
    modeBarButtonsToRemove: ['select2d', 'lasso2d', 'autoScale2d']});
  if (data.trials && !place.dataset.clicks) {
    place.dataset.clicks = 'yes';
    place.on('plotly_click', event => {
      const found = /^trial (\d+)\b/.exec(String(event.points[0].hovertext || event.points[0].text || ''));
      if (found && !event.event.defaultPrevented) location.hash = 'trial-' + found[1];
    });
  }
}

// A figure is drawn when it comes near the window: a report of many figures opens at once.
const near = new IntersectionObserver(entries => {
  for (const entry of entries) {
    if (!entry.isIntersecting || !data.figures[entry.target.id]) continue;
    near.unobserve(entry.target);
    draw(entry.target.id, data.figures[entry.target.id]);
  }
}, {rootMargin: '900px'});

function drawAll() {
  for (const [key, figure] of Object.entries(data.figures)) {
    const place = document.getElementById(key);
    if (!place) continue;
    if (!place.style.minHeight) place.style.minHeight = figure.layout.height + 'px';
    if (place.data) draw(key, figure);
    else near.observe(place);
  }
  if (typeof showTrials === 'function') showTrials();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  const button = document.getElementById('theme');
  button.textContent = theme === 'dark' ? '☀' : '☾';
  button.title = button.ariaLabel = theme === 'dark' ? 'Light colours' : 'Dark colours';
}

document.getElementById('theme').onclick = () => {
  setTheme(isDark() ? 'light' : 'dark');
  try { localStorage.setItem('hpo-theme', document.documentElement.dataset.theme); } catch { /* not kept */ }
  drawAll();
};
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', event => {
  let kept = null;
  try { kept = localStorage.getItem('hpo-theme'); } catch { /* none */ }
  if (!kept) { setTheme(event.matches ? 'dark' : 'light'); drawAll(); }
});
addEventListener('beforeprint', () => { for (const [key, figure] of Object.entries(data.figures)) draw(key, figure); });
let wasNarrow = innerWidth < NARROW;
addEventListener('resize', () => {
  if (innerWidth < NARROW === wasNarrow) return;
  wasNarrow = !wasNarrow;
  drawAll();
});
setTheme(document.documentElement.dataset.theme || 'light');

// What begins like a formula would be run by a spreadsheet.
function csvCell(value) {
  if (value === null) return '';
  if (typeof value !== 'string') return String(value);
  const plain = /^[=+\-@\t\r]/.test(value) && Number.isNaN(Number(value)) ? "'" + value : value;
  return /[",\n\r]/.test(plain) ? '"' + plain.replaceAll('"', '""') + '"' : plain;
}

function save(name, text) {
  const link = document.createElement('a');
  [link.href, link.download] = [URL.createObjectURL(new Blob([text], {type: 'text/csv'})), name];
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// A page whose file is written anew while its study runs; not while somebody looks for a trial.
function reloadLater() {
  document.getElementById('live').textContent = 'live';
  setTimeout(() => {
    const filter = document.getElementById('trials-filter');
    if (document.hidden || (filter && filter.value)) reloadLater();
    else location.reload();
  }, 1000 * data.live);
}
