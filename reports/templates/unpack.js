
"use strict";
(async () => {
  const failed = () => document.querySelectorAll(".plot").forEach((plot) => plot.classList.add("failed"));
  try {
    const packed = atob(document.getElementById("bokeh-packed").textContent);
    const bytes = Uint8Array.from(packed, (char) => char.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    if (!window.Bokeh) return failed();
    dispatchEvent(new Event("bokeh-ready"));
  } catch (error) {
    failed();
    console.warn("traceflops: the plot cannot be drawn", error);
  }
})();
