// Small charts side by side with one time axis: a line for each member, bold for this node.

import { bytes, count, duration, element, known, say, short } from './tables.js';

const POINTS_MAX = 3000; // of one line; then every second one goes
const LINES_MAX = 64;
const GUTTER = 46; // for the values' words, in pixels
const PALETTE = 8; // beyond, members share one quiet colour

export const CHARTS = [
  { key: 'loss', title: 'Loss', words: short },
  { key: 'accuracy', title: 'Accuracy', words: (v) => (v * 100).toFixed(1) + ' %',
    short: (v) => Number((v * 100).toPrecision(3)) + ' %' },
  { key: 'learning_rate', title: 'Learning rate', words: short, from_zero: true },
  { key: 'samples_per_second', title: 'Samples/s', words: count, from_zero: true },
  { key: 'bytes_per_second', title: 'Sent, bytes/s', words: (v) => bytes(v) + '/s',
    short: bytes, from_zero: true },
  { key: 'consensus_distance', title: 'Consensus distance', words: short, logarithmic: true },
];

class Line {
  constructor() {
    this.times = [];
    this.values = [];
  }

  add(time, value) {
    const last = this.times.length - 1;
    if (!known(value) || (last >= 0 && time <= this.times[last])) return;
    this.times.push(time);
    this.values.push(value);
    if (this.times.length <= POINTS_MAX) return;
    this.times = this.times.filter((_, k) => k % 2 === 0);
    this.values = this.values.filter((_, k) => k % 2 === 0);
  }

  // The last value at or before `time`.
  at(time) {
    let low = 0;
    let high = this.times.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.times[middle] <= time) low = middle + 1;
      else high = middle;
    }
    return low > 0 ? this.values[low - 1] : undefined;
  }
}

// About three round numbers between two values.
export function ticks(low, high, logarithmic) {
  if (!(high > low)) return [low];
  if (logarithmic) {
    const made = [];
    for (let power = Math.ceil(Math.log10(low) - 1e-9); 10 ** power <= high * 1.0001; ++power)
      made.push(10 ** power);
    if (made.length >= 2) return made.filter((_, k) => k % Math.ceil(made.length / 4) === 0);
  }
  const rough = (high - low) / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((f) => f * power >= rough) * power;
  const made = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-6; value += step) {
    made.push(value);
    if (!(value + step > value)) break; // a step too small for a number as large
  }
  return made;
}

export class Curves {
  constructor(where) {
    this.lines = new Map(); // key -> id -> Line
    this.names = new Map();
    this.charts = CHARTS.map((chart) => this.make(where, chart));
    this.work = { frames: 0 };
    new ResizeObserver(() => this.request()).observe(where);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.request());
  }

  make(where, chart) {
    const box = element('div', '', 'curve');
    const title = element('h3', chart.title);
    const now = element('b');
    title.append(now);
    const canvas = element('canvas');
    canvas.setAttribute('role', 'img');
    const tip = element('div', '', 'tip');
    tip.hidden = true;
    box.append(title, canvas, tip);
    where.append(box);
    for (const kind of ['pointermove', 'pointerdown'])
      canvas.addEventListener(kind, (event) => this.point(chart, event.offsetX, canvas));
    canvas.addEventListener('pointerleave', () => this.point(null));
    return { ...chart, canvas, now, tip };
  }

  // Begins anew, as after a restart of the node.
  reset(self) {
    this.self = self;
    this.lines = new Map(CHARTS.map(({ key }) => [key, new Map()]));
    this.sent = undefined;
  }

  line(key, id) {
    const lines = this.lines.get(key);
    if (!lines.has(id) && lines.size >= LINES_MAX && id !== this.self) return new Line();
    if (!lines.has(id)) lines.set(id, new Line());
    return lines.get(id);
  }

  load(self, history, members) {
    this.reset(self);
    let before;
    for (const point of history.points) {
      for (const key of ['loss', 'accuracy', 'learning_rate', 'samples_per_second'])
        if (point.step > 0 || key === 'learning_rate')
          this.line(key, self).add(point.time_s, point[key]);
      this.add_distance(self, point.time_s, point.consensus_distance);
      if (before && point.time_s > before.time_s)
        this.line('bytes_per_second', self).add(point.time_s,
          (point.bytes_sent - before.bytes_sent) / (point.time_s - before.time_s));
      before = point;
    }
    for (const member of members.members) {
      if (member.id === self) continue;
      for (const { key } of CHARTS)
        (member[key] ?? []).forEach((value, k) => {
          if (key === 'consensus_distance') this.add_distance(member.id, members.time_s[k], value);
          else this.line(key, member.id).add(members.time_s[k], value);
        });
    }
    this.request();
  }

  // 1 stands for "not known".
  add_distance(id, time, value) {
    if (known(value) && value > 0 && value < 1) this.line('consensus_distance', id).add(time, value);
  }

  add(status, members) {
    if (!this.self) return;
    const time = status.ran_s;
    this.names = new Map(members.map((m) => [m.id, m.name]));
    const trains = status.step > 0;
    for (const key of ['learning_rate', 'samples_per_second'])
      if (trains) this.line(key, status.id).add(time, status[key]);
    if (trains) this.line('loss', status.id).add(time, status.loss);
    const accuracy = this.line('accuracy', status.id);
    if (known(status.accuracy) && accuracy.values.at(-1) !== status.accuracy)
      accuracy.add(time - (status.evaluation?.age_s ?? 0), status.accuracy);
    this.add_distance(status.id, time, status.consensus_distance);
    if (this.sent && time > this.sent.time)
      this.line('bytes_per_second', status.id).add(time,
        (status.bytes_sent_total - this.sent.bytes) / (time - this.sent.time));
    this.sent = { time, bytes: status.bytes_sent_total };
    for (const m of members) {
      if (m.self || (m.state !== 'alive' && m.state !== 'suspect')) continue;
      if (m.step > 0) this.line('loss', m.id).add(time, m.loss);
      this.line('accuracy', m.id).add(time, m.accuracy);
      this.line('samples_per_second', m.id).add(time, m.samples_per_second);
      this.add_distance(m.id, time, m.consensus_distance);
    }
    this.request();
  }

  // Members of a small cluster have a colour each, by the order of their ids.
  colour_index(id) {
    const others = [...this.names.keys()].filter((other) => other !== this.self).sort();
    const index = others.indexOf(id);
    return others.length <= PALETTE && index >= 0 ? index : -1;
  }

  request() {
    this.pending ||= requestAnimationFrame(() => {
      this.pending = 0;
      this.work.frames += 1;
      for (const chart of this.charts) this.draw(chart);
    });
  }

  span() {
    let first = Infinity;
    let last = -Infinity;
    for (const lines of this.lines.values())
      for (const { times } of lines.values())
        if (times.length > 0) {
          first = Math.min(first, times[0]);
          last = Math.max(last, times.at(-1));
        }
    return last > first ? [first, last] : [0, 1];
  }

  // The values' range, without the wild first steps of a loss.
  range(chart) {
    const all = [];
    for (const line of this.lines.get(chart.key)?.values() ?? []) {
      const stride = Math.ceil(line.values.length / 400);
      for (let k = 0; k < line.values.length; k += stride) all.push(line.values[k]);
      if (line.values.length > 0) all.push(line.values.at(-1));
    }
    if (all.length === 0) return chart.logarithmic ? [1e-3, 1] : [0, 1];
    all.sort((a, b) => a - b);
    let low = chart.from_zero ? 0 : all[0];
    let high = all[Math.ceil((all.length - 1) * (chart.key === 'loss' ? 0.995 : 1))];
    if (!(high > low)) high = low + (Math.abs(low) || 1) * 0.1;
    if (chart.logarithmic) return [Math.max(low, 1e-9) / 1.1, high * 1.1];
    const margin = (high - low) * 0.06;
    return [chart.from_zero ? 0 : low - margin, high + margin];
  }

  draw(chart) {
    const { canvas } = chart;
    const scale = window.devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = canvas;
    if (width === 0) return;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const pen = canvas.getContext('2d');
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    const style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(name).trim();
    const [first, last] = this.span();
    const [low, high] = this.range(chart);
    const frame = { left: GUTTER, right: width - 4, top: 6, bottom: height - 18 };
    const up = chart.logarithmic ? Math.log : (v) => v;
    const x = (time) => frame.left + ((time - first) / (last - first)) * (frame.right - frame.left);
    const y = (value) => frame.bottom -
      ((up(Math.max(value, chart.logarithmic ? 1e-9 : value)) - up(low)) / (up(high) - up(low))) *
      (frame.bottom - frame.top);
    this.draw_axes(pen, chart, frame, { first, last, low, high, y, colour, style });
    pen.save();
    pen.beginPath();
    pen.rect(frame.left, frame.top - 4, width - frame.left, frame.bottom - frame.top + 8);
    pen.clip();
    const lines = this.lines.get(chart.key) ?? new Map();
    for (const [id, line] of lines) if (id !== this.self) {
      const index = this.colour_index(id);
      pen.globalAlpha = index < 0 ? 0.35 : 0.85;
      this.stroke(pen, line, x, y, colour(index < 0 ? '--muted' : '--c' + index), 1.2);
    }
    pen.globalAlpha = 1;
    const own = lines.get(this.self);
    if (own) this.stroke(pen, own, x, y, colour('--accent'), 2.2);
    pen.restore();
    const value = own?.values.at(-1);
    say(chart.now, known(value) ? chart.words(value) : '–');
    canvas.setAttribute('aria-label', `${chart.title}: ${chart.now.textContent}, ` +
      `${lines.size} lines over ${duration(last - first)}`);
    if (this.pointed_time === undefined) return;
    pen.fillStyle = colour('--muted');
    pen.fillRect(x(this.pointed_time), frame.top, 1, frame.bottom - frame.top);
  }

  draw_axes(pen, chart, frame, { first, last, low, high, y, colour, style }) {
    pen.font = '11px ' + style.fontFamily;
    pen.lineWidth = 1;
    for (const tick of ticks(low, high, chart.logarithmic)) {
      if (tick < low || tick > high) continue;
      const at = Math.round(y(tick)) + 0.5;
      pen.strokeStyle = colour('--line');
      pen.beginPath();
      pen.moveTo(frame.left, at);
      pen.lineTo(frame.right, at);
      pen.stroke();
      pen.fillStyle = colour('--muted');
      pen.textAlign = 'right';
      pen.fillText((chart.short ?? chart.words)(tick), frame.left - 7, at + 3.5);
    }
    pen.fillStyle = colour('--muted');
    pen.textAlign = 'left';
    pen.fillText(duration(first), frame.left, frame.bottom + 15);
    pen.textAlign = 'right';
    pen.fillText(duration(last), frame.right, frame.bottom + 15);
  }

  stroke(pen, { times, values }, x, y, colour, width) {
    pen.strokeStyle = colour;
    pen.fillStyle = colour;
    pen.lineWidth = width;
    pen.lineJoin = 'round';
    pen.beginPath();
    for (let k = 0; k < times.length; ++k) pen.lineTo(x(times[k]), y(values[k]));
    pen.stroke();
    if (times.length === 0 || width < 2) return;
    pen.beginPath();
    pen.arc(x(times.at(-1)), y(values.at(-1)), 3, 0, 7);
    pen.fill();
  }

  time_at(offset, width) {
    const [first, last] = this.span();
    const share = (offset - GUTTER) / (width - 4 - GUTTER);
    return first + Math.min(1, Math.max(0, share)) * (last - first);
  }

  // One line of time in all charts; the values at it in the one under the pointer.
  point(chart, offset, canvas) {
    this.pointed_time = chart ? this.time_at(offset, canvas.clientWidth) : undefined;
    for (const { key, tip, words } of this.charts) {
      tip.hidden = chart?.key !== key;
      if (tip.hidden) continue;
      const rows = [...(this.lines.get(key) ?? [])]
        .map(([id, line]) => [id, line.at(this.pointed_time)])
        .filter(([, value]) => known(value))
        .sort(([a], [b]) => (b === this.self) - (a === this.self));
      tip.replaceChildren(element('b', duration(this.pointed_time)), ...rows.slice(0, 9).map(
        ([id, value]) => {
          const row = element('span', this.names.get(id) ?? id);
          row.append(element('i', words(value)));
          return row;
        }));
      if (rows.length > 9) tip.append(element('span', `and ${rows.length - 9} more`));
      const left = Math.min(Math.max(0, offset - tip.offsetWidth / 2),
        canvas.clientWidth - tip.offsetWidth);
      tip.style.transform = `translate(${left}px, ${-tip.offsetHeight + 14}px)`;
    }
    this.request();
  }
}
