// Questions to the server.

/** An answer that is an error; `message` is the server's own words. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** GET /v1/dashboard/`path` as data. Throws Refused, or what fetch throws. */
export async function ask(path, parameters = {}, signal = undefined) {
  const url = new URL(`/v1/dashboard/${path}`, location.origin);
  for (const [name, value] of Object.entries(parameters)) if (value !== null && value !== undefined) url.searchParams.set(name, value);
  const answer = await (early(path) ?? fetch(url, { signal, credentials: "same-origin", headers: { Accept: "application/json" } }));
  if (!answer.ok) throw new Refused(answer.status, await words(answer));
  return answer.json();
}

/** What early.js asked already; once. */
function early(path) {
  if (path !== "layout") return null;
  const asked = window.hivedLayout;
  window.hivedLayout = null;
  return asked ?? null;
}

/** The words of an answer that is an error; `page`: of what the page itself needs. */
export async function words(answer, page = true) {
  if (page && (answer.status === 401 || answer.status === 403)) {
    return "This page needs you to sign in: open the link that `hived dashboard` prints on the machine.";
  }
  try {
    return (await answer.json()).error.message;
  } catch {
    return `The server answered ${answer.status}.`;
  }
}

/** Only the latest question counts: one asked earlier is dropped, and gives null. */
export class Latest {
  #current = null;

  async ask(path, parameters) {
    this.#current?.abort();
    const mine = new AbortController();
    this.#current = mine;
    try {
      const answer = await ask(path, parameters, mine.signal);
      return this.#current === mine ? answer : null;
    } catch (error) {
      if (mine.signal.aborted) return null;
      throw error;
    }
  }

  drop() {
    this.#current?.abort();
    this.#current = null;
  }
}
