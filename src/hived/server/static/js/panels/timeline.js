// Who has the GPUs of a node, and when: a band per GPU, in which a job has the height of its share of the time.

import { Latest, Refused } from "../api.js";
import { el } from "../dom.js";
import { duration, plural, sharing } from "../format.js";
import { dress, ofJobs } from "../palette.js";

const HOUR = 3600;
const WIDTHS = [[HOUR / 6, "10 min"], [HOUR, "1 hour"], [6 * HOUR, "6 hours"], [24 * HOUR, "1 day"], [7 * 24 * HOUR, "1 week"]];
const WAYS = { whole: "alone on the GPU", sliced: "in turns: its height is its share of the time", packed: "packed: at the same time as others", guest: "guest: above the owner, in what that leaves idle", several: "others, each for too short a time to be drawn", paused: "paused: it holds the GPU and does no work: suspended, or after a migration" };
const TICKS = 6;
/** Of the width of a window up to now: room after it. */
const AHEAD = 1 / 30;
/** Of the width of a window: below it a box has no edge, which would be all of it. */
const THIN = 1 / 200;
/** Seconds between two looks at a window up to now; longer for a wide one, in which nothing would have moved. */
const LOOK = (width) => Math.max(5, width / 1000);

export class TimelineDialog {
  /** `on`: {clock(), now(), view(), nodes(), layout(), select(id), session, confirmed}. */
  constructor(dialog, on) {
    Object.assign(this, { dialog, on });
    this.latest = new Latest();
    const button = (label, title, click) => el("button", { type: "button", title, "aria-label": title, on: { click } }, label);
    this.node = el("select", { "aria-label": "Node", on: { change: () => this.#load() } });
    this.widths = el("select", { "aria-label": "How long", on: { change: () => this.#setWidth(Number(this.widths.value)) } },
      WIDTHS.map(([seconds, words]) => el("option", { value: seconds }, words)));
    this.body = el("div.lanes");
    this.drain = el("button.act", { type: "button", hidden: true, on: { click: () => this.#toggleDrain() } });
    dialog.replaceChildren(
      el("div.head", {}, el("h2", { id: "timeline-heading" }, "Who has the GPUs"), this.node,
        el("div.zoom", { role: "group", "aria-label": "Time" }, button("◀", "Earlier", () => this.#shift(-1)), this.widths, button("▶", "Later", () => this.#shift(1))),
        this.drain,
        el("button.icon", { type: "button", "aria-label": "Close (Esc)", title: "Close (Esc)", on: { click: () => dialog.close() } }, "×")),
      this.body);
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    dialog.addEventListener("close", () => { this.latest.drop(); this.asked = null; });
    for (const [kind, on] of [["pointerover", true], ["pointerout", false]]) this.body.addEventListener(kind, (event) => this.#bringOut(event, on));
    this.body.addEventListener("click", (event) => {
      const of = event.target.closest("[data-job]");
      if (!of) return;
      dialog.close();
      this.on.select(this.shown.jobs[Number(of.dataset.job)].id);
    });
  }

  /** Show a node around the time of the slider; of a running engine up to `until`, or to now. */
  open(node, palette, until = null) {
    this.hues = ofJobs(palette);
    const nodes = this.on.nodes();
    this.node.replaceChildren(...nodes.map((name) => el("option", { value: name, selected: name === node }, name)));
    this.width ??= this.#firstWidth();
    this.widths.value = this.width;
    this.start = this.#within(this.#live ? (until ?? this.on.now()) - this.width * (1 - AHEAD) : this.on.now() - this.width / 2);
    if (!this.dialog.open) this.dialog.showModal();
    return this.#load();
  }

  get #live() {
    return this.on.layout().end === null;
  }

  /** Of a running engine an hour, or less where it has just begun. */
  #firstWidth() {
    if (!this.#live) return WIDTHS[2][0];
    const since = this.on.now() - this.on.layout().start;
    return WIDTHS.find(([width]) => width >= Math.min(since, HOUR))[0];
  }

  #end() {
    return this.on.layout().end ?? this.on.now() + this.width * AHEAD;
  }

  #within(start) {
    return Math.max(0, Math.min(start, this.#end() - this.width));
  }

  /** Around the middle; of a window up to now, up to now. */
  #setWidth(width) {
    const start = this.#follows ? Infinity : this.start + (this.width - width) / 2;
    this.width = width;
    this.start = this.#within(start);
    this.#load();
  }

  /** Whether the window is that of a running engine up to now. */
  get #follows() {
    return this.#live && this.start + this.width >= this.looked;
  }

  /** Time goes on, and a window up to now with it, unless somebody reads there. */
  tick() {
    if (!this.dialog.open || !this.#follows || this.body.matches(":hover, :focus-within")) return;
    if (this.on.now() - this.looked < LOOK(this.width)) return;
    this.start = this.#within(Infinity);
    this.#load();
  }

  #shift(way) {
    this.start = this.#within(this.start + way * this.width / 2);
    this.#load();
  }

  whoChanged() {
    if (this.dialog.open) this.#askDrained();
  }

  /** Whether the node takes jobs; only operators are asked what to do about it. */
  async #askDrained() {
    const node = this.node.value;
    const { me } = this.on.session;
    this.drain.hidden = true;
    if (!this.#live || !me.acts || !me.operator) return;
    const found = await this.on.session.read(`nodes?node=${encodeURIComponent(node)}`).catch(() => null);
    const devices = found?.nodes.find(({ name }) => name === node)?.devices;
    if (!devices || node !== this.node.value) return;
    this.drained = devices.every(({ drained }) => drained);
    this.drain.textContent = this.drained ? "Take jobs again" : "Drain";
    this.drain.title = this.drained ? `Let jobs start on ${node} again` : `Keep new jobs off ${node}`;
    this.drain.hidden = false;
  }

  async #toggleDrain() {
    const node = this.node.value;
    const undo = this.drained;
    if (!undo && !(await this.on.confirmed(`Drain ${node}?`, "No new jobs start there; those that run go on.", "Drain"))) return;
    try {
      await this.on.session.act("drain", { node, undo });
    } catch (error) {
      this.body.prepend(el("p.refused", { role: "alert" }, error.message));
    }
    await this.#askDrained();
  }

  async #load() {
    if (this.asked !== this.node.value) this.#askDrained();
    this.asked = this.node.value;
    this.looked = this.on.now();
    const end = Math.min(this.start + this.width, Math.max(this.#end(), this.start + 1));
    let shown;
    try {
      shown = await this.latest.ask("timeline", { view: this.on.view(), node: this.node.value, start: this.start, end });
    } catch (error) {
      this.body.replaceChildren(el("p.empty", {}, error instanceof Refused ? error.message : "The server does not answer."));
      return;
    }
    if (shown) this.#draw(shown);
  }

  #draw(shown) {
    this.shown = shown;
    const clock = this.on.clock();
    const span = shown.end - shown.start;
    const at = (time) => `${(100 * (time - shown.start)) / span}%`;
    const guests = shown.lanes.some(({ boxes }) => boxes.some(({ way }) => way === "guest"));
    const now = this.on.now();
    const ways = new Set();
    const lanes = shown.lanes.map((lane) => el("div.lane", {},
      el("span.gpu", {}, `GPU ${lane.device}`),
      el("div.band", {}, el("div.ground"), lane.boxes.map((box) => this.#box(box, at, clock, ways)), now >= shown.start && now <= shown.end ? el("i.now", { vars: { left: at(now) } }) : null)));
    const ticks = Array.from({ length: TICKS }, (_, n) => shown.start + (span * n) / (TICKS - 1));
    this.body.classList.toggle("with-guests", guests);
    this.body.replaceChildren(
      el("figure", { "aria-label": `GPUs of ${shown.node} from ${clock.full(shown.start)} for ${duration(span)}: ${plural(shown.jobs.length, "job")}` }, lanes,
        el("div.lane.axis", {}, el("span.gpu"), el("div.ticks", {}, ticks.map((time) => el("span", { title: clock.full(time) }, clock.tick(time, span)))))),
      el("div.legend", {}, [...ways].sort().map((way) => el("span", {}, el(`i.key.w-${way}`), WAYS[way])),
        this.#live && now <= shown.end ? el("span", {}, el("i.key.now"), "now") : null),
      shown.jobs.length
        ? el("ul.users", {}, shown.jobs.map((job, number) => this.#user(job, number)))
        : el("p.empty", {}, "No job is on its GPUs then."));
  }

  #box(box, at, clock, ways) {
    const job = this.shown.jobs[box.job];
    const way = !job ? "several" : box.rate || box.way === "guest" ? box.way : "paused";
    ways.add(way);
    const words = [job && `${job.name} of ${job.vc}`, WAYS[way], sharing(box), `from ${clock.full(box.start)} for ${duration(box.end - box.start)}`];
    const part = (box.end - box.start) / (this.shown.end - this.shown.start);
    const drawn = el(`span.box.w-${way}${part < THIN ? ".thin" : ""}`, {
      "data-job": box.job, title: words.filter(Boolean).join("\n"),
      vars: { left: at(box.start), width: `calc(${at(box.end)} - ${at(box.start)})`, "--bottom": box.bottom, "--tall": box.top - box.bottom },
    }, part > 1 / 14 && box.top - box.bottom > 0.3 ? job?.name : null);
    if (!job) return drawn;
    dress(drawn, this.hues[job.colour]);
    drawn.style.color = this.hues[job.colour].text;
    return drawn;
  }

  #user(job, number) {
    const row = el("li", {}, el("button", { type: "button", "data-job": number }, el("span.swatch"), el("b", {}, job.name), el("span", {}, `${job.vc}, ${plural(job.gpus, "GPU")}`)));
    dress(row.firstChild, this.hues[job.colour]);
    return row;
  }

  /** What is pointed at stands out, with all of its job. */
  #bringOut(event, on) {
    const of = event.target.closest("[data-job]");
    if (!of) return;
    this.body.classList.toggle("pointing", on);
    for (const one of this.body.querySelectorAll(`[data-job="${of.dataset.job}"]`)) one.classList.toggle("out", on);
  }
}

/** The node on which a job is, or was last before `now`, by its story, and until when; null: it has not run. */
export function lastPlace(story, now) {
  const placed = story.stays.filter(({ where }) => where);
  const stay = placed.findLast(({ start }) => start <= now) ?? placed[0];
  return stay ? { node: decodeURIComponent(stay.where.split(/:[\d,]+(?:;| or |$)/)[0]), until: stay.end } : null;
}
