// One job: its life as a bar and as a list, and why things are as they are.

import { ask, Refused } from "../api.js";
import { actionsOf } from "./actions.js";
import { byId, el } from "../dom.js";
import { duration, plural, sharing, STAYS } from "../format.js";
import { dress } from "../palette.js";

export class JobPanel {
  /** `on`: {close(), clock(), now(), view(), timeline(story) or null, session, log(story), done(job)}. */
  constructor(panel, on) {
    this.panel = panel;
    this.on = on;
    this.id = null;
    this.story = null;
    this.asked = 0;
  }

  setPalette(palette) {
    this.palette = palette;
    if (this.story) this.#draw();
  }

  /** The reader may do other things. */
  redraw() {
    this.#draw();
  }

  /** The focus goes to the panel's heading, and comes back when it is closed. */
  async open(id) {
    if (this.id === id) return;
    if (!this.panel.contains(document.activeElement)) this.opener = document.activeElement;
    this.id = id;
    this.story = null;
    this.panel.hidden = false;
    this.#fill(id, null, el("p.empty", {}, "Reading its story…"));
    this.panel.querySelector("h2").focus({ preventScroll: true });
    await this.refresh();
  }

  close() {
    const held = this.panel.contains(document.activeElement);
    this.id = null;
    this.story = null;
    this.panel.hidden = true;
    this.panel.replaceChildren();
    if (!held) return;
    const back = this.opener?.checkVisibility({ visibilityProperty: true }) && this.opener !== document.body;
    (back ? this.opener : byId("map")).focus({ preventScroll: true });
  }

  /** The panel's head and what is under it; the focus stays where it is. */
  #fill(title, story, ...body) {
    const held = this.panel.contains(document.activeElement) ? document.activeElement.tagName : null;
    this.panel.replaceChildren(this.#head(title, story), ...body);
    if (held) this.panel.querySelector(held === "H2" ? "h2" : "button").focus({ preventScroll: true });
  }

  /** Ask again; a story that came meanwhile is not overwritten by an older one. */
  async refresh() {
    const id = this.id;
    if (id === null) return;
    const mine = ++this.asked;
    try {
      const story = await ask(`story/${encodeURIComponent(id)}`, { view: this.on.view() });
      if (mine !== this.asked || this.id !== id) return;
      this.story = story;
      this.#draw();
    } catch (error) {
      if (mine !== this.asked || this.id !== id) return;
      const words = error instanceof Refused ? error.message : "The server does not answer.";
      this.#fill(id, null, el("p.empty", {}, words));
    }
  }

  /** Time goes on: a stay that has no end grows. */
  tick() {
    if (!this.story) return;
    this.bar?.replaceWith((this.bar = this.#timeline()));
    for (const [element, stay] of this.lengths ?? []) element.textContent = duration((stay.end ?? this.on.now()) - stay.start);
  }

  #head(title, story) {
    const close = el("button.icon", { type: "button", "aria-label": "Close (Esc)", title: "Close (Esc)", on: { click: () => this.on.close() } }, "×");
    return el("div.head", {}, story ? el("span.swatch") : null, el("h2", { id: "job-heading", tabindex: "-1" }, title), close);
  }

  #draw() {
    const { story } = this;
    const clock = this.on.clock();
    const scrolled = this.panel.querySelector(".scroll")?.scrollTop ?? 0;
    this.bar = this.#timeline();
    this.lengths = [];
    const body = el("div.scroll", {},
      el("p.tags", {},
        el(`span.tag.state-${/^[a-z]+$/.test(story.state) ? story.state : "other"}`, {}, story.state),
        el("span.tag", {}, story.vc), el("span.tag", {}, plural(story.gpus, "GPU")), story.user ? el("span.tag", {}, story.user) : null,
        el("span.tag", {}, story.priority < 0 ? "opportunistic" : `priority ${story.priority}`),
        story.id !== story.name ? el("span.tag.quiet", {}, `id ${story.id}`) : null),
      actionsOf(story, this.on),
      story.command ? el("pre.command", {}, story.command) : null,
      this.bar,
      this.#timelineButton(story),
      story.explanation ? el("div.explanation", {}, story.explanation.split("\n").map((line) => el("p", {}, line))) : null,
      el("h3", {}, "Stays"),
      el("table.stays", {}, el("thead.unseen", {}, el("tr", {}, ["kind", "from", "length", "where"].map((name) => el("th", { scope: "col" }, name)))),
        el("tbody", {}, [...story.stays].reverse().map((stay) => this.#stay(stay, clock)))),
      el("h3", {}, "What happened"),
      story.moments.length
        ? el("ol.moments", {}, [...story.moments].reverse().map(({ at, text }) => el("li", {}, el("time", { title: clock.full(at) }, clock.at(at)), el("span", {}, text))))
        : el("p.empty", {}, "Nothing yet."));
    this.#fill(story.name, story, body);
    dress(this.panel, this.palette.vc(story.vc));
    body.scrollTop = scrolled;
  }

  /** Who else has its GPUs. */
  #timelineButton(story) {
    const show = this.on.timeline(story);
    return show && el("button.show-timeline", { type: "button", on: { click: show.open } }, `Who has the GPUs of ${show.node}`);
  }

  #stay(stay, clock) {
    const length = el("td.number", {}, duration((stay.end ?? this.on.now()) - stay.start));
    if (stay.end === null) this.lengths.push([length, stay]);
    return el("tr", {}, el("td", {}, el(`i.key.j-${stay.kind}`), STAYS[stay.kind] ?? stay.kind, sharing(stay) ? el("small.sharing", {}, sharing(stay)) : null), el("td", { title: clock.full(stay.start) }, clock.at(stay.start)), length, el("td.where", {}, el("div", {}, stay.where)));
  }

  #timeline() {
    const { stays } = this.story;
    const now = this.on.now();
    const start = stays[0]?.start ?? now;
    const end = Math.max(start + 1, ...stays.map((stay) => stay.end ?? now));
    const clock = this.on.clock();
    const bar = el("div.timeline", { role: "img", "aria-label": stays.map((stay) => `${STAYS[stay.kind] ?? stay.kind} ${duration((stay.end ?? now) - stay.start)}`).join(", then ") || "no time yet" },
      stays.map((stay) => el(`span.j-${stay.kind}`, {
        title: `${STAYS[stay.kind] ?? stay.kind} from ${clock.at(stay.start)}, ${duration((stay.end ?? now) - stay.start)}${sharing(stay) ? `, ${sharing(stay)}` : ""}${stay.where ? `\n${stay.where}` : ""}`,
        vars: { left: `${((stay.start - start) / (end - start)) * 100}%`, width: `${(((stay.end ?? now) - stay.start) / (end - start)) * 100}%` },
      })));
    const open = stays.some((stay) => stay.end === null);
    return el("figure.life", {}, bar, el("figcaption", {}, el("span", {}, clock.at(start)), el("span", {}, duration(end - start)), el("span", {}, open ? "now" : clock.at(end))));
  }
}
