// The cell map: one view's cells on a stage. The lower canvas is the cells, the upper one what comes and goes.

import { el, onceAFrame, sharpen } from "../dom.js";
import { counters } from "../measures.js";
import { Camera } from "./camera.js";
import { Dense } from "./dense.js";
import { listen } from "./input.js";
import { paintOverlay } from "./overlay.js";
import { Tiles } from "./tiles.js";
import { about, showTip, spoken } from "./tip.js";

const SPECK = 9; //: a leaf narrower than this many CSS pixels is pixels, not a tile

export class CellMap {
  /** `on`: {select(job or null), speak(text), clock(), now()}. */
  constructor(stage, tip, on) {
    this.stage = stage;
    this.tip = tip;
    this.on = on;
    this.cells = null;
    this.hover = -1;
    this.focus = -1;
    this.chosen = null;
    this.filter = null;
    this.lower = el("canvas", { "aria-hidden": "true" });
    this.upper = el("canvas.over", { "aria-hidden": "true" });
    stage.replaceChildren(this.lower, this.upper);
    stage.tabIndex = 0;
    stage.setAttribute("role", "application");
    stage.setAttribute("aria-roledescription", "cell map");
    this.paintSoon = onceAFrame(() => this.paint());
    this.overSoon = onceAFrame(() => this.paintOver());
    listen(this, stage);
    this.watch = new ResizeObserver(() => this.resize());
    this.watch.observe(stage);
  }

  close() {
    this.watch.disconnect();
    this.cells = null;
  }

  /** Show these cells from now on. */
  setCells(cells, palette) {
    this.cells = cells;
    this.hover = this.focus = -1;
    this.camera = null;
    this.blank = true; //: nothing was painted of them yet
    this.stage.setAttribute("aria-label", `Cell map: ${cells.leaves} GPUs on ${cells.chains.reduce((sum, { nodes }) => sum + nodes.length, 0)} nodes`);
    this.setPalette(palette);
  }

  setPalette(palette) {
    this.palette = palette;
    if (!this.cells) return;
    this.dense = new Dense(palette, this.cells);
    this.tiles = new Tiles(palette, this.cells);
    if (!this.blank) this.resize(true);
  }

  resize(anew = false) {
    const { clientWidth: width, clientHeight: height } = this.stage;
    if (!this.cells?.known || width < 40 || height < 40) return;
    if (!this.camera) this.camera = new Camera(this.cells.chains, width, height);
    else if (this.camera.width !== width || this.camera.height !== height) this.camera.resize(width, height);
    else if (!anew) return;
    this.ratio = window.devicePixelRatio || 1;
    this.under = sharpen(this.lower, width, height);
    this.over = sharpen(this.upper, width, height);
    this.dense.resize(this.under, this.ratio);
    this.paint();
  }

  get specks() {
    return this.camera.geometry.leafW * this.camera.scale < SPECK;
  }

  /** All of it, once there is something to show. */
  paint() {
    if (!this.camera || !this.cells.known) return;
    const { width, height } = this.camera;
    counters.full++;
    if (this.specks) {
      counters.cells += this.dense.paintAll(this.camera, this.ratio);
      this.tiles.paintNames(this.under, this.camera, width);
    } else counters.cells += this.tiles.paintAll(this.under, this.camera, width, height);
    this.stage.classList.toggle("near", !this.camera.fitted);
    this.paintOver();
  }

  /** Only these leaves: they changed. */
  changed(leaves) {
    if (this.blank) {
      this.blank = false;
      this.resize(true);
      return;
    }
    if (!this.camera || !leaves.length) return;
    counters.partial++;
    if (this.specks && leaves.length > this.cells.leaves / 4) {
      this.paint();
      return;
    }
    const { width, height } = this.camera;
    counters.cells += this.specks
      ? this.dense.paintSome(leaves, this.camera, this.ratio)
      : this.tiles.paintSome(this.under, leaves, this.camera, width, height);
    if (this.chosen || this.filter) this.paintOver();
    if (this.hover >= 0 && leaves.includes(this.hover)) this.#tell(this.hover);
    if (this.focus >= 0 && leaves.includes(this.focus)) this.#speak();
  }

  paintOver() {
    if (!this.camera) return;
    const { width, height } = this.camera;
    const { palette, cells, camera, chosen, filter, hover, focus } = this;
    const boxOf = (leaf) => this.boxOf(leaf);
    paintOverlay(this.over, { width, height, palette, cells, camera, boxOf, chosen, filter, hover, focus, dense: this.specks });
  }

  /** A leaf's box on the stage, in CSS pixels, as it was painted. */
  boxOf(leaf) {
    if (this.specks) return this.dense.leafBox(leaf, this.camera, this.ratio).map((value) => value / this.ratio);
    const { x, y } = this.camera.geometry.leaf(leaf);
    return this.camera.sharp(x, y, this.camera.geometry.leafW, this.camera.geometry.leafH);
  }

  /** Bring out a job (its id), or a VC (its name). */
  bringOut(chosen, filter) {
    if (this.chosen === chosen && this.filter === filter) return;
    this.chosen = chosen;
    this.filter = filter;
    this.overSoon();
  }

  zoom(factor, x, y) {
    if (!this.camera?.zoom(factor, x, y)) return;
    this.hide();
    this.paintSoon();
  }

  zoomAtFocus(factor) {
    if (this.focus < 0) return this.zoom(factor);
    const [left, top, right, bottom] = this.boxOf(this.focus);
    return this.zoom(factor, (left + right) / 2, (top + bottom) / 2);
  }

  fit() {
    this.camera?.fit();
    this.hide();
    this.paintSoon();
  }

  pan(dx, dy) {
    this.camera.pan(dx, dy);
    this.hide();
    this.paintSoon();
  }

  hoverAt(x, y, pageX, pageY) {
    if (!this.camera) return;
    const leaf = this.camera.leafAt(x, y);
    this.at = [pageX, pageY];
    if (leaf >= 0) this.#tell(leaf);
    else this.tip.hidden = true;
    this.stage.classList.toggle("on-job", leaf >= 0 && Boolean(this.cells.runner(leaf) ?? this.cells.keeper(leaf)));
    if (leaf === this.hover) return;
    this.hover = leaf;
    this.overSoon();
  }

  #tell(leaf) {
    if (this.at) showTip(this.tip, this.#about(leaf), this.palette, ...this.at);
  }

  #about(leaf) {
    return about(this.cells, leaf, this.on.clock(), this.on.now());
  }

  hide() {
    this.tip.hidden = true;
    this.hover = -1;
  }

  leave() {
    this.hide();
    this.overSoon();
  }

  press(x, y) {
    const leaf = this.camera?.leafAt(x, y) ?? -1;
    this.open(leaf);
  }

  open(leaf) {
    const holder = leaf >= 0 ? this.cells.runner(leaf) ?? this.cells.keeper(leaf) : null;
    this.on.select(holder?.id ?? null);
  }

  enter() {
    if (this.focus < 0 && this.cells) this.focusOn(0);
    else this.overSoon();
  }

  blur() {
    this.focus = -1;
    this.tip.hidden = true;
    this.overSoon();
  }

  openFocused() {
    if (this.focus >= 0) this.open(this.focus);
  }

  focusOn(leaf) {
    if (!this.camera || leaf < 0) return;
    this.focus = leaf;
    const { x, y } = this.camera.geometry.leaf(leaf);
    if (this.camera.show(x, y, this.camera.geometry.leafW, this.camera.geometry.leafH)) this.paint();
    else this.overSoon();
    this.#speak();
  }

  #speak() {
    const told = this.#about(this.focus);
    this.on.speak(spoken(told));
    const [, , right, bottom] = this.boxOf(this.focus);
    const frame = this.stage.getBoundingClientRect();
    showTip(this.tip, told, this.palette, frame.left + right, frame.top + bottom);
  }

  /** Move the keyboard's GPU to the next one in a direction; `far`: to the next node. */
  step(dx, dy, far) {
    if (!this.camera) return;
    if (this.focus < 0) return this.focusOn(0);
    const { geometry } = this.camera;
    const { x, y } = geometry.leaf(this.focus);
    const node = (leaf) => {
      const { first, perNode } = geometry.blockOf(leaf).chain;
      return first + Math.floor((leaf - first) / perNode) * perNode;
    };
    const [w, h] = [geometry.leafW, geometry.leafH];
    let [px, py] = [x + w / 2, y + h / 2];
    while (px >= 0 && py >= 0 && px <= geometry.w && py <= geometry.h) {
      px += (dx * w) / 2;
      py += (dy * h) / 2;
      // a gap between cells may hide the straight way: look a little to the sides too
      for (const aside of [0, 0.6, -0.6]) {
        const leaf = geometry.leafAt(px + aside * dy * w, py + aside * dx * h);
        if (leaf < 0 || (far && node(leaf) === node(this.focus))) continue;
        const there = geometry.leaf(leaf);
        if ((there.x - x) * dx >= w || (there.y - y) * dy >= h) return this.focusOn(leaf);
      }
    }
    return undefined;
  }
}
