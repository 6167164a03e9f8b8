// Numbers, lengths of time and moments, in words.

const whole = new Intl.NumberFormat("en");
const tenth = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export const count = (number) => whole.format(Math.round(number));
export const decimal = (number) => tenth.format(number);
/** What a job does for a while, in words. */
export const STAYS = {
  waiting: "waiting", reserved: "GPUs reserved", guaranteed: "guaranteed", opportunistic: "opportunistic", guest: "guest", suspended: "suspended", stopping: "stopping", backoff: "pause before a retry", held: "held",
};
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${Math.round(number) === 1 ? one : many}`;

/** `60% of the time, at 0.58 of its speed alone`; "" for a job that has its GPUs for itself, without a limit. */
export function sharing({ share = 1, rate = 1, limit = 1 }) {
  const part = (of) => `${+(100 * of).toPrecision(3)}% of the time`;
  const turns = share >= 0.9995 ? "" : part(share);
  const most = limit >= 0.9995 ? "" : `at most ${part(limit)}`;
  const speed = rate >= 0.9995 ? "" : `at ${+rate.toPrecision(3)} of its speed alone`;
  return [turns, most, speed].filter(Boolean).join(", ");
}

/** `limited to 35% of the time and 1.5 GiB`; "" for a job without limits. */
export function limited({ limits }) {
  if (!limits) return "";
  const parts = [limits.share < 1 ? `${+(100 * limits.share).toPrecision(3)}% of the time` : "", limits.memory ? `${tenth.format(limits.memory / 2 ** 30)} GiB` : ""];
  return `limited to ${parts.filter(Boolean).join(" and ")}`;
}

/** A share as a percentage; "<0.1%" rather than a 0 that is none. */
export function percent(share) {
  if (share === null || share === undefined || Number.isNaN(share)) return "–";
  const value = share * 100;
  if (value > 0 && value < 0.1) return "<0.1%";
  return `${value < 10 ? tenth.format(value) : whole.format(Math.round(value))}%`;
}

/** Seconds in words, two units at most: "2 h 5 min". */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return joined(s, 60, "min", 1, "s", s < 600);
  if (s < 86400) return joined(s, 3600, "h", 60, "min", true);
  return joined(s, 86400, "d", 3600, "h", true);
}

function joined(s, big, bigName, small, smallName, both) {
  const first = Math.floor(s / big);
  const second = Math.floor((s % big) / small);
  return both && second ? `${first} ${bigName} ${second} ${smallName}` : `${first} ${bigName}`;
}

/** Moments, as a clock of the reader's zone or as days of the trace. */
export class Clock {
  #today; #date; #full; #trace;

  constructor(kind) {
    this.#trace = kind === "trace";
    this.#today = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
    this.#date = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
    this.#full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
  }

  /** Short: only the time of day where it is of today. */
  at(time) {
    if (this.#trace) return traceTime(time);
    const date = new Date(time * 1000);
    return date.toDateString() === new Date().toDateString() ? this.#today.format(date) : this.#date.format(date);
  }

  /** With date and zone. */
  full(time) {
    return this.#trace ? `${traceTime(time)} of the trace` : this.#full.format(new Date(time * 1000));
  }

  /** For an axis that spans `span` seconds. */
  tick(time, span) {
    if (this.#trace) {
      const day = Math.floor(time / 86400) + 1;
      if (span > 3 * 86400) return `day ${day}`;
      const clock = hhmm(time);
      return span > 86400 ? `d${day} ${clock}` : clock;
    }
    return span > 86400 ? this.#date.format(new Date(time * 1000)) : this.#today.format(new Date(time * 1000)).slice(0, span > 600 ? 5 : 8);
  }
}

const two = (number) => String(number).padStart(2, "0");
const hhmm = (time) => `${two(Math.floor((time % 86400) / 3600))}:${two(Math.floor((time % 3600) / 60))}`;

function traceTime(time) {
  const t = Math.max(0, Math.round(time));
  return `day ${Math.floor(t / 86400) + 1}, ${hhmm(t)}:${two(t % 60)}`;
}
