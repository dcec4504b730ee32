"use strict";
// The timeline: what is seen of it, and how pointer, keys, lists and links move that.
(async () => {
  const { read, inView, facts, arrange, paint, strip, time } = traceflops.timeline;
  const find = (name) => document.getElementById(`timeline-${name}`);
  const section = document.getElementById("timeline"), area = find("view"), tip = find("tip");
  const LEAST = 20, NARROW = 620, STEP = 0.2, ZOOM = 1.6, NEAR = 3, LISTED = 20;
  let data;
  try {
    data = read(await traceflops.unpacked("timeline-data"));
  } catch (error) {
    section.classList.add("failed");
    console.warn("traceflops: the timeline cannot be drawn", error);
    return;
  }

  const state = { from: 0, to: 1, band: null, chosen: null, host: -1, rows: null, view: null, shown: null };
  const hostList = find("host"), placeList = find("place");
  const number = (value) => value.toLocaleString("en-US");
  const margin = () => (data.whole[1] - data.whole[0]) * 0.01 + LEAST;

  // Painting: at most once a frame, whatever asks for it.
  let asked = false;
  const ask = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; draw(); });
  };

  const draw = () => {
    const full = area.clientWidth;
    if (!full) return;
    const left = full < NARROW ? 70 : 104, width = full - left;
    const { from, to } = state;
    state.view = {
      left, width, from, to, height: state.rows.height, rows: state.rows, band: state.band, chosen: state.chosen,
      x: (at) => left + (at - from) / (to - from) * width,
    };
    const pixels = width * Math.min(window.devicePixelRatio || 1, 2);
    state.shown = inView(data, state.rows.rows.map((row) => row.lane), from, to, pixels);
    paint(area.firstElementChild, data, state.view, state.shown);
    strip(find("strip").firstElementChild, data, state.view);
    report();
  };

  const report = () => {
    const { boxes, events, single } = state.shown, status = find("status");
    const details = status.dataset.details;
    const where = details ? `: single events are ${details}` : "";
    const kind = single ? "" : ` Some boxes are of several events that are not in this page one by one${where}.`;
    const drawn = `${events === 1 ? "one event" : `${number(events)} events`} drawn as ${boxes.length === 1 ? "one box" : `${number(boxes.length)} boxes`}`;
    const text = `${events ? drawn : "no event"}, ${time(state.to - state.from, 4)} from ${time(state.from, 6)}.${kind}`;
    if (status.textContent !== text) status.textContent = text;
    if (find("table").open) list();
  };

  const look = (from, to) => {
    const [low, high] = data.whole, pad = margin();
    const span = Math.min(Math.max(to - from, LEAST), high - low + 2 * pad);
    state.from = Math.min(Math.max((from + to - span) / 2, low - pad), high + pad - span);
    state.to = state.from + span;
    tip.hidden = true;
    ask();
  };

  const zoom = (factor, at = (state.from + state.to) / 2) =>
    look(at - (at - state.from) * factor, at + (state.to - at) * factor);
  const move = (share) => {
    const by = (state.to - state.from) * share;
    look(state.from + by, state.to + by);
  };
  const elsewhere = () => { placeList.value = ""; };

  // A range with some room around it.
  const frame = (from, to) => look(from - (to - from) * 0.01, to + (to - from) * 0.01);

  const groupsOf = (device) => data.device_of_group.flatMap((one, group) => (one === device ? [group] : []));
  const whole = () => { state.band = null; frame(...data.whole); };

  // The threads beside a device, where they are drawn at all.
  const showHostOf = (device) => {
    const process = String(data.process_of_device[device]);
    if (!hostList || hostList.value === process || ![...hostList.options].some((each) => each.value === process)) return;
    hostList.value = process;
    setHost();
  };

  const goGap = (place) => {
    const gap = data.gaps[place - 1];
    if (!gap) return false;
    const [from, to, low, high, device] = gap;
    state.band = { from, to, groups: groupsOf(device) };
    showHostOf(device);
    look(low, high);
    return true;
  };

  const goStep = (wanted) => {
    const found = data.steps.find(([step]) => step === wanted);
    if (!found) return false;
    state.band = null;
    frame(found[1], found[2]);
    return true;
  };

  // Times of the trace are larger than what a number counts exactly.
  const goTime = (start, end, device) => {
    const origin = device === undefined ? Object.values(data.origins)[0] : data.origins[device];
    if (origin === undefined) return false;
    const [from, to] = [start, end].map((each) => Number(BigInt(each) - BigInt(origin)));
    if (!(to >= from)) return false;
    state.band = { from, to, groups: device === undefined ? [] : groupsOf(Number(device)) };
    if (device !== undefined) showHostOf(Number(device));
    look(from - (to - from || LEAST), to + (to - from || LEAST));
    return true;
  };

  const go = (link) => {
    const place = /^(step|gap)=(-?\d{1,15})$/.exec(link), range = /^t=(-?\d{1,19})-(-?\d{1,19})(?:,(\d{1,9}))?$/.exec(link);
    if (link === "whole") whole();
    else if (link === "window") { state.band = null; frame(...data.start); }
    else if (place) return place[1] === "step" ? goStep(Number(place[2])) : goGap(Number(place[2]));
    else return range ? goTime(range[1], range[2], range[3]) : false;
    return true;
  };

  const follow = () => {
    const link = location.hash.slice(1);
    if (!go(link)) return;
    placeList.value = [...placeList.options].some((each) => each.value === link) ? link : "";
    section.scrollIntoView();
  };

  // What is under the pointer.
  const at = (event) => {
    const box = area.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const timeAt = (x) => state.from + (x - state.view.left) / state.view.width * (state.to - state.from);
  const boxAt = ({ x, y }) => {
    const row = state.rows.rows.find((each) => y >= each.y && y < each.y + each.height);
    if (!row || x < state.view.left) return null;
    let best = null, least = NEAR;
    for (const box of state.shown.boxes) {
      if (box.lane !== row.lane) continue;
      const left = state.view.x(box.start), right = Math.max(state.view.x(box.end), left + 1);
      const away = Math.max(left - x, x - right, 0);
      if (away < least || (away === 0 && best && box.start > best.start)) { best = box; least = away; }
    }
    return best;
  };

  const line = (className, text) => {
    const made = document.createElement("p");
    made.className = className;
    made.textContent = text;
    return made;
  };

  const labelOf = (lane) => {
    const rows = state.rows.rows, place = rows.findIndex((row) => row.lane === lane);
    let first = place;
    while (first > 0 && !rows[first].label) first--;
    const head = state.rows.heads.find((each) => each.group === rows[place].group);
    return `${head.label} · ${rows[first].label}`;
  };

  const describe = (box) => {
    const known = facts(data, state.shown.source, box), length = box.end - box.start;
    const many = box.count > 1;
    const lines = [line("name", many ? `${number(box.count)} events, most of their time ${known.category}` : known.name)];
    lines.push(line("time", `${time(length, 4)} at ${time(box.start, 7)} · ${labelOf(box.lane)}`));
    if (many) {
      lines.push(line("", `${time(box.busy, 4)} of it busy; the longest of that category:`));
      lines.push(line("name", known.name));
    } else lines.push(line("", known.category));
    if (known.op) lines.push(line("", `launched by ${known.op}`));
    if (known.shapes) lines.push(line("shapes", `shapes ${known.shapes}`));
    return lines;
  };

  const showTip = (event) => {
    const box = boxAt(at(event));
    tip.hidden = !box;
    if (!box) return;
    tip.replaceChildren(...describe(box));
    const { width, height } = tip.getBoundingClientRect();
    const x = Math.min(event.clientX + 14, innerWidth - width - 8);
    const below = event.clientY + 18;
    tip.style.left = `${Math.max(x, 8)}px`;
    tip.style.top = `${below + height < innerHeight ? below : Math.max(event.clientY - height - 12, 8)}px`;
  };

  const choose = (box) => {
    state.chosen = box;
    const panel = find("chosen");
    panel.hidden = !box;
    if (box) panel.lastElementChild.replaceChildren(...describe(box));
    ask();
  };

  // The next box in a row, or the nearest one of another row; the view follows.
  const walk = (rows, boxes) => {
    const order = state.rows.rows.map((row) => row.lane);
    const mine = state.chosen ? state.chosen.lane : order[0], all = state.shown.boxes;
    const of = (lane) => all.filter((box) => box.lane === lane);
    let next = null;
    if (!state.chosen) next = all[0] || null;
    else if (boxes) next = of(mine).filter((box) => (box.start - state.chosen.start) * boxes > 0).at(boxes > 0 ? 0 : -1);
    else {
      for (let place = order.indexOf(mine) + rows; !next && order[place] !== undefined; place += rows) {
        next = of(order[place]).sort((a, b) => Math.abs(a.start - state.chosen.start) - Math.abs(b.start - state.chosen.start))[0];
      }
    }
    if (next) choose(next); else if (boxes) move(STEP * boxes);
  };

  const ACTIONS = {
    in: () => zoom(1 / ZOOM), out: () => zoom(ZOOM), left: () => move(-STEP), right: () => move(STEP), reset: whole,
    next: () => walk(0, 1), previous: () => walk(0, -1), up: () => walk(-1, 0), down: () => walk(1, 0),
    unselect: () => { choose(null); tip.hidden = true; },
  };
  const KEYS = {
    ArrowLeft: "left", ArrowRight: "right", "+": "in", "=": "in", ArrowUp: "in", "-": "out", ArrowDown: "out",
    0: "reset", n: "next", p: "previous", u: "up", d: "down", Escape: "unselect",
  };

  area.addEventListener("keydown", (event) => {
    const action = event.ctrlKey || event.metaKey || event.altKey ? undefined : KEYS[event.key];
    if (!action) return;
    event.preventDefault();
    ACTIONS[action]();
    if (["left", "right", "in", "out", "reset"].includes(action)) elsewhere();
  });
  section.querySelectorAll("[data-do]").forEach((button) => button.addEventListener("click", () => {
    ACTIONS[button.dataset.do]();
    if (button.dataset.do === "reset") placeList.value = "whole";
    else if (button.dataset.do !== "unselect") elsewhere();
  }));

  // Pointers: one moves the view, two spread or pinch it.
  const down = new Map();
  let begun = null;
  const grip = () => {
    const xs = [...down.values()].map(({ x }) => x);
    begun = { from: state.from, to: state.to, low: Math.min(...xs), high: Math.max(...xs), moved: begun ? begun.moved : false };
  };
  area.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    down.set(event.pointerId, at(event));
    if (down.size === 1) begun = null;
    grip();
  });
  area.addEventListener("pointermove", (event) => {
    if (!down.has(event.pointerId)) { showTip(event); return; }
    down.set(event.pointerId, at(event));
    const xs = [...down.values()].map(({ x }) => x), low = Math.min(...xs), high = Math.max(...xs);
    if (!begun.moved && Math.abs(low - begun.low) + Math.abs(high - begun.high) < 6) return;
    if (!begun.moved && event.isPrimary) area.setPointerCapture(event.pointerId);
    begun.moved = true;
    const scale = down.size > 1 ? Math.max(begun.high - begun.low, 10) / Math.max(high - low, 10) : 1;
    const span = (begun.to - begun.from) * scale;
    const held = begun.from + (begun.low - state.view.left) / state.view.width * (begun.to - begun.from);
    const from = held - (low - state.view.left) / state.view.width * span;
    look(from, from + span);
    elsewhere();
  });
  const lift = (event) => {
    if (!down.delete(event.pointerId)) return;
    if (down.size) { grip(); return; }
    if (event.type === "pointerup" && begun && !begun.moved) choose(boxAt(at(event)));
  };
  area.addEventListener("pointerup", lift);
  area.addEventListener("pointercancel", lift);
  area.addEventListener("pointerleave", () => { tip.hidden = true; });
  area.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(Math.max(Math.min(event.deltaY, 100), -100) / 180), timeAt(at(event).x));
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(event.deltaX / state.view.width);
    else return;
    event.preventDefault();
    elsewhere();
  }, { passive: false });

  // The strip: the window or one of its edges is dragged; beside it, the window comes to the pointer.
  const stripArea = find("strip");
  const stripTime = (event) => {
    const x = event.clientX - stripArea.getBoundingClientRect().left - state.view.left;
    return data.whole[0] + x / state.view.width * (data.whole[1] - data.whole[0]);
  };
  let pulled = null;
  stripArea.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    const time = stripTime(event), near = 7 / state.view.width * (data.whole[1] - data.whole[0]);
    const { from, to } = state, away = [Math.abs(time - from), Math.abs(time - to)];
    const edge = Math.min(...away) < Math.min(near, Math.max((to - from) / 4, near / 2)) ? (away[0] <= away[1] ? "from" : "to") : null;
    const inside = time > from && time < to;
    pulled = { edge, by: inside ? time - (from + to) / 2 : 0 };
    stripArea.setPointerCapture(event.pointerId);
    pull(event);
  });
  const pull = (event) => {
    if (!pulled) return;
    const time = stripTime(event), half = (state.to - state.from) / 2;
    if (pulled.edge === "from") look(Math.min(time, state.to - LEAST), state.to);
    else if (pulled.edge === "to") look(state.from, Math.max(time, state.from + LEAST));
    else look(time - pulled.by - half, time - pulled.by + half);
    elsewhere();
  };
  stripArea.addEventListener("pointermove", pull);
  for (const name of ["pointerup", "pointercancel"]) stripArea.addEventListener(name, () => { pulled = null; });

  // The longest events as a table, for eyes and readers that a picture does not serve.
  const list = () => {
    const longest = [...state.shown.boxes].sort((a, b) => (b.end - b.start) - (a.end - a.start)).slice(0, LISTED);
    const body = find("table").querySelector("tbody");
    body.replaceChildren(...longest.map((box) => {
      const known = facts(data, state.shown.source, box), row = document.createElement("tr");
      const name = box.count > 1 ? `${number(box.count)} events, the longest: ${known.name}` : known.name;
      const texts = [name, labelOf(box.lane), time(box.start, 7), time(box.end - box.start, 4), known.category, [known.op, known.shapes].filter(Boolean).join(" ")];
      texts.forEach((text, place) => {
        const cell = document.createElement("td");
        cell.textContent = text || "–";
        if (place === 2 || place === 3) cell.className = "n";
        row.append(cell);
      });
      return row;
    }));
  };
  find("table").addEventListener("toggle", () => { if (find("table").open && state.shown) list(); });

  const setHost = () => {
    state.host = hostList ? Number(hostList.value) : -1;
    state.rows = arrange(data, state.host);
    choose(null);
  };
  if (hostList) hostList.addEventListener("change", setHost);
  placeList.addEventListener("change", () => go(placeList.value));
  setHost();
  frame(...data.start);
  follow();
  addEventListener("hashchange", follow);
  // Following the link that is in the address bar already is no change of it.
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='#']");
    if (link && link.hash === location.hash) follow();
  });
  new ResizeObserver(ask).observe(area);
  new MutationObserver(ask).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  section.classList.add("live");
})();
