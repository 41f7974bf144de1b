// The page: what the stream tells, shown. Reads only.

import { ClusterPicture } from './cluster.js';
import { Curves } from './curves.js';
import { follow, get } from './stream.js';
import * as t from './tables.js';
import { $, element, say } from './tables.js';

const ROWS_MAX = 60; // of members; the rest is found by its name
const FILTER_FROM = 12;
const EVENTS_MAX = 200;
const WARNINGS_MAX = 4;
const TOKEN = 'gossipd-token';

const state = { members: [], links: [], events: 0 };
const picture = new ClusterPicture($('cluster'), $('cluster-tip'));
const curves = new Curves($('curves'));
// For tests: what was seen and how much was drawn.
window.gossipd = { snapshots: 0, shown: 0, cluster: picture.work, curves: curves.work };

const swatch = (id, self) => {
  const index = curves.colour_index(id);
  return self ? 'own' : index < 0 ? '' : 'k' + index;
};

const members_table = new t.Table($('members'), [
  { title: 'Name', text: (m) => m.name, hint: (m) => `${m.name}\n${m.address}\n${m.id}`,
    mark: (m) => (m.self ? 'own' : ''), swatch: (m) => swatch(m.id, m.self) },
  { title: 'State', text: (m) => (m.state === 'alive' ? m.phase : m.state),
    mark: (m) => 'state-' + m.state },
  { title: 'Samples/s', text: (m) => t.count(m.samples_per_second),
    bar: (m) => (m.samples_per_second || 0) / state.fastest },
  { title: 'Batch', text: (m) => t.count(m.batch) },
  { title: 'Loss', text: (m) => t.short(m.step > 0 ? m.loss : null) },
  { title: 'Distance', className: 'wide',
    text: (m) => t.short(m.consensus_distance < 1 ? m.consensus_distance : null) },
  { title: 'Heard', className: 'wide', text: (m) => (m.self ? '' : t.duration(m.age_s)) },
]);

const links_table = new t.Table($('links'), [
  { title: 'Neighbour', text: (l) => l.name || l.address, hint: (l) => l.address,
    swatch: (l) => swatch(l.peer, false) },
  { title: 'State', className: 'wide', text: (l) => l.state, mark: (l) => 'state-' + l.state },
  { title: 'Age', text: (l) => t.fixed(l.age_steps, 0) + ' steps' },
  { title: 'Gain', text: (l) => t.fixed(l.gain, 3) },
  { title: 'Correction', text: (l) => t.short(l.correction) },
  { title: 'Trust', className: 'wide', text: (l) => t.fixed(l.trust, 2) },
  { title: 'Round trip', className: 'wide', text: (l) => t.fixed(l.rtt_ms, 1) + ' ms' },
  { title: 'Codec', className: 'wide', text: (l) => l.codec ?? '–' },
  { title: 'Sent', text: (l) => t.bytes(l.bytes_sent) },
  { title: 'Received', className: 'wide', text: (l) => t.bytes(l.bytes_received) },
]);

function show_head({ status }) {
  say($('job'), status.job_name ?? 'gossipd');
  document.title = (status.job_name ? status.job_name + ' · ' : '') + status.name;
  const phase = $('phase');
  phase.hidden = false;
  say(phase, status.isolated ? status.phase + ', isolated' : status.phase);
  const bad = status.trainer.state === 'failed' || status.trainer.state === 'not-finite';
  phase.className = 'pill' + (bad ? ' bad' : status.ready && !status.isolated ? '' : ' warn');
  say($('node'), 'seen from ' + status.name);
  say($('footer'), `gossipd ${status.version} · ${status.id} at ${status.address} · ` +
    `up ${t.duration(status.uptime_s)} · ${status.trainer.device || 'no device'}`);
}

function show_progress({ status }) {
  say($('percent'), status.budget_samples > 0 ? t.percent(status.progress) : '–');
  $('bar').value = status.progress || 0;
  const done = status.phase === 'finished';
  say($('time-left'), done ? 'finished' : t.known(status.time_left_s)
    ? t.duration(status.time_left_s) + ' left' : '');
  say($('samples'), `${t.count(status.cluster_samples_estimate)} of ` +
    `${t.count(status.budget_samples)} samples, step ${t.count(status.step)}`);
  $('waiting').hidden = !status.waiting_for;
  say($('waiting'), 'Waiting for ' + status.waiting_for);
}

function show_figures({ status, members }) {
  const dense = status.dense_baseline_bytes;
  const speed = members.members.reduce((sum, m) => sum + (m.samples_per_second || 0), 0);
  const best = t.known(status.best_accuracy) ? 'best ' + t.percent(status.best_accuracy, 2) : '';
  const rows = [
    ['Accuracy', t.percent(status.accuracy, 2), best],
    ['Loss', t.short(status.step > 0 ? status.loss : null), ''],
    ['Consensus distance', t.short(status.consensus_distance < 1 ? status.consensus_distance : null),
      ''],
    ['Learning rate', t.short(status.learning_rate), 'batch ' + t.count(status.batch)],
    ['Samples/s', t.count(speed), 'this node ' + t.count(status.samples_per_second)],
    ['Sent', t.bytes(status.bytes_sent_total),
      dense > 0 ? t.percent(status.bytes_sent_total / dense, 2) + ' of all-reduce' : ''],
  ];
  const list = $('figures');
  while (list.children.length < rows.length) {
    const box = element('div');
    const value = element('dd');
    value.append(element('span'), element('small'));
    box.append(element('dt'), value);
    list.append(box);
  }
  rows.forEach(([name, value, more], index) => {
    const [dt, dd] = list.children[index].children;
    say(dt, name);
    say(dd.children[0], value);
    say(dd.children[1], more);
  });
}

function show_warnings({ status }) {
  const list = $('warnings');
  const texts = [
    ...(status.trainer.failure ? [{ text: status.trainer.failure }] : []),
    ...(status.trouble ? [{ text: status.trouble }] : []),
    ...(status.cloned ? [{ text: status.cloned }] : []),
    ...(status.disk.slow ? [{ text: 'The disk is slow.' }] : []),
    ...status.warnings.slice(-WARNINGS_MAX).reverse(),
  ];
  list.hidden = texts.length === 0;
  while (list.children.length > texts.length) list.lastChild.remove();
  while (list.children.length < texts.length) {
    const item = element('li');
    item.append(element('span'), element('small'));
    list.append(item);
  }
  texts.forEach(({ text, age_s }, index) => {
    say(list.children[index].children[0], text);
    say(list.children[index].children[1], t.known(age_s) ? t.duration(age_s) + ' ago' : '');
  });
}

function show_members() {
  const { members } = state;
  state.fastest = Math.max(1e-9, ...members.map((m) => m.samples_per_second || 0));
  const filter = $('member-filter');
  filter.hidden = members.length < FILTER_FROM;
  const wanted = filter.value.toLowerCase();
  const rank = (m) => (m.self ? 0 : m.state === 'suspect' || m.state === 'failed' ? 1 :
    m.linked ? 2 : 3);
  const found = members
    .filter((m) => !wanted || m.name.toLowerCase().includes(wanted))
    .sort((a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name) || (a.id < b.id ? -1 : 1));
  members_table.show(found.slice(0, ROWS_MAX));
  $('members-more').hidden = found.length <= ROWS_MAX;
  say($('members-more'), `and ${t.count(found.length - ROWS_MAX)} more`);
}

function show_cluster() {
  const { members, links } = state;
  picture.show(members, links);
  const of_state = (name) => members.filter((m) => m.state === name).length;
  const words = ['alive', 'suspect', 'failed', 'left']
    .map((name) => [name, of_state(name)])
    .filter(([name, number]) => number > 0 || name === 'alive')
    .map(([name, number]) => `${t.count(number)} ${name}`);
  say($('members-count'), words.join(', '));
  const open = links.filter((l) => l.state === 'open').length;
  say($('cluster-words'), `${open} ${open === 1 ? 'link' : 'links'} from this node`);
  $('cluster').setAttribute('aria-label',
    `The cluster: ${words.join(', ')}; ${open} links from this node. The list says more.`);
  const shown = [
    ['training', ''], ['not training', 'idle'], ['suspect', 'suspect'], ['failed', 'failed'],
    ['left', 'left-cluster'],
  ].filter(([, name], index) => index < 1 || (name === 'idle' ? members.some((m) =>
    m.state === 'alive' && !['training', 'finishing', 'finished'].includes(m.phase))
    : of_state(name === 'left-cluster' ? 'left' : name) > 0));
  const legend = $('cluster-legend');
  const text = shown.map(([words]) => words).join();
  if (legend.dataset.shown === text) return;
  legend.dataset.shown = text;
  legend.replaceChildren(...shown.map(([words, name]) => element('span', words, name)),
    document.createTextNode('Size: speed. Line: gain; paler with age.'));
}

function show_links() {
  links_table.show(state.links);
  $('no-links').hidden = state.links.length > 0;
}

let latest = null;
function on_snapshot(snapshot) {
  ++window.gossipd.snapshots;
  const pending = latest !== null;
  latest = snapshot;
  if (pending) return; // one frame shows the last of them
  requestAnimationFrame(() => {
    const now = latest;
    latest = null;
    state.members = now.members.members;
    state.links = now.links.links;
    $('main').hidden = false;
    curves.add(now.status, state.members);
    show_head(now);
    show_progress(now);
    show_figures(now);
    show_warnings(now);
    show_members();
    show_cluster();
    show_links();
    ++window.gossipd.shown;
    if (curves.self !== now.status.id) load_history(now.status.id);
  });
}

async function load_history(self) {
  curves.reset(self);
  const answers = await Promise.all(
    ['v1/history', 'v1/history/members'].map((path) => get(path, stored_token())));
  if (!answers.every((answer) => answer.ok)) return;
  const [history, members] = await Promise.all(answers.map((answer) => answer.json()));
  curves.load(self, history, members);
}

const ROUTINE = ['evaluation', 'checkpoint'];
const shown_kinds = []; // of the list's items, newest first

const name_of = (id) => state.members.find((m) => m.id === id)?.name ?? id;

function words_of(kind, fields) {
  if (kind === 'evaluation')
    return ['accuracy ' + t.percent(Number(fields.accuracy ?? NaN), 2),
      'loss ' + t.short(Number(fields.loss)), 'step ' + t.count(Number(fields.step))].join(' · ');
  if (kind === 'checkpoint')
    return `${fields.which} · step ${t.count(Number(fields.step))} · ` +
      t.bytes(Number(fields.bytes));
  return Object.entries(fields)
    .filter(([key]) => !['cluster', 'incarnation'].includes(key))
    .map(([key, value]) => {
      if (key === 'peer' || key === 'by' || key === 'id') return name_of(value);
      if (['reason', 'text', 'why', 'hint', 'name'].includes(key)) return value;
      return `${key} ${value}`;
    })
    .filter((text, index, all) => text && all.indexOf(text) === index)
    .join(' · ');
}

function on_event({ time, level, kind, fields }) {
  const item = element('li', '', level);
  const when = element('time', new Date(time).toLocaleTimeString('en-GB'));
  when.dateTime = time;
  const what = kind.replaceAll('-', ' ');
  item.append(when, element('span', what.charAt(0).toUpperCase() + what.slice(1), 'what'),
    element('span', words_of(kind, fields), 'detail'));
  const list = $('events');
  // Routine repeats for hours: only its latest word stays, so that transitions are not lost in it.
  const again = ROUTINE.includes(kind) ? shown_kinds.slice(0, ROUTINE.length).indexOf(kind) : -1;
  if (again >= 0) {
    list.children[again].remove();
    shown_kinds.splice(again, 1);
  }
  list.prepend(item);
  shown_kinds.unshift(kind);
  if (shown_kinds.length > EVENTS_MAX) {
    list.lastChild.remove();
    shown_kinds.pop();
  }
  $('no-events').hidden = true;
}

function on_gap({ missed }) {
  on_event({ time: new Date().toISOString(), level: 'info', kind: 'missed',
    fields: { text: `${t.count(missed)} events came while this page was away` } });
}

// ---- the token: in this tab's session only ----

const stored_token = () => sessionStorage.getItem(TOKEN) ?? '';
let token_given = Promise.resolve();

function ask_for_token() {
  $('token-refused').hidden = stored_token() === '';
  sessionStorage.removeItem(TOKEN);
  $('token-form').hidden = false;
  $('main').hidden = true;
  $('token').focus();
  token_given = new Promise((resolve) => {
    $('token-form').onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(TOKEN, $('token').value.trim());
      $('token').value = '';
      $('token-form').hidden = true;
      resolve();
    };
  });
}

function on_connection(now) {
  const connection = $('connection');
  const words = {
    live: 'live',
    lost: 'no answer',
    full: 'too many pages open',
    token: 'token needed',
  };
  say(connection, words[now]);
  connection.className = 'connection ' + (now === 'live' ? now : 'lost');
  if (now === 'token') ask_for_token();
  if (now === 'live') curves.self = undefined; // the next snapshot loads what was missed
}

$('member-filter').addEventListener('input', show_members);
follow({
  token: async () => {
    await token_given;
    return stored_token();
  },
  changed: on_connection,
  told: (event, data) => {
    if (event === 'snapshot') on_snapshot(data);
    if (event === 'event') on_event(data);
    if (event === 'gap') on_gap(data);
  },
});
