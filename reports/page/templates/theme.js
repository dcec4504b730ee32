
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  // Storage may be forbidden for files; the page then follows the system.
  try { root.dataset.theme = localStorage.getItem("traceflops-theme") || ""; } catch { /* as above */ }
  if (!root.dataset.theme) {
    root.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  }
})();
