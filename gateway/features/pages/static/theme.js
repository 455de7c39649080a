// Before the first paint: the theme chosen in this browser, if any.
(() => {
  try {
    const chosen = localStorage.getItem("theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch { /* no storage: the system's theme */ }
})();
