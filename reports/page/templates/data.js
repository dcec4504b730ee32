"use strict";
(() => {
  const place = document.querySelector(".download");
  if (!place) return;
  const said = document.createElement("span");
  said.setAttribute("role", "status");
  place.append(said);
  const say = (text) => { said.textContent = text && ` ${text} `; };

  // Of run.report.html run.report; a page in a frame has no name.
  const stem = () => {
    const found = /([^/]+)\.html?$/i.exec(location.pathname);
    try { return found ? decodeURIComponent(found[1]) : "report"; } catch { return found[1]; }
  };

  for (const button of place.querySelectorAll("button")) {
    if (!window.DecompressionStream) {
      button.disabled = true;
      say("This browser cannot unpack the data; use a newer one.");
      continue;
    }
    button.addEventListener("click", async () => {
      const bytes = await traceflops.unpacked(button.dataset.id).catch(() => null);
      say(bytes ? "" : "The data is damaged.");
      if (!bytes) return;
      const url = URL.createObjectURL(new Blob([bytes]));
      const named = { href: url, download: stem() + button.dataset.suffix };
      Object.assign(document.createElement("a"), named).click();
      // The bytes are read after this returns.
      setTimeout(() => URL.revokeObjectURL(url), 60000);
    });
  }
})();
