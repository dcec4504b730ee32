"use strict";
// The cells of ranks and steps: one stop for the tab key, arrows between them, and which ones lead
// to the collective that is shown.
(() => {
  const rows = [...document.querySelectorAll(".rank-map .strip > div")].map((row) => [...row.children]);
  const cells = rows.flat().filter((cell) => cell.href), first = document.querySelector(".met");
  if (!cells.length) return;
  const stop = (cell) => cells.forEach((each) => { each.tabIndex = each === cell ? 0 : -1; });
  const near = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  document.querySelector(".rank-map").addEventListener("keydown", (event) => {
    const [down, right] = near[event.key] ?? [], from = event.target;
    let row = rows.findIndex((each) => each.includes(from)), column = rows[row]?.indexOf(from);
    if (down === undefined || row < 0) return;
    event.preventDefault();
    do { row += down; column += right; } while (rows[row]?.[column] && !rows[row][column].href);
    const next = rows[row]?.[column];
    if (next) { stop(next); next.focus(); }
  });
  const mark = () => {
    const shown = document.querySelector(".met:target") ?? first;
    for (const cell of cells) cell.classList.toggle("met-here", cell.hash === `#${shown.id}`);
  };
  // Following a link takes the focus off it; who uses arrows goes on from there.
  let followed = null;
  document.querySelector(".rank-map").addEventListener("click", (event) => { followed = event.target.closest("a"); });
  stop(cells[0]);
  addEventListener("hashchange", () => {
    mark();
    if (followed) { stop(followed); followed.focus({ preventScroll: true }); }
    followed = null;
  });
  mark();
})();
