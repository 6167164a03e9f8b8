// Before the first paint: the theme chosen earlier, so that nothing flashes. And the first question to the server, while the
// scripts are on their way.
(function () {
  try {
    const chosen = localStorage.getItem("hived-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch { /* storage is off: the system's theme it is */ }
  if (location.hash.startsWith("#sign-in=")) return; // the page asks once it has signed in
  window.hivedLayout = fetch("/v1/dashboard/layout", { headers: { Accept: "application/json" } });
  window.hivedLayout.catch(() => { /* whoever awaits it is told */ });
})();
