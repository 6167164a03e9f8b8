// Colours. Okabe and Ito's, which people with any kind of colour vision tell apart, and a brown; from the ninth VC on the
// same ones again with a mark (dots, then bars).

const HUES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8c6d4f"];

//: colours of a theme, as base.css has them; `idle-edge` is `idleEdge` here
const NAMES = [
  "panel", "group", "deep", "line", "idle", "idle-edge", "ink", "soft", "bad", "bad-mark", "scrim", "grid", "curve", "curve-soft",
  "second", "third",
];

/** What is drawn with: a theme's colours, and per VC its fills. */
export class Palette {
  constructor(theme, vcs) {
    this.theme = theme;
    Object.assign(this, read(theme));
    this.vcs = vcs.map((name, number) => shades(number, this));
    this.byName = new Map(vcs.map((name, number) => [name, this.vcs[number]]));
    this.unknown = shades(7, this);
  }

  vc(name) {
    return this.byName.get(name) ?? this.unknown;
  }
}

/** A theme's colours out of the stylesheet: an element of that theme is given each of them. */
function read(theme) {
  const probe = document.createElement("i");
  probe.style.colorScheme = theme;
  document.body.append(probe);
  const found = {};
  for (const name of NAMES) {
    probe.style.color = `var(--${name})`;
    found[name.replace(/-./g, ([, letter]) => letter.toUpperCase())] = hex(getComputedStyle(probe).color);
  }
  probe.remove();
  return found;
}

/** `rgb(1, 2, 3)` as `#010203`; what can be seen through stays as it is. */
function hex(colour) {
  const parts = colour.match(/^rgb\((\d+), (\d+), (\d+)\)$/);
  return parts ? `#${parts.slice(1).map((part) => Number(part).toString(16).padStart(2, "0")).join("")}` : colour;
}

/** Shades for jobs that are told apart from each other, whatever their VCs. */
export function ofJobs(palette) {
  return HUES.map((_, number) => shades(number, palette));
}

function shades(number, theme) {
  const solid = HUES[number % HUES.length];
  const dark = theme.theme === "dark";
  return {
    number,
    solid,
    mark: Math.floor(number / HUES.length) % 3, // 0: none, 1: dots, 2: bars
    text: ratio(solid, "#ffffff") > ratio(solid, "#101418") ? "#ffffff" : "#101418",
    edge: mix(solid, dark ? "#ffffff" : "#000000", 0.22),
    pale: mix(theme.panel, solid, dark ? 0.2 : 0.16),
    stripe: mix(theme.panel, solid, dark ? 0.46 : 0.44),
  };
}

/** `share` of the way from colour `a` to `b`. */
export function mix(a, b, share) {
  const x = parts(a);
  const y = parts(b);
  return `#${x.map((value, i) => Math.round(value + (y[i] - value) * share).toString(16).padStart(2, "0")).join("")}`;
}

export function parts(colour) {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

/** WCAG's contrast ratio. */
export function ratio(a, b) {
  const [bright, dim] = [luminance(a), luminance(b)].sort((x, y) => y - x);
  return (bright + 0.05) / (dim + 0.05);
}

function luminance(colour) {
  const [r, g, b] = parts(colour).map((value) => {
    const v = value / 255;
    return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Give an element a VC's colours as CSS variables; the stylesheet makes solid, hatched or outlined of them. */
export function dress(element, shade) {
  element.style.setProperty("--vc", shade.solid);
  element.style.setProperty("--vc-edge", shade.edge);
  element.style.setProperty("--vc-pale", shade.pale);
  element.style.setProperty("--vc-stripe", shade.stripe);
  element.dataset.mark = shade.mark;
}
