// GPU hours: who has had how much, over some days, on cells of their virtual cluster, on loans and as guests.

import { el } from "../dom.js";
import { dress } from "../palette.js";

const DAY = 86400;
const SPANS = [[DAY, "1 day"], [7 * DAY, "7 days"], [30 * DAY, "30 days"]];
const hundredth = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const USED = ["guaranteed", "opportunistic", "guest"];

/** Rows of accounts by virtual cluster, and in each by user, the most used first. */
export function rows({ accounts, jobs }) {
  const found = new Map();
  const of = (user, vc) => {
    const key = JSON.stringify([vc, user]);
    if (!found.has(key)) found.set(key, { user, vc, jobs: 0, guaranteed: 0, opportunistic: 0, guest: 0, suspended: 0, reserved: 0 });
    return found.get(key);
  };
  for (const { user, vc, use, gpu_seconds: seconds } of accounts) {
    const hours = seconds / 3600;
    if (use !== "reserved") of(user, vc)[use] += hours;
    of("", vc)[use] += hours;
  }
  for (const { user, vc, jobs: many } of jobs) {
    if (user !== "") of(user, vc).jobs += many;
    of("", vc).jobs += many;
  }
  const used = (row) => USED.reduce((sum, use) => sum + row[use], 0);
  const whole = new Map([...found.values()].filter(({ user }) => user === "").map((row) => [row.vc, used(row)]));
  const order = (row) => [-whole.get(row.vc), row.vc, row.user === "" ? 0 : 1, -used(row), row.user];
  const before = (a, b) => {
    for (const [at, one] of order(a).entries()) if (one !== order(b)[at]) return one < order(b)[at] ? -1 : 1;
    return 0;
  };
  return [...found.values()].map((row) => ({ ...row, used: used(row) })).sort(before);
}

export class UsageDialog {
  constructor(dialog, { session, now, clock }) {
    Object.assign(this, { dialog, session, now, clock });
    this.span = el("select", { "aria-label": "Over", on: { change: () => this.#load() } },
      SPANS.map(([seconds, name]) => el("option", { value: seconds, selected: seconds === 7 * DAY }, name)));
    this.said = el("span.note", { role: "status" });
    this.table = el("div.wide");
    dialog.replaceChildren(
      el("div.head", {}, el("h2", { id: "usage-heading" }, "GPU hours"), this.span, this.said,
        el("button.icon", { type: "button", "aria-label": "Close (Esc)", title: "Close (Esc)", on: { click: () => dialog.close() } }, "×")),
      this.table);
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  }

  open(palette) {
    this.palette = palette;
    if (!this.dialog.open) this.dialog.showModal();
    return this.#load();
  }

  async #load() {
    const mine = (this.mine = {});
    const end = this.now();
    this.said.textContent = "";
    let found;
    try {
      found = await this.session.read(`accounts?start=${Math.max(0, end - this.span.value)}&end=${end}`);
    } catch (error) {
      if (mine === this.mine) {
        this.table.replaceChildren();
        this.said.textContent = error.message || "The server does not answer.";
      }
      return;
    }
    if (mine !== this.mine) return;
    const shown = rows(found);
    if (found.begins > found.start) this.said.textContent = `accounts begin at ${this.clock().at(found.begins)}`;
    else if (!shown.length) this.said.textContent = "nobody had GPUs in this time";
    this.table.replaceChildren(...(shown.length ? [this.#drawn(shown)] : []));
  }

  #drawn(shown) {
    const head = (text, title) => el("th", { scope: "col", title }, text);
    const hours = (value) => el("td", {}, value ? hundredth.format(value) : "–");
    return el("table.figures", {},
      el("thead", {}, el("tr", {},
        head("Virtual cluster, user"), head("Jobs"), head("Guaranteed", "On cells of the virtual cluster"), head("Opportunistic", "On loans"),
        head("Guest", "Beside the owner of the GPUs"), head("Used"), head("Reserved", "By the virtual cluster"), head("Idle", "Reserved, and not used by its own guaranteed jobs"))),
      el("tbody", {}, shown.map((row) => {
        const whole = row.user === "";
        const name = whole ? el("th", { scope: "row" }, el("span.swatch"), ` ${row.vc}`) : el("th.of-user", { scope: "row" }, row.user);
        if (whole) dress(name, this.palette.vc(row.vc));
        return el(whole ? "tr.of-vc" : "tr", {}, name, el("td", {}, String(row.jobs)), hours(row.guaranteed), hours(row.opportunistic), hours(row.guest), hours(row.used),
          ...(whole ? [hours(row.reserved), hours(Math.max(0, row.reserved - row.guaranteed))] : [el("td"), el("td")]));
      })));
  }
}
