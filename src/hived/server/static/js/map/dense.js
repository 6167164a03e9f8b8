// The map when a GPU is a few pixels: pixels are written straight into a buffer. Nodes keep one pixel of air between
// them; a GPU's share of its node is cut at whole pixels, so nothing blurs however far out.

import { DRAINED, GUARANTEED, OPPORTUNISTIC } from "../cells.js";
import { mix, parts } from "../palette.js";

const OPAQUE = 0xff000000;

export class Dense {
  constructor(palette, cells) {
    const packed = (colour) => {
      const [r, g, b] = parts(colour);
      return (OPAQUE | (b << 16) | (g << 8) | r) >>> 0;
    };
    this.stage = packed(palette.panel);
    this.rack = packed(palette.group);
    this.idle = packed(palette.theme === "dark" ? mix(palette.idle, palette.ink, 0.06) : palette.idle);
    this.bad = packed(palette.bad);
    this.badMark = packed(palette.badMark);
    this.badSpeck = packed(palette.theme === "dark" ? palette.badMark : palette.bad); // must be seen without its cross
    this.solid = palette.vcs.map((shade) => packed(shade.solid));
    this.pale = palette.vcs.map((shade) => packed(mix(palette.panel, shade.solid, 0.3)));
    this.markOf = palette.vcs.map((shade) => shade.mark);
    this.dot = palette.vcs.map((shade) => packed(mix(shade.solid, palette.theme === "dark" ? "#ffffff" : "#000000", 0.55)));
    this.soft = palette.vcs.map((shade) => packed(mix(palette.panel, shade.solid, 0.62)));
    this.number = new Map([...palette.byName].map(([name, shade]) => [name, shade.number]));
    this.cells = cells;
  }

  /** Take a canvas of w x h device pixels. */
  resize(context, ratio) {
    const { width, height } = context.canvas;
    this.context = context;
    this.unit = Math.max(1, Math.round(ratio)); // a dot of a hatch, in device pixels
    if (this.image?.width !== width || this.image?.height !== height) {
      this.image = context.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.width = width;
      this.height = height;
    }
  }

  /** Where the leaves of each block's node stand among its columns and rows. */
  static grid(block) {
    if (block.grid) return block.grid;
    const node = block.node;
    const col = new Uint16Array(block.levels[node].gpus);
    const row = new Uint16Array(col.length);
    let cols = 1;
    let rows = 1;
    for (let k = 1; k <= node; k++) {
      const own = block.levels[k];
      const below = block.levels[k - 1].gpus;
      for (let leaf = 0; leaf < col.length; leaf++) {
        const child = Math.floor((leaf % own.gpus) / below);
        col[leaf] += (child % own.cols) * cols;
        row[leaf] += Math.floor(child / own.cols) * rows;
      }
      cols *= own.cols;
      rows *= own.rows;
    }
    block.grid = { col, row, cols, rows };
    return block.grid;
  }

  /** A node's pixels: left, top, right, bottom (device pixels, not clipped). */
  nodeBox(block, index, camera, ratio) {
    const { x, y } = camera.geometry.cell(block, block.node, index);
    const node = block.levels[block.node];
    const scale = camera.scale * ratio;
    const left = Math.round((x * camera.scale + camera.x) * ratio);
    const top = Math.round((y * camera.scale + camera.y) * ratio);
    const gap = 14 * scale;
    const air = gap < 1 ? 1 - gap : 0;
    return [left, top, Math.max(left + 1, Math.round(left + node.w * scale - air)), Math.max(top + 1, Math.round(top + node.h * scale - air))];
  }

  /** A leaf's pixels in the same way. */
  leafBox(leaf, camera, ratio) {
    const block = camera.geometry.blockOf(leaf);
    const inside = leaf - block.chain.first;
    const perNode = block.chain.perNode;
    return this.inNode(block, this.nodeBox(block, Math.floor(inside / perNode), camera, ratio), inside % perNode);
  }

  inNode(block, [left, top, right, bottom], within) {
    const { col, row, cols, rows } = Dense.grid(block);
    const c = col[within];
    const r = row[within];
    return [
      left + Math.round(((right - left) * c) / cols), top + Math.round(((bottom - top) * r) / rows),
      left + Math.round(((right - left) * (c + 1)) / cols), top + Math.round(((bottom - top) * (r + 1)) / rows),
    ];
  }

  /** All that is to be seen. Returns how many GPUs were painted. */
  paintAll(camera, ratio) {
    this.pixels.fill(this.stage);
    let painted = 0;
    for (const block of camera.geometry.chains) {
      const { levels, node, chain } = block;
      for (let k = levels.length - 2; k > node; k--) {
        const many = chain.leaves / levels[k].gpus;
        for (let index = 0; index < many; index++) {
          const { x, y } = camera.geometry.cell(block, k, index);
          this.fill(this.rack, ...camera.box(x, y, levels[k].w, levels[k].h).map((value) => Math.round(value * ratio)));
        }
      }
      const nodes = chain.leaves / chain.perNode;
      for (let index = 0; index < nodes; index++) {
        const box = this.nodeBox(block, index, camera, ratio);
        if (box[2] <= 0 || box[3] <= 0 || box[0] >= this.width || box[1] >= this.height) continue;
        for (let within = 0; within < chain.perNode; within++) {
          this.paint(chain.first + index * chain.perNode + within, this.inNode(block, box, within));
        }
        painted += chain.perNode;
      }
    }
    this.context.putImageData(this.image, 0, 0);
    return painted;
  }

  /** Only these leaves, in time proportional to their pixels. Returns how many were painted. */
  paintSome(leaves, camera, ratio) {
    let painted = 0;
    for (const leaf of leaves) {
      const box = this.leafBox(leaf, camera, ratio);
      if (box[2] <= 0 || box[3] <= 0 || box[0] >= this.width || box[1] >= this.height) continue;
      this.paint(leaf, box);
      this.context.putImageData(this.image, 0, 0, box[0], box[1], box[2] - box[0], box[3] - box[1]);
      painted++;
    }
    return painted;
  }

  paint(leaf, [left, top, right, bottom]) {
    const { cells } = this;
    const look = cells.look[leaf];
    const bad = cells.bad[leaf];
    if (bad && !look) {
      const speck = Math.min(right - left, bottom - top) < 6;
      this.fill(speck ? this.badSpeck : this.bad, left, top, right, bottom);
      if (!speck) this.cross(left, top, right, bottom, bad === DRAINED);
      return;
    }
    if (look) {
      const vc = this.number.get(cells.slots[(look >> 2) - 1].vc) ?? 7;
      if ((look & 1) === OPPORTUNISTIC) this.hatch(this.pale[vc], this.solid[vc], left, top, right, bottom);
      else this.fill(look & 2 ? this.soft[vc] : this.solid[vc], left, top, right, bottom);
      if ((look & 1) === GUARANTEED && this.markOf[vc]) this.marks(this.dot[vc], this.markOf[vc], left, top, right, bottom);
    } else this.fill(this.idle, left, top, right, bottom);
    const kept = cells.kept[leaf];
    if (kept) this.outline(this.solid[this.number.get(cells.slots[kept - 1].vc) ?? 7], !look, left, top, right, bottom);
    if (bad) this.fill(this.bad, right - Math.ceil((right - left) / 3), bottom - Math.ceil((bottom - top) / 3), right, bottom);
  }

  fill(colour, left, top, right, bottom) {
    const { pixels, width } = this;
    const l = Math.max(0, left);
    const r = Math.min(width, right);
    if (r <= l) return;
    for (let y = Math.max(0, top), end = Math.min(this.height, bottom); y < end; y++) pixels.fill(colour, y * width + l, y * width + r);
  }

  hatch(light, strong, left, top, right, bottom) {
    const { pixels, width, unit } = this;
    for (let y = Math.max(0, top), end = Math.min(this.height, bottom); y < end; y++) {
      for (let x = Math.max(0, left), stop = Math.min(width, right); x < stop; x++) {
        pixels[y * width + x] = Math.floor((x + y) / unit) % 3 === 0 ? strong : light;
      }
    }
  }

  marks(colour, mark, left, top, right, bottom) {
    const { pixels, width, unit } = this;
    for (let y = Math.max(0, top), end = Math.min(this.height, bottom); y < end; y++) {
      if (Math.floor(y / unit) % 3 !== 1) continue;
      for (let x = Math.max(0, left), stop = Math.min(width, right); x < stop; x++) {
        if (mark === 2 || Math.floor(x / unit) % 3 === 1) pixels[y * width + x] = colour;
      }
    }
  }

  outline(colour, crossed, left, top, right, bottom) {
    const { pixels, width, unit } = this;
    for (let y = Math.max(0, top), end = Math.min(this.height, bottom); y < end; y++) {
      for (let x = Math.max(0, left), stop = Math.min(width, right); x < stop; x++) {
        const edge = x < left + unit || x >= right - unit || y < top + unit || y >= bottom - unit;
        const line = crossed && Math.floor((x - y + 3000) / unit) % 4 === 0;
        if (edge || line) pixels[y * width + x] = colour;
      }
    }
  }

  cross(left, top, right, bottom, half) {
    const { pixels, width } = this;
    const w = right - left;
    const h = bottom - top;
    for (let step = 0; step < Math.max(w, h); step++) {
      const x = Math.floor((step * w) / Math.max(w, h));
      const y = top + Math.floor((step * h) / Math.max(w, h));
      for (const at of half ? [left + x] : [left + x, right - 1 - x]) {
        if (at >= 0 && at < width && y >= 0 && y < this.height) pixels[y * width + at] = this.badMark;
      }
    }
  }
}
