// The page as a whole: who tells whom what.

import { ask, Latest, Refused } from "./api.js";
import { Cells } from "./cells.js";
import { byId, el, say } from "./dom.js";
import { Clock, count } from "./format.js";
import { fillHelp, listenKeys } from "./keys.js";
import { kindsLegend, vcChips } from "./legend.js";
import { Live } from "./live.js";
import { CellMap } from "./map/map.js";
import { counters, firstPicture, measured } from "./measures.js";
import { Palette } from "./palette.js";
import { ComparePage } from "./panels/compare.js";
import { Curves } from "./panels/curves.js";
import { confirmed } from "./panels/actions.js";
import { JobPanel } from "./panels/job.js";
import { JobsPanel } from "./panels/jobs.js";
import { LogDialog } from "./panels/log.js";
import { Replay } from "./panels/replay.js";
import { lastPlace, TimelineDialog } from "./panels/timeline.js";
import { TotalsLine } from "./panels/totals.js";
import { UsageDialog } from "./panels/usage.js";
import { VcPanel } from "./panels/vcs.js";
import { Session } from "./session.js";
import { onSystemTheme, theme, toggleTheme } from "./theme.js";

export class App {
  constructor() {
    this.chosen = null; //: id of the job whose panel is open
    this.filter = null; //: name of the VC that is brought out
    this.latest = new Latest();
    const clock = () => this.clock;
    const now = () => this.now();
    const select = (id) => this.select(id);
    const speak = (text) => say(byId("spoken"), text);
    const seek = (at) => this.replay.seek(at);
    this.map = new CellMap(byId("map"), byId("tip"), { select, speak, clock, now });
    byId("map").setAttribute("aria-describedby", "map-keys");
    this.totals = new TotalsLine(byId("totals"));
    this.vcs = new VcPanel(byId("vcs"), byId("vcs-note"), (vc) => this.bringOut(vc));
    this.jobs = new JobsPanel({ parent: byId("queue"), note: byId("queue-note"), input: byId("queue-filter"), tabs: byId("lists") }, {
      select, now, holders: () => this.cells?.holders ?? new Map(), view: () => this.view.key, at: () => (this.live ? null : this.at), asked: (error) => this.#asked(error),
    });
    this.session = new Session(() => this.#whoChanged());
    this.log = new LogDialog(byId("log"), this.session);
    this.job = new JobPanel(byId("job"), {
      close: () => this.select(null), clock, now, view: () => this.view.key, timeline: (story) => this.#timelineOf(story),
      session: this.session, log: (story) => this.log.open(story), done: (job) => this.#acted(job),
    });
    this.timeline = new TimelineDialog(byId("timeline"), {
      clock, now, view: () => this.view.key, nodes: () => this.#nodes(), layout: () => this.layout, select: (id) => this.select(id), session: this.session, confirmed,
    });
    this.usage = new UsageDialog(byId("usage"), { session: this.session, now, clock });
    byId("usage-open").addEventListener("click", () => this.usage.open(this.palette));
    this.replay = new Replay(byId("replay"), { clock, move: (at) => this.moveTo(at), range: (range) => this.#setRange(range) });
    this.compare = new ComparePage(byId("compare"), byId("tip"), {
      clock, now, speak, seek, select: (view, id) => this.openIn(view, id),
    });
    kindsLegend(byId("kinds"));
    fillHelp(byId("help"));
  }

  /** Sign in where the address says so, and begin. */
  async open() {
    await this.session.begin().catch(() => { /* the first question says that nobody answers */ });
    await this.start();
  }

  async start() {
    this.#controls();
    try {
      this.#setLayout(await ask("layout"));
    } catch (error) {
      this.#trouble(error instanceof Refused ? this.session.trouble || error.message : "The server does not answer. Is hived running?");
      if (!(error instanceof Refused)) setTimeout(() => this.start(), 2000);
    }
  }

  // -- what the page is about ------------------------------------------------------------------------------------------

  #setLayout(layout) {
    this.#trouble("");
    this.layout = layout;
    this.live = layout.end === null;
    this.session.server = layout.server;
    byId("usage-open").hidden = !this.live; // of what is simulated the results say it
    if (layout.acts) this.session.ask().catch(() => { /* it only looks */ });
    if (this.session.trouble) this.#trouble(this.session.trouble);
    this.clock = new Clock(layout.clock);
    const hash = new URLSearchParams(location.hash.slice(1));
    this.view = layout.views.find(({ key }) => key === (this.view?.key ?? hash.get("view"))) ?? layout.views.at(this.live ? 0 : -1);
    this.palette = new Palette(theme(), layout.vcs.map(({ name }) => name));
    document.title = `${layout.title} · hived`;
    say(byId("title"), layout.title);
    const banner = byId("banner");
    banner.hidden = !layout.synthetic;
    say(banner, this.live ? "Simulated devices: jobs run as processes, the GPUs are not real." : "Synthetic: the trace or the devices behind these results are made up, not recorded.");
    byId("picker").hidden = layout.views.length < 2;
    byId("view").replaceChildren(...layout.views.map(({ key, label }) => el("option", { value: key, selected: key === this.view.key }, label)));
    byId("tabs").hidden = this.live || layout.views.length < 2;
    const chips = vcChips(byId("colours"), layout.vcs, this.palette, (vc) => this.bringOut(vc));
    this.markChips = chips;
    for (const panel of [this.vcs, this.jobs]) panel.setLayout(layout, this.palette);
    this.#oneNode(layout);
    this.job.palette = this.palette;
    this.curves ??= new Curves(byId("charts"), { clock: () => this.clock, seek: this.live ? null : (at) => this.replay.seek(at) });
    this.curves.setPalette(this.palette);
    this.#setView(hash);
  }

  async #setView(hash = new URLSearchParams()) {
    this.cells = new Cells(this.view);
    this.map.setCells(this.cells, this.palette);
    this.seen = false;
    this.jobs.forget();
    if (this.live) {
      this.#goLive();
      this.#loadCurves();
    } else {
      this.#status("replay", "finished run", "These results have ended; the slider goes through them.");
      const view = this.view.key;
      this.replay.setLayout(this.layout);
      await this.#loadCurves();
      if (view !== this.view.key) return;
      const asked = hash.has("at") ? Number(hash.get("at")) : NaN;
      this.replay.goTo(this.replay.at ?? (Number.isFinite(asked) ? asked : this.#busy()));
      this.moveTo(this.replay.at);
    }
    if (hash.get("job") && !this.chosen) this.select(hash.get("job"));
    if (hash.get("page") === "compare") this.#page("compare");
  }

  async #loadCurves() {
    const view = this.view.key;
    const curves = await ask("curves", { view }).catch((error) => this.#asked(error));
    if (curves && view === this.view.key) this.curves.show(curves, this.live ? null : this.replay.range);
  }

  /** The part of a finished run that the slider goes through: the charts show the same. */
  #setRange(range) {
    if (this.curves?.curves) this.curves.show(this.curves.curves, range);
    this.compare.setRange(range);
  }

  /** What is said of nodes is of no use where there is one: it would be all of it, or nothing. */
  #oneNode(layout) {
    const nodes = layout.views.map(({ chains }) => chains.reduce((sum, chain) => sum + chain.nodes.length, 0));
    document.body.classList.toggle("one-node", Math.min(...nodes) < 2);
  }

  /** A time at which much goes on: runs often have a long and quiet end. */
  #busy() {
    const { at = [], guaranteed = [] } = this.curves.curves ?? {};
    const last = guaranteed.findLastIndex((share) => share > 0);
    const [start, end] = this.replay.range;
    return last < 0 ? null : start + 0.6 * (Math.min(at[last], end) - start);
  }

  #goLive() {
    this.stream?.close();
    const away = { connecting: "connecting…", away: "reconnecting…", resting: "resting" };
    this.stream = new Live(this.view.key, {
      picture: (picture) => this.#picture(picture),
      update: (update) => this.#update(update),
      layout: (layout) => this.#newLayout(layout),
      state: (state) => {
        if (state === "away" && this.layout.acts) this.session.ask().catch(() => { /* it is away */ });
        this.#status(state, away[state] ?? "live", state === "live" ? "Changes are shown as they happen." : "The server is away; what you see is the last that was known.");
      },
    });
  }

  /** The cluster itself changed: the stream goes on, with a picture next. */
  #newLayout(layout) {
    this.layout = layout;
    this.view = layout.views.find(({ key }) => key === this.view.key) ?? layout.views[0];
    this.palette = new Palette(theme(), layout.vcs.map(({ name }) => name));
    this.cells = new Cells(this.view);
    this.map.setCells(this.cells, this.palette);
    this.#oneNode(layout);
    this.#paletteChanged();
  }

  // -- moments -----------------------------------------------------------------------------------------------------------

  #picture(picture) {
    this.#moment(picture);
    const changed = this.cells.setPicture(picture);
    this.jobs.show(picture.queue, picture.queue_total);
    this.#numbers(picture);
    this.map.changed(changed); // after the numbers, whose height moves the map
    firstPicture();
    if (this.live && this.seen) this.#loadCurves(); // after a break: what was missed
    this.seen = true;
    if (this.chosen !== null) this.job.refresh();
  }

  #update(update) {
    this.#moment(update);
    const chosen = this.chosen;
    const before = new Map(this.jobs.queue.map(({ id, kind }) => [id, kind]));
    this.map.changed(this.cells.setUpdate(update));
    this.jobs.show(update.queue, update.queue_total);
    this.#numbers(update);
    if (update.sample) this.curves.add(update.sample);
    if (chosen === null) return;
    const touched = update.gone.includes(chosen) || update.holders.some(({ id }) => id === chosen);
    const queued = update.queue?.find(({ id }) => id === chosen);
    if (touched || (update.queue && before.get(chosen) !== queued?.kind)) this.job.refresh();
  }

  #numbers({ usage, totals, queue_total: total }) {
    this.vcs.show(usage);
    this.totals.show(totals, total);
  }

  #moment({ at }) {
    this.at = at;
    this.heard = performance.now();
    this.#tellTime();
  }

  /** Now, by the server's clock; in a finished run, the slider's time. */
  now() {
    if (!this.layout) return 0;
    return this.live ? (this.at ?? Date.now() / 1000) + (performance.now() - (this.heard ?? performance.now())) / 1000 : this.at ?? this.replay.at;
  }

  async moveTo(at) {
    clearTimeout(this.linking);
    this.linking = setTimeout(() => this.#link(), 400);
    if (!byId("compare").hidden) {
      this.at = at;
      this.#tellTime();
      return this.compare.show(at).catch((error) => this.#asked(error));
    }
    this.curves?.cursor(at);
    // the slider may move a hundred times a second: the server is asked for the last of each sixtieth
    const mine = (this.move = (this.move ?? 0) + 1);
    await new Promise((done) => setTimeout(done, this.seen ? 16 : 0));
    if (mine !== this.move) return undefined;
    const picture = await this.latest.ask("picture", { view: this.view.key, at }).catch((error) => this.#asked(error));
    if (!picture || mine !== this.move) return undefined;
    counters.pictures++;
    measured("hived:picture", () => this.#picture(picture));
    this.at = at;
    this.#tellTime();
    this.#trouble("");
    return undefined;
  }

  #asked(error) {
    this.#trouble(error instanceof Refused ? error.message : "The server does not answer; what you see is the last that was known.");
  }

  // -- who it is, and what they do -------------------------------------------------------------------------------------

  #whoChanged() {
    const { me, signedIn } = this.session;
    const who = byId("who");
    who.hidden = me.user === "";
    if (this.known && me.user === "") this.#trouble("You are signed out. The command hived dashboard prints a link to sign in with.");
    this.known = me.user !== "";
    const title = me.acts ? "What you do here is done as you." : "You only look. To act here too, run: hived dashboard";
    who.title = title;
    who.replaceChildren(...[
      el("span", {}, me.user), me.acts ? null : el("span.tag.quiet", {}, "looks only"),
      signedIn ? el("button.act", { type: "button", on: { click: () => this.session.signOut() } }, "Sign out") : null,
    ].filter((child) => child !== null));
    if (this.job.story) this.job.redraw();
    this.timeline.whoChanged();
  }

  /** Something was done to a job: it may be a new one. */
  #acted(job) {
    if (job.id === this.chosen) this.job.refresh();
    else this.select(job.id);
  }

  // -- what the reader chooses ---------------------------------------------------------------------------------------

  select(id) {
    if (this.chosen === id) {
      if (id === null) this.bringOut(null);
      return;
    }
    this.chosen = id;
    this.map.bringOut(id, this.filter);
    this.jobs.mark(id);
    document.body.classList.toggle("with-job", id !== null);
    if (id === null) this.job.close();
    else this.job.open(id);
    this.#link();
  }

  bringOut(vc) {
    this.filter = vc;
    this.map.bringOut(this.chosen, vc);
    this.compare.bringOut(vc);
    this.vcs.mark(vc);
    this.markChips?.(vc);
    say(byId("spoken"), vc === null ? "All virtual clusters." : `Showing ${vc}: ${count([...this.cells.holders.values()].filter((holder) => holder.vc === vc).length)} jobs.`);
  }

  openIn(view, id) {
    this.#page("cluster");
    if (view !== this.view.key) this.changeView(view);
    this.select(id);
  }

  changeView(key) {
    this.view = this.layout.views.find((view) => view.key === key);
    byId("view").value = key;
    this.select(null);
    this.#setView();
    this.#link();
  }

  #page(name) {
    const compare = name === "compare" && !byId("tabs").hidden;
    byId("cluster").hidden = compare;
    byId("compare").hidden = !compare;
    byId("totals").hidden = compare;
    byId("picker").hidden = compare || this.layout.views.length < 2;
    document.body.classList.toggle("comparing", compare);
    const lost = document.activeElement && !document.activeElement.checkVisibility();
    for (const [tab, chosen] of [["tab-cluster", !compare], ["tab-compare", compare]]) {
      byId(tab).setAttribute("aria-selected", String(chosen));
      byId(tab).tabIndex = chosen ? 0 : -1;
    }
    if (lost) byId(compare ? "tab-compare" : "tab-cluster").focus();
    if (compare) this.#showCompare();
    else {
      this.compare.drop();
      this.moveTo(this.replay.at);
    }
    this.#link();
  }

  async #showCompare() {
    if (!this.compare.columns.length) {
      byId("compare").replaceChildren(el("p.empty", {}, "Reading the results…"));
      try {
        await this.compare.load(this.layout, this.palette, this.replay.range);
      } catch (error) {
        byId("compare").replaceChildren(el("p.empty", {}, error instanceof Refused ? error.message : "The server does not answer."));
        return;
      }
    }
    this.compare.bringOut(this.filter);
    await this.moveTo(this.replay.at);
  }

  /** What is shown goes into the address, so that it can be sent to somebody. */
  #link() {
    const hash = new URLSearchParams();
    if (this.layout.views.length > 1) hash.set("view", this.view.key);
    if (!this.live) hash.set("at", String(Math.round(this.replay.at)));
    if (this.chosen !== null) hash.set("job", this.chosen);
    if (!byId("compare").hidden) hash.set("page", "compare");
    history.replaceState(null, "", hash.size ? `#${hash}` : location.pathname);
  }

  #controls() {
    if (this.controlled) return;
    this.controlled = true;
    byId("theme").addEventListener("click", () => this.#changeTheme());
    onSystemTheme(() => this.#paletteChanged());
    byId("help-open").addEventListener("click", () => byId("help").showModal());
    byId("view").addEventListener("change", (event) => this.changeView(event.target.value));
    byId("zoom").addEventListener("click", (event) => {
      const way = event.target.dataset.zoom;
      if (way === "fit") this.map.fit();
      else if (way) this.map.zoom(way === "in" ? 1.6 : 1 / 1.6);
    });
    for (const name of ["cluster", "compare"]) byId(`tab-${name}`).addEventListener("click", () => this.#page(name));
    byId("tabs").addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      const other = byId("compare").hidden ? "compare" : "cluster";
      this.#page(other);
      byId(`tab-${other}`).focus();
    });
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stream?.rest() : this.stream?.hurry()));
    window.addEventListener("hashchange", () => { if (location.hash.startsWith("#sign-in=")) location.reload(); });
    window.addEventListener("online", () => this.stream?.hurry());
    listenKeys({
      "?": () => byId("help").showModal(),
      t: () => this.#changeTheme(),
      m: () => byId("map").focus(),
      "/": () => byId("queue-filter").focus(),
      v: () => this.#nextVc(),
      g: () => Boolean(this.layout) && !document.querySelector("dialog[open]") && this.#openTimeline(),
      c: () => !byId("tabs").hidden && this.#page(byId("compare").hidden ? "compare" : "cluster"),
      Escape: () => this.#escape(),
      " ": () => this.#replaying() && this.replay.toggle(),
      ",": () => this.#replaying() && this.replay.step(-1),
      ".": () => this.#replaying() && this.replay.step(1),
    });
    setInterval(() => this.#tick(), 1000);
  }

  #nodes() {
    return [...new Set(this.view.chains.flatMap(({ nodes }) => nodes))];
  }

  /** What opens the timeline of the node that a job is on; null where there is none. */
  #timelineOf(story) {
    const found = lastPlace(story, this.now());
    return found && { node: found.node, open: () => this.timeline.open(found.node, this.palette, this.live ? found.until : null) };
  }

  /** The timeline of the chosen job's node, else of one on which jobs share GPUs now. */
  #openTimeline() {
    const holders = [...this.cells.holders.values()];
    const [part] = (this.cells.holders.get(this.chosen) ?? holders.find(({ share }) => share < 1) ?? holders[0])?.parts ?? [];
    this.timeline.open(part ? this.view.chains[part[0]].nodes[part[1]] : this.#nodes()[0], this.palette);
    return undefined;
  }

  #replaying() {
    return Boolean(this.layout) && !this.live;
  }

  #escape() {
    if (document.querySelector("dialog[open]")) return false;
    if (document.activeElement === byId("queue-filter") && byId("queue-filter").value) {
      byId("queue-filter").value = "";
      byId("queue-filter").dispatchEvent(new Event("input"));
    } else this.select(null);
    return undefined;
  }

  #nextVc() {
    const names = [...this.layout.vcs.map(({ name }) => name), null];
    this.bringOut(names[(names.indexOf(this.filter) + 1) % names.length]);
  }

  #changeTheme() {
    toggleTheme();
    this.#paletteChanged();
  }

  #paletteChanged() {
    if (!this.layout) return;
    this.palette = new Palette(theme(), this.layout.vcs.map(({ name }) => name));
    this.map.setPalette(this.palette);
    for (const panel of [this.vcs, this.jobs]) panel.setLayout(this.layout, this.palette);
    this.job.setPalette(this.palette);
    this.curves?.setPalette(this.palette);
    this.markChips = vcChips(byId("colours"), this.layout.vcs, this.palette, (vc) => this.bringOut(vc));
    this.markChips(this.filter);
    this.vcs.mark(this.filter);
    if (this.compare.columns.length) this.compare.setPalette(this.palette);
  }

  // -- time ---------------------------------------------------------------------------------------------------------------

  #tick() {
    if (!this.layout || document.hidden || !this.live) return;
    this.#tellTime();
    this.jobs.tick();
    this.job.tick();
    this.curves?.tick(this.now());
    this.timeline.tick();
  }

  #tellTime() {
    const now = this.now();
    say(byId("clock"), this.clock.at(now));
    byId("clock").title = this.clock.full(now);
    if (!this.live) this.jobs.tick();
  }

  #status(state, words, title) {
    const status = byId("status");
    status.dataset.state = state;
    status.title = title;
    say(status, words);
  }

  #trouble(words) {
    byId("trouble").hidden = !words;
    say(byId("trouble"), words);
  }
}
