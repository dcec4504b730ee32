"use strict";
(async () => {
  // Steps selected in their chart are selected in the timeline, and the other way round.
  const linkSteps = (chart) => {
    const source = chart.renderers[0].data_source, { selected } = source;
    // Of each box its steps: a bar of several is labelled with its first and last.
    const steps = Array.from(source.data.label, (text) => text.split("–").map(Number));
    chart.on_event("selectiongeometry", ({ final }) => {
      const inside = selected.indices.flatMap((box) => steps[box]);
      if (final) dispatchEvent(new CustomEvent("steps-asked", { detail: inside.length ? [Math.min(...inside), Math.max(...inside)] : [] }));
    });
    addEventListener("steps-selected", ({ detail }) => {
      const boxes = steps.flatMap(([first, last = first], box) => (detail.some((step) => step >= first && step <= last) ? [box] : []));
      selected.indices = boxes.length < steps.length ? boxes : [];
    });
    dispatchEvent(new Event("steps-linked"));
  };

  const failed = () => document.querySelectorAll(".plot").forEach((plot) => plot.classList.add("failed"));
  try {
    const script = document.createElement("script");
    script.textContent = new TextDecoder().decode(await traceflops.unpacked("bokeh-packed"));
    document.head.append(script);
    if (!window.Bokeh) return failed();
    dispatchEvent(new Event("bokeh-ready"));
    // Bokeh makes its documents later, and tells nobody.
    const look = (times) => {
      const chart = Bokeh.documents.map((each) => each.get_model_by_name("steps")).find(Boolean);
      if (chart) linkSteps(chart); else if (times) setTimeout(look, 50, times - 1);
    };
    look(200);
  } catch (error) {
    failed();
    console.warn("traceflops: the plots cannot be drawn", error);
  }
})();
