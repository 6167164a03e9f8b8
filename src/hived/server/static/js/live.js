// The stream of a cluster that runs: it comes back by itself after the server was away, and says so meanwhile.

import { counters, measured } from "./measures.js";

const REST_MS = 30_000;
const PAUSES = [500, 1000, 2000, 4000, 8000];

export class Live {
  /** `on`: {picture(p), update(u), layout(l), state("connecting" | "live" | "away" | "resting", seconds)}. */
  constructor(view, on) {
    this.view = view;
    this.on = on;
    this.tries = 0;
    this.#open();
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    clearTimeout(this.resting);
    this.source?.close();
  }

  /** Try again at once, if it is away. */
  hurry() {
    clearTimeout(this.resting);
    if (!this.timer || this.closed) return;
    clearTimeout(this.timer);
    this.#open();
  }

  /** Nobody looks: after a while the connection is given back, since a browser has six of them for a server. */
  rest() {
    clearTimeout(this.resting);
    this.resting = setTimeout(() => {
      clearTimeout(this.timer);
      this.source.close();
      this.source = null;
      this.timer = -1;
      this.on.state("resting", 0);
    }, REST_MS);
  }

  #open() {
    this.timer = null;
    counters.streams++;
    this.on.state(this.tries ? "away" : "connecting", 0);
    const source = new EventSource(`/v1/dashboard/stream?view=${encodeURIComponent(this.view)}`);
    this.source = source;
    const take = (name, work) => source.addEventListener(name, (event) => {
      if (this.source !== source || this.closed) return;
      this.tries = 0;
      this.on.state("live");
      counters[`${name}s`]++;
      measured(`hived:${name}`, () => work(JSON.parse(event.data)));
    });
    take("picture", this.on.picture);
    take("update", this.on.update);
    take("layout", this.on.layout);
    // an EventSource gives up for good on an HTTP error, and asks every three seconds for ever else: one way for both
    source.addEventListener("error", () => {
      if (this.source !== source || this.closed) return;
      source.close();
      const pause = PAUSES[Math.min(this.tries, PAUSES.length - 1)];
      this.tries++;
      this.on.state("away", pause / 1000);
      this.timer = setTimeout(() => this.#open(), pause * (0.8 + Math.random() * 0.4));
    });
  }
}
