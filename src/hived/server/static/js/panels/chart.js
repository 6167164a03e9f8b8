// A quantity over time, on a canvas: lines, or areas that stand on each other. Hover and arrow keys read values.

import { el, onceAFrame, sharpen } from "../dom.js";

const LEFT = 40; //: at least: what stands there may need more room
const RIGHT = 10;
const FONT = "11px system-ui, sans-serif";
const TOP = 8;
const BOTTOM = 20;
const TICKS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 259200, 345600, 432000, 604800, 1209600, 2592000];

export class Chart {
  /**
   * `series`: [{key, label, colour(palette), hatched, area}]; areas are stacked in order. `format(value)` for people;
   * `top`: the axis' upper end (null: `fit(largest value)`). `on`: {clock(), seek(at) or null}.
   */
  constructor({ title, note, series, format, top = null, fit = nice, on }) {
    Object.assign(this, { series, format, top, fit, on });
    this.canvas = el("canvas");
    this.readings = series.map(({ key }) => el(`b.r-${key}`));
    this.moment = el("span.moment");
    this.plot = el("div.plot", { tabindex: "0", role: "img" }, this.canvas);
    this.element = el("figure.chart", {},
      el("figcaption", { title: note }, el("strong", {}, title), this.moment,
        el("span.readings", {}, series.map(({ key, label }, at) => el("span.reading", {}, el(`i.key.c-${key}`), series.length > 1 ? `${label} ` : "", this.readings[at])))),
      this.plot);
    this.title = title;
    this.data = { at: [] };
    this.read = -1;
    this.left = LEFT;
    this.cursor = null;
    this.soon = onceAFrame(() => this.draw());
    new ResizeObserver(() => this.soon()).observe(this.plot);
    this.plot.addEventListener("pointermove", (event) => this.#readAt(event));
    this.plot.addEventListener("pointerleave", () => this.#read(-1));
    this.plot.addEventListener("blur", () => this.#read(-1));
    this.plot.addEventListener("click", (event) => { if (this.on.seek) this.on.seek(this.#time(event)); });
    this.plot.addEventListener("keydown", (event) => this.#key(event));
    if (on.seek) this.plot.classList.add("seeks");
  }

  setPalette(palette) {
    this.palette = palette;
    this.soon();
  }

  /** `data`: {at: [...], per key: [...]}; `span`: [start, end] of the axis; `held`: values stay until the next, and the last until the end. */
  setData(data, span, held = false) {
    this.data = data;
    this.span = span;
    this.held = held;
    this.soon();
  }

  setCursor(at) {
    this.cursor = at;
    this.soon();
  }

  draw() {
    const { clientWidth: w, clientHeight: h } = this.plot;
    if (!this.palette || w < 60 || h < 30) return;
    const c = sharpen(this.canvas, w, h);
    const { palette, data } = this;
    const [start, end] = this.span ?? [0, 1];
    const high = this.top ?? this.fit(this.series.reduce((most, { key }) => Math.max(most, maximum(data[key])), 0));
    c.font = FONT;
    this.left = Math.max(LEFT, ...[0, high / 2, high].map((value) => Math.ceil(c.measureText(this.format(value)).width) + 10));
    const x = (at) => this.left + ((at - start) / Math.max(1e-9, end - start)) * (w - this.left - RIGHT);
    const y = (value) => h - BOTTOM - (value / high) * (h - TOP - BOTTOM);
    c.clearRect(0, 0, w, h);
    this.#axes(c, w, h, x, y, high, start, end);
    c.save();
    c.beginPath();
    c.rect(this.left, 0, w - this.left - RIGHT + 1, h - BOTTOM + 1);
    c.clip();
    const base = data.at.map(() => 0);
    for (const one of this.series) this.#series(c, one, data, base, x, y);
    c.restore();
    if (this.cursor !== null) this.#rule(c, x(this.cursor), h, palette.ink, 1.5);
    if (this.read >= 0 && this.read < data.at.length) {
      this.#rule(c, x(data.at[this.read]), h, palette.soft, 1);
    }
    this.#tell();
  }

  #axes(c, w, h, x, y, high, start, end) {
    const { palette } = this;
    c.font = FONT;
    c.lineWidth = 1;
    c.fillStyle = palette.soft;
    c.strokeStyle = palette.grid;
    c.textAlign = "right";
    c.textBaseline = "middle";
    for (const value of [0, high / 2, high]) {
      const at = Math.round(y(value)) + 0.5;
      c.beginPath();
      c.moveTo(this.left, at);
      c.lineTo(w - RIGHT, at);
      c.stroke();
      c.fillText(this.format(value), this.left - 6, at);
    }
    c.textBaseline = "alphabetic";
    const many = Math.max(2, Math.floor((w - this.left) / 84));
    const step = TICKS.find((tick) => (end - start) / tick <= many) ?? (end - start) / many;
    const zone = this.on.clock()?.tick && start > 1e8 ? -new Date(start * 1000).getTimezoneOffset() * 60 : 0;
    for (let at = Math.ceil((start + zone) / step) * step - zone; at <= end; at += step) {
      const left = x(at);
      const [align, text] = left < this.left + 16 ? ["left", this.left] : left > w - RIGHT - 22 ? ["right", w - RIGHT] : ["center", left];
      c.textAlign = align;
      c.fillText(this.on.clock().tick(at, end - start), text, h - 5);
      c.beginPath();
      c.moveTo(Math.round(left) + 0.5, h - BOTTOM);
      c.lineTo(Math.round(left) + 0.5, h - BOTTOM + 3);
      c.stroke();
    }
  }

  #series(c, { key, area, hatched, colour, width = 1.6, dash = [] }, data, base, x, y) {
    const values = data[key] ?? [];
    const stroke = colour(this.palette);
    for (let from = 0; from < values.length; ) {
      if (values[from] === null || values[from] === undefined) { from++; continue; }
      let to = from;
      while (to < values.length && values[to] !== null && values[to] !== undefined) to++;
      const last = to === values.length ? Math.max(data.at[to - 1], this.held ? this.span[1] : 0) : data.at[this.held ? to : to - 1];
      const points = [];
      const feet = [];
      for (let i = from; i < to; i++) {
        const [px, py, foot] = [x(data.at[i]), y(base[i] + values[i]), y(base[i])];
        if (this.held && i > from) {
          points.push([px, points.at(-1)[1]]);
          feet.push([px, feet.at(-1)[1]]);
        }
        points.push([px, py]);
        feet.push([px, foot]);
      }
      points.push([Math.max(x(last), points.at(-1)[0]), points.at(-1)[1]]);
      feet.push([points.at(-1)[0], feet.at(-1)[1]]);
      c.beginPath();
      for (const point of points) c.lineTo(...point);
      c.strokeStyle = stroke;
      c.lineWidth = width;
      c.lineJoin = "round";
      c.setLineDash(dash);
      c.stroke();
      c.setLineDash([]);
      if (to - from === 1 && !this.held) {
        c.fillStyle = stroke;
        c.fillRect(points[0][0] - 1, points[0][1] - 1, 2.5, 2.5);
      }
      if (area) {
        for (const foot of feet.reverse()) c.lineTo(...foot);
        c.closePath();
        c.globalAlpha = hatched ? 1 : 0.35;
        c.fillStyle = hatched ? stripes(c, stroke) : stroke;
        c.fill();
        c.globalAlpha = 1;
        for (let i = from; i < to; i++) base[i] += values[i];
      }
      from = to;
    }
  }

  #rule(c, left, h, colour, width) {
    c.strokeStyle = colour;
    c.lineWidth = width;
    c.beginPath();
    c.moveTo(left, TOP - 4);
    c.lineTo(left, h - BOTTOM);
    c.stroke();
  }

  #tell() {
    const { data } = this;
    const last = this.cursor === null ? data.at.length - 1 : near(data.at, this.cursor);
    const at = this.read >= 0 ? Math.min(this.read, data.at.length - 1) : last;
    this.series.forEach(({ key }, number) => {
      const value = data[key]?.[at];
      this.readings[number].textContent = value === null || value === undefined ? "–" : this.format(value);
    });
    this.moment.textContent = this.read >= 0 && at >= 0 ? this.on.clock().at(data.at[at]) : "";
    this.plot.setAttribute("aria-label", `${this.title}: ${this.series.map(({ label }, number) => `${label} ${this.readings[number].textContent}`).join(", ")}`);
  }

  #time(event) {
    const frame = this.plot.getBoundingClientRect();
    const [start, end] = this.span ?? [0, 1];
    const share = (event.clientX - frame.left - this.left) / Math.max(1, frame.width - this.left - RIGHT);
    return start + Math.min(1, Math.max(0, share)) * (end - start);
  }

  #readAt(event) {
    this.#read(this.data.at.length ? near(this.data.at, this.#time(event)) : -1);
  }

  #read(index) {
    if (index === this.read) return;
    this.read = index;
    this.soon();
  }

  #key(event) {
    const last = this.data.at.length ? near(this.data.at, this.span[1]) : -1;
    const jump = event.shiftKey ? Math.ceil(last / 20) : 1;
    if (event.key === "ArrowLeft") this.#read(Math.max(0, (this.read < 0 ? last : this.read) - jump));
    else if (event.key === "ArrowRight") this.#read(Math.min(last, (this.read < 0 ? last : this.read) + jump));
    else if (event.key === "Enter" && this.on.seek && this.read >= 0) this.on.seek(this.data.at[this.read]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

function maximum(values) {
  let most = 0;
  for (const value of values ?? []) if (value > most) most = value;
  return most;
}

/** A round number not below `value`, which halves well. */
export function nice(value) {
  if (value <= 4) return Math.max(2, Math.ceil(value / 2) * 2);
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 3, 4, 6, 8, 10].map((one) => one * power).find((one) => one >= value);
}

/** Index of the last time not after `at`; 0 where all are. */
export function near(times, at) {
  let low = 0;
  let high = times.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (times[middle] <= at) low = middle;
    else high = middle - 1;
  }
  return low;
}

function stripes(c, colour) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 6;
  const d = canvas.getContext("2d");
  d.strokeStyle = colour;
  d.globalAlpha = 0.6;
  d.lineWidth = 1.6;
  for (const shift of [-6, 0, 6]) {
    d.beginPath();
    d.moveTo(shift - 1, 7);
    d.lineTo(shift + 7, -1);
    d.stroke();
  }
  return c.createPattern(canvas, "repeat");
}
