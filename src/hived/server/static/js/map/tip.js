// What a GPU's tile stands for, in words: for the tip beside the pointer, and for who listens.

import { DRAINED } from "../cells.js";
import { el } from "../dom.js";
import { duration, limited, plural, sharing } from "../format.js";
import { dress } from "../palette.js";

const KINDS = {
  guaranteed: "guaranteed: in its VC's own cells",
  opportunistic: "opportunistic: on what others leave idle",
  guest: "guest: in the idle time of GPUs, beside their owner",
  reserved: "reserved: waits until those who are there have gone",
};

const MOST_JOBS = 7; //: on the same GPU that are told apart

/** Lines about a leaf: {title, vc, lines: [[name, text], ...]}. */
export function about(cells, leaf, clock, now) {
  const { node, device, path, type } = cells.place(leaf);
  const where = [...path.slice(0, 3)].join(" · ");
  const lines = [["where", `${node}, GPU ${device}`], ["cell", [type, where].filter(Boolean).join(" · ")]];
  const runner = cells.runner(leaf);
  const keeper = cells.keeper(leaf);
  const sharers = cells.sharers(leaf);
  const shared = sharers.length > 1;
  if (cells.bad[leaf]) lines.push(["health", cells.bad[leaf] === DRAINED ? "drained: no new job is placed here" : "bad: no job is placed here until it is healthy again"]);
  const who = runner ?? keeper;
  if (shared) {
    for (const holder of sharers.slice(0, MOST_JOBS)) lines.push([cells.role(holder, leaf), onShared(holder, clock, now)]);
    if (sharers.length > MOST_JOBS) lines.push(["and", `${sharers.length - MOST_JOBS} more`]);
  } else if (who) {
    lines.push(["VC", who.vc], ["kind", who.stopping ? `stopping (was ${who.kind})` : who.suspended ? `${KINDS[who.kind]}; suspended now` : KINDS[who.kind]]);
    if (sharing(who)) lines.push(["works", sharing(who)]);
    if (who.limits) lines.push(["limits", limited(who)]);
    lines.push(["job", `${plural(who.gpus, "GPU")}, priority ${who.priority}`], ["since", `${clock.at(who.since)}, for ${duration(now - who.since)}`]);
  }
  for (const holder of [runner, keeper].filter(Boolean)) {
    if (holder !== who) lines.push(["kept for", `${holder.name} (${holder.vc})`]);
    const bound = cells.binding(holder, leaf);
    if (bound) lines.push(["binding", bound]);
  }
  const free = ["Idle", "Bad GPU", "Drained GPU"][cells.bad[leaf]];
  return { title: shared ? `${plural(sharers.length, "job")} on this GPU` : who?.name ?? free, vc: shared ? null : who?.vc ?? null, lines };
}

/** `train-4 (vision), suspended, limited to 35% of the time, since 12:00:00, for 5 min`. */
function onShared(holder, clock, now) {
  const does = holder.stopping ? "stopping" : holder.suspended ? "suspended" : "";
  const since = `since ${clock.at(holder.since)}, for ${duration(now - holder.since)}`;
  return [`${holder.name} (${holder.vc})`, does, sharing(holder), limited(holder), since].filter(Boolean).join(", ");
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
