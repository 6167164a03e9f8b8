// Elements. What comes from data goes in as text, never as markup.

/** An element: `el("p.note", {title: "..."}, "text", child)`. Null children are left out. */
export function el(what, properties = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "vars") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** A drawing of 20 x 20 in the text's colour. */
export function icon(path) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 20 20");
  svg.setAttribute("aria-hidden", "true");
  const drawn = document.createElementNS(svg.namespaceURI, "path");
  drawn.setAttribute("d", path);
  svg.append(drawn);
  return svg;
}

export const byId = (id) => document.getElementById(id);

/** Set text only where it differs: no layout work for what stays. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Keep the children of `parent` in step with `items`: rows are made once per key, then brought up to date, so focus and
 * scrolling stay where they are.
 */
export function keyed(parent, items, key, make, refresh) {
  const had = parent.rows ?? new Map();
  const focused = [...parent.children].findIndex((row) => row.contains(document.activeElement));
  const held = parent.children[focused];
  const rows = new Map();
  const wanted = new Set(items.map(key));
  // those that go go first: the others then stand in line already, and are not moved
  for (const [id, row] of had) if (!wanted.has(id)) row.remove();
  let at = parent.firstChild;
  for (const item of items) {
    const id = key(item);
    const row = had.get(id) ?? make(item);
    rows.set(id, row);
    refresh(row, item);
    if (row === at) at = at.nextSibling;
    else parent.insertBefore(row, at);
  }
  parent.rows = rows;
  // a row that was moved has lost the focus, and one that has gone leaves it to the row in its place
  if (held && !held.contains(document.activeElement)) {
    const row = held.isConnected ? held : parent.children[Math.min(focused, items.length - 1)];
    (row?.matches("button") ? row : row?.querySelector("button"))?.focus({ preventScroll: true });
  }
}

/** A canvas sized in CSS pixels, sharp on any screen. Returns its context, scaled. */
export function sharpen(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const w = Math.max(1, Math.round(width * ratio));
  const h = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== w) canvas.width = w;
  if (canvas.height !== h) canvas.height = h;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

/** Call `work` once per frame at most, however often it is asked for. */
export function onceAFrame(work) {
  let asked = 0;
  return () => {
    if (!asked) asked = requestAnimationFrame(() => { asked = 0; work(); });
  };
}
