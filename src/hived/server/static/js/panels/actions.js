// What can be done to a job, by who may.

import { byId, el } from "../dom.js";

const WAITS = ["queued", "reserved", "backoff"];
const RUNS = ["running", "suspended"];
const OVER = ["succeeded", "failed", "cancelled", "ended"];

/** Ask before something that cannot be taken back; whether it is meant. */
export function confirmed(question, words, does) {
  const dialog = byId("confirm");
  return new Promise((done) => {
    const answer = (yes) => { dialog.onclose = null; dialog.close(); done(yes); };
    dialog.replaceChildren(
      el("div.head", {}, el("h2", { id: "confirm-heading" }, question)),
      el("div.sheet.ask", {}, words ? el("p", {}, words) : null,
        el("div.acts", {}, el("button.act", { type: "button", on: { click: () => answer(false) } }, "No"), el("button.act.grave", { type: "button", on: { click: () => answer(true) } }, does))));
    dialog.onclose = () => answer(false);
    dialog.showModal();
  });
}

/** The buttons of a job; null where there are none. `on`: {session, done(job), log(story)}. */
export function actionsOf(story, on) {
  const { session } = on;
  const may = session.mayChange(story);
  const said = el("p.refused", { role: "alert", hidden: true });
  const path = `jobs/${encodeURIComponent(story.id)}`;

  const act = async (button, verb, body) => {
    button.disabled = true;
    try {
      const job = await session.act(`${path}/${verb}`, body);
      said.hidden = true;
      on.done(job);
    } catch (error) {
      said.textContent = error.message || "The server does not answer.";
      said.hidden = false;
    }
    button.disabled = false;
  };
  const button = (label, title, verb, body, ask = null) => el("button.act", {
    type: "button", title, on: {
      click: async ({ currentTarget }) => {
        if (ask === null || (await confirmed(...ask))) await act(currentTarget, verb, body);
      },
    },
  }, label);

  const is = (states) => states.includes(story.state);
  const buttons = [
    session.mayRead(story) && session.me.user !== "" && !is(["queued", "held"])
      ? el("button.act", { type: "button", title: "What it prints", on: { click: () => on.log(story) } }, "Output") : null,
    may && (is(WAITS) || (story.state === "held" && !story.held_by_hand)) ? button("Hold", "Keep it out of line until it is released", "hold") : null,
    may && story.state === "held" && story.held_by_hand ? button("Release", "Let it go into line again", "release") : null,
    may && is(RUNS) ? button("Queue again", "Stop it, and start it anew", "requeue", { hold: false }, [`Queue ${story.name} again?`, "It is told to stop, and starts anew when its turn comes. What it has not saved is lost.", "Queue again"]) : null,
    may && !is(OVER) && story.state !== "stopping" ? button("Cancel", "Withdraw or stop it", "cancel", undefined, [`Cancel ${story.name}?`, is(RUNS) ? "It is told to stop. What it has not saved is lost." : "", "Cancel the job"]) : null,
    session.me.acts && session.isOwn(story.user) && is(OVER) ? button("Submit again", "A new job, as this one was submitted", "resubmit") : null,
  ].filter((each) => each !== null);
  return buttons.length ? el("div.acts", { role: "group", "aria-label": "What to do with it" }, buttons, said) : null;
}
