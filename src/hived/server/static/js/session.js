// Who looks at the page, and whether it acts as somebody.
//
// A cookie lets the page read, and goes to every server of this host; so it changes nothing. The key of a session is in
// the storage of this origin, which no other server reads, and goes along with what the page is told to do.

import { Refused, words } from "./api.js";

/** Of this server alone: another may answer at the same address later, at the other end of a tunnel. */
const KEY = "hived-session-";
const NOBODY = { user: "", acts: false, operator: false, roles: {}, until: null };
const RANKS = ["viewer", "member", "admin", "operator"];

export class Session {
  #key = null;

  /** `changed()` is called whenever it is somebody else, or they may do other things. */
  constructor(changed) {
    this.changed = changed;
    this.server = ""; //: what tells it from another
    this.me = NOBODY;
    this.trouble = ""; //: why a link did not work
  }

  /** Use up the code in the address, if there is one; the address has it no more. */
  async begin() {
    const code = new URLSearchParams(location.hash.slice(1)).get("sign-in");
    if (code === null) return;
    history.replaceState(null, "", location.pathname);
    const answer = await this.#send("sign-in", { code });
    if (answer.ok) this.#key = (await answer.json()).key;
    else this.trouble = await words(answer);
  }

  /** Ask who it is. A page without a service behind it knows nobody. */
  async ask() {
    if (this.#key === null) this.#key = stored(this.server);
    else this.#keep(this.#key);
    let answer = await this.#send("me", undefined, "GET");
    if (answer.status === 401 && this.#key !== null) {
      this.#forget(); // it is over
      answer = await this.#send("me", undefined, "GET");
    }
    this.me = answer.ok ? await answer.json() : NOBODY;
    this.changed();
  }

  /** Whether a job is theirs to change: their own, or one of a virtual cluster that they look after. */
  mayChange({ user, vc }) {
    return this.me.acts && (this.isOwn(user) || RANKS.indexOf(this.me.roles[vc]) >= 2 || this.me.operator);
  }

  /** Whether its output is theirs to read. */
  mayRead({ user, vc }) {
    return this.me.acts && (this.isOwn(user) || RANKS.indexOf(this.me.roles[vc]) >= 2 || this.me.operator);
  }

  isOwn(user) {
    return user !== "" && user === this.me.user;
  }

  /** POST /v1/`path`; the answer as data. Throws Refused, or what fetch throws. */
  async act(path, body) {
    return this.#answered(await this.#send(path, body));
  }

  /** GET /v1/`path`. */
  async read(path) {
    return this.#answered(await this.#send(path, undefined, "GET"));
  }

  async signOut() {
    if (this.#key !== null) await this.#send("sign-out").catch(() => { /* it is over here all the same */ });
    this.#forget();
    await this.ask();
  }

  /** Whether there is anything to sign out of: on a socket the kernel says who it is. */
  get signedIn() {
    return this.#key !== null;
  }

  async #answered(answer) {
    if (answer.ok) return answer.json();
    if (answer.status === 401) await this.ask();
    throw new Refused(answer.status, await words(answer, false));
  }

  #send(path, body = undefined, method = "POST") {
    const headers = { Accept: "application/json" };
    if (this.#key !== null) headers.Authorization = `Bearer ${this.#key}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    return fetch(`/v1/${path}`, { method, headers, credentials: "same-origin", body: body === undefined ? undefined : JSON.stringify(body) });
  }

  #keep(key) {
    try {
      localStorage.setItem(KEY + this.server, key);
    } catch { /* storage is off: it is this page's alone */ }
  }

  /** Not one that another tab has got since. */
  #forget() {
    const mine = this.#key;
    this.#key = null;
    try {
      if (stored(this.server) === mine) localStorage.removeItem(KEY + this.server);
    } catch { /* there is none */ }
  }
}

function stored(server) {
  try {
    return localStorage.getItem(KEY + server);
  } catch {
    return null;
  }
}
