// Jobs: those that wait, in line and why; those that run; those that have ended. A picture has all that run and the first that
// wait; the server is asked for the rest of the queue, and for what has ended, once somebody wants to see it.

import { ask } from "../api.js";
import { el, keyed, say } from "../dom.js";
import { count, duration, limited, plural, sharing, STAYS } from "../format.js";
import { dress } from "../palette.js";

const PAGE = 200; //: rows that are shown until more are asked for
const MORE = 1000; //: and how many more then; also the most that the server gives at once
const PAUSE_MS = 1000; //: between two questions, while things change
const LISTS = ["waiting", "running", "ended"];
const NONE = {
  waiting: ["No job waits at this moment.", "No waiting job has these words."],
  running: ["No job runs at this moment.", "No running job has these words."],
  ended: ["No job has ended yet.", "No job of these that have ended has these words."],
};

export class JobsPanel {
  /** `on`: {select(id), now(), holders(), view(), at(): the moment that is asked for, asked(error)}. */
  constructor({ parent, note, input, tabs }, on) {
    Object.assign(this, { note, input, on });
    this.queue = [];
    this.total = 0;
    this.beyond = []; //: of the queue, after what pictures have
    this.over = null; //: those that have ended, once the server has said it
    this.known = false; //: whether a picture of this moment has come
    this.shown = "waiting";
    this.most = PAGE;
    this.list = el("ol.queue-list");
    this.empty = el("div.empty");
    this.more = el("button.show-more", { type: "button", on: { click: () => this.#more() } });
    parent.replaceChildren(this.list, this.empty, this.more);
    this.tabs = LISTS.map((name) => el("button", { type: "button", role: "tab", id: `list-${name}`, "aria-controls": parent.id, on: { click: () => this.turnTo(name) } }));
    tabs.replaceChildren(...this.tabs);
    tabs.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      this.turnTo(LISTS[(LISTS.indexOf(this.shown) + step + LISTS.length) % LISTS.length]);
      this.tabs[LISTS.indexOf(this.shown)].focus();
      event.preventDefault();
    });
    input.addEventListener("input", () => this.draw());
  }

  setLayout(layout, palette) {
    this.palette = palette;
    this.live = layout.end === null;
    this.example = layout.example.replace("NAME", layout.vcs[0]?.name ?? "NAME");
    this.draw();
  }

  /** Another view, or another moment of one: what was asked for besides is of no use. */
  forget() {
    this.beyond = [];
    this.over = null;
    this.known = false;
    this.most = PAGE;
  }

  turnTo(name) {
    this.shown = name;
    this.most = PAGE;
    this.list.rows = new Map();
    this.list.replaceChildren();
    this.draw();
    this.#ask();
  }

  /** The queue of a picture or an update; who runs has been told to the cells. */
  show(queue, total) {
    this.queue = queue ?? this.queue;
    this.total = total;
    this.known = true;
    this.draw();
    this.#ask();
  }

  draw() {
    if (!this.palette) return;
    const { jobs, total } = this[this.shown]();
    const words = this.input.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const found = jobs.filter((job) => {
      const text = `${job.name} ${job.id} ${job.vc} ${job.state} ${job.why.join(" ")}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    const rows = found.slice(0, this.most);
    const known = jobs.length < total ? `first ${count(jobs.length)} of ${count(total)}` : plural(total, "job");
    say(this.note, words.length ? `${count(found.length)} of ${known}` : rows.length < total ? `first ${count(rows.length)} of ${count(total)}` : total ? known : "");
    keyed(this.list, rows, ({ id }) => id, (job) => this.#row(job), (row, job) => this.#refresh(row, job));
    this.#empty(rows.length, words.length);
    this.more.hidden = rows.length === found.length && jobs.length >= total;
    say(this.more, words.length ? "Look through more of them" : `Show more of ${count(total)}`);
    let running = 0;
    for (const { kind } of this.on.holders().values()) if (kind !== "reserved") running++;
    const totals = this.known ? { waiting: this.total, running, ended: null } : { waiting: null, running: null, ended: null };
    LISTS.forEach((name, at) => {
      say(this.tabs[at], `${name[0].toUpperCase()}${name.slice(1)}${totals[name] === null ? "" : ` ${count(totals[name])}`}`);
      this.tabs[at].setAttribute("aria-selected", String(name === this.shown));
      this.tabs[at].tabIndex = name === this.shown ? 0 : -1;
    });
  }

  // -- the three lists, in one shape -----------------------------------------------------------------------------------

  waiting() {
    const first = new Set(this.queue.map(({ id }) => id));
    const runs = this.on.holders();
    const rest = this.beyond.filter(({ id }) => !first.has(id) && !runs.has(`r${id}`));
    const jobs = [...this.queue, ...rest].map((job, at) => ({
      ...job, place: job.kind === "waiting" || job.kind === "reserved" ? String(at + 1) : "", since: job.since, state: STAYS[job.kind], note: job.kind === "waiting" ? null : STAYS[job.kind],
    }));
    return { jobs, total: Math.max(this.total, jobs.length) };
  }

  running() {
    const jobs = [...this.on.holders().values()].filter(({ kind }) => kind !== "reserved").map((holder) => ({
      ...holder, place: "", state: "running", why: [holder.stopping ? "told to end" : holder.suspended ? "suspended" : "", sharing(holder), limited(holder)].filter(Boolean), note: holder.kind === "guest" ? "guest" : holder.kind === "opportunistic" && holder.priority >= 0 ? "on a loan" : null,
    }));
    jobs.sort((a, b) => b.since - a.since || (a.id < b.id ? 1 : -1));
    return { jobs, total: jobs.length };
  }

  ended() {
    const over = this.over ?? { jobs: [], total: 0 };
    const jobs = over.jobs.map((job) => ({ ...job, place: "", since: job.at, note: job.state, why: job.why ? [job.why] : [] }));
    return { jobs, total: over.total };
  }

  // -- what the server is asked for besides ----------------------------------------------------------------------------

  #more() {
    this.most += MORE;
    this.draw();
    this.#ask();
  }

  /** Ask for what this list lacks, and no more often than every so often. */
  #ask() {
    const lacks = this.shown === "ended" || (this.shown === "waiting" && this.most > PAGE && this.total > this.queue.length);
    if (!lacks || this.timer) return;
    const wait = Math.max(0, (this.asked ?? -Infinity) + PAUSE_MS - performance.now());
    this.timer = setTimeout(() => this.#fetch().finally(() => { this.timer = null; }), wait);
  }

  async #fetch() {
    const { shown, most } = this;
    const from = shown === "waiting" ? this.queue.length : 0;
    const found = [];
    let total = Infinity;
    try {
      while (found.length < most - from && from + found.length < total) {
        const limit = Math.min(MORE, most - from - found.length);
        const page = await ask(shown === "waiting" ? "queue" : "ended", { view: this.on.view(), at: this.on.at(), offset: from + found.length, limit });
        total = page.total;
        found.push(...page.jobs);
        if (!page.jobs.length) break;
      }
    } catch (error) {
      this.on.asked(error);
      return;
    } finally {
      this.asked = performance.now();
    }
    if (shown === "waiting") this.beyond = found;
    else this.over = { jobs: found, total };
    this.draw();
    if (this.shown !== shown || this.most !== most) setTimeout(() => this.#ask());
  }

  // -- rows ------------------------------------------------------------------------------------------------------------

  #empty(shown, filtered) {
    this.empty.hidden = shown > 0;
    if (shown) return;
    if (this.shown === "ended" ? !this.over : !this.known) {
      this.empty.replaceChildren(el("p", {}, "Waiting for the answer."));
      return;
    }
    if (!filtered && this.shown === "waiting" && this.live) this.empty.replaceChildren(el("p", {}, "No job waits. Submit one:"), el("code", {}, this.example));
    else this.empty.replaceChildren(el("p", {}, NONE[this.shown][filtered ? 1 : 0]));
  }

  tick() {
    for (const row of this.list.children) this.#tell(row);
  }

  mark(chosen) {
    this.chosen = chosen;
    for (const [id, row] of this.list.rows ?? []) row.firstChild.setAttribute("aria-pressed", String(id === chosen));
  }

  #row(job) {
    const title = { waiting: "Time in the queue", running: "Time since it started", ended: "Time since it ended" }[this.shown];
    const wait = el("span.wait", { title });
    const row = el("li", {}, el("button.waiting", { type: "button", on: { click: () => this.on.select(job.id) } },
      el("span.place"), el("span.swatch"), el("span.name"), wait, el("span.facts"), el("span.why")));
    row.wait = wait;
    return row;
  }

  #refresh(row, job) {
    const button = row.firstChild;
    const [number, , name, , facts, why] = button.children;
    row.since = job.since;
    button.setAttribute("aria-pressed", String(job.id === this.chosen));
    dress(button, this.palette.vc(job.vc));
    say(number, job.place);
    say(name, job.name);
    this.#tell(row);
    say(facts, [job.vc, job.user, plural(job.gpus, "GPU"), job.priority < 0 ? "opportunistic" : `priority ${job.priority}`, job.note].filter(Boolean).join(" · "));
    const first = job.why[0] ?? "";
    const more = job.why.length - 1;
    say(why, more > 0 ? `${first} (and ${plural(more, "more reason")})` : first);
    why.title = job.why.join("\n");
  }

  #tell(row) {
    const length = duration(this.on.now() - row.since);
    say(row.wait, this.shown === "ended" ? `${length} ago` : length);
  }
}
