// What fills and colours mean.

import { el, keyed } from "./dom.js";
import { dress } from "./palette.js";

const KINDS = [
  ["guaranteed", "guaranteed", "Runs inside its own VC's cells"],
  ["opportunistic", "opportunistic", "Runs on what others leave idle; given back at once. Guests too, on GPUs that their owner has left"],
  ["reserved", "reserved", "Kept for a job that waits for others to go"],
  ["stopping", "stopping", "Told to end; its GPUs are free soon"],
  ["shared", "shared", "Several jobs: the strip has a part for each, filled where it runs, hatched as a guest, hollow while it is suspended"],
  ["idle", "idle", "Nobody uses it"],
  ["bad", "bad", "Faulty: no job is placed there; on a GPU in use, the sign is in the corner"],
  ["drained", "drained", "Kept from new jobs (hived drain), or for a pod that HiveD did not place; on a GPU in use, the sign is in the corner"],
];

export function kindsLegend(parent) {
  parent.replaceChildren(...KINDS.map(([key, label, title]) => el("span.entry", { title }, el(`i.key.k-${key}`), label)));
}

/** Chips of the VCs; a click brings one out. Returns what marks the pressed one. */
export function vcChips(parent, vcs, palette, onFilter) {
  const make = ({ name }) => {
    const pressed = (event) => event.currentTarget.getAttribute("aria-pressed") === "true";
    return el("button.chip", { type: "button", "aria-pressed": "false", on: { click: (event) => onFilter(pressed(event) ? null : name) } }, el("span.swatch"), name);
  };
  keyed(parent, vcs, ({ name }) => name, make, (chip, { name }) => dress(chip, palette.vc(name)));
  return (filter) => {
    for (const [name, chip] of parent.rows) chip.setAttribute("aria-pressed", String(name === filter));
  };
}
