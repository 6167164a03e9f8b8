// What a GPU's tile stands for, in words: for the tip beside the pointer, and for who listens.

import { DRAINED } from "../cells.js";
import { el } from "../dom.js";
import { duration, sharing } from "../format.js";
import { dress } from "../palette.js";

const KINDS = {
  guaranteed: "guaranteed: in its VC's own cells",
  opportunistic: "opportunistic: on what others leave idle",
  guest: "guest: in the idle time of GPUs, beside their owner",
  reserved: "reserved: waits until those who are there have gone",
};

const MOST_OTHERS = 6; //: jobs on the same GPU that are told apart

/** Lines about a leaf: {title, vc, lines: [[name, text], ...]}. */
export function about(cells, leaf, clock, now) {
  const { node, device, path, type } = cells.place(leaf);
  const where = [...path.slice(0, 3)].join(" · ");
  const lines = [["where", `${node}, GPU ${device}`], ["cell", [type, where].filter(Boolean).join(" · ")]];
  const runner = cells.runner(leaf);
  const keeper = cells.keeper(leaf);
  if (cells.bad[leaf]) lines.push(["health", cells.bad[leaf] === DRAINED ? "drained: no new job is placed here" : "bad: no job is placed here until it is healthy again"]);
  for (const holder of [runner, keeper].filter(Boolean)) {
    if (holder === keeper && runner) lines.push(["kept for", `${holder.name} (${holder.vc})`]);
    else {
      lines.push(["VC", holder.vc], ["kind", holder.stopping ? `stopping (was ${holder.kind})` : holder.suspended ? `${KINDS[holder.kind]}; suspended now` : KINDS[holder.kind]]);
      if (sharing(holder)) lines.push(["works", sharing(holder)]);
      lines.push(["job", `${holder.gpus} GPU${holder.gpus === 1 ? "" : "s"}, priority ${holder.priority}`]);
    }
    if (holder === (runner ?? keeper)) lines.push(["since", `${clock.at(holder.since)}, for ${duration(now - holder.since)}`]);
    const bound = cells.binding(holder, leaf);
    if (bound) lines.push(["binding", bound]);
  }
  for (const other of cells.runners(leaf).slice(1, MOST_OTHERS + 1)) lines.push(["with", [other.name, other.kind === "guest" ? "guest" : "", sharing(other)].filter(Boolean).join(", ")]);
  const untold = cells.runners(leaf).length - 1 - MOST_OTHERS;
  if (untold > 0) lines.push(["with", `${untold} more`]);
  const who = runner ?? keeper;
  return { title: who ? who.name : ["Idle", "Bad GPU", "Drained GPU"][cells.bad[leaf]], vc: who?.vc ?? null, lines };
}

/** The same as one sentence. */
export function spoken({ title, lines }) {
  return `${title}. ${lines.map(([name, text]) => `${name}: ${text}`).join(". ")}.`;
}

/** Fill and place the tip beside a box of the page. */
export function showTip(tip, { title, vc, lines }, palette, x, y) {
  const head = el("div.tip-title", {}, vc ? el("span.swatch") : null, el("strong", {}, title));
  if (vc) dress(head.firstChild, palette.vc(vc));
  tip.replaceChildren(head, el("dl", {}, lines.map(([name, text]) => [el("dt", {}, name), el("dd", {}, text)])));
  tip.hidden = false;
  const { offsetWidth: w, offsetHeight: h } = tip;
  const left = x + 18 + w > innerWidth - 8 ? Math.max(8, x - 18 - w) : x + 18;
  const top = Math.min(Math.max(8, y + 14), Math.max(8, innerHeight - h - 8));
  tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
}
