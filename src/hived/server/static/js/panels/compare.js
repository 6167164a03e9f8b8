// Private, quota and hived (and whatever else was run) side by side: outcomes, tenants, curves, and their maps at one time.

import { ask, Latest } from "../api.js";
import { Cells } from "../cells.js";
import { el } from "../dom.js";
import { count, decimal, duration, percent, plural } from "../format.js";
import { CellMap } from "../map/map.js";
import { Chart, nice } from "./chart.js";
import { SERIES } from "./curves.js";
import { delayCharts, dressSwatches } from "./delays.js";

export class ComparePage {
  /** `on`: {clock(), seek(at), select(view, id), trouble(error)}. */
  constructor(page, tip, on) {
    Object.assign(this, { page, tip, on });
    this.columns = [];
  }

  /** `range`: of the slider, which the charts show too. */
  async load(layout, palette, range) {
    this.layout = layout;
    this.range = range;
    this.palette = palette;
    const [comparison, ...curves] = await Promise.all([
      ask("comparison"), ...layout.views.map(({ key }) => ask("curves", { view: key })),
    ]);
    this.comparison = comparison;
    this.most = nice(curves.flatMap(({ waiting }) => waiting).reduce((most, number) => Math.max(most, number ?? 0), 0));
    this.columns = layout.views.map((view, at) => this.#column(view, curves[at], comparison.outcomes.find((one) => one.view === view.key)));
    const runs = this.columns.map(({ view, label, curves: of }) => ({ label: label ?? view.label, curves: of }));
    this.delays = delayCharts(layout.vcs.map(({ name }) => name), runs, { clock: this.on.clock, seek: this.on.seek });
    this.page.replaceChildren(...[
      el("section.panel.outcome", { "aria-labelledby": "outcome-heading" }, el("div.head", {}, el("h2", { id: "outcome-heading" }, "The whole run")), this.#outcomes()),
      el("section.columns", { "aria-label": "Side by side", vars: { "--columns": String(this.columns.length) } }, this.columns.map(({ element }) => element)),
      el("section.panel.tenants", { "aria-labelledby": "tenants-heading" }, el("div.head", {}, el("h2", { id: "tenants-heading" }, "Tenants"), el("span.note", {}, "mean queueing delay, and that over the private cluster's")), this.#tenants()),
      this.delays?.element].filter(Boolean));
    this.setPalette(palette);
  }

  setPalette(palette) {
    this.palette = palette;
    for (const { map, charts, cells } of this.columns) {
      if (map.cells) map.setPalette(palette);
      else map.setCells(cells, palette);
      for (const chart of charts) chart.setPalette(palette);
    }
    for (const chart of this.delays?.charts ?? []) chart.setPalette(palette);
    dressSwatches(this.page, palette);
  }

  /** The maps and cursors at a time. */
  async show(at) {
    for (const chart of this.delays?.charts ?? []) chart.setCursor(at);
    await Promise.all(this.columns.map(async (column) => {
      for (const chart of column.charts) chart.setCursor(at);
      const picture = await column.latest.ask("picture", { view: column.view.key, at });
      if (!picture) return;
      column.map.changed(column.cells.setPicture(picture));
      column.facts.textContent = `${percent(picture.totals.gpus ? (picture.totals.guaranteed + picture.totals.opportunistic) / picture.totals.gpus : 0)} in use · ${plural(picture.queue_total, "job")} waiting`;
    }));
  }

  setRange(range) {
    this.range = range;
    for (const { charts, curves } of this.columns) for (const chart of charts) chart.setData(curves, range);
  }

  bringOut(filter) {
    for (const { map } of this.columns) map.bringOut(map.chosen, filter);
  }

  drop() {
    for (const { latest } of this.columns) latest.drop();
  }

  #column(view, curves, outcome) {
    const stage = el("div.stage");
    const map = new CellMap(stage, this.tip, {
      select: (id) => { if (id !== null) this.on.select(view.key, id); },
      speak: (text) => this.on.speak(text), clock: this.on.clock, now: this.on.now,
    });
    const facts = el("span.note");
    const on = { clock: this.on.clock, seek: this.on.seek };
    const charts = Object.values(SERIES).map((kind) => new Chart({ ...kind, top: kind.top ?? this.most, on })); // one scale for all;
    for (const chart of charts) chart.setData(curves, this.range);
    const element = el("article.panel.column", {},
      el("div.head", {}, el("h2", {}, outcome?.label ?? view.label), facts), stage, el("div.charts", {}, charts.map((chart) => chart.element)));
    return { view, label: outcome?.label, map, cells: new Cells(view), charts, facts, element, latest: new Latest(), curves };
  }

  #outcomes() {
    const { outcomes } = this.comparison;
    // name, value in words, value to compare by, which way is better; what looks the same is as good
    const time = (name, of, part) => [name, (one) => duration(of(one)), of, -1, part];
    const share = (name, of, better, ...rest) => [name, (one) => percent(of(one)), better ? of : null, better, ...rest];
    const percentiles = (kind, words) => [["median", "50%"], ["p90", "90%"], ["p95", "95%"], ["p99", "99%"]]
      .map(([key, text]) => time(`${text} ${words}`, ({ overall }) => overall[`${key}_${kind}_s`], true));
    const rows = [
      time("Mean queueing delay", ({ overall }) => overall.mean_delay_s),
      ...percentiles("delay", "wait at most"),
      ["Mean over private", ({ overall }) => times(overall.to_private), ({ overall }) => overall.to_private, -1],
      ["Jobs that wait longer than in private", ({ overall }) => numberOr(overall.worse_jobs), ({ overall }) => overall.worse_jobs, -1],
      time("Mean completion time", ({ overall }) => overall.mean_completion_s),
      ...percentiles("completion", "are done within"),
      share("Utilization", (one) => one.utilization, 1),
      share("of which guaranteed", (one) => (one.utilization === null ? null : one.utilization - (one.opportunistic ?? 0)), 0, true),
      share("of which opportunistic", (one) => one.opportunistic, 0, true),
      ...(outcomes.some(({ guests }) => guests) ? [share("GPUs with guests", (one) => one.guests, 0, true, "", "GPUs on which guests run, in the idle time of their owners; guests hold none, so this is no part of the utilization")] : []),
      share("Fragmentation (nodes in guaranteed use)", (one) => one.fragmentation, -1, false, "s-fragmentation"),
      share("External fragmentation (GPUs)", (one) => one.external, -1, false, "s-fragmentation", "GPUs that tenants reserved, and cannot have as whole nodes because of the guaranteed jobs of others, as a share of all GPUs"),
      share("Internal fragmentation (GPUs)", (one) => one.internal, -1, false, "s-fragmentation", "Idle GPUs that tenants reserved, and cannot have as whole nodes because of their own guaranteed jobs, as a share of all GPUs"),
      ["Preemptions", (one) => count(one.preemptions), null, 0],
      ["GPUs preempted", (one) => numberOr(one.preempted_gpus), null, 0],
      ["Work lost", (one) => gpuTime(one.lost_gpu_s), (one) => one.lost_gpu_s, -1, false, "", "GPU time of finished jobs that was not their work: done again after a restart, or paid to suspend and resume"],
      time("Makespan", (one) => one.makespan_s),
      ["Jobs finished", (one) => count(one.finished), null, 0],
      ["Jobs unfinished", (one) => count(one.unfinished), (one) => one.unfinished, -1],
    ];
    return el("div.wide", {}, el("table.figures", {},
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, el("span.unseen", {}, "What")), outcomes.map(({ label }) => el("th", { scope: "col" }, label)))),
      el("tbody", {}, rows.map(([name, text, value, better, part, kind, title]) => {
        const best = better ? bestOf(outcomes.map(value), outcomes.map(text), better) : null;
        return el(kind ? `tr.${kind}` : "tr", title ? { title } : {}, el(part ? "th.part" : "th", { scope: "row" }, name), outcomes.map((one, at) => el(best?.has(at) ? "td.best" : "td", {}, text(one))));
      }))));
  }

  #tenants() {
    const { outcomes } = this.comparison;
    const names = [...new Set(outcomes.flatMap(({ tenants }) => tenants.map(({ tenant }) => tenant)))];
    const of = (outcome, name) => outcome.tenants.find(({ tenant }) => tenant === name);
    const most = Math.max(1, ...outcomes.flatMap(({ tenants }) => tenants.map(({ mean_delay_s: mean }) => mean ?? 0)));
    return el("div.wide", {}, el("table.figures.by-tenant", {},
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Tenant"), el("th.number", { scope: "col" }, "Jobs"), outcomes.map(({ label }) => el("th", { scope: "col" }, label)))),
      el("tbody", {}, names.map((name) => el("tr", {},
        el("th", { scope: "row" }, el("span.swatch", { "data-vc": name }), name),
        el("td", {}, numberOr(outcomes.map((one) => of(one, name)?.jobs).find((jobs) => jobs !== undefined))),
        outcomes.map((outcome) => this.#tenant(of(outcome, name), most)))))));
  }

  #tenant(one, most) {
    if (!one) return el("td", {}, "–");
    const ratio = one.to_private;
    const worse = ratio !== null && ratio > 1.005;
    const better = ratio !== null && ratio < 0.995;
    return el("td.tenant", {},
      el("span.track", {}, el("span.length", { vars: { width: `${((one.mean_delay_s ?? 0) / most) * 100}%` } })),
      el("span.mean", {}, duration(one.mean_delay_s)),
      ratio === null ? null : el(`span.times${worse ? ".worse" : better ? ".better" : ""}`, { title: "Mean delay over that in the private cluster" }, `${worse ? "▲ " : ""}${times(ratio)}`),
      one.worse_jobs === null ? null : el("span.jobs", { title: "Jobs that wait longer than in their private cluster" }, one.worse_jobs ? `${count(one.worse_jobs)} worse` : "none worse"));
  }
}

const numberOr = (value) => (value === null || value === undefined ? "–" : count(value));
const gpuTime = (seconds) => (seconds === null || seconds === undefined ? "–" : `${decimal(seconds / 3600)} GPU h`);
const times = (ratio) => (ratio === null ? "–" : ratio > 0 && ratio < 0.005 ? "<0.01 ×" : `${ratio < 10 ? ratio.toFixed(2) : decimal(ratio)} ×`);

/** Which are best, or look as the best does, unless all are. */
function bestOf(values, texts, better) {
  const known = values.filter((value) => value !== null && value !== undefined);
  if (known.length < 2) return null;
  const best = better > 0 ? Math.max(...known) : Math.min(...known);
  const text = texts[values.indexOf(best)];
  const found = new Set(texts.flatMap((one, at) => (one === text ? [at] : [])));
  return found.size < values.length ? found : null;
}
