// The table of all trials and the section of one. Texts become text nodes only, never HTML.
const rowsShown = () => innerWidth < NARROW ? 10 : 50;
const best = data.trials ? data.trials.columns.findIndex(name => name.startsWith('best ')) : 0;
const table = {sort: best, down: data.trials?.maximize, page: 0, filter: ''};

function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children.filter(child => child !== null));
  return made;
}

function shown(value) {
  if (value === null) return '';
  if (typeof value !== 'number' || Number.isInteger(value)) return String(value);
  return Math.abs(value) < 1e-3 ? value.toExponential(3) : String(Number(value.toPrecision(5)));
}

// One word of the filter: NAME<VALUE and its like compare a column, anything else is looked for in all of them.
function test(word) {
  const found = /^(.+?)(<=|>=|!=|=|<|>)(.*)$/.exec(word);
  const names = data.trials.columns.map(name => name.toLowerCase().replaceAll(' ', '_'));
  const column = found ? names.indexOf(found[1].toLowerCase()) : -1;
  if (column < 0) return row => row.some(cell => cell !== null && String(cell).toLowerCase().includes(word.toLowerCase()));
  const [, , how, wanted] = found;
  const compared = Number(wanted);
  return row => {
    const cell = row[column];
    if (how === '=' || how === '!=') {
      const same = shown(cell).toLowerCase() === wanted.toLowerCase() ||
        (typeof cell === 'number' && wanted !== '' && cell === compared);
      return same === (how === '=');
    }
    if (typeof cell !== 'number' || Number.isNaN(compared) || wanted === '') return false;
    return {'<': cell < compared, '>': cell > compared, '<=': cell <= compared, '>=': cell >= compared}[how];
  };
}

function chosenRows() {
  const tests = table.filter.split(/\s+/).filter(Boolean).map(test);
  const rows = data.trials.rows.filter(row => tests.every(holds => holds(row)));
  const [at, sign] = [table.sort, table.down ? -1 : 1];
  return rows.sort((one, two) => {
    const [a, b] = [one[at], two[at]];
    if (a === null || b === null) return (a === null) - (b === null) || one[0] - two[0];
    if (typeof a === 'number' && typeof b === 'number') return sign * (a - b) || one[0] - two[0];
    return sign * String(a).localeCompare(String(b), undefined, {numeric: true}) || one[0] - two[0];
  });
}

function fillTable() {
  const {columns} = data.trials;
  const place = document.getElementById('trials');
  const sort = document.getElementById('trials-sort');
  sort.replaceChildren(...columns.flatMap((name, at) => ['▲', '▼'].map((sign, down) =>
    element('option', {value: `${at} ${down}`, textContent: `sort: ${name} ${sign}`}))));
  sort.value = `${table.sort} ${Number(table.down)}`;
  const rows = chosenRows();
  const ROWS = rowsShown();
  const pages = Math.max(1, Math.ceil(rows.length / ROWS));
  table.page = Math.min(table.page, pages - 1);
  const head = columns.map((name, at) => {
    const title = element('th', {}, element('button', {
      textContent: name + (at === table.sort ? (table.down ? ' ▼' : ' ▲') : ''),
      onclick: () => { table.down = at === table.sort && !table.down; table.sort = at; table.page = 0; fillTable(); },
    }));
    if (at === table.sort) title.ariaSort = table.down ? 'descending' : 'ascending';
    return title;
  });
  const body = rows.slice(table.page * ROWS, (table.page + 1) * ROWS).map(row => {
    const line = element('tr', {}, ...row.map((cell, at) => {
      const made = element('td', {className: String(cell ?? '').length <= 24 ? 'n' : ''});
      made.dataset.label = columns[at];
      if (at === 0) made.append(element('a', {href: '#trial-' + cell, textContent: cell}));
      else if (columns[at] === 'state' && cell === 'winner') {
        made.append(element('span', {className: 'pill winner', textContent: cell}));
      } else made.textContent = shown(cell);
      return made;
    }));
    line.className = row[0] === chosenTrial() ? 'chosen' : '';
    return line;
  });
  place.replaceChildren(element('thead', {}, element('tr', {}, ...head)), element('tbody', {}, ...body));
  const first = rows.length ? table.page * ROWS + 1 : 0;
  const last = Math.min(rows.length, (table.page + 1) * ROWS);
  document.getElementById('trials-count').textContent =
    `${first}–${last} of ${rows.length.toLocaleString('en')}` +
    (rows.length < data.trials.rows.length ? ` (${data.trials.rows.length.toLocaleString('en')} in all)` : '');
  document.getElementById('trials-back').disabled = table.page === 0;
  document.getElementById('trials-on').disabled = table.page >= pages - 1;
}

function csv() {
  const lines = [data.trials.columns, ...chosenRows()].map(row => row.map(csvCell).join(','));
  return lines.join('\r\n') + '\r\n';
}

function download() {
  save(data.trials.study + '-trials.csv', csv());
}

function chosenTrial() {
  const found = /^#trial-(\d+)$/.exec(location.hash);
  return found ? Number(found[1]) : null;
}

function facts(rows) {
  return element('table', {}, element('tbody', {}, ...rows.map(([name, value]) =>
    element('tr', {}, element('td', {textContent: name}), element('td', {textContent: value})))));
}

// A table without the columns that are empty in all rows.
function stacked(all, rows) {
  const filled = all.map((_, at) => rows.some(cells => cells[at] !== ''));
  const names = all.filter((_, at) => filled[at]);
  return element('table', {className: 'stack'},
    element('thead', {}, element('tr', {}, ...names.map(name => element('th', {textContent: name})))),
    element('tbody', {}, ...rows.map(cells => element('tr', {}, ...cells.filter((_, at) => filled[at]).map((cell, at) => {
      const made = element('td', {textContent: shown(cell)});
      made.dataset.label = names[at];
      return made;
    })))));
}

function showTrial(jump) {
  const place = document.getElementById('trial');
  const number = chosenTrial();
  const row = number === null ? undefined : data.trials.rows.find(found => found[0] === number);
  place.hidden = row === undefined;
  if (row === undefined) return;
  const {columns, details, params, parents} = data.trials;
  const {curve = [], story = null, attempts = [], visits = [], log = null} = details[number] || {};
  const first = columns.length - params;
  const known = row.map((cell, at) => [columns[at], cell]).filter(([, cell]) => cell !== null);
  const title = element('h2', {textContent: `Trial ${number} `});
  title.append(element('span', {className: 'pill ' + (row[1] === 'winner' ? 'winner' : 'open'), textContent: row[1]}));
  const parent = parents[number];
  const about = element('p', {className: 'caption'});
  if (parent !== undefined) about.append('goes on from ', element('a', {href: '#trial-' + parent, textContent: `trial ${parent}`}));
  const left = element('div', {}, element('h3', {textContent: 'Parameters'}),
    facts(row.slice(first).map((cell, at) => [columns[first + at], cell]).filter(([, cell]) => cell !== null)),
    element('h3', {textContent: 'Results'}), facts(known.slice(2, known.length).filter(([name]) =>
      columns.indexOf(name) < first).map(([name, cell]) => [name, shown(cell)])));
  const plot = element('div', {id: 'trial-curve', className: 'plot'});
  const right = element('div', {}, element('h3', {textContent: 'Learning curve'}), plot,
    element('h3', {textContent: 'Story'}),
    story ? element('ul', {}, ...story.map(line => element('li', {textContent: line})))
      : element('p', {className: 'caption', textContent: `Not in this page, to keep it small: hpo show ${data.trials.study} --trial ${number}`}));
  const parts = [element('div', {className: 'grid'}, left, right)];
  const heads = ['attempt', 'to', 'outcome', 'begins after', 'took', 'worker', 'used'];
  if (attempts.length) parts.push(element('h3', {textContent: 'Attempts'}), stacked(heads, attempts));
  if (visits.length) parts.push(element('h3', {textContent: 'Partitions in the order of the visits'}),
    element('ul', {}, ...visits.map(line => element('li', {textContent: line}))));
  if (log) parts.push(element('p', {className: 'caption', textContent: `Log of the latest attempt, in the study's folder: ${log}`}));
  const close = element('button', {textContent: 'Close', onclick: () => { history.replaceState(null, '', ' '); showTrials(); }});
  place.replaceChildren(element('div', {className: 'bar'}, title, element('span', {style: 'flex:1'}), close), about, ...parts);
  if (curve.length) drawCurve(number);
  else plot.replaceWith(element('p', {className: 'caption', textContent: 'No result yet.'}));
  if (jump) place.scrollIntoView({behavior: 'smooth', block: 'start'});
}

function drawCurve(number) {
  const {axis, winner, details} = data.trials;
  const line = ({curve}, name, color, width) => ({type: 'scatter', mode: 'lines+markers', name,
    x: curve.map(point => point[0]), y: curve.map(point => point[1]), line: {color, width}, marker: {color, size: 5}});
  const traces = [line(details[number], `trial ${number}`, '#1c6dd0', 2.5)];
  const best = winner !== null && winner !== number && details[winner];
  if (best && best.curve) traces.unshift(line(best, `trial ${winner}, the best`, '#e8590c', 1.5));
  const quiet = {gridcolor: '#e9edf2', linecolor: '#c9d1da', zeroline: false, automargin: true};
  draw('trial-curve', {data: traces, zoom: false, layout: {height: 300, margin: {l: 60, r: 16, t: 10, b: 44},
    font: {size: 12, color: '#1f2933'}, paper_bgcolor: '#ffffff', plot_bgcolor: '#ffffff',
    xaxis: {...quiet, title: {text: 'resource trained for'}},
    yaxis: {...quiet, ...axis},
    legend: {orientation: 'h', yref: 'container', yanchor: 'bottom', y: 0, x: 0}, showlegend: traces.length > 1}});
}

function showTrials(jump = false) {
  if (!data.trials || !document.getElementById('trials')) return;
  const field = document.getElementById('trials-filter');
  if (field.value !== table.filter) field.value = table.filter;
  field.oninput = () => { table.filter = field.value; table.page = 0; fillTable(); };
  document.getElementById('trials-back').onclick = () => { table.page -= 1; fillTable(); };
  document.getElementById('trials-on').onclick = () => { table.page += 1; fillTable(); };
  document.getElementById('trials-sort').onchange = event => {
    const [at, down] = event.target.value.split(' ').map(Number);
    Object.assign(table, {sort: at, down: down === 1, page: 0});
    fillTable();
  };
  document.getElementById('trials-csv').onclick = download;
  fillTable();
  showTrial(jump);
}

addEventListener('hashchange', () => showTrials(true));
