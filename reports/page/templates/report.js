
"use strict";
(() => {
  const root = document.documentElement;

  // Bytes that the page carries, packed, in an element of their own.
  const unpacked = async (id) => {
    const packed = atob(document.getElementById(id).textContent);
    const bytes = Uint8Array.from(packed, (char) => char.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).arrayBuffer();
  };
  window.traceflops = { unpacked };

  // Bokeh reads the colours of its axes from the style sheet only when it paints.
  const repaint = () => {
    const walk = (view) => {
      if (view.request_repaint) view.request_repaint();
      (view.child_views || []).forEach(walk);
    };
    if (window.Bokeh) [...Bokeh.index.roots].forEach(walk);
  };

  const show = (theme) => { root.dataset.theme = theme; repaint(); };

  document.getElementById("theme").addEventListener("click", () => {
    const theme = root.dataset.theme === "dark" ? "light" : "dark";
    show(theme);
    try { localStorage.setItem("traceflops-theme", theme); } catch { /* files may have no storage */ }
  });

  // Paper is white and cannot be unfolded.
  let before = null;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    document.querySelectorAll("details:not(.behind, .behind details)").forEach((each) => { each.open = true; });
    show("light");
  });
  addEventListener("afterprint", () => { if (before) show(before); });
})();
