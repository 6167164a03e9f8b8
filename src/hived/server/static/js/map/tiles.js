// The map when a GPU is a tile: rounded, framed by the cells it is in, with as many words as there is room for.

import { DRAINED, OPPORTUNISTIC, STOPPING, short } from "../cells.js";

const SANS = getComputedStyle(document.documentElement).getPropertyValue("--sans") || "system-ui, sans-serif";

const MOST_PARTS = 6; //: of a shared tile's strip: a job each

export class Tiles {
  constructor(palette, cells) {
    this.palette = palette;
    this.cells = cells;
    this.patterns = new Map();
    this.cut = new Map(); //: shortened texts
  }

  /** All that is to be seen. Returns how many GPUs were painted. */
  paintAll(context, camera, width, height) {
    this.context = context;
    context.fillStyle = this.palette.panel;
    context.fillRect(0, 0, width, height);
    let painted = 0;
    for (const block of camera.geometry.chains) painted += this.#level(camera, block, block.levels.length - 1, 0, block.x, block.y, width, height);
    return painted;
  }

  /** Only these leaves. Returns how many were painted. */
  paintSome(context, leaves, camera, width, height) {
    this.context = context;
    let painted = 0;
    for (const leaf of leaves) {
      const { x, y } = camera.geometry.leaf(leaf);
      const [left, top, right, bottom] = camera.sharp(x, y, camera.geometry.leafW, camera.geometry.leafH);
      if (right <= 0 || bottom <= 0 || left >= width || top >= height) continue;
      const block = camera.geometry.blockOf(leaf);
      context.fillStyle = this.#ground(block, innermost(block));
      context.fillRect(left, top, right - left, bottom - top);
      this.#tile(leaf, left, top, right - left, bottom - top);
      painted++;
    }
    return painted;
  }

  /** Names of the cells above the nodes, over a map that was painted otherwise. */
  paintNames(context, camera, width) {
    this.context = context;
    for (const block of camera.geometry.chains) {
      const { levels, node, chain } = block;
      for (let k = levels.length - 1; k > node; k--) {
        const own = levels[k];
        if (!own.head || own.head * camera.scale < 8.5) continue;
        const many = chain.leaves / own.gpus;
        for (let index = 0; index < many; index++) {
          const { x, y } = camera.geometry.cell(block, k, index);
          const [left, top, right] = camera.box(x, y, own.w, own.h);
          if (right > 0 && left < width) this.#name(block, k, index, left, top, right - left, camera.scale);
        }
      }
    }
  }

  #level(camera, block, k, index, x, y, width, height) {
    const own = block.levels[k];
    const [left, top, right, bottom] = camera.sharp(x, y, own.w, own.h);
    if (right <= 0 || bottom <= 0 || left >= width || top >= height) return 0;
    if (k === 0) {
      this.#tile(block.chain.first + index, left, top, right - left, bottom - top);
      return 1;
    }
    if (own.pad || own.head) this.#frame(block, k, index, left, top, right - left, bottom - top, camera.scale);
    const firstX = x + own.pad;
    const firstY = y + own.head + own.pad;
    // only the columns and rows on the stage
    const [seenX, seenY, endX, endY] = camera.seen(width, height);
    const col0 = Math.max(0, Math.floor((seenX - firstX) / own.stepX));
    const col1 = Math.min(own.cols - 1, Math.floor((endX - firstX) / own.stepX));
    const row0 = Math.max(0, Math.floor((seenY - firstY) / own.stepY));
    const row1 = Math.min(own.rows - 1, Math.floor((endY - firstY) / own.stepY));
    let painted = 0;
    for (let row = row0; row <= row1; row++) {
      for (let col = col0; col <= col1; col++) {
        const child = row * own.cols + col;
        if (child >= own.n) break;
        const number = index * own.n + child;
        painted += this.#level(camera, block, k - 1, number, firstX + col * own.stepX, firstY + row * own.stepY, width, height);
      }
    }
    return painted;
  }

  #ground(block, k) {
    const { palette } = this;
    if (k >= block.levels.length - 1) return palette.panel;
    if (k > block.node) return palette.group;
    return [palette.panel, palette.group, palette.deep][Math.min(2, block.node - k)];
  }

  #frame(block, k, index, x, y, w, h, scale) {
    const { context, palette } = this;
    const own = block.levels[k];
    const whole = k === block.levels.length - 1;
    if (!whole) {
      context.beginPath();
      context.roundRect(x + 0.5, y + 0.5, w - 1, h - 1, Math.min(10, (k >= block.node ? 12 : 8) * scale));
      context.fillStyle = this.#ground(block, k);
      context.fill();
      if (k >= block.node && w > 24) {
        context.strokeStyle = palette.line;
        context.lineWidth = 1;
        context.stroke();
      }
    }
    this.#name(block, k, index, x, y, w, scale);
  }

  #name(block, k, index, x, y, w, scale) {
    const { palette } = this;
    const own = block.levels[k];
    const whole = k === block.levels.length - 1;
    const head = own.head * scale;
    if (head < 8.5) return;
    const text = whole ? own.type : k === block.node ? block.chain.nodes[index] : `${short(own.type)} ${index % (block.levels[k + 1].n || 1)}`;
    const inset = Math.max(4, own.pad * scale) + (k >= block.node ? 2 : 1);
    const size = k >= block.node ? clamp(head * 0.62, 9, 14) : clamp(head * 0.55, 9, 11);
    const weight = k >= block.node ? 600 : 500;
    this.#text(text, x + inset, y + own.pad * scale * 0.5 + head / 2 + (k >= block.node ? 2 : 1), w - 2 * inset, size, weight, k >= block.node ? palette.ink : palette.soft);
  }

  #tile(leaf, x, y, w, h) {
    const { context, cells, palette } = this;
    const runner = cells.runner(leaf);
    const keeper = cells.keeper(leaf);
    const bad = cells.bad[leaf];
    const radius = Math.min(7, w * 0.09);
    context.beginPath();
    if (w < 14) context.rect(x, y, w, h);
    else context.roundRect(x + 0.75, y + 0.75, w - 1.5, h - 1.5, radius); // strokes stay inside: nothing is left behind
    let ink = palette.soft;
    let strip = 0;
    if (bad && !runner) {
      context.fillStyle = palette.bad;
      context.fill();
      this.#cross(x, y, w, h, bad === DRAINED);
      ink = palette.badMark;
    } else if (runner) {
      const shade = palette.vc(runner.vc);
      const look = cells.look[leaf];
      const lent = (look & 1) === OPPORTUNISTIC;
      const leaving = Boolean(look & STOPPING);
      context.fillStyle = lent ? this.#pattern("lent", shade) : leaving ? shade.stripe : shade.mark ? this.#pattern("mark", shade) : shade.solid;
      context.fill();
      if (w >= 14) {
        context.strokeStyle = lent || leaving ? shade.solid : shade.edge;
        context.lineWidth = lent || leaving ? 1.5 : 1;
        context.stroke();
      }
      ink = lent || leaving ? palette.ink : shade.text;
      strip = this.#strip(leaf, runner, x, y, w, h);
      if (keeper) this.#keep(palette.vc(keeper.vc), x, y, w, h, radius, true);
      if (bad) this.#corner(x, y, w - strip, h, bad === DRAINED);
    } else if (keeper) {
      const shade = palette.vc(keeper.vc);
      context.fillStyle = this.#pattern("kept", shade);
      context.fill();
      this.#keep(shade, x, y, w, h, radius, false);
      ink = palette.ink;
    } else {
      context.fillStyle = palette.idle;
      context.fill();
      if (w >= 14) {
        context.strokeStyle = palette.idleEdge;
        context.lineWidth = 1;
        context.stroke();
      }
    }
    if (w >= 34 && h >= 25) this.#words(leaf, runner, keeper, bad, x, y, w - strip, h, ink);
  }

  /**
   * At the right of a tile that jobs share: a part for each of them, filled where it runs, hatched as a guest, and hollow
   * while it is suspended. Returns its width; 0 where one job has the GPU for itself.
   */
  #strip(leaf, runner, x, y, w, h) {
    const { context, cells, palette } = this;
    if (!runner.suspended && !cells.more.has(leaf)) return 0;
    const jobs = cells.sharers(leaf).slice(0, MOST_PARTS);
    const wide = clamp(w * 0.15, 3, 22);
    const line = clamp(w * 0.012, 1, 2);
    const left = x + w - wide;
    context.save();
    context.clip(); // to the tile, whose path it is yet
    context.fillStyle = palette.panel;
    context.fillRect(left - line, y, wide + line, h);
    const each = (h + line) / jobs.length;
    jobs.forEach((holder, at) => {
      const shade = palette.vc(holder.vc);
      const [top, high] = [y + at * each, each - line];
      if (holder.suspended) {
        context.strokeStyle = shade.solid;
        context.lineWidth = line;
        context.strokeRect(left + line / 2, top + line / 2, wide - line, high - line);
        return;
      }
      context.fillStyle = holder.kind === "guest" || holder.kind === "opportunistic" ? this.#pattern("lent", shade) : shade.solid;
      context.fillRect(left, top, wide, high);
    });
    context.restore();
    return wide + line;
  }

  #words(leaf, runner, keeper, bad, x, y, w, h, ink) {
    const { cells, palette } = this;
    const inset = clamp(w * 0.07, 3.5, 12);
    const chain = cells.chainOf(leaf);
    const inside = leaf - chain.first;
    const within = inside % chain.perNode;
    const device = chain.devices[Math.floor(inside / chain.perNode)]?.[within] ?? within;
    const small = clamp(w * 0.075, 9, 12);
    const big = clamp(w * 0.105, 9, 16);
    const room = w - 2 * inset;
    const health = bad === DRAINED ? "drained" : bad ? "bad" : "";
    const who = runner ?? (bad ? null : keeper);
    // on a hatch, words stand on a plate of their own
    const look = cells.look[leaf];
    const plate = who && (!runner || look & 1 || look & STOPPING) ? (runner ? palette.vc(runner.vc).pale : palette.panel) : who && palette.vc(who.vc).mark ? palette.vc(who.vc).solid : null;
    const top = y + inset + small * 0.5;
    this.#text(String(device), x + inset, top, room, small, 600, ink, plate);
    if (bad && !who) {
      if (w > 60) this.#text(health, x + w - inset, top, room - 3 * small, small, 600, ink, palette.bad, "right");
      return;
    }
    if (!who) {
      if (w > 84 && h > 48) this.#text("idle", x + inset, y + h - inset - small * 0.5, room, small, 400, ink);
      return;
    }
    if (h < 29) return;
    const role = runner ? cells.role(runner, leaf) : "reserved";
    const kind = runner?.stopping ? "stopping" : role || (runner.kind === "guaranteed" ? "" : runner.kind);
    const state = [health, kind].filter(Boolean).join(", ");
    if (w > 96 && state) this.#text(state, x + w - inset, top, room - 3 * small, small, 500, ink, plate, "right");
    const middle = h > 84 ? y + h - inset - small * 1.35 - big * 0.62 : y + h - inset - big * 0.5;
    const others = runner ? cells.runners(leaf).length - 1 : 0;
    this.#text(others ? `${who.name} +${others}` : who.name, x + inset, middle, room, big, 600, ink, plate);
    if (h > 84) {
      const under = runner && keeper ? `${who.vc}, kept for ${keeper.name}` : who.vc;
      this.#text(under, x + inset, y + h - inset - small * 0.5, room, small, 400, ink, plate);
    }
  }

  #keep(shade, x, y, w, h, radius, inside) {
    const { context } = this;
    const width = clamp(w * 0.03, 1.5, 3);
    const inset = inside ? width * 1.5 : width / 2;
    context.beginPath();
    context.roundRect(x + inset, y + inset, w - 2 * inset, h - 2 * inset, radius);
    if (inside) {
      context.strokeStyle = this.palette.panel;
      context.lineWidth = width + 2;
      context.stroke();
    }
    context.setLineDash([clamp(w * 0.07, 3, 9), clamp(w * 0.05, 2, 6)]);
    context.strokeStyle = shade.solid;
    context.lineWidth = width;
    context.stroke();
    context.setLineDash([]);
  }

  /** A device in use that takes no more jobs: the sign of an idle one, small, in the corner that has no words. */
  #corner(x, y, w, h, drained) {
    const { context, palette } = this;
    const side = clamp(Math.min(w, h) * 0.3, 3, 18);
    const left = x + w - side - Math.min(3, w * 0.08);
    const top = y + h - side - Math.min(3, h * 0.08);
    context.fillStyle = palette.bad;
    context.fillRect(left, top, side, side);
    if (side >= 6) this.#cross(left, top, side, side, drained);
  }

  #cross(x, y, w, h, half) {
    const { context } = this;
    const inset = Math.min(w, h) * 0.24;
    context.strokeStyle = this.palette.badMark;
    context.lineWidth = clamp(Math.min(w, h) * 0.05, 1, 3.5);
    context.lineCap = "round";
    context.beginPath();
    context.moveTo(x + w / 2 - h / 2 + inset, y + inset);
    context.lineTo(x + w / 2 + h / 2 - inset, y + h - inset);
    if (!half) {
      context.moveTo(x + w / 2 + h / 2 - inset, y + inset);
      context.lineTo(x + w / 2 - h / 2 + inset, y + h - inset);
    }
    context.stroke();
    context.lineCap = "butt";
  }

  /** One line of text, cut to its room, centred on `y`; on a plate where the ground is hatched. */
  #text(text, x, y, room, size, weight, colour, plate = null, align = "left") {
    if (room < size * 1.2) return;
    const { context } = this;
    context.font = `${weight} ${size.toFixed(1)}px ${SANS}`;
    context.textAlign = align;
    context.textBaseline = "middle";
    const shown = this.#shorten(text, room);
    if (plate) {
      const wide = context.measureText(shown).width;
      context.fillStyle = plate;
      context.beginPath();
      context.roundRect((align === "right" ? x - wide : x) - 3, y - size * 0.68, wide + 6, size * 1.32, 3);
      context.fill();
    }
    context.fillStyle = colour;
    context.fillText(shown, x, y + size * 0.04);
  }

  #shorten(text, room) {
    const { context } = this;
    const key = `${context.font}|${Math.round(room)}|${text}`;
    const known = this.cut.get(key);
    if (known !== undefined) return known;
    let shown = text;
    if (context.measureText(text).width > room) {
      let low = 0;
      let high = text.length;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (context.measureText(cutTo(text, middle)).width <= room) low = middle;
        else high = middle - 1;
      }
      shown = low > 1 ? cutTo(text, low) : "";
    }
    if (this.cut.size > 20_000) this.cut.clear();
    this.cut.set(key, shown);
    return shown;
  }

  #pattern(kind, shade) {
    const key = `${kind}${shade.number}`;
    if (!this.patterns.has(key)) this.patterns.set(key, draw(kind, shade, this.palette, this.context));
    return this.patterns.get(key);
  }
}

/** `many` letters of a text; its end says more than its middle, since job names end in their numbers. */
const cutTo = (text, many) => `${text.slice(0, Math.floor(many * 0.4))}…${text.slice(text.length - Math.ceil(many * 0.6))}`;

const innermost = (block) => block.levels.findIndex((level, k) => k > 0 && (level.pad || level.head || k === block.levels.length - 1));

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

function draw(kind, shade, palette, context) {
  const ratio = window.devicePixelRatio || 1;
  const side = kind === "kept" ? 9 : 8;
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = Math.round(side * ratio);
  const c = canvas.getContext("2d");
  const scale = canvas.width / side;
  c.scale(scale, scale);
  if (kind === "lent") {
    c.fillStyle = shade.pale;
    c.fillRect(0, 0, side, side);
    c.strokeStyle = shade.stripe;
    c.lineWidth = 2.6;
    for (const d of [-side, 0, side]) line(c, d - 1, side + 1, d + side + 1, -1);
  } else if (kind === "kept") {
    c.fillStyle = palette.panel;
    c.fillRect(0, 0, side, side);
    c.strokeStyle = shade.stripe;
    c.lineWidth = 1;
    for (const d of [-side, 0, side]) {
      line(c, d - 1, side + 1, d + side + 1, -1);
      line(c, d - 1, -1, d + side + 1, side + 1);
    }
  } else {
    c.fillStyle = shade.solid;
    c.fillRect(0, 0, side, side);
    c.fillStyle = shade.text === "#ffffff" ? "rgba(255,255,255,.5)" : "rgba(0,0,0,.42)";
    if (shade.mark === 1) {
      c.beginPath();
      c.arc(side / 2, side / 2, 1.4, 0, 7);
      c.fill();
    } else c.fillRect(0, side / 2 - 0.75, side, 1.5);
  }
  const pattern = context.createPattern(canvas, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / scale));
  return pattern;
}

function line(c, x0, y0, x1, y1) {
  c.beginPath();
  c.moveTo(x0, y0);
  c.lineTo(x1, y1);
  c.stroke();
}
