// Jobs that wait, in line, and why.

import { el, keyed, say } from "../dom.js";
import { count, duration, plural } from "../format.js";
import { dress } from "../palette.js";

const EXAMPLE = "hived submit --vc NAME --gpus 2 -- python train.py";

export class QueuePanel {
  /** `on`: {select(id), now()}. */
  constructor(parent, note, input, on) {
    this.note = note;
    this.input = input;
    this.on = on;
    this.queue = [];
    this.total = 0;
    this.list = el("ol.queue-list");
    this.empty = el("div.empty");
    this.empty.hidden = true;
    parent.replaceChildren(this.list, this.empty);
    input.addEventListener("input", () => this.show(this.queue, this.total));
  }

  setLayout(layout, palette) {
    this.palette = palette;
    this.live = layout.end === null;
    this.example = EXAMPLE.replace("NAME", layout.vcs[0]?.name ?? "NAME");
    this.list.rows = new Map();
    this.list.replaceChildren();
    this.show(this.queue, this.total);
  }

  show(queue, total) {
    this.queue = queue;
    this.total = total;
    const places = new Map(queue.map((job, at) => [job.id, at + 1]));
    const words = this.input.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const shown = queue.filter((job) => {
      const text = `${job.name} ${job.id} ${job.vc} ${job.state} ${job.why.join(" ")}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    const cut = total > queue.length ? `first ${count(queue.length)} of ${count(total)}` : plural(total, "job");
    say(this.note, words.length ? `${count(shown.length)} of ${cut}` : total ? cut : "");
    keyed(this.list, shown, ({ id }) => id, (job) => this.#row(job), (row, job) => this.#refresh(row, job, places.get(job.id)));
    this.#empty(shown.length, words.length);
  }

  #empty(shown, filtered) {
    this.empty.hidden = shown > 0;
    if (shown) return;
    if (filtered) this.empty.replaceChildren(el("p", {}, "No waiting job has these words."));
    else if (this.live) this.empty.replaceChildren(el("p", {}, "Nobody waits. Submit a job:"), el("code", {}, this.example));
    else this.empty.replaceChildren(el("p", {}, "Nobody waits at this moment."));
  }

  tick() {
    const now = this.on.now();
    for (const row of this.list.children) say(row.wait, duration(now - row.since));
  }

  mark(chosen) {
    for (const [id, row] of this.list.rows ?? []) row.firstChild.setAttribute("aria-pressed", String(id === chosen));
  }

  #row(job) {
    const wait = el("span.wait", { title: "Time in the queue" });
    const row = el("li", {}, el("button.waiting", { type: "button", "aria-pressed": "false", on: { click: () => this.on.select(job.id) } },
      el("span.place"), el("span.swatch"), el("span.name"), wait, el("span.facts"), el("span.why")));
    row.wait = wait;
    return row;
  }

  #refresh(row, job, place) {
    const button = row.firstChild;
    const [number, , name, wait, facts, why] = button.children;
    row.since = job.since;
    dress(button, this.palette.vc(job.vc));
    say(number, String(place));
    say(name, job.name);
    say(wait, duration(this.on.now() - job.since));
    const state = job.state === "reserved" ? "GPUs reserved" : job.state === "backoff" ? "failed, tries again" : null;
    say(facts, [job.vc, plural(job.gpus, "GPU"), job.priority < 0 ? "opportunistic" : `priority ${job.priority}`, state].filter(Boolean).join(" · "));
    const first = job.why[0] ?? "";
    const more = job.why.length - 1;
    say(why, more > 0 ? `${first} (and ${plural(more, "more reason")})` : first);
    why.title = job.why.join("\n");
  }
}
