// Pointer, wheel, fingers and keys on a map.

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** Let people move about `map` (a CellMap). */
export function listen(map, stage) {
  const fingers = new Map();
  let moved = 0;

  stage.addEventListener("wheel", (event) => {
    if (!map.camera.zooms || (event.deltaY > 0 && map.camera.fitted)) return; // the page scrolls
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 16 : 1;
    const [x, y] = local(event);
    map.zoom(Math.exp(-event.deltaY * lines * 0.0018), x, y);
  }, { passive: false });

  stage.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    fingers.set(event.pointerId, [event.clientX, event.clientY]);
    moved = 0;
    if (event.pointerType !== "touch" || !map.camera.fitted) stage.setPointerCapture(event.pointerId);
  });

  stage.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) {
      if (event.pointerType !== "touch") map.hoverAt(...local(event), event.clientX, event.clientY);
      return;
    }
    const now = [event.clientX, event.clientY];
    if (fingers.size === 2) {
      const other = [...fingers].find(([id]) => id !== event.pointerId)[1];
      const was = Math.hypot(before[0] - other[0], before[1] - other[1]);
      const is = Math.hypot(now[0] - other[0], now[1] - other[1]);
      const frame = stage.getBoundingClientRect();
      if (was > 0) map.zoom(is / was, (now[0] + other[0]) / 2 - frame.left, (now[1] + other[1]) / 2 - frame.top);
      moved = 99;
    } else {
      moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
      if (moved > 4 && !map.camera.fitted) map.pan(now[0] - before[0], now[1] - before[1]);
    }
    fingers.set(event.pointerId, now);
  });

  const lift = (event) => {
    const was = fingers.delete(event.pointerId);
    if (was && event.type === "pointerup" && moved <= 4) map.press(...local(event));
  };
  stage.addEventListener("pointerup", lift);
  stage.addEventListener("pointercancel", lift);
  stage.addEventListener("pointerleave", () => map.leave());
  stage.addEventListener("focus", () => { if (stage.matches(":focus-visible")) map.enter(); });
  stage.addEventListener("blur", () => map.blur());

  stage.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = STEPS[event.key];
    if (step) map.step(...step, event.shiftKey);
    else if (event.key === "Enter" || event.key === " ") map.openFocused();
    else if (event.key === "+" || event.key === "=") map.zoomAtFocus(1.5);
    else if (event.key === "-") map.zoomAtFocus(1 / 1.5);
    else if (event.key === "0") map.fit();
    else if (event.key === "Home") map.focusOn(0);
    else if (event.key === "End") map.focusOn(map.cells.leaves - 1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });

  function local(event) {
    const frame = stage.getBoundingClientRect();
    return [event.clientX - frame.left, event.clientY - frame.top];
  }
}
