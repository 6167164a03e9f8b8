// Three charts of one view: utilization, fragmentation, waiting jobs.

import { count, percent } from "../format.js";
import { Chart } from "./chart.js";

const KEYS = ["guaranteed", "opportunistic", "fragmentation", "waiting"];
const MOST = 2000;

export const SERIES = {
  utilization: {
    title: "Utilization", note: "Share of all GPUs in use", format: percent, top: 1,
    series: [
      { key: "guaranteed", label: "guaranteed", area: true, colour: (palette) => palette.curve },
      { key: "opportunistic", label: "opportunistic", area: true, hatched: true, colour: (palette) => palette.curveSoft },
    ],
  },
  fragmentation: {
    title: "Nodes in guaranteed use", note: "Share of nodes on which guaranteed jobs run, so that a job that needs a whole node finds no room there; papers call it fragmentation", format: percent, top: 1,
    series: [{ key: "fragmentation", label: "nodes in guaranteed use", colour: (palette) => palette.second }],
  },
  waiting: {
    title: "Waiting jobs", note: "Jobs in the queue", format: count,
    series: [{ key: "waiting", label: "waiting", colour: (palette) => palette.third }],
  },
};

export class Curves {
  constructor(parent, on) {
    this.charts = Object.values(SERIES).map((kind) => new Chart({ ...kind, on }));
    parent.replaceChildren(...this.charts.map(({ element }) => element));
  }

  setPalette(palette) {
    for (const chart of this.charts) chart.setPalette(palette);
  }

  /** All of it; `span` fixes the axis, else it ends at the last point. */
  show(curves, span = null) {
    this.curves = curves;
    this.span = span;
    this.#draw();
  }

  /** One more point, at the end. */
  add(sample) {
    if (!this.curves || sample.at <= (this.curves.at.at(-1) ?? -Infinity)) return;
    this.curves.at.push(sample.at);
    for (const key of KEYS) this.curves[key].push(sample[key]);
    const last = this.curves.at.length - 1;
    if (last > MOST) {
      // every other point goes, so that the past is kept, ever coarser; the latest stays
      for (const key of ["at", ...KEYS]) this.curves[key] = this.curves[key].filter((_, n) => (last - n) % 2 === 0);
    }
    this.#draw();
  }

  /** Time goes on: the axis ends now. */
  tick(now) {
    this.now = now;
    if (this.curves && this.span === null) this.#draw();
  }

  cursor(at) {
    for (const chart of this.charts) chart.setCursor(at);
  }

  #draw() {
    const { at } = this.curves;
    const end = Math.max(at.at(-1) ?? 1, this.now ?? 0);
    // a cluster just started has little past: the axis shows five minutes at least
    const span = this.span ?? [Math.min(at[0] ?? 0, end - 300), end];
    for (const chart of this.charts) chart.setData(this.curves, span, this.span === null);
  }
}
