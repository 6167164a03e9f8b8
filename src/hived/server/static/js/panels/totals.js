// The line of numbers under the header, and the bar of the whole cluster.

import { el, say } from "../dom.js";
import { count, percent } from "../format.js";

const PARTS = [
  ["guaranteed", "Guaranteed", "Share of all GPUs that run jobs inside their VC's own cells"],
  ["opportunistic", "Opportunistic", "Share of all GPUs that run jobs on what others leave idle; given back at once"],
  ["reserved", "Reserved", "Idle GPUs kept for a job that waits for others to go"],
  ["idle", "Idle", "Healthy GPUs that nobody uses"],
  ["bad", "Bad", "Faulty GPUs that nobody uses: no job is placed there"],
  ["drained", "Drained", "Healthy GPUs that no job uses, kept from new ones (hived drain), or for pods that HiveD did not place"],
];

export class TotalsLine {
  constructor(parent) {
    this.bar = el("div.whole", { role: "img" }, PARTS.map(([key]) => el(`span.k-${key}`)));
    this.cards = new Map();
    const card = (key, label, title) => {
      const value = el("span.value");
      const more = el("span.more");
      this.cards.set(key, { value, more });
      return el(`div.stat.s-${key}`, { title }, el("span.label", {}, key in { gpus: 1, fragmentation: 1, waiting: 1 } ? null : el(`i.key.k-${key}`), label), el("span.figure", {}, value, more));
    };
    parent.replaceChildren(
      el("div.stats", {},
        card("gpus", "GPUs", "All GPUs of the cluster"),
        PARTS.map(([key, label, title]) => card(key, label, title)),
        card("fragmentation", "Nodes in guaranteed use", "Share of nodes on which guaranteed jobs run, so that a job that needs a whole node finds no room there"),
        card("waiting", "Waiting", "Jobs in the queue")),
      this.bar);
  }

  show(totals, queueTotal) {
    const { gpus } = totals;
    const idle = Math.max(0, gpus - totals.guaranteed - totals.opportunistic - totals.reserved - totals.bad - (totals.drained ?? 0));
    const values = { drained: 0, ...totals, idle };
    PARTS.forEach(([key], at) => {
      const used = totals[`${key}_used`]; // beside those that the map marks, since it marks these too
      this.#set(key, count(values[key]), [gpus ? percent(values[key] / gpus) : "", used ? `+ ${count(used)} in use` : ""].filter(Boolean).join(" "));
      this.bar.children[at].style.flexGrow = values[key];
    });
    this.#set("gpus", count(gpus), "");
    this.#set("fragmentation", percent(totals.fragmentation), "");
    this.#set("waiting", count(queueTotal), "");
    this.bar.setAttribute("aria-label", PARTS.map(([key, label]) => `${label} ${count(values[key])}`).join(", "));
  }

  #set(key, value, more) {
    const card = this.cards.get(key);
    say(card.value, value);
    say(card.more, more);
  }
}
