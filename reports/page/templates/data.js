"use strict";
(() => {
  const button = document.getElementById("download");
  if (!button) return;
  const said = document.createElement("span");
  said.setAttribute("role", "status");
  button.after(said);
  const say = (text) => { said.textContent = text && ` ${text} `; };

  if (!window.DecompressionStream) {
    button.disabled = true;
    say("This browser cannot unpack the data; use a newer one.");
    return;
  }

  // run.report.html gives run.report.json; a page in a frame has no name of its own.
  const fileName = () => {
    const last = location.pathname.split("/").pop() || "";
    const stem = /^(.+)\.html?$/i.exec(last);
    if (!stem) return "report.json";
    try { return `${decodeURIComponent(stem[1])}.json`; } catch { return `${stem[1]}.json`; }
  };

  button.addEventListener("click", async () => {
    let bytes;
    try {
      bytes = await traceflops.unpacked(button.dataset.id);
    } catch {
      say("The data is damaged.");
      return;
    }
    say("");
    const url = URL.createObjectURL(new Blob([bytes], { type: "application/json" }));
    const link = document.createElement("a");
    link.href = url;
    link.download = fileName();
    link.click();
    // The browser reads the bytes after this returns.
    setTimeout(() => URL.revokeObjectURL(url), 60000);
  });
})();
