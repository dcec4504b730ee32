"use strict";
// What is seen of the timeline: a range of time, the lanes of a host, an event that is chosen.
(() => {
  const { AXIS, inView, known, linked, arrange, paint, strip } = traceflops.timeline;
  const LEAST = 20, NARROW = 620, NEAR = 3, ROOM = 0.01, MOST_ARROWS = 200;
  const HIGH = 0.62, LOW = 300; // of the window, and pixels: the height at first


  // Where the lanes and their labels lie in so many pixels.
  const layout = (area, { from, to, rows, band, chosen, selected, hits }) => {
    const full = area.clientWidth, left = full < NARROW ? 70 : 104, width = full - left;
    const x = (at) => left + (at - from) / (to - from) * width, top = area.scrollTop, height = Math.min(area.clientHeight, rows.height);
    const seen = rows.rows.filter((row) => row.y + row.height > top + AXIS && row.y < top + height);
    return { left, width, from, to, top, height, rows, seen, band, chosen, selected, hits, x };
  };

  // The view of some data on two canvases; "painted" is called after each painting.
  const viewOf = (data, area, stripArea, painted) => {
    const state = { from: 0, to: 1, band: null, chosen: null, selected: null, hits: null, host: -1, rows: null, layout: null, shown: null };
    const [tall] = area.children, [canvas] = tall.children;

    const draw = () => {
      if (!area.clientWidth) return;
      state.layout = layout(area, state);
      const pixels = state.layout.width * Math.min(window.devicePixelRatio || 1, 2);
      state.shown = inView(data, state.layout.seen.map((row) => row.lane), state.from, state.to, pixels);
      paint(canvas, data, state.layout, state.shown);
      strip(stripArea.firstElementChild, data, state.layout);
      painted();
    };

    // At most once a frame, whatever asks for it.
    let asked = false;
    const ask = () => {
      if (asked) return;
      asked = true;
      requestAnimationFrame(() => { asked = false; draw(); });
    };

    // Never narrower than a few nanoseconds, nor farther out than a little beside everything.
    const look = (from, to) => {
      const [low, high] = data.whole, room = (high - low) * ROOM + LEAST;
      const span = Math.min(Math.max(to - from, LEAST), high - low + 2 * room);
      state.from = Math.min(Math.max((from + to - span) / 2, low - room), high + room - span);
      state.to = state.from + span;
      ask();
    };
    const zoom = (factor, at = (state.from + state.to) / 2) =>
      look(at - (at - state.from) * factor, at + (state.to - at) * factor);
    const move = (share) => {
      const by = (state.to - state.from) * share;
      look(state.from + by, state.to + by);
    };

    // A range with some room around it; a band marks what a link leads to.
    const frame = (from, to) => {
      state.band = null;
      look(from - (to - from) * ROOM, to + (to - from) * ROOM);
    };
    const mark = (from, to, groups) => { state.band = { from, to, groups }; };
    // A range whose figures are told; where these are those of bins, it reaches from edge to edge.
    const select = (from, to) => {
      const stretch = from === undefined ? null : known(data, Math.min(from, to), Math.max(from, to));
      state.selected = stretch && stretch.to > stretch.from ? { from: stretch.from, to: stretch.to } : null;
      ask();
    };
    const search = (hits) => { state.hits = hits; ask(); };
    const choose = (box) => {
      const others = box ? linked(data, state.shown.source, box).filter(({ lane }) => state.rows.byLane.has(lane)) : [];
      state.chosen = box && { ...box, others: others.slice(0, MOST_ARROWS) };
      ask();
    };
    const setHost = (host) => {
      state.host = host;
      state.rows = arrange(data, host);
      tall.style.height = `${state.rows.height}px`;
      if (!area.style.height) area.style.height = `${Math.min(state.rows.height, Math.max(Math.round(innerHeight * HIGH), LOW))}px`;
      area.style.maxHeight = `${state.rows.height}px`;
      choose(null);
    };

    // The row of a lane comes into view.
    const reveal = (lane) => {
      const row = state.rows.byLane.get(lane);
      if (row && (row.y < area.scrollTop + AXIS || row.y + row.height > area.scrollTop + area.clientHeight)) area.scrollTop = row.y - area.clientHeight / 2;
    };

    const timeAt = (x) => state.from + (x - state.layout.left) / state.layout.width * (state.to - state.from);
    // The box under a point or just beside it; of several the last to start, which lies on top.
    const boxAt = ({ x, y }) => {
      const at = y + state.layout.top, row = y < AXIS ? null : state.rows.rows.find((each) => at >= each.y && at < each.y + each.height);
      if (!row || x < state.layout.left) return null;
      const nearest = (boxes) => {
        let best = null, least = NEAR;
        for (const box of boxes) {
          if (box.lane !== row.lane) continue;
          const left = state.layout.x(box.start), right = Math.max(state.layout.x(box.end), left + 1);
          const away = Math.max(left - x, x - right, 0);
          if (away < least || (away === 0 && best && box.start > best.start)) { best = box; least = away; }
        }
        return best;
      };
      return nearest(state.shown.boxes) || nearest(state.shown.marks);
    };

    // Only the first row of a track has a label; a gap is of a whole device.
    const labelOf = ({ lane, waits }) => {
      const rows = state.rows.rows, place = rows.findIndex((row) => row.lane === lane);
      let first = place;
      while (first > 0 && !rows[first].label) first--;
      const head = state.rows.heads.find((each) => each.group === rows[place].group);
      return waits ? head.label : `${head.label} · ${rows[first].label}`;
    };

    // The box that follows the chosen one in its row, or the nearest one of another row.
    const nearest = (boxes, start) =>
      boxes.reduce((best, box) => (!best || Math.abs(box.start - start) < Math.abs(best.start - start) ? box : best), null);
    const beside = (rows, boxes) => {
      const { chosen, shown } = state;
      if (!chosen) return shown.boxes[0] || null;
      const of = (lane) => [...shown.boxes, ...shown.marks].filter((box) => box.lane === lane).sort((a, b) => a.start - b.start);
      if (boxes) return of(chosen.lane).filter((box) => (box.start - chosen.start) * boxes > 0).at(boxes > 0 ? 0 : -1) || null;
      const order = state.rows.rows.map((row) => row.lane);
      let found = null;
      for (let at = order.indexOf(chosen.lane) + rows; !found && order[at] !== undefined; at += rows) {
        found = nearest(of(order[at]), chosen.start);
      }
      return found;
    };

    return { state, LEAST, ask, look, zoom, move, frame, mark, choose, select, search, setHost, reveal, timeAt, boxAt, labelOf, beside };
  };

  Object.assign(traceflops.timeline, { viewOf });
})();
