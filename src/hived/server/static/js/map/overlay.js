// What lies over the map and comes and goes: a chosen job or VC brought out, the pointer's and the keyboard's GPU.

/** Draw it all; `boxOf(leaf)` gives a leaf's box in CSS pixels. */
export function paintOverlay(context, { width, height, palette, cells, camera, boxOf, chosen, filter, hover, focus, dense }) {
  context.clearRect(0, 0, width, height);
  const holders = chosen ? cells.ofJob(chosen) : filter ? [...cells.holders.values()].filter((holder) => holder.vc === filter) : [];
  if (holders.length || filter) {
    context.fillStyle = palette.scrim;
    context.fillRect(0, 0, width, height);
    for (const holder of holders) bringOut(context, holder, cells, boxOf, chosen && !dense ? palette.ink : null);
    if (chosen && dense) ringNodes(context, holders, cells, camera, palette.ink);
  }
  if (hover >= 0) outline(context, boxOf(hover), palette.ink, 2, 1);
  if (focus >= 0) {
    outline(context, boxOf(focus), palette.panel, 5, 2.5);
    outline(context, boxOf(focus), palette.ink, 2.5, 2.5);
  }
}

function bringOut(context, holder, cells, boxOf, ink) {
  const boxes = [];
  cells.each(holder.parts, (leaf) => boxes.push(boxOf(leaf)));
  for (const [left, top, right, bottom] of boxes) context.clearRect(left, top, right - left, bottom - top);
  if (ink) for (const box of boxes) outline(context, box, ink, 2, 1);
}

/** Far out a GPU is a speck: its node gets a ring that is seen. */
function ringNodes(context, holders, cells, camera, ink) {
  const nodes = new Map();
  for (const holder of holders) for (const [chain, node] of holder.parts) nodes.set(`${chain} ${node}`, [chain, node]);
  if (nodes.size > 12) return; // so many are seen without
  for (const [chain, node] of nodes.values()) {
    const block = camera.geometry.chains[chain];
    const { x, y } = camera.geometry.cell(block, block.node, node);
    outline(context, camera.box(x, y, block.levels[block.node].w, block.levels[block.node].h), ink, 1.5, 2);
  }
}

function outline(context, [left, top, right, bottom], colour, width, out) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.beginPath();
  context.roundRect(left - out, top - out, right - left + 2 * out, bottom - top + 2 * out, Math.min(7, (right - left) * 0.12));
  context.stroke();
}
