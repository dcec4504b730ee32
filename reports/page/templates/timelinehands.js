"use strict";
// How pointers, the wheel and keys move the timeline.
(() => {
  const STEP = 0.2, ZOOM = 1.6, MOVED = 6, EDGE = 7, WHEEL = 180, HELD = 400;
  const KEYS = {
    ArrowLeft: "left", ArrowRight: "right", "+": "in", "=": "in", ArrowUp: "in", "-": "out", ArrowDown: "out",
    a: "left", d: "right", w: "in", s: "out", f: "fit", m: "measure", "/": "search",
    0: "reset", n: "next", p: "previous", k: "up", j: "down", l: "follow", "]": "later", "[": "earlier", Escape: "unselect",
  };
  const WITH_SHIFT = { ArrowLeft: "shrink", ArrowRight: "grow" };
  // What leads away from the place that the list names.
  const LEAVES = new Set(["left", "right", "in", "out", "fit", "later", "earlier"]);
  const NUDGE = 0.02;

  const within = (element, event) => {
    const box = element.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };

  // What keys and buttons do, by name; "whole" shows everything, "choose" tells of an event.
  const actionsOf = (view, { whole, choose, follow, ...others }) => {
    const { state } = view;
    let begun = null;
    // The end of the selection moves; without one it begins at the chosen event or in the middle.
    const nudge = (by) => {
      const { selected, chosen, from, to } = state, apart = Math.max(Math.round((to - from) * NUDGE), 1);
      const start = selected ? selected.from : chosen ? chosen.start : Math.round((from + to) / 2);
      const end = Math.max((selected ? selected.to : start) + by * apart, start + 1);
      view.select(start, end);
      if (end > to) view.move(STEP);
    };
    const fit = () => {
      const range = state.selected || (state.chosen && { from: state.chosen.start, to: state.chosen.end });
      if (range) view.frame(range.from, range.to);
    };
    // From one event to another: the stretch from the start of the first to the end of the last.
    const measure = () => {
      if (!state.chosen) return;
      const { start, end } = state.chosen;
      view.select(Math.min(start, begun ? begun.start : start), Math.max(end, begun ? begun.end : end));
      begun = begun ? null : { start, end };
    };
    const walk = (rows, boxes) => {
      const next = view.beside(rows, boxes);
      // At the end of a row there may be more beside the view.
      if (next) choose(next); else if (boxes) view.move(STEP * boxes);
    };
    return {
      in: () => view.zoom(1 / ZOOM), out: () => view.zoom(ZOOM),
      left: () => view.move(-STEP), right: () => view.move(STEP), reset: whole,
      next: () => walk(0, 1), previous: () => walk(0, -1), up: () => walk(-1, 0), down: () => walk(1, 0),
      grow: () => nudge(1), shrink: () => nudge(-1), fit, measure,
      follow, unselect: () => { begun = null; choose(null); view.select(); others.clear(); },
      ...others,
    };
  };

  const takeKeys = (area, buttons, actions, left) => {
    const act = (name) => {
      actions[name]();
      if (LEAVES.has(name)) left();
    };
    area.addEventListener("keydown", (event) => {
      const keys = event.shiftKey && WITH_SHIFT[event.key] ? WITH_SHIFT : KEYS;
      const name = event.ctrlKey || event.metaKey || event.altKey ? undefined : keys[event.key];
      if (!name) return;
      event.preventDefault();
      act(name);
    });
    buttons.forEach((button) => button.addEventListener("click", () => act(button.dataset.do)));
  };

  // A mouse selects a range, or with Shift drags the view, as a finger does; one that was held before
  // it moves selects. Two fingers spread or pinch the view. What rests shows what is under it.
  const takePointers = (area, view, { show, hide, choose, left, selected }) => {
    const down = new Map();
    let begun = null;
    // Near an edge of the selection that edge moves.
    const anchorAt = (x) => {
      const range = view.state.selected, near = (time) => Math.abs(view.state.layout.x(time) - x) < EDGE;
      if (range && near(range.from)) return range.to;
      return range && near(range.to) ? range.from : view.timeAt(x);
    };
    const ends = () => {
      const xs = [...down.values()].map(({ x }) => x);
      return { low: Math.min(...xs), high: Math.max(...xs) };
    };
    const grip = () => {
      const { from, to } = view.state;
      begun = { from, to, ...ends(), moved: begun ? begun.moved : false, anchor: null };
    };
    // What was under the first pointer when it came down stays under it.
    const drag = ({ low, high }) => {
      const { left: edge, width } = view.state.layout, before = begun.to - begun.from;
      const span = down.size > 1 ? before * Math.max(begun.high - begun.low, 10) / Math.max(high - low, 10) : before;
      const from = begun.from + (begun.low - edge) / width * before - (low - edge) / width * span;
      view.look(from, from + span);
      left();
    };
    area.addEventListener("pointerdown", (event) => {
      if (event.button || event.offsetX > area.clientWidth) return;
      down.set(event.pointerId, within(area, event));
      if (down.size === 1) begun = null;
      grip();
      const { x } = within(area, event), selects = !event.shiftKey && x > view.state.layout.left && down.size === 1;
      begun.held = selects && event.pointerType !== "mouse" ? { at: event.timeStamp, anchor: anchorAt(x) } : null;
      begun.anchor = selects && !begun.held ? anchorAt(x) : null;
    });
    area.addEventListener("pointermove", (event) => {
      if (!down.has(event.pointerId)) { show(event, view.boxAt(within(area, event))); return; }
      down.set(event.pointerId, within(area, event));
      const now = ends();
      if (!begun.moved) {
        if (Math.abs(now.low - begun.low) + Math.abs(now.high - begun.high) < MOVED) return;
        // Not before it moves: a captured pointer no longer clicks what is under it.
        if (event.isPrimary) area.setPointerCapture(event.pointerId);
        begun.moved = true;
        if (begun.held && event.timeStamp - begun.held.at >= HELD) begun.anchor = begun.held.anchor;
      }
      if (begun.anchor === null) drag(now); else view.select(begun.anchor, view.timeAt(now.low));
    });
    const lift = (event) => {
      if (!down.delete(event.pointerId)) return;
      if (down.size) grip();
      else if (begun?.moved && begun.anchor !== null) selected();
      else if (event.type === "pointerup" && begun && !begun.moved) choose(view.boxAt(within(area, event)));
    };
    area.addEventListener("pointerup", lift);
    area.addEventListener("pointercancel", lift);
    area.addEventListener("pointerleave", hide);
  };

  // The wheel alone scrolls the page, as everywhere; with Ctrl, as a pinch sends it, it zooms.
  const takeWheel = (area, view, left) => area.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) {
      const turned = Math.max(Math.min(event.deltaY, 100), -100);
      view.zoom(Math.exp(turned / WHEEL), view.timeAt(within(area, event).x));
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) view.move(event.deltaX / view.state.layout.width);
    else return;
    event.preventDefault();
    left();
  }, { passive: false });

  // The strip: the window or one of its edges is dragged; beside it, the window comes to the pointer.
  const takeStrip = (area, view, [low, high], left) => {
    let pulled = null;
    const perPixel = () => (high - low) / view.state.layout.width;
    const timeAt = (event) => low + (within(area, event).x - view.state.layout.left) * perPixel();
    const pull = (event) => {
      if (!pulled) return;
      const time = timeAt(event), { from, to } = view.state, half = (to - from) / 2;
      if (pulled.edge === "from") view.look(Math.min(time, to - view.LEAST), to);
      else if (pulled.edge === "to") view.look(from, Math.max(time, from + view.LEAST));
      else view.look(time - pulled.by - half, time - pulled.by + half);
      left();
    };
    // The edges of a narrow window are narrow, so that it still can be dragged as a whole.
    const edgeAt = (time) => {
      const { from, to } = view.state, near = EDGE * perPixel();
      const away = [Math.abs(time - from), Math.abs(time - to)];
      if (Math.min(...away) >= Math.min(near, Math.max((to - from) / 4, near / 2))) return null;
      return away[0] <= away[1] ? "from" : "to";
    };
    area.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      const time = timeAt(event), { from, to } = view.state, inside = time > from && time < to;
      pulled = { edge: edgeAt(time), by: inside ? time - (from + to) / 2 : 0 };
      area.setPointerCapture(event.pointerId);
      pull(event);
    });
    area.addEventListener("pointermove", pull);
    for (const name of ["pointerup", "pointercancel"]) area.addEventListener(name, () => { pulled = null; });
  };

  Object.assign(traceflops.timeline, { actionsOf, takeKeys, takePointers, takeWheel, takeStrip });
})();
