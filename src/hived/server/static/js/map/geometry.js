// Where each cell is drawn: cells of a level are equal, so a level is a grid of the level below, and any leaf's place is
// found in O(levels). Lengths are in units of the drawing; the map scales them.

const LEAF_W = 100;
const LEAF_H = 76;
const NAME = 13; // CSS pixels of a line with a name
const ROOMIEST = 3; // no tile gets larger than this many times the above

/** The whole drawing of a view's chains for a stage of width x height: the shapes that let leaves be largest. */
export class Geometry {
  constructor(chains, width, height) {
    let { blocks, flow } = arranged(chains, width, height, 0);
    // names must be read where their cells are wide enough for them: once more, with heads of that height
    if (blocks.some((block) => namesWanted(block, flow.scale))) ({ blocks, flow } = arranged(chains, width, height, NAME / flow.scale));
    this.chains = blocks.map((shape, number) => ({ ...shape, x: flow.at[number].x, y: flow.at[number].y, chain: chains[number] }));
    this.w = flow.w;
    this.h = flow.h;
    this.leafW = LEAF_W;
    this.leafH = LEAF_H;
  }

  /** Largest scale at which all of it fits into width x height. */
  fit(width, height) {
    return Math.min(width / this.w, height / this.h, ROOMIEST);
  }

  /** Upper left corner of a leaf (its number counts through all chains). */
  leaf(number) {
    const block = this.blockOf(number);
    return this.cell(block, 0, number - block.chain.first);
  }

  blockOf(number) {
    return this.chains.findLast((block) => block.chain.first <= number);
  }

  /** Upper left corner of cell `index` of `level` (0: leaves) of a block. */
  cell(block, level, index) {
    let { x, y } = block;
    let rest = index * block.levels[level].gpus;
    for (let k = block.levels.length - 1; k > level; k--) {
      const own = block.levels[k];
      const below = block.levels[k - 1];
      const child = Math.floor(rest / below.gpus);
      rest -= child * below.gpus;
      x += own.pad + (child % own.cols) * own.stepX;
      y += own.head + own.pad + Math.floor(child / own.cols) * own.stepY;
    }
    return { x, y };
  }

  /** The leaf drawn at a point, or -1. */
  leafAt(x, y) {
    for (const block of this.chains) {
      let dx = x - block.x;
      let dy = y - block.y;
      const top = block.levels.at(-1);
      if (dx < 0 || dy < 0 || dx >= top.w || dy >= top.h) continue;
      let leaf = 0;
      for (let k = block.levels.length - 1; k > 0; k--) {
        const own = block.levels[k];
        const below = block.levels[k - 1];
        dx -= own.pad;
        dy -= own.head + own.pad;
        const col = Math.floor(dx / own.stepX);
        const row = Math.floor(dy / own.stepY);
        dx -= col * own.stepX;
        dy -= row * own.stepY;
        const child = row * own.cols + col;
        if (col < 0 || row < 0 || col >= own.cols || child >= own.n || dx >= below.w || dy >= below.h) return -1;
        leaf += child * below.gpus;
      }
      return block.chain.first + leaf;
    }
    return -1;
  }
}

function arranged(chains, width, height, name) {
  const total = chains.reduce((sum, chain) => sum + chain.leaves, 0);
  const blocks = chains.map((chain) => {
    const share = Math.sqrt(chain.leaves / total);
    return bestShape(chain, width * share, height * share, chains.length > 1, name);
  });
  return { blocks, flow: bestFlow(blocks, width, height) };
}

/** Whether cells from the node up are wide enough for a name, and their heads too low for one. */
function namesWanted({ levels, node }, scale) {
  return levels.some(({ w, head }, k) => k >= node && head && head * scale < NAME && w * scale > 58);
}

/** A chain's levels as grids; the last level is the whole chain. Heads are `name` high at least, where nodes are not tiny. */
function shape(chain, cols, named, name) {
  const node = chain.nodeLevel - 1;
  const levels = [{ gpus: 1, n: 0, cols: 1, rows: 1, w: LEAF_W, h: LEAF_H, pad: 0, head: 0, type: chain.levels[0].cell_type }];
  for (let k = 1; k <= chain.levels.length; k++) {
    const below = levels[k - 1];
    const whole = k === chain.levels.length;
    const gpus = whole ? chain.leaves : chain.levels[k].gpus;
    const n = gpus / below.gpus;
    const rows = Math.ceil(n / cols[k]);
    const size = Math.sqrt(below.w * below.h);
    let gap, pad, head;
    if (whole) {
      gap = k - 1 === node ? 16 : size * 0.05;
      pad = 0;
      head = named ? Math.max(34, Math.sqrt(n) * size * 0.07) : 0;
    } else if (k > node) {
      gap = k - 1 === node ? 14 : size * 0.05;
      pad = k - 1 === node ? 12 : size * 0.03;
      head = Math.max(34, Math.sqrt(n) * size * 0.06);
    } else if (k === node) {
      [gap, pad, head] = [k > 1 ? 10 : 6, 10, 25];
    } else {
      [gap, pad, head] = n === 1 ? [0, 0, 0] : [k > 1 ? 7 : 5, k > 1 ? 7 : 5, k > 1 ? 15 : 0];
    }
    if (k >= node && head && size * Math.sqrt(n) > name * 4) head = Math.max(head, name);
    levels.push({
      gpus, n, cols: cols[k], rows, gap, pad, head,
      stepX: below.w + gap, stepY: below.h + gap,
      w: 2 * pad + cols[k] * (below.w + gap) - gap,
      h: head + 2 * pad + rows * (below.h + gap) - gap,
      type: whole ? chain.name : chain.levels[k].cell_type,
    });
  }
  return { levels, node };
}

function bestShape(chain, width, height, named, name) {
  const counts = [0];
  for (let k = 1; k <= chain.levels.length; k++) {
    counts.push((k === chain.levels.length ? chain.leaves : chain.levels[k].gpus) / chain.levels[k - 1].gpus);
  }
  let best = null;
  let most = -1;
  const cols = [1];
  const search = (k) => {
    if (k === counts.length) {
      const found = shape(chain, cols, named, name);
      const top = found.levels.at(-1);
      const worth = Math.min(width / top.w, height / top.h) * legibility(found);
      if (worth > most * 1.0001) [best, most] = [found, worth];
      return;
    }
    for (const choice of choices(counts[k])) {
      cols[k] = choice;
      search(k + 1);
    }
  };
  search(1);
  return best;
}

/** Nodes lie rather than stand: their names fit then, and it is how people draw them. */
function legibility({ levels, node }) {
  const { w, h } = levels[node];
  const aspect = w / h;
  const lies = aspect < 0.8 ? 0.75 : aspect > 4.2 ? 0.8 : 1;
  const ragged = levels.reduce((worth, { n, cols, rows }) => (n > 1 && cols * rows !== n ? worth * 0.94 : worth), 1);
  const pair = levels[1].n === 2 && levels[1].cols === 1 ? 0.93 : 1;
  return lies * pair * ragged;
}

function choices(n) {
  if (n <= 1) return [1];
  if (n <= 8) return Array.from({ length: n }, (_, i) => n - i).filter((cols) => n % cols === 0 || cols === Math.ceil(Math.sqrt(n)));
  const found = new Set();
  for (const aspect of [8, 5, 3, 2, 1.4, 1, 0.7, 0.5, 0.33, 0.2]) found.add(Math.min(n, Math.max(1, Math.round(Math.sqrt(n * aspect)))));
  for (let cols = 1; cols <= n; cols *= 2) if (n % cols === 0 && cols * cols < n * 9 && cols * cols * 9 > n) found.add(cols);
  return [...found];
}

/** Blocks side by side, broken into rows where that lets them be largest. */
function bestFlow(blocks, width, height) {
  const sizes = blocks.map((block) => block.levels.at(-1));
  const gap = sizes.length > 1 ? Math.sqrt(Math.max(...sizes.map(({ w, h }) => w * h))) * 0.05 : 0;
  const widest = Math.max(...sizes.map(({ w }) => w));
  const all = sizes.reduce((sum, { w }) => sum + w + gap, 0);
  let best = null;
  for (let step = 0; step <= 24; step++) {
    const limit = widest + ((all - widest) * step) / 24;
    const at = [];
    let x = 0, y = 0, tall = 0, w = 0;
    for (const size of sizes) {
      if (x > 0 && x + size.w > limit) [x, y, tall] = [0, y + tall + gap, 0];
      at.push({ x, y });
      x += size.w + gap;
      tall = Math.max(tall, size.h);
      w = Math.max(w, x - gap);
    }
    const found = { at, w, h: y + tall };
    found.scale = Math.min(width / found.w, height / found.h);
    if (!best || found.scale > best.scale) best = found;
  }
  return best;
}
