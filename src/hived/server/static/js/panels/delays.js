// Queueing delay over time, a small chart per tenant with a line per run: who waits longer than alone is seen at once.

import { el } from "../dom.js";
import { decimal } from "../format.js";
import { dress } from "../palette.js";
import { Chart, nice } from "./chart.js";

const LINES = [
  { colour: (palette) => palette.soft, dash: [5, 3] },
  { colour: (palette) => palette.third, dash: [2, 2], width: 1.8 },
  { colour: (palette) => palette.curve, width: 2 },
  { colour: (palette) => palette.second, dash: [8, 3] },
];

/** Charts of the tenants that have delays; `runs`: [{label, curves}]. Null where nothing is known. */
export function delayCharts(tenants, runs, on) {
  const at = [...new Set(runs.flatMap(({ curves }) => curves.at.filter((_, i) => Object.values(curves.delay).some((values) => values[i] !== null))))].sort((a, b) => a - b);
  if (!at.length) return null;
  const shown = tenants.filter((tenant) => runs.some(({ curves }) => curves.delay[tenant]?.some((value) => value !== null)));
  const places = runs.map(({ curves }) => new Map(curves.at.map((time, i) => [time, i])));
  const charts = shown.map((tenant) => {
    const series = runs.map(({ label }, number) => ({ key: `v${number}`, label, ...LINES[number % LINES.length] }));
    const chart = new Chart({ title: tenant, note: `Mean queueing delay of ${tenant}'s jobs, by when they were submitted`, series, format: brief, fit: roundLength, on });
    const data = { at };
    runs.forEach(({ curves }, number) => {
      data[`v${number}`] = at.map((time) => curves.delay[tenant]?.[places[number].get(time)] ?? null);
    });
    chart.setData(data, [at[0], at.at(-1)]);
    chart.element.querySelector("strong").prepend(el("span.swatch", { "data-vc": tenant }));
    return chart;
  });
  const legend = el("div.legend", {}, runs.map(({ label }, number) => el("span.entry", {}, el(`i.key.c-v${number % LINES.length}`), label)));
  const element = el("section.panel.delays", { "aria-labelledby": "delays-heading" },
    el("div.head", {}, el("h2", { id: "delays-heading" }, "Queueing delay over time"), el("span.note", {}, "mean, by time of submission"), legend),
    el("div.charts", {}, charts.map((chart) => chart.element)));
  return { element, charts };
}

/** Dress the tenants' swatches in their colours. */
export function dressSwatches(parent, palette) {
  for (const swatch of parent.querySelectorAll("[data-vc]")) dress(swatch, palette.vc(swatch.dataset.vc));
}

/** One unit, at most one decimal. */
function brief(seconds) {
  if (seconds === 0) return "0";
  const [unit, name] = UNITS.find(([length]) => seconds >= length) ?? [1, "s"];
  return `${decimal(seconds / unit)} ${name}`;
}

/** Upper end of an axis of lengths of time: round in its own unit. */
function roundLength(seconds) {
  const [unit] = UNITS.find(([length]) => seconds >= length) ?? [1];
  return nice(seconds / unit) * unit;
}

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"]];
