// Keyboard shortcuts of the whole page, and the sheet that lists them.

import { el } from "./dom.js";

const SHEET = [
  ["Cell map", [["←↑↓→", "from GPU to GPU"], ["Shift ←↑↓→", "from node to node"], ["Enter", "open the job"], ["+  −", "nearer, farther (wheel, pinch)"], ["0", "show everything"], ["Home  End", "first, last GPU"]]],
  ["Everywhere", [["m", "to the cell map"], ["/", "filter the jobs"], ["v", "the next virtual cluster, brought out"], ["g", "who has the GPUs of a node, and when"], ["Esc", "close, let go"], ["t", "light or dark"], ["?", "this sheet"]]],
  ["A finished run", [["Space", "play, pause"], [",  .", "step back, on"], ["c", "cluster or compare"]]],
  ["Charts", [["←→", "read values"], ["Enter", "go to that time"]]],
];

/** `commands`: key -> work; a work that returns false leaves the key to the browser. */
export function listenKeys(commands) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const target = event.target;
    const typing = target.matches?.("input:not([type=range]), select, textarea");
    if (typing && event.key !== "Escape") return;
    if (event.key === " " && target.matches?.("button, summary, a, [role=application]")) return;
    const work = commands[event.key];
    if (work && work(event) !== false) event.preventDefault();
  });
}

export function fillHelp(dialog) {
  const close = el("button.icon", { type: "button", "aria-label": "Close", on: { click: () => dialog.close() } }, "×");
  dialog.replaceChildren(
    el("div.head", {}, el("h2", { id: "help-heading" }, "Keyboard"), close),
    el("div.sheet", {}, SHEET.map(([title, rows]) => el("section", {}, el("h3", {}, title),
      el("dl", {}, rows.map(([keys, what]) => [el("dt", {}, keys.split(/\s+/).map((key) => el("kbd", {}, key))), el("dd", {}, what)]))))));
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
}
