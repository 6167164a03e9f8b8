// Who holds which GPU in one view: arrays over the leaf cells of all chains, changed by what changed.

export const GUARANTEED = 0;
export const OPPORTUNISTIC = 1;
export const STOPPING = 2; // a bit beside the kind
export const BAD = 1;
export const DRAINED = 2;

/** One view's leaves. A leaf's number counts through all chains. */
export class Cells {
  constructor(view) {
    this.view = view;
    this.chains = view.chains.map((chain) => ({
      name: chain.name,
      levels: chain.levels,
      nodeLevel: chain.node_level,
      nodes: chain.nodes,
      devices: chain.devices ?? {},
      perNode: chain.levels[chain.node_level - 1].gpus,
    }));
    let leaves = 0;
    for (const chain of this.chains) {
      chain.first = leaves;
      chain.leaves = chain.nodes.length * chain.perNode;
      leaves += chain.leaves;
    }
    this.leaves = leaves;
    this.look = new Int32Array(leaves); //: 0 idle, else 4 * (slot + 1) + kind and stopping, of who runs there
    this.kept = new Int32Array(leaves); //: 0, else slot + 1 of the job it is reserved for
    this.bad = new Uint8Array(leaves); //: 0, BAD or DRAINED; whoever runs there runs on
    this.rounds = new Uint32Array(leaves); //: the change that last touched it
    this.round = 0;
    this.known = false; //: whether there was a picture
    this.stirred = new Set(); //: leaves whose others changed: how many they are is written there
    this.more = new Map(); //: of leaves that jobs share: the slots of the others, beside the one of `look`
    this.holders = new Map(); //: id -> holder; a job can run and have more reserved, so the key is id and layer
    this.slots = []; //: slot -> holder
    this.free = [];
    this.badParts = [[], []]; //: bad, drained
  }

  /** All of a picture. Returns the numbers of the leaves that look different from before. */
  setPicture(picture) {
    this.known = true;
    const now = new Map(picture.holders.map((holder) => [keyOf(holder), holder]));
    const gone = [...this.holders.values()].filter((holder) => !now.has(keyOf(holder)));
    const news = picture.holders.filter((holder) => !same(this.holders.get(keyOf(holder)), holder));
    return this.#change(gone, news, [picture.bad, picture.drained ?? []]);
  }

  /** What changed since. Returns the same. */
  setUpdate(update) {
    const gone = [];
    for (const id of update.gone) for (const layer of "rk") if (this.holders.has(layer + id)) gone.push(this.holders.get(layer + id));
    // a holder that is told anew replaces what was told of the job before, on whichever layer
    for (const holder of update.holders) {
      const other = (holder.kind === "reserved" ? "r" : "k") + holder.id;
      if (this.holders.has(other) && !update.holders.some((one) => keyOf(one) === other)) gone.push(this.holders.get(other));
    }
    const [bad, drained] = this.badParts;
    return this.#change(gone, update.holders, [update.bad ?? bad, update.drained ?? drained]);
  }

  #change(gone, news, bad) {
    const touched = []; //: leaf, look, kept, bad before, and so on
    const round = ++this.round;
    const remember = (leaf) => {
      if (this.rounds[leaf] === round) return;
      this.rounds[leaf] = round;
      touched.push(leaf, this.look[leaf], this.kept[leaf], this.bad[leaf]);
    };
    const freed = [];
    this.stirred.clear();
    const vacate = (holder) => {
      const slot = holder.slot;
      const layer = holder.kind === "reserved" ? this.kept : this.look;
      this.each(holder.parts, (leaf) => {
        const mine = holder.kind === "reserved" ? layer[leaf] === slot + 1 : layer[leaf] >> 2 === slot + 1;
        if (mine) {
          remember(leaf);
          layer[leaf] = 0;
        }
        if (holder.kind !== "reserved" && this.more.has(leaf)) this.#part(leaf, slot, remember);
      });
      this.holders.delete(keyOf(holder));
      this.slots[slot] = undefined;
      freed.push(slot); // not used again before the next change: a leaf that passes to another job must look different
    };
    for (const holder of gone) vacate(holder);
    for (const holder of news) if (this.holders.has(keyOf(holder))) vacate(this.holders.get(keyOf(holder)));
    for (const holder of news) {
      const slot = this.free.pop() ?? this.slots.length;
      holder.slot = slot;
      this.slots[slot] = holder;
      this.holders.set(keyOf(holder), holder);
      const value = holder.kind === "reserved" ? slot + 1 : 4 * (slot + 1) + kindBits(holder);
      const layer = holder.kind === "reserved" ? this.kept : this.look;
      this.each(holder.parts, (leaf) => {
        remember(leaf);
        if (layer === this.look && layer[leaf]) this.#join(leaf, slot, value);
        else layer[leaf] = value;
      });
    }
    this.free.push(...freed);
    if (JSON.stringify(bad) !== JSON.stringify(this.badParts)) {
      this.each(this.badParts.flat(), (leaf) => { remember(leaf); this.bad[leaf] = 0; });
      this.each(bad[1], (leaf) => { remember(leaf); this.bad[leaf] = DRAINED; });
      this.each(bad[0], (leaf) => { remember(leaf); this.bad[leaf] = BAD; });
      this.badParts = bad;
    }
    const changed = [];
    for (let i = 0; i < touched.length; i += 4) {
      const leaf = touched[i];
      if (touched[i + 1] !== this.look[leaf] || touched[i + 2] !== this.kept[leaf] || touched[i + 3] !== this.bad[leaf] || this.stirred.has(leaf)) changed.push(leaf);
    }
    return changed;
  }

  /** One more job on a leaf in use. It is the one that is seen, but a guest never covers the owner. */
  #join(leaf, slot, value) {
    const seen = (this.look[leaf] >> 2) - 1;
    this.stirred.add(leaf);
    const others = this.more.get(leaf) ?? [];
    const covers = !isBelow(this.slots[slot]) || isBelow(this.slots[seen]);
    this.more.set(leaf, [...others, covers ? seen : slot]);
    if (covers) this.look[leaf] = value;
  }

  /** A job has left a leaf that it shared: another one is seen, an owner first. */
  #part(leaf, slot, remember) {
    remember(leaf);
    this.stirred.add(leaf);
    const others = this.more.get(leaf).filter((one) => one !== slot);
    if (!this.look[leaf]) {
      const next = others.findLast((one) => !isBelow(this.slots[one])) ?? others.at(-1);
      this.look[leaf] = 4 * (next + 1) + kindBits(this.slots[next]);
      others.splice(others.indexOf(next), 1);
    }
    if (others.length) this.more.set(leaf, others);
    else this.more.delete(leaf);
  }

  /** All that run on a leaf, the one that is seen first. */
  runners(leaf) {
    const first = this.runner(leaf);
    return first ? [first, ...(this.more.get(leaf) ?? []).map((slot) => this.slots[slot])] : [];
  }

  /** The same in order of their names, so that each keeps its place while they take turns; an owner before its guests. */
  sharers(leaf) {
    const order = (holder) => `${Number(holder.kind === "guest")}${holder.name}`;
    return this.runners(leaf).sort((a, b) => (order(a) < order(b) ? -1 : 1));
  }

  /** What a job is on a leaf: owner, guest, packed, takes turns, suspended; "" for one that has it for itself. */
  role(holder, leaf) {
    const others = this.runners(leaf).filter((one) => one !== holder);
    if (holder.kind === "guest") return "guest";
    if (others.some(({ kind }) => kind === "guest")) return "owner";
    if (others.some(({ name }) => holder.packed_with?.includes(name))) return "packed";
    if (others.length || holder.share < 0.9995) return "takes turns";
    return holder.suspended ? "suspended" : "";
  }

  /** Call `work(leaf)` for the leaves of stretches; stretches beyond the cluster are cut off. */
  each(parts, work) {
    for (const [chainNumber, node, first, how] of parts) {
      const chain = this.chains[chainNumber];
      if (!chain) continue;
      const start = chain.first + node * chain.perNode + first;
      const end = Math.min(start + how, chain.first + chain.leaves);
      for (let leaf = start; leaf < end; leaf++) work(leaf);
    }
  }

  chainOf(leaf) {
    return this.chains.findLast((chain) => chain.first <= leaf);
  }

  runner(leaf) {
    const look = this.look[leaf];
    return look ? this.slots[(look >> 2) - 1] : undefined;
  }

  keeper(leaf) {
    const kept = this.kept[leaf];
    return kept ? this.slots[kept - 1] : undefined;
  }

  /** All that a job has: running, reserved. */
  ofJob(id) {
    return ["r", "k"].map((layer) => this.holders.get(layer + id)).filter(Boolean);
  }

  /** Where a leaf is, in the words of the cluster. */
  place(leaf) {
    const chain = this.chainOf(leaf);
    const inside = leaf - chain.first;
    const node = Math.floor(inside / chain.perNode);
    const within = inside % chain.perNode;
    const path = [];
    for (let level = chain.levels.length - 1; level >= 1; level--) {
      if (level === chain.nodeLevel - 1) continue;
      const { cell_type: type, gpus } = chain.levels[level];
      const above = chain.levels[level + 1]?.gpus ?? chain.leaves;
      path.push(`${short(type)} ${Math.floor((inside % above) / gpus)}`);
    }
    return { chain, node: chain.nodes[node], device: chain.devices[node]?.[within] ?? within, path, type: chain.levels[0].cell_type };
  }

  /** The words that bind the part of `holder` that `leaf` is in; "" where there are none. */
  binding(holder, leaf) {
    const chain = this.chainOf(leaf);
    const number = this.chains.indexOf(chain);
    const node = Math.floor((leaf - chain.first) / chain.perNode);
    const within = (leaf - chain.first) % chain.perNode;
    const part = holder.parts.findIndex(([c, n, first, how]) => c === number && n === node && within >= first && within < first + how);
    return holder.binding?.[part] ?? "";
  }
}

/** Cell types are often qualified by what is above them: the last word tells them apart here. */
export const short = (type) => type.split(".").at(-1).toLowerCase();

const keyOf = (holder) => (holder.kind === "reserved" ? "k" : "r") + holder.id;

// guests are hatched as what is given back: they hold no GPUs
const kindBits = (holder) => (holder.kind === "opportunistic" || holder.kind === "guest" ? OPPORTUNISTIC : GUARANTEED) | (holder.stopping ? STOPPING : 0);

// who is seen only where nobody else is: a guest, and a job that stands still while others have their turn
const isBelow = (holder) => holder.kind === "guest" || holder.suspended;

function same(a, b) {
  if (!a || a.kind !== b.kind || a.stopping !== b.stopping || a.suspended !== b.suspended || a.since !== b.since || a.share !== b.share || a.rate !== b.rate || String(a.packed_with) !== String(b.packed_with) || JSON.stringify(a.limits) !== JSON.stringify(b.limits) || a.parts.length !== b.parts.length) return false;
  for (let i = 0; i < a.parts.length; i++) for (let j = 0; j < 4; j++) if (a.parts[i][j] !== b.parts[i][j]) return false;
  return true;
}
