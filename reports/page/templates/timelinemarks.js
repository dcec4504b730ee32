"use strict";
// The timeline painted: over its rows the marks of a search, brackets, a selection and arrows; and
// the strip of the whole recording.
(() => {
  const { AXIS, colour, shortened, tag, fit, axis, steps, labels, occupancy, boxes, names, counters, looksOf, firstEnding, firstStarting } = traceflops.timeline;

  // A line over what is on the critical path.
  const critical = (pen, view, shown) => {
    const sums = shown.source.paths;
    if (!sums) return;
    pen.fillStyle = colour("--ink");
    for (const box of shown.boxes) {
      if (2 * (sums[box.last + 1] - sums[box.box]) < box.last + 1 - box.box) continue;
      const left = view.x(box.start);
      pen.fillRect(left, view.rows.byLane.get(box.lane).y - 1, Math.max(view.x(box.end) - left, 1), 2);
    }
  };

  // A mark below each event that a search found, no more than one a pixel.
  const found = (pen, view, { source }) => {
    if (!view.hits) return;
    const apart = (view.to - view.from) / view.width;
    pen.fillStyle = colour("--high");
    for (const row of view.seen.filter(({ lane }) => lane >= 0)) {
      const { starts, ends } = view.hits.of(source, row.lane), stop = starts.length;
      for (let i = firstEnding(ends, 0, stop, view.from); i < stop && starts[i] <= view.to;) {
        const left = view.x(starts[i]);
        pen.fillRect(left, row.y + row.height - 4, Math.max(view.x(ends[i]) - left, 2), 3);
        i = firstStarting(starts, i + 1, stop, starts[i] + apart);
      }
    }
  };

  // The selected range over all rows, its length above them.
  const selection = (pen, view) => {
    if (!view.selected) return;
    const left = view.x(view.selected.from), right = view.x(view.selected.to);
    pen.fillStyle = colour("--focus");
    pen.globalAlpha = 0.13;
    pen.fillRect(left, 0, right - left, view.height);
    pen.globalAlpha = 1;
    for (const x of [left, right]) pen.fillRect(Math.round(x) - 0.5, 0, 1.5, view.height);
  };

  // Brackets over the longest gaps, with what the GPU waits on where there is room.
  const waits = (pen, view, marks) => {
    for (const mark of marks.filter((each) => each.waits)) {
      const row = view.rows.byLane.get(mark.lane), middle = row.y + 8.5;
      const [left, right] = [view.x(mark.start) + 1, view.x(mark.end) - 1];
      const low = Math.max(left, view.left), room = Math.min(right, view.left + view.width) - low;
      if (room < 4) continue;
      pen.strokeStyle = colour("--ink");
      pen.beginPath();
      for (const x of [left, right]) { pen.moveTo(x, middle - 4); pen.lineTo(x, middle + 4); }
      pen.moveTo(left, middle); pen.lineTo(right, middle);
      pen.stroke();
      const text = shortened(mark.waits[0] || mark.waits[1], Math.floor((room - 16) / 5.6));
      if (room > 40 && text) tag(pen, text, low + Math.max((room - pen.measureText(text).width) / 2, 6), row.y + 12);
    }
  };

  const band = (pen, view) => {
    if (!view.band) return;
    const left = view.x(view.band.from), width = Math.max(view.x(view.band.to) - left, 2);
    const rows = view.rows.rows.filter((row) => view.band.groups.includes(row.group));
    pen.fillStyle = pen.strokeStyle = colour("--focus");
    for (const row of rows) {
      pen.globalAlpha = 0.16; pen.fillRect(left, row.y, width, row.height);
      pen.globalAlpha = 1; pen.strokeRect(left, row.y - 0.5, width, row.height);
    }
  };

  const chosen = (pen, view) => {
    const row = view.chosen && view.rows.byLane.get(view.chosen.lane);
    if (!row) return;
    const left = view.x(view.chosen.start);
    pen.strokeStyle = colour("--ink");
    pen.lineWidth = 2;
    pen.strokeRect(left - 1, row.y - 1, Math.max(view.x(view.chosen.end) - left, 1) + 2, row.height + 1);
    for (const other of view.chosen.others) arrow(pen, view, view.chosen, other);
    pen.lineWidth = 1;
  };

  // From the call, whose row is the lower one, up to the start of what it launched.
  const arrow = (pen, view, ...ends) => {
    const rowOf = ({ lane }) => view.rows.byLane.get(lane);
    const [to, from] = ends.sort((a, b) => rowOf(a).y - rowOf(b).y);
    const [x, low] = [view.x(from.start), rowOf(from).y], [end, high] = [view.x(to.start), rowOf(to).y + rowOf(to).height + 1];
    for (const [width, name] of [[4, "--ground"], [1.5, "--ink"]]) {
      pen.lineWidth = width;
      pen.strokeStyle = pen.fillStyle = colour(name);
      pen.beginPath(); pen.moveTo(x, low); pen.bezierCurveTo(x, (low + high) / 2, end, (low + high) / 2, end, high + 6); pen.stroke();
    }
    pen.beginPath(); pen.moveTo(end, high); pen.lineTo(end - 4, high + 7); pen.lineTo(end + 4, high + 7); pen.fill();
  };

  const clipped = (pen, left, top, view) => {
    pen.save();
    pen.beginPath(); pen.rect(left, top, view.width + view.left - left, view.height - top); pen.clip();
  };
  const paint = (canvas, data, view, shown) => {
    const pen = fit(canvas, view.left + view.width, view.height), looks = looksOf(data);
    axis(pen, view);
    clipped(pen, 0, AXIS - 2, view);
    pen.translate(0, -view.top);
    labels(pen, view);
    clipped(pen, view.left, 0, { ...view, height: view.rows.height });
    occupancy(pen, data, view, shown.source);
    boxes(pen, data, view, shown, looks);
    names(pen, data, view, shown, looks);
    found(pen, view, shown);
    critical(pen, view, shown);
    counters(pen, view, shown.marks);
    waits(pen, view, shown.marks);
    band(pen, view);
    chosen(pen, view);
    pen.restore();
    pen.restore();
    clipped(pen, view.left, 0, view);
    pen.font = "11px system-ui, sans-serif"; pen.fillStyle = colour("--soft");
    steps(pen, data, view);
    selection(pen, view);
    pen.restore();
  };

  const strip = (canvas, data, view) => {
    const height = 46, pen = fit(canvas, view.left + view.width, height);
    const [from, to] = data.whole, scale = view.width / Math.max(to - from, 1);
    const parts = data.overview;
    const bins = parts.length ? parts[0][1].length : 0, wide = view.width / Math.max(bins, 1);
    pen.fillStyle = colour("--track");
    pen.fillRect(view.left, 0, view.width, height);
    for (let i = 0; i < bins; i++) {
      let y = height;
      for (const [look, shares] of parts) {
        const part = shares[i] * height / 1000;
        pen.fillStyle = data.looks[look][1];
        pen.fillRect(view.left + i * wide, y -= part, wide + 0.3, part);
      }
    }
    if (view.selected) {
      pen.fillStyle = colour("--focus");
      pen.globalAlpha = 0.45;
      pen.fillRect(view.left + (view.selected.from - from) * scale, 0, Math.max((view.selected.to - view.selected.from) * scale, 2), height);
      pen.globalAlpha = 1;
    }
    const left = view.left + (view.from - from) * scale, width = Math.max((view.to - view.from) * scale, 3);
    pen.fillStyle = colour("--ground");
    pen.globalAlpha = 0.6;
    pen.fillRect(view.left, 0, Math.max(left - view.left, 0), height);
    pen.fillRect(left + width, 0, Math.max(view.left + view.width - left - width, 0), height);
    pen.globalAlpha = 1;
    pen.strokeStyle = colour("--ink");
    pen.lineWidth = 2;
    pen.strokeRect(left + 1, 1, Math.max(width - 2, 1), height - 2);
    pen.fillStyle = colour("--soft");
    pen.font = "11px system-ui, sans-serif";
    pen.fillText("whole", 0, 27, view.left - 6);
  };

  Object.assign(traceflops.timeline, { paint, strip });
})();
