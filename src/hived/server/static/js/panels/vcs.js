// Virtual clusters: what each reserved, uses, lends and borrows. A click brings one out on the map.

import { short } from "../cells.js";
import { el, keyed, say } from "../dom.js";
import { Clock, count, plural } from "../format.js";
import { dress } from "../palette.js";

export class VcPanel {
  constructor(parent, note, onFilter) {
    this.parent = parent;
    this.note = note;
    this.onFilter = onFilter;
    this.filter = null;
    this.list = el("div.vc-list");
    parent.replaceChildren(this.list);
  }

  setLayout(layout, palette) {
    this.palette = palette;
    this.clock = new Clock(layout.clock);
    this.reserved = new Map(layout.vcs.map((vc) => [vc.name, vc.reserved]));
    if (this.usage) this.show(this.usage);
  }

  show(usage) {
    this.usage = usage;
    this.list.classList.toggle("many", usage.length > 5);
    say(this.note, usage.length ? "used / reserved GPUs" : "");
    keyed(this.list, usage, ({ vc }) => vc, ({ vc }) => this.#row(vc), (row, one) => this.#refresh(row, one));
  }

  mark(filter) {
    this.filter = filter;
    for (const [vc, row] of this.list.rows ?? []) row.setAttribute("aria-pressed", String(vc === filter));
  }

  #row(vc) {
    const part = (kind) => el(`span.${kind}`);
    const row = el("button.vc", { type: "button", "aria-pressed": String(this.filter === vc), on: { click: () => this.onFilter(this.filter === vc ? null : vc) } },
      el("span.swatch"), el("span.name", {}, vc), el("span.ratio"),
      el("span.bar", {}, part("used"), part("lent"), part("unused"), part("borrowed")),
      el("span.facts"), el("span.traded"), el("span.cells"));
    row.title = "Show on the map";
    return row;
  }

  #refresh(row, one) {
    const [, , ratio, bar, facts, traded, cells] = row.children;
    dress(row, this.palette.vc(one.vc));
    say(traded, [...tradedInWords("gave", "to", one.given, this.clock), ...tradedInWords("took", "of", one.taken, this.clock)].join(" · "));
    traded.hidden = !traded.textContent;
    say(cells, cellsInWords(this.reserved.get(one.vc) ?? []));
    say(ratio, `${count(one.used)} / ${count(one.reserved)}`);
    const unused = Math.max(0, one.reserved - one.used - one.lent);
    [one.used, one.lent, unused, one.borrowed].forEach((value, at) => { bar.children[at].style.flexGrow = value; });
    bar.children[3].hidden = !one.borrowed;
    const words = [
      one.lent ? `lends ${count(one.lent)}` : null,
      one.borrowed ? `borrows ${count(one.borrowed)}` : null,
      one.waiting ? `${plural(one.waiting, "job")} waiting` : null,
    ].filter(Boolean);
    say(facts, words.join(" · ") || (one.used ? "nothing lent, borrowed or waiting" : "nothing runs"));
  }
}

function tradedInWords(verb, word, trades, clock) {
  return (trades ?? []).map(({ vc, cell_type: type, number, until }) =>
    `${verb} ${count(number)} × ${short(type)} ${word} ${vc} until ${clock.at(until)}`);
}

function cellsInWords(reserved) {
  if (!reserved.length) return "reserves nothing";
  return `reserves ${reserved.map(({ cell_type: type, number, gpus, pinned }) =>
    `${count(number)} × ${short(type)}${gpus > 1 ? ` of ${count(gpus)}` : ""}${pinned ? ` (pinned ${pinned})` : ""}`).join(", ")}`;
}
