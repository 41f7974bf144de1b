// The cluster as this node sees it: itself in the middle, its neighbours around, then the others.
//
// Places come from a formula (rings for few, a sunflower for many), so a thousand members cost a
// thousand circles a frame and nothing else. A node knows only its own links, so only those are
// drawn.

import { bytes, count, duration, fixed, known, short } from './tables.js';

const FEW = 28; // with names
const MOVING_MAX = 200; // beyond, nothing glides or travels
const GLIDE_MS = 600;
const TRAVEL_MS = 900;
const GOLDEN_ANGLE = Math.PI * (3 - Math.sqrt(5));
const NAME_LENGTH_MAX = 18;

export const shortened = (name) =>
  name.length > NAME_LENGTH_MAX ? name.slice(0, NAME_LENGTH_MAX - 1) + '…' : name;

// [{id, x, y}] in a unit circle around 0, 0; the first of `ordered` is this node.
export function places(ordered, linked) {
  if (ordered.length > FEW)
    return ordered.map((id, k) => {
      const radius = Math.sqrt(k / ordered.length);
      return { id, x: radius * Math.cos(k * GOLDEN_ANGLE), y: radius * Math.sin(k * GOLDEN_ANGLE) };
    });
  const inner = ordered.slice(1).filter((id) => linked.has(id));
  const outer = ordered.slice(1).filter((id) => !linked.has(id));
  // Two neighbours look better on both sides above than in one line.
  const ring = (ids, radius, from) =>
    ids.map((id, k) => {
      const angle = from + ((ids.length === 2 ? 1.52 : 2) * Math.PI * k) / ids.length;
      return { id, x: radius * Math.cos(angle), y: radius * Math.sin(angle) };
    });
  const near = outer.length === 0 ? 0.78 : 0.56;
  const made = ordered.length > 0 ? [{ id: ordered[0], x: 0, y: 0 }] : [];
  return made.concat(ring(inner, near, Math.PI * (inner.length === 2 ? 1.12 : 1.5)), ring(outer, 1, Math.PI * 1.35));
}

export class ClusterPicture {
  constructor(canvas, tip) {
    this.canvas = canvas;
    this.tip = tip;
    this.nodes = []; // {member, x, y, from_x, from_y, radius}
    this.links = [];
    this.by_id = new Map();
    this.moved_at = -GLIDE_MS;
    this.still = matchMedia('(prefers-reduced-motion: reduce)');
    this.work = { frames: 0, shapes: 0 }; // what a test counts
    for (const kind of ['pointermove', 'pointerdown'])
      canvas.addEventListener(kind, (event) => this.point(event.offsetX, event.offsetY));
    canvas.addEventListener('pointerleave', () => this.point(null));
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  show(members, links, now = performance.now()) {
    const linked = new Set(links.map((link) => link.peer));
    const rank = (m) => (m.self ? 0 : linked.has(m.id) ? 1 : 2);
    const ordered = [...members].sort((a, b) => rank(a) - rank(b) || (a.id < b.id ? -1 : 1));
    const fastest = Math.max(1e-9, ...members.map((m) => m.samples_per_second || 0));
    const of_id = new Map(members.map((m) => [m.id, m]));
    const before = this.by_id;
    const glide = members.length <= MOVING_MAX && !this.still.matches;
    let moved = false;
    this.nodes = places(ordered.map((m) => m.id), linked).map((place) => {
      const member = of_id.get(place.id);
      const old = glide ? before.get(place.id) : undefined;
      const at = old ? this.where(old, now) : [place.x, place.y];
      moved ||= at[0] !== place.x || at[1] !== place.y;
      const speed = Math.sqrt((member.samples_per_second || 0) / fastest);
      return { member, x: place.x, y: place.y, from_x: at[0], from_y: at[1], speed };
    });
    if (moved) this.moved_at = now;
    this.by_id = new Map(this.nodes.map((node) => [node.member.id, node]));
    const earlier = new Map(this.links.map((link) => [link.peer, link]));
    this.links = links.map((link) => ({
      ...link,
      told_at: earlier.has(link.peer) && link.bytes_sent + link.bytes_received >
        earlier.get(link.peer).bytes_sent + earlier.get(link.peer).bytes_received
        ? now : -TRAVEL_MS,
      sent_more: earlier.has(link.peer) && link.bytes_sent > earlier.get(link.peer).bytes_sent,
    }));
    this.animate();
  }

  where(node, now) {
    const t = Math.min(1, Math.max(0, (now - this.moved_at) / GLIDE_MS));
    const eased = 1 - (1 - t) ** 3;
    return [
      node.from_x + (node.x - node.from_x) * eased,
      node.from_y + (node.y - node.from_y) * eased,
    ];
  }

  // Frames only while something moves.
  animate() {
    if (this.pending) return;
    this.pending = requestAnimationFrame((now) => {
      this.pending = 0;
      this.draw(now);
      const travels = this.links.some((link) => now - link.told_at < TRAVEL_MS);
      if (now - this.moved_at < GLIDE_MS || (travels && this.may_travel())) this.animate();
    });
  }

  may_travel() {
    return this.nodes.length <= MOVING_MAX && !this.still.matches;
  }

  colours() {
    const style = getComputedStyle(this.canvas);
    const of = (name) => style.getPropertyValue(name).trim();
    return {
      text: of('--text'), muted: of('--muted'), card: of('--card'), line: of('--gone'),
      accent: of('--accent'),
      alive: of('--good'), suspect: of('--warn'), failed: of('--bad'), left: of('--gone'),
    };
  }

  draw(now = performance.now()) {
    const scale = window.devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (width === 0) return;
    if (this.canvas.width !== Math.round(width * scale)) this.canvas.width = width * scale;
    if (this.canvas.height !== Math.round(height * scale)) this.canvas.height = height * scale;
    const pen = this.canvas.getContext('2d');
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    const colours = this.colours();
    const few = this.nodes.length <= FEW;
    const reach_x = Math.min(width / 2 - (few ? 54 : 12), height * 0.72);
    const reach_y = height / 2 - (few ? 34 : 12);
    const dot = few ? 11 : Math.max(2, Math.min(7, 0.42 * Math.sqrt((reach_x * reach_y * 3) /
      this.nodes.length)));
    this.work.frames += 1;
    this.work.shapes = this.nodes.length + this.links.length;
    for (const node of this.nodes) {
      const [x, y] = this.where(node, now);
      node.at_x = width / 2 + x * reach_x;
      node.at_y = height / 2 + y * reach_y - (few ? 6 : 0);
      node.radius = few ? 8 + 6 * node.speed : dot * (0.6 + 0.4 * node.speed);
    }
    this.draw_links(pen, colours, now);
    this.draw_nodes(pen, colours);
    if (few) this.draw_names(pen, colours);
  }

  draw_links(pen, colours, now) {
    const self = this.nodes[0];
    if (!self) return;
    for (const link of this.links) {
      const peer = this.by_id.get(link.peer);
      if (!peer) continue;
      // Fresh and large gains are strong lines, an old replica fades.
      const fresh = link.state === 'open' ? 1 / (1 + (link.age_steps || 0) / 40) : 0.3;
      pen.strokeStyle = link.state === 'open' ? colours.alive :
        link.state === 'down' ? colours.failed : colours.suspect;
      pen.globalAlpha = link === this.pointed ? 1 : 0.25 + 0.5 * fresh;
      pen.lineWidth = 1.2 + 3 * Math.min(1, link.gain || 0);
      pen.setLineDash(link.state === 'open' ? [] : [4, 5]);
      pen.beginPath();
      pen.moveTo(self.at_x, self.at_y);
      pen.lineTo(peer.at_x, peer.at_y);
      pen.stroke();
      pen.setLineDash([]);
      const t = (now - link.told_at) / TRAVEL_MS;
      if (t < 0 || t > 1 || !this.may_travel()) continue;
      const along = link.sent_more ? t : 1 - t;
      pen.globalAlpha = Math.sin(Math.PI * t);
      pen.fillStyle = colours.alive;
      pen.beginPath();
      pen.arc(self.at_x + (peer.at_x - self.at_x) * along,
        self.at_y + (peer.at_y - self.at_y) * along, 3.2, 0, 7);
      pen.fill();
    }
    pen.globalAlpha = 1;
  }

  // One path for each colour, however many members have it.
  draw_nodes(pen, colours) {
    const works = (m) => m.phase === 'training' || m.phase === 'finished' ||
      m.phase === 'finishing';
    for (const state of ['left', 'alive', 'suspect', 'failed'])
      for (const solid of [true, false]) {
        pen.beginPath();
        let any = false;
        for (const node of this.nodes) {
          if (node.member.state !== state) continue;
          if ((works(node.member) || state !== 'alive') !== solid) continue;
          pen.moveTo(node.at_x + node.radius, node.at_y);
          pen.arc(node.at_x, node.at_y, node.radius, 0, 7);
          any = true;
        }
        if (!any) continue;
        pen.fillStyle = solid ? colours[state] : colours.card;
        pen.strokeStyle = solid ? colours.card : colours[state];
        pen.lineWidth = this.nodes.length <= FEW ? 2.5 : 1;
        pen.fill();
        pen.stroke();
      }
    const self = this.nodes[0];
    if (!self || !self.member.self) return;
    pen.beginPath();
    pen.arc(self.at_x, self.at_y, self.radius + 4, 0, 7);
    pen.strokeStyle = colours.accent;
    pen.lineWidth = 1.6;
    pen.stroke();
  }

  draw_names(pen, colours) {
    pen.font = '12.5px ' + getComputedStyle(this.canvas).fontFamily;
    pen.textAlign = 'center';
    for (const node of this.nodes) {
      pen.lineWidth = 4;
      pen.lineJoin = 'round';
      pen.strokeStyle = colours.card;
      pen.fillStyle = node.member.self ? colours.text : colours.muted;
      const below = node.at_y + node.radius + 19;
      pen.strokeText(shortened(node.member.name), node.at_x, below);
      pen.fillText(shortened(node.member.name), node.at_x, below);
    }
  }

  // What lies under the pointer: a node within reach, else a link.
  at(x, y) {
    let best = null;
    let best_distance = 14 * 14;
    for (const node of this.nodes) {
      const distance = (node.at_x - x) ** 2 + (node.at_y - y) ** 2;
      if (distance >= best_distance) continue;
      best = node;
      best_distance = distance;
    }
    if (best) return { node: best };
    const self = this.nodes[0];
    for (const link of this.links) {
      const peer = this.by_id.get(link.peer);
      if (!peer || !self) continue;
      const dx = peer.at_x - self.at_x;
      const dy = peer.at_y - self.at_y;
      const t = ((x - self.at_x) * dx + (y - self.at_y) * dy) / Math.max(1e-9, dx * dx + dy * dy);
      const off = Math.hypot(self.at_x + t * dx - x, self.at_y + t * dy - y);
      if (t > 0 && t < 1 && off < 9) return { link };
    }
    return {};
  }

  point(x, y) {
    const { node, link } = x === null ? {} : this.at(x, y);
    this.pointed = link;
    this.canvas.style.cursor = node || link ? 'pointer' : '';
    this.tip.hidden = !node && !link;
    this.animate();
    if (this.tip.hidden) return;
    const rows = node ? this.node_words(node.member) : this.link_words(link);
    this.tip.replaceChildren(...rows.map(([name, value]) => {
      const row = document.createElement(value === undefined ? 'b' : 'span');
      row.append(name);
      if (value !== undefined) row.append(Object.assign(document.createElement('i'), {
        textContent: value,
      }));
      return row;
    }));
    const { offsetWidth: width, offsetHeight: height } = this.tip;
    const left = Math.min(Math.max(0, x - width / 2), this.canvas.clientWidth - width);
    const top = y - height - 16 < -40 ? y + 18 : y - height - 16;
    this.tip.style.transform = `translate(${left}px, ${top}px)`;
  }

  node_words(m) {
    const link = this.links.find((l) => l.peer === m.id);
    const rows = [
      [m.name],
      ['State', m.state === 'alive' ? m.phase : m.state],
      ['Speed', count(m.samples_per_second) + ' samples/s'],
      ['Batch', count(m.batch)],
      ['Loss', short(m.loss)],
    ];
    if (link) rows.push(['Gain', fixed(link.gain, 3)], ['Age', fixed(link.age_steps, 0) + ' steps']);
    if (!m.self && known(m.age_s)) rows.push(['Heard of', duration(m.age_s) + ' ago']);
    return rows;
  }

  link_words(link) {
    return [
      ['Link to ' + link.name],
      ['State', link.state],
      ['Age', fixed(link.age_steps, 0) + ' steps, ' + fixed(link.age_s, 1) + ' s'],
      ['Gain', fixed(link.gain, 3)],
      ['Correction', short(link.correction)],
      ['Sent', bytes(link.bytes_sent)],
      ['Received', bytes(link.bytes_received)],
      ['Round trip', fixed(link.rtt_ms, 1) + ' ms'],
    ];
  }
}
