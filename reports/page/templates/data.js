"use strict";
(() => {
  const buttons = document.querySelectorAll(".download button");
  if (!buttons.length) return;
  const said = document.createElement("span");
  said.setAttribute("role", "status");
  buttons[buttons.length - 1].parentNode.append(said);
  const say = (text) => { said.textContent = text && ` ${text} `; };

  if (!window.DecompressionStream) {
    buttons.forEach((button) => { button.disabled = true; });
    say("This browser cannot unpack the data; use a newer one.");
    return;
  }

  // run.report.html gives run.report.json; a page in a frame has no name of its own.
  const fileName = (suffix) => {
    const last = location.pathname.split("/").pop() || "";
    const stem = /^(.+)\.html?$/i.exec(last);
    if (!stem) return `report${suffix}`;
    try { return decodeURIComponent(stem[1]) + suffix; } catch { return stem[1] + suffix; }
  };

  const download = async (button) => {
    let bytes;
    try {
      bytes = await traceflops.unpacked(button.dataset.id);
    } catch {
      say("The data is damaged.");
      return;
    }
    say("");
    const url = URL.createObjectURL(new Blob([bytes], { type: "application/octet-stream" }));
    const link = document.createElement("a");
    link.href = url;
    link.download = fileName(button.dataset.suffix);
    link.click();
    // The browser reads the bytes after this returns.
    setTimeout(() => URL.revokeObjectURL(url), 60000);
  };

  buttons.forEach((button) => button.addEventListener("click", () => download(button)));
})();
