"use strict";
(() => {
  // Steps selected in their chart are selected in the timeline, and the other way round.
  const chart = document.querySelector(".step-chart"), drawing = chart.querySelector("svg");
  const columns = [...drawing.querySelectorAll("svg")];
  const steps = columns.map(({ dataset }) => [Number(dataset.first), Number(dataset.last)]);
  const columnAt = (event) => {
    const { left, width } = drawing.getBoundingClientRect();
    const column = Math.floor(((event.clientX - left) / width) * columns.length);
    return Math.max(0, Math.min(columns.length - 1, column));
  };
  const mark = (isChosen) => {
    const chosen = columns.map((_, i) => isChosen(i));
    columns.forEach((column, i) => column.classList.toggle("chosen", chosen[i]));
    chart.classList.toggle("chosen", chosen.includes(true) && chosen.includes(false));
  };
  let from = null;
  drawing.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    from = columnAt(event);
    drawing.setPointerCapture(event.pointerId);
  });
  const ends = (event) => [from, columnAt(event)].sort((a, b) => a - b);
  drawing.addEventListener("pointermove", (event) => {
    if (from === null) return;
    const [first, last] = ends(event);
    mark((i) => first <= i && i <= last);
  });
  drawing.addEventListener("pointerup", (event) => {
    if (from === null) return;
    const [first, last] = ends(event);
    from = null;
    mark((i) => first <= i && i <= last);
    dispatchEvent(new CustomEvent("steps-asked", { detail: [steps[first][0], steps[last][1]] }));
  });
  drawing.addEventListener("pointercancel", () => { from = null; mark(() => false); });
  addEventListener("steps-selected", ({ detail }) => {
    mark((i) => detail.some((step) => steps[i][0] <= step && step <= steps[i][1]));
  });
  dispatchEvent(new Event("steps-linked"));
})();
