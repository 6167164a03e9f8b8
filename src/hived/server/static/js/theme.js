// Light or dark: the system's, until the reader says otherwise.

const system = matchMedia("(prefers-color-scheme: dark)");

export const theme = () => document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light");

/** The other one; it is remembered, unless it is the system's own. */
export function toggleTheme() {
  const next = theme() === "dark" ? "light" : "dark";
  const own = next === (system.matches ? "dark" : "light");
  if (own) delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    if (own) localStorage.removeItem("hived-theme");
    else localStorage.setItem("hived-theme", next);
  } catch { /* storage is off: it lasts until the page is closed */ }
  return next;
}

export function onSystemTheme(work) {
  system.addEventListener("change", work);
}
