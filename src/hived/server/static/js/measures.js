// What the page did and how long it took: tests and benchmarks read `window.__hived`, people the browser's profiler.

export const counters = { full: 0, partial: 0, cells: 0, updates: 0, pictures: 0, layouts: 0, streams: 0 };

/** Record how long the synchronous `work` took, as a measure of that name. */
export function measured(name, work) {
  const start = performance.now();
  try {
    return work();
  } finally {
    performance.measure(name, { start, end: performance.now() });
    if (performance.getEntriesByName(name).length > 200) performance.clearMeasures(name);
  }
}

let first = true;

/** Once the first picture is on screen: the time since navigation began. */
export function firstPicture() {
  if (!first) return;
  first = false;
  requestAnimationFrame(() => setTimeout(() => performance.measure("hived:first-picture", { start: 0, end: performance.now() })));
}

window.__hived = { counters };
