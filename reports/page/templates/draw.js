"use strict";
(async () => {
  const failed = () => document.querySelectorAll(".plot").forEach((plot) => plot.classList.add("failed"));
  try {
    const script = document.createElement("script");
    script.textContent = new TextDecoder().decode(await traceflops.unpacked("bokeh-packed"));
    document.head.append(script);
    if (!window.Bokeh) return failed();
    dispatchEvent(new Event("bokeh-ready"));
  } catch (error) {
    failed();
    console.warn("traceflops: the plots cannot be drawn", error);
  }
})();
