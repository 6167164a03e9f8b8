// From units of the drawing to CSS pixels of the stage, and back.

import { Geometry } from "./geometry.js";

const MARGIN = 10;

export class Camera {
  constructor(chains, width, height) {
    this.chains = chains;
    this.resize(width, height);
  }

  /** A stage of another size: the drawing is laid out anew for it, and shown whole. */
  resize(width, height) {
    this.width = width;
    this.height = height;
    this.geometry = new Geometry(this.chains, width - 2 * MARGIN, height - 2 * MARGIN);
    this.whole = this.geometry.fit(width - 2 * MARGIN, height - 2 * MARGIN);
    this.nearest = Math.max(this.whole, 2.2);
    this.fit();
  }

  fit() {
    this.scale = this.whole;
    this.#hold();
  }

  get fitted() {
    return this.scale <= this.whole * 1.001;
  }

  /** Whether there is more to see nearer. */
  get zooms() {
    return this.nearest > this.whole * 1.05;
  }

  /** `factor` times nearer, the drawing's point under (x, y) staying there. Whether anything moved. */
  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const scale = Math.min(this.nearest, Math.max(this.whole, this.scale * factor));
    const real = scale / this.scale;
    if (Math.abs(real - 1) < 1e-6) return false;
    this.x = x - (x - this.x) * real;
    this.y = y - (y - this.y) * real;
    this.scale = scale;
    this.#hold();
    return true;
  }

  pan(dx, dy) {
    this.x += dx;
    this.y += dy;
    this.#hold();
  }

  /** Bring a box of the drawing onto the stage, if it is not there. Whether anything moved. */
  show(x, y, w, h) {
    const [left, top, right, bottom] = this.box(x, y, w, h);
    const dx = left < MARGIN ? MARGIN - left : right > this.width - MARGIN ? this.width - MARGIN - right : 0;
    const dy = top < MARGIN ? MARGIN - top : bottom > this.height - MARGIN ? this.height - MARGIN - bottom : 0;
    if (!dx && !dy) return false;
    this.pan(dx, dy);
    return true;
  }

  /** A box in pixels of the stage: left, top, right, bottom. */
  box(x, y, w, h) {
    const left = x * this.scale + this.x;
    const top = y * this.scale + this.y;
    return [left, top, left + w * this.scale, top + h * this.scale];
  }

  /** The same at whole device pixels. */
  sharp(x, y, w, h) {
    const ratio = window.devicePixelRatio || 1;
    return this.box(x, y, w, h).map((value) => Math.round(value * ratio) / ratio);
  }

  /** What of the drawing is on the stage. */
  seen(width, height) {
    return [-this.x / this.scale, -this.y / this.scale, (width - this.x) / this.scale, (height - this.y) / this.scale];
  }

  leafAt(x, y) {
    return this.geometry.leafAt((x - this.x) / this.scale, (y - this.y) / this.scale);
  }

  /** Keep the drawing in the middle where it is smaller than the stage, and covering it where larger. */
  #hold() {
    this.x = held(this.x, this.geometry.w * this.scale, this.width);
    this.y = held(this.y, this.geometry.h * this.scale, this.height);
  }
}

function held(at, size, room) {
  if (size <= room - 2 * MARGIN + 0.5) return (room - size) / 2;
  return Math.min(MARGIN, Math.max(room - MARGIN - size, at || 0));
}
