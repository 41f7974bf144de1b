// Server-sent events by fetch(), since EventSource cannot carry a token.

const LINE_LENGTH_MAX = 32 << 20;
const PAUSE_MIN_MS = 500;
const PAUSE_MAX_MS = 8000;
const SILENCE_MAX_MS = 30000; // the daemon says something every 15 s

// Feeds text in pieces, calls told(event, data, id) for each whole event.
export class EventParser {
  constructor(told) {
    this.told = told;
    this.rest = '';
    this.clear();
  }

  clear() {
    this.event = 'message';
    this.data = [];
  }

  feed(text) {
    const lines = (this.rest + text).split('\n');
    this.rest = lines.pop();
    if (this.rest.length > LINE_LENGTH_MAX) throw new Error('a line without an end');
    for (const line of lines) this.line(line);
  }

  line(line) {
    if (line === '') {
      if (this.data.length > 0) this.told(this.event, this.data.join('\n'), this.id);
      return this.clear();
    }
    const colon = line.indexOf(':');
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (field === 'event') this.event = value;
    if (field === 'data') this.data.push(value);
    if (field === 'id') this.id = value;
  }
}

export async function get(path, token, extra = {}, signal = undefined) {
  const headers = { ...extra };
  if (token) headers.Authorization = 'Bearer ' + token;
  return fetch(path, { headers, cache: 'no-store', signal });
}

// Follows /v1/events and comes back after every break with the last id. `told(event, data)` gets
// parsed JSON; `changed(state)` gets "live", "lost", "full" or "token", upon which `token()` is
// awaited. A box that vanishes closes nothing, so silence is a break as well.
export async function follow({ told, changed, token }) {
  let last = '';
  let pause = PAUSE_MIN_MS;
  for (;;) {
    let why = 'lost';
    const silence = new AbortController();
    let alarm;
    const heard = () => {
      clearTimeout(alarm);
      alarm = setTimeout(() => silence.abort(), SILENCE_MAX_MS);
    };
    try {
      const known = await token();
      heard();
      const since = last ? { 'Last-Event-ID': last } : {};
      const answer = await get('v1/events', known, since, silence.signal);
      if (answer.status === 401) {
        changed('token');
        continue;
      }
      if (answer.status === 503 && (await answer.json()).code === 'streams-full') why = 'full';
      if (!answer.ok) throw new Error('status ' + answer.status);
      changed('live');
      const parser = new EventParser((event, data, id) => {
        if (id) last = id;
        pause = PAUSE_MIN_MS;
        told(event, JSON.parse(data));
      });
      const words = new TextDecoder();
      const reader = answer.body.getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        heard();
        parser.feed(words.decode(value, { stream: true }));
      }
    } catch {
      // The daemon is restarting, the box asleep or the network away: the next round tells.
    } finally {
      clearTimeout(alarm);
    }
    changed(why);
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(2 * pause, PAUSE_MAX_MS);
  }
}
