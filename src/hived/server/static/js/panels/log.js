// The output of a job, as it grows.

import { el } from "../dom.js";

const PAGE = 65536;
/** Characters that are kept: the latest. */
const MOST = 1 << 20;
const PAUSE_MS = 1000;

/** Text as a terminal would leave it: without colours, and of a line that was written over what came last. */
function plain(text) {
  const bare = text.replace(/\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-Z\\-_]/g, "");
  return bare.split("\n").map((line) => {
    let end = line.length;
    while (end && line[end - 1] === "\r") end--;
    return line.slice(line.lastIndexOf("\r", end - 1) + 1, end);
  }).join("\n");
}

export class LogDialog {
  constructor(dialog, session) {
    Object.assign(this, { dialog, session });
    this.title = el("h2", { id: "log-heading" });
    this.rank = el("select", { "aria-label": "Task", on: { change: () => this.#begin() } });
    this.text = el("pre.output", { tabindex: "0", "aria-live": "off" });
    this.said = el("span.note");
    dialog.replaceChildren(
      el("div.head", {}, this.title, this.rank, this.said, el("button.icon", { type: "button", "aria-label": "Close (Esc)", title: "Close (Esc)", on: { click: () => dialog.close() } }, "×")),
      this.text);
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    dialog.addEventListener("close", () => clearTimeout(this.timer));
  }

  async open({ id, name }) {
    this.id = id;
    this.title.textContent = `Output of ${name}`;
    this.rank.replaceChildren(el("option", { value: 0 }, "task 0"));
    this.rank.hidden = true;
    if (!this.dialog.open) this.dialog.showModal();
    const job = await this.session.read(`jobs/${encodeURIComponent(id)}`).catch(() => null);
    if (this.id !== id) return;
    this.attempt = job?.process?.attempt || null; // an offset is of one attempt
    await this.#begin();
    if (job === null || this.id !== id || job.size < 2) return;
    this.rank.replaceChildren(...Array.from({ length: job.size }, (_, rank) => el("option", { value: rank }, `task ${rank}`)));
    this.rank.hidden = false;
  }

  #begin() {
    clearTimeout(this.timer);
    this.shown = "";
    this.next = -PAGE;
    this.from = null; // where what is shown begins
    this.text.replaceChildren();
    this.mine = {};
    return this.#read(this.mine);
  }

  async #read(mine) {
    let page;
    try {
      page = await this.session.read(`logs/${encodeURIComponent(this.id)}?rank=${this.rank.value || 0}${this.attempt ? `&attempt=${this.attempt}` : ""}&offset=${this.next}&limit=${PAGE}`);
    } catch (error) {
      if (mine === this.mine) this.said.textContent = error.message || "The server does not answer.";
      return;
    }
    if (mine !== this.mine || !this.dialog.open) return;
    const { scrollTop, scrollHeight, clientHeight } = this.text;
    const atEnd = this.shown === "" || scrollTop + clientHeight > scrollHeight - 8;
    if (page.text) {
      this.shown = (this.shown + page.text).slice(-MOST);
      this.text.textContent = plain(this.shown);
      if (atEnd) this.text.scrollTop = this.text.scrollHeight;
    }
    this.from ??= page.offset;
    const more = page.next > page.offset;
    this.next = page.next;
    this.said.textContent = page.end && !more ? (!this.shown ? "it has printed nothing" : this.from ? "the last of it" : "all of it") : "it may print more";
    if (!page.end || more) this.timer = setTimeout(() => this.#read(mine), more && page.text.length > PAGE / 2 ? 0 : PAUSE_MS);
  }
}
