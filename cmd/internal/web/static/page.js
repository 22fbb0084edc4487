// SPDX-License-Identifier: Apache-2.0
//
// The page shows what /events sends: rows that are new or have changed, by table and identifier. All text of others becomes text
// nodes, and never markup.
'use strict';

const $ = (id) => document.getElementById(id);
const tables = {}; // by name: the rows of tables, and of what the drawing shows
for (const table of document.querySelectorAll('table[data-table]')) {
  const heads = [...table.tHead.rows[0].cells].map((th) => ({ label: th.textContent, kind: th.className }));
  tables[table.dataset.table] = { body: table.tBodies[0], heads, rows: new Map(), order: [] };
}
for (const name of ['spots', 'edges']) tables[name] = { rows: new Map(), order: [] };

const marks = { appeared: '▲', gone: '▼', silent: '…', back: '●', cut: '✕', healed: '○', 'took over': '◆' };
const bad = new Set(['silent', 'cut', 'gone']);
const lanes = { appeared: 1, gone: 1, silent: 2, back: 2, cut: 2, healed: 2, 'took over': 0 };
const span = 10 * 60 * 1000; // of the time line, in milliseconds
const most = 100; // events that are kept

let source, retry, waiting; // the stream, and the timers of the next one
let events = [], lastEvent = 0;

function connect() {
  clearTimeout(retry);
  if (source) source.close();
  const mine = source = new EventSource('events?' + new URLSearchParams({ q: $('search').value, sort: $('sort').value }));
  mine.onmessage = (e) => apply(JSON.parse(e.data));
  mine.onerror = () => {
    say('not connected: trying again', true);
    if (mine.readyState === EventSource.CLOSED) retry = setTimeout(connect, 2000);
  };
}

function say(text, isBad) {
  const status = $('status');
  if (status.textContent !== text) status.textContent = text;
  status.className = isBad ? 'bad' : '';
}

function apply(m) {
  document.body.classList.toggle('authorized', m.authorized);
  say((m.place ? 'recording' : 'live') + (m.authorized ? '' : ', counts only'), false);
  if (m.place) showPlace(m.place, m.now);
  $('problem').textContent = m.problem || '';
  $('problem').hidden = !m.problem;
  if (m.full || m.counts) showCounts(m.counts || []);
  if (m.full) {
    for (const t of Object.values(tables)) { t.rows.clear(); t.order = []; if (t.body) t.body.replaceChildren(); }
    events = []; lastEvent = 0;
    $('list').replaceChildren();
  }
  const changed = m.tables || {};
  for (const [name, delta] of Object.entries(changed)) if (tables[name]) update(name, delta);
  if (changed.spots || changed.edges) draw();
  for (const e of m.events || []) addEvent(e);
  if (m.authorized) drawLine(m.now);
}

// showPlace shows where in the recording the page is.
function showPlace(place, now) {
  $('moment').dateTime = new Date(now).toISOString();
  $('moment').textContent = new Date(now).toLocaleString();
  $('pace').textContent = [place.ended && 'the end', place.paused && 'paused', `speed ${place.speed}`].filter(Boolean).join(', ');
  $('pause').textContent = $('pause').dataset.do = place.paused ? 'play' : 'pause';
}

function control(action) { fetch('replay?' + new URLSearchParams({ do: action }), { method: 'POST' }).catch(() => {}); }

function showCounts(counts) {
  const list = $('counts');
  counts.forEach((c, i) => {
    let div = list.children[i];
    if (!div) {
      div = document.createElement('div');
      div.append(document.createElement('dt'), document.createElement('dd'));
      list.append(div);
    }
    const [dt, dd] = div.children;
    if (dt.textContent !== c.name) dt.textContent = c.name;
    if (dd.textContent !== String(c.value)) dd.textContent = c.value;
  });
}

// update brings a table up to date. Rows that have not changed are not touched.
function update(name, delta) {
  const t = tables[name];
  if (!t.body) { // of the drawing
    for (const [id, row] of Object.entries(delta.rows || {})) t.rows.set(id, row);
    if (delta.order) {
      const keep = new Set(delta.order);
      for (const id of t.rows.keys()) if (!keep.has(id)) t.rows.delete(id);
      t.order = delta.order;
    }
    return;
  }
  for (const [id, row] of Object.entries(delta.rows || {})) {
    let tr = t.rows.get(id);
    if (!tr) t.rows.set(id, tr = newRow(t.heads));
    row.c.forEach((text, i) => { if (tr.cells[i].textContent !== text) tr.cells[i].textContent = text; });
    tr.className = row.m || '';
  }
  if (delta.order) {
    const keep = new Set(delta.order);
    for (const [id, tr] of t.rows) if (!keep.has(id)) { tr.remove(); t.rows.delete(id); }
    let at = t.body.firstChild;
    for (const id of delta.order) {
      const tr = t.rows.get(id);
      if (tr === at) at = at.nextSibling; else t.body.insertBefore(tr, at);
    }
    t.order = delta.order;
  }
  const shown = t.order.length, total = document.querySelector(`[data-total="${name}"]`);
  total.textContent = delta.total > shown ? `the first ${shown} of ${delta.total}` : String(delta.total);
}

function newRow(heads) {
  const tr = document.createElement('tr');
  heads.forEach((head, i) => {
    const cell = document.createElement(i ? 'td' : 'th');
    if (i) cell.dataset.label = head.label; else cell.scope = 'row';
    cell.className = head.kind;
    tr.append(cell);
  });
  return tr;
}

function element(name, attributes, text) {
  const e = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [k, v] of Object.entries(attributes)) if (v !== '' && v !== undefined) e.setAttribute(k, v);
  if (text !== undefined) e.textContent = text;
  return e;
}

const short = (text, n) => text.length > n ? text.slice(0, n - 1) + '…' : text;

// draw puts the contexts on an ellipse, and the links between them as lines.
function draw() {
  const svg = $('drawing'), w = svg.clientWidth || 320, h = 340;
  const spots = tables.spots.order, at = new Map();
  spots.forEach((id, i) => {
    const angle = 2 * Math.PI * i / spots.length - Math.PI / 2;
    at.set(id, [w / 2 + Math.cos(angle) * Math.max(w / 2 - 110, 50), h / 2 + Math.sin(angle) * (h / 2 - 36), Math.cos(angle)]);
  });
  const parts = [];
  tables.edges.order.forEach((id, i) => {
    const { c: [from, to, rate, width], m } = tables.edges.rows.get(id), a = at.get(from), b = at.get(to);
    if (!a || !b) return;
    const line = element('line', { x1: a[0], y1: a[1], x2: b[0], y2: b[1], 'stroke-width': width, class: m });
    line.append(element('title', {}, `${from} – ${to} ${rate}`));
    parts.push(line);
    if (rate && i < 8) parts.push(element('text', { x: a[0] * 0.6 + b[0] * 0.4, y: a[1] * 0.6 + b[1] * 0.4 - 4, class: 'rate', 'text-anchor': 'middle' }, rate));
  });
  for (const id of spots) {
    const { c: [name, waiting], m } = tables.spots.rows.get(id), [x, y, side] = at.get(id);
    const dot = element('circle', { cx: x, cy: y, r: 7, class: m });
    dot.append(element('title', {}, `${id} ${name}, ${waiting}`));
    const middle = Math.abs(side) < 0.3;
    parts.push(dot, element('text', {
      x: middle ? x : x + Math.sign(side) * 12, y: middle ? y + (y < h / 2 ? -12 : 20) : y + 4,
      'text-anchor': middle ? 'middle' : side > 0 ? 'start' : 'end', class: m,
    }, short((m ? '! ' : '') + name, 16)));
  }
  svg.setAttribute('viewBox', `0 0 ${w} ${h}`);
  svg.replaceChildren(...parts);
}

function addEvent(e) {
  if (e.n <= lastEvent) return;
  lastEvent = e.n;
  events.push(e);
  const li = document.createElement('li'), time = document.createElement('time'), kind = document.createElement('b'), text = document.createElement('span');
  const when = new Date(e.t);
  time.dateTime = when.toISOString();
  time.textContent = when.toLocaleTimeString();
  kind.textContent = `${marks[e.kind] || '·'} ${e.kind}`;
  text.textContent = e.text;
  li.append(time, kind, text);
  if (bad.has(e.kind)) li.className = 'bad';
  $('list').prepend(li);
  if (events.length > most) { events.shift(); $('list').lastChild.remove(); }
}

// drawLine shows the events of the last ten minutes: the present is at the right.
function drawLine(now) {
  const parts = [];
  for (let minutes = 0; minutes <= 10; minutes += 2) {
    const x = 97 - 94 * minutes * 60000 / span + '%';
    parts.push(element('line', { x1: x, x2: x, y1: 4, y2: 52, 'stroke-width': 0.3 }), element('text', { x, y: 65, class: 'rate', 'text-anchor': 'middle' }, minutes ? `-${minutes} min` : 'now'));
  }
  for (const e of events) {
    if (now - e.t > span) continue;
    const mark = element('text', { x: 97 - 94 * Math.max(now - e.t, 0) / span + '%', y: 16 + 16 * (lanes[e.kind] || 0), 'text-anchor': 'middle', class: bad.has(e.kind) ? 'bad' : '' }, marks[e.kind] || '·');
    mark.append(element('title', {}, `${e.kind}: ${e.text}`));
    parts.push(mark);
  }
  $('line').replaceChildren(...parts);
}

$('find').addEventListener('submit', (e) => { e.preventDefault(); connect(); });
$('sort').addEventListener('change', connect);
$('search').addEventListener('input', () => { clearTimeout(waiting); waiting = setTimeout(connect, 300); });
for (const b of document.querySelectorAll('#bar button')) b.addEventListener('click', () => control(b.dataset.do));
document.addEventListener('keydown', (e) => {
  if (e.ctrlKey || e.altKey || e.metaKey) return;
  const isTyping = e.target.matches('input, select');
  if (e.key === 'Escape' && e.target === $('search')) { $('search').value = ''; $('search').blur(); connect(); }
  if (isTyping || !document.body.classList.contains('authorized')) return;
  if (e.key === '/') { e.preventDefault(); $('search').focus(); }
  if ($('bar') && !(e.key === ' ' && e.target.matches('button'))) { // a button's own key presses it
    const action = { ' ': $('pause').dataset.do, n: 'step', '+': 'faster', '-': 'slower' }[e.key];
    if (action) { e.preventDefault(); control(action); }
  }
  const part = document.querySelectorAll('nav a')[Number(e.key) - 1];
  if (part) { part.click(); document.querySelector(part.hash).focus(); }
});
let resized;
addEventListener('resize', () => { clearTimeout(resized); resized = setTimeout(draw, 200); });
connect();
