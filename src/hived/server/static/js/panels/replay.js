// The slider of a run that has ended: play, speed, steps.

import { el, icon } from "../dom.js";
import { duration } from "../format.js";

const SPEEDS = [1, 10, 60, 600, 3600, 21600, 86400, 604800];
const FRAME_MS = 200;
const SIGNS = {
  start: "M4 4h2.4v12H4zM16 4v12L7.5 10z", back: "M12.5 4.5v11L6 10z", on: "M7.5 4.5v11L14 10z",
  play: "M6.5 4v12L16 10z", pause: "M5.5 4h3.2v12H5.5zM11.3 4h3.2v12h-3.2z",
};

export class Replay {
  /** `on`: {clock(), move(at): a promise that is done once the moment is shown, range([start, end]): it goes through another}. */
  constructor(bar, on) {
    this.bar = bar;
    this.on = on;
    this.playing = false;
    this.play = el("button.icon.play", { type: "button", on: { click: () => this.toggle() } });
    this.slider = el("input", { type: "range", min: "0", max: "2000", step: "1", "aria-label": "Time of the run", on: { input: () => this.seek(this.#timeAt(Number(this.slider.value))) } });
    this.now = el("output.moment");
    this.speed = el("select", { "aria-label": "Speed" });
    this.ends = [el("span"), el("span")];
    this.until = el("select", { on: { change: () => this.#setEnd(Number(this.until.value)) } });
    this.reach = el("label.picker", {}, el("span", {}, "Until"), this.until);
    bar.replaceChildren(
      el("div.buttons", {}, this.#button("start", "Back to the start (Home)", () => this.seek(this.start)), this.#button("back", "Step back ( , )", () => this.step(-1)),
        this.play, this.#button("on", "Step on ( . )", () => this.step(1))),
      this.now,
      el("div.track", {}, this.slider, el("div.ends", {}, this.ends)),
      this.reach, el("label.picker", {}, el("span", {}, "Speed"), this.speed));
    this.#mark();
  }

  #button(sign, label, click) {
    return el("button.icon", { type: "button", "aria-label": label, title: label, on: { click } }, icon(SIGNS[sign]));
  }

  /** A run may go on for years after the last job was submitted: unless asked, the slider ends there. */
  setLayout(layout) {
    this.start = layout.start;
    this.last = Math.max(layout.end, layout.start + 1);
    const arrived = layout.arrivals_end ?? this.last;
    const long = this.last - this.start > 1.05 * (arrived - this.start) && arrived > this.start;
    const [all, some] = [this.last, arrived].map((end) => this.on.clock().at(end).split(",")[0]);
    this.until.replaceChildren(el("option", { value: arrived }, `arrivals end, ${some}`), el("option", { value: this.last }, `all is done, ${all}`));
    this.reach.hidden = !long;
    this.bar.hidden = false;
    this.#setEnd(long && !(this.end > arrived) ? arrived : this.last);
  }

  get range() {
    return [this.start, this.end];
  }

  #setEnd(end) {
    this.end = end;
    this.until.value = String(end);
    const span = this.end - this.start;
    const usual = SPEEDS.reduce((best, one) => (Math.abs(Math.log(span / one / 90)) < Math.abs(Math.log(span / best / 90)) ? one : best));
    this.speed.replaceChildren(...SPEEDS.map((one) => el("option", { value: one, selected: one === usual }, `${duration(one)} / s`)));
    this.ends[0].textContent = this.on.clock().at(this.start);
    this.ends[1].textContent = this.on.clock().at(this.end);
    this.on.range(this.range);
    if (this.at === undefined) return;
    if (this.at > end) this.seek(end);
    else this.#tell();
  }

  /** Stand at a moment, which may be beyond where the slider ends as yet. */
  goTo(at) {
    if (at > this.end) this.#setEnd(this.last);
    this.at = Math.min(this.end, Math.max(this.start, at ?? this.start + (this.end - this.start) * 0.4));
    this.#tell();
  }

  seek(at) {
    this.at = Math.min(this.end, Math.max(this.start, at));
    this.#tell();
    return this.on.move(this.at);
  }

  step(direction) {
    return this.seek(this.at + (direction * (this.end - this.start)) / 500);
  }

  toggle() {
    this.playing = !this.playing;
    this.#mark();
    if (!this.playing) return;
    if (this.at >= this.end) this.at = this.start;
    this.#run();
  }

  /** One frame after the other, each when the one before is on screen: a slow server slows the film, nothing piles up. */
  async #run() {
    let last = performance.now();
    while (this.playing) {
      await new Promise((done) => setTimeout(done, FRAME_MS));
      if (!this.playing) return;
      const now = performance.now();
      const at = this.at + ((now - last) / 1000) * Number(this.speed.value);
      last = now;
      await this.seek(at);
      if (this.at >= this.end) this.toggle();
    }
  }

  #timeAt(value) {
    return this.start + (value / 2000) * (this.end - this.start);
  }

  #tell() {
    this.slider.value = String(Math.round(((this.at - this.start) / (this.end - this.start)) * 2000));
    this.slider.style.setProperty("--done", `${((this.at - this.start) / (this.end - this.start)) * 100}%`);
    const words = this.on.clock().at(this.at);
    this.now.textContent = words;
    this.slider.setAttribute("aria-valuetext", words);
  }

  #mark() {
    this.play.replaceChildren(icon(this.playing ? SIGNS.pause : SIGNS.play));
    this.play.setAttribute("aria-label", this.playing ? "Pause (space)" : "Play (space)");
    this.play.title = this.playing ? "Pause (space)" : "Play (space)";
  }
}
