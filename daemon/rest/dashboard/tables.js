// Words, numbers and tables. Whatever comes from a node becomes text, never markup.

export const $ = (id) => document.getElementById(id);

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });

export const known = (value) => typeof value === 'number' && Number.isFinite(value);
export const count = (value) => (known(value) ? whole.format(value) : '–');
export const fixed = (value, digits) => (known(value) ? value.toFixed(digits) : '–');
export const percent = (value, digits = 1) =>
  known(value) ? (value * 100).toFixed(digits) + ' %' : '–';

// Three digits that matter.
export function short(value) {
  if (!known(value)) return '–';
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(1).replace('e+', 'e');
  if (size >= 100) return count(value);
  return Number(value.toPrecision(3)).toString();
}

export function bytes(value) {
  if (!known(value)) return '–';
  const units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    ++unit;
  }
  return (unit === 0 || value >= 100 ? value.toFixed(0) : value.toPrecision(3)) + ' ' + units[unit];
}

export function duration(seconds) {
  if (!known(seconds)) return '–';
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return s + ' s';
  if (s < 3600) return Math.floor(s / 60) + ' min ' + (s % 60) + ' s';
  if (s < 172800) return Math.floor(s / 3600) + ' h ' + Math.floor((s % 3600) / 60) + ' min';
  return Math.floor(s / 86400) + ' d ' + Math.floor((s % 86400) / 3600) + ' h';
}

export function element(name, text = '', className = '') {
  const made = document.createElement(name);
  if (text !== '') made.textContent = text;
  if (className) made.className = className;
  return made;
}

// Changes the document only where it differs, so that a thousand unchanged cells cost nothing.
export function say(where, text) {
  if (where.textContent !== text) where.textContent = text;
}

function set_class(where, name) {
  if (where.className !== name) where.className = name;
}

// Rows of cells {text, className, swatch, bar, title}; keeps the elements from call to call.
export class Table {
  constructor(where, columns) {
    this.columns = columns;
    const head = where.createTHead().insertRow();
    for (const { title, className } of columns) {
      const cell = element('th', title, className ?? '');
      cell.scope = 'col';
      head.append(cell);
    }
    this.body = where.createTBody();
  }

  show(items) {
    while (this.body.rows.length > items.length) this.body.deleteRow(-1);
    while (this.body.rows.length < items.length) {
      const row = this.body.insertRow();
      for (const column of this.columns) {
        const cell = row.insertCell();
        if (column.swatch) cell.append(element('i', '', 'swatch'));
        cell.append(element('span'));
        if (column.bar) cell.append(this.meter());
      }
    }
    items.forEach((item, index) => this.show_row(this.body.rows[index], item));
  }

  meter() {
    const made = element('meter');
    made.max = 1;
    made.setAttribute('aria-hidden', 'true');
    return made;
  }

  show_row(row, item) {
    this.columns.forEach((column, index) => {
      const cell = row.cells[index];
      const text = column.text(item);
      say(cell.querySelector('span'), text);
      const extra = column.mark ? column.mark(item) : '';
      set_class(cell, [column.className, extra].filter(Boolean).join(' '));
      if (column.hint) cell.title = column.hint(item);
      if (column.swatch) set_class(cell.querySelector('i'), 'swatch ' + column.swatch(item));
      if (column.bar) {
        const meter = cell.querySelector('meter');
        const value = column.bar(item);
        if (meter.value !== value) meter.value = value;
      }
    });
  }
}
