"use strict";
// The rows of the timeline as they are painted: boxes, counters, axis, labels.
(() => {
  const HEAD = 18, STREAM = 17, ROW = 12, COUNTER = 24, OCCUPANCY = 26, AXIS = 36, SPACE = 4;
  // The least height of a box, so that what ran at all is seen; the width from which on it has a texture.
  const LEAST = 1, WIDE = 5;
  const HOSTS = new Set(["annotation", "module", "python", "op", "call"]);
  const { UNITS, amount, before, curves } = traceflops.timeline;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Digits after the point so that numbers so far apart differ.
  const places = (step, unit) => Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));

  // Where rows are: each group of lanes has a heading, each lane is a row. A device has one more of
  // how busy it is, and one of each counter; their lanes have numbers below 0.
  const BUSY = -1e6;
  const arrange = (data, host) => {
    const rows = [], heads = [];
    let y = AXIS;
    data.groups.forEach(([label, process, lanes], group) => {
      if (process >= 0 && process !== host) return;
      heads.push({ label, y, group });
      y += HEAD;
      if (process < 0) {
        rows.push({ lane: BUSY - group, group, label: "busy", y, height: OCCUPANCY - 3 });
        y += OCCUPANCY;
      }
      for (const lane of lanes) {
        const [name, stream] = data.lanes[lane];
        rows.push({ lane, group, label: name, y, height: stream ? STREAM : ROW });
        y += stream ? STREAM : ROW;
      }
      data.counted.forEach(([device, what], place) => {
        if (process >= 0 || device !== data.device_of_group[group]) return;
        rows.push({ lane: -1 - place, group, label: what, y: y + 2, height: COUNTER - 2 });
        y += COUNTER;
      });
      y += SPACE;
    });
    return { rows, heads, height: y, byLane: new Map(rows.map((row) => [row.lane, row])) };
  };

  const fit = (canvas, width, height) => {
    const ratio = window.devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    return pen;
  };

  // The textures of the page, as tiles.
  const TILES = {
    horizontal: (pen) => { pen.moveTo(0, 4); pen.lineTo(8, 4); },
    vertical: (pen) => { pen.moveTo(4, 0); pen.lineTo(4, 8); },
    cross: (pen) => { pen.moveTo(0, 4); pen.lineTo(8, 4); pen.moveTo(4, 0); pen.lineTo(4, 8); },
    diagonal: (pen) => { for (const x of [-4, 4, 12]) { pen.moveTo(x - 4, 8); pen.lineTo(x + 4, 0); } },
    dot: (pen) => { pen.arc(4, 4, 0.8, 0, 7); },
  };
  const textures = new Map();
  const texture = (pen, pattern, ink) => {
    const key = `${pattern} ${ink}`;
    if (!textures.has(key)) {
      const tile = document.createElement("canvas");
      tile.width = tile.height = 8;
      const brush = tile.getContext("2d");
      brush.strokeStyle = ink;
      brush.globalAlpha = 0.3;
      TILES[pattern]?.(brush);
      brush.stroke();
      textures.set(key, pen.createPattern(tile, "repeat"));
    }
    return textures.get(key);
  };

  // The looks of boxes as the theme has them; read once for all boxes of a painting.
  const looksOf = (data) => data.looks.map(([name, fill, pattern, ink, outline]) => {
    if (!HOSTS.has(name)) return { fill, pattern, ink, outline };
    return { fill: colour(`--host-${name}`), pattern: "", ink: colour(`--host-${name}-ink`), outline: colour("--host-line") };
  });

  const step = (span, width) => {
    const rough = span / Math.max(width / 110, 1), power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  };

  // Ticks in one unit; far from 0 compared with what is seen, they count from the left edge.
  const ticks = (from, to, width) => {
    const apart = step(to - from, width);
    const far = Math.abs(from) > 2000 * (to - from);
    const zero = far ? from : 0;
    const largest = Math.max(Math.abs(from - zero), Math.abs(to - zero));
    const [name, unit] = UNITS.find(([, one]) => largest >= one) || UNITS[3];
    const digits = places(apart, unit), found = [];
    const format = new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
    for (let n = Math.ceil((from - zero) / apart); zero + n * apart <= to; n++) {
      const text = format.format(n * apart / unit + 0);
      found.push([zero + n * apart, `${far ? "+" : ""}${text} ${name}`]);
    }
    return found;
  };

  const axis = (pen, view) => {
    pen.strokeStyle = colour("--line");
    pen.fillStyle = colour("--soft");
    pen.font = "11px system-ui, sans-serif";
    pen.lineWidth = 1;
    for (const [at, text] of ticks(view.from, view.to, view.width)) {
      const x = Math.round(view.x(at)) + 0.5;
      pen.beginPath(); pen.moveTo(x, 17); pen.lineTo(x, view.height); pen.stroke();
      if (x + pen.measureText(text).width / 2 < view.left + view.width && x > view.left + 14) pen.fillText(text, x - pen.measureText(text).width / 2, 12);
    }
  };

  const steps = (pen, data, view) => {
    const seen = data.steps.filter(([, start, end]) => end >= view.from && start <= view.to);
    pen.strokeStyle = colour("--strong");
    if (!seen.length || seen.length > view.width / 8) return;
    pen.setLineDash([3, 3]);
    for (const [number, start] of seen) {
      const x = Math.round(view.x(start)) + 0.5;
      if (x < view.left) continue;
      pen.beginPath(); pen.moveTo(x, 20); pen.lineTo(x, view.height); pen.stroke();
      const text = `step ${number}`, fits = x + 3 + pen.measureText(text).width < view.left + view.width;
      if (fits && seen.length < view.width / 60) pen.fillText(text, x + 3, 30);
    }
    pen.setLineDash([]);
  };

  // A text cut to its room; of a bracket that would stay open, whole arguments are left out.
  const CLOSING = { "(": ")", "[": "]", "{": "}", "<": ">" };
  const cut = (text, room) => {
    const open = [];
    for (let at = 0; at < room - 1; at += 1) {
      if (CLOSING[text[at]]) open.push(at);
      else if (text[at] === CLOSING[text[open.at(-1)]]) open.pop();
    }
    if (!open.length) return `${text.slice(0, room - 1)}…`;
    const last = open.at(-1), comma = text.lastIndexOf(", ", room - 3 - open.length);
    const kept = comma > last ? comma + 2 : last + 1;
    if (kept + 1 + open.length > room) return `${text.slice(0, open[0])}…`;
    return `${text.slice(0, kept)}…${open.reverse().map((at) => CLOSING[text[at]]).join("")}`;
  };

  // What fits into a box of a name: its own part of a qualified one.
  const shortened = (name, room) => {
    let text = name.length > 300 ? name.slice(0, 300) : name;
    text = text.replace(/^void /, "").replace(/\(anonymous namespace\)::/g, "");
    text = text.replace(/^(?:\w+::)+(?=\w)/, "").replace(/^(?:nn\.Module: |[^\s()]*\(\d+\): )/, "");
    return text.length <= room ? text : room < 4 ? "" : cut(text, room);
  };

  const names = (pen, data, view, shown, looks) => {
    pen.font = "10px system-ui, sans-serif";
    for (const box of shown.boxes) {
      const row = view.rows.byLane.get(box.lane);
      const left = Math.max(view.x(box.start), view.left), right = Math.min(view.x(box.end), view.left + view.width);
      if (box.count > 1 || right - left < 34) continue;
      const what = data.whats[shown.source.what[box.box]];
      const text = shortened(data.texts[what[0]], Math.floor((right - left - 6) / 5.6));
      const look = looks[box.look];
      if (look.pattern && text) {
        pen.fillStyle = look.fill;
        pen.fillRect(left + 2, row.y + 2, Math.min(pen.measureText(text).width + 3, right - left - 4), row.height - 5);
      }
      pen.fillStyle = look.ink;
      pen.fillText(text, left + 4, row.y + row.height - (row.height > ROW ? 5 : 3), right - left - 5);
    }
  };

  // Shares of the pixel columns of one row that its events fill, by look; painted as stacked bars.
  const columnsOf = (view, ratio) => {
    const shares = new Map(), size = Math.ceil(view.width * ratio);
    const add = (look, left, right, share) => {
      if (!shares.has(look)) shares.set(look, new Float64Array(size));
      const columns = shares.get(look), from = (left - view.left) * ratio, to = (right - view.left) * ratio;
      const first = Math.max(Math.floor(from), 0), last = Math.min(Math.max(Math.ceil(to), first + 1), size);
      // An event without a length fills nothing, and is seen all the same.
      for (let x = first; x < last; x++) columns[x] += Math.max((Math.min(to, x + 1) - Math.max(from, x)) * share, 1e-9);
    };
    const flush = (row, pathOf) => {
      const full = row.height - 1, filled = new Float64Array(size);
      for (const [look, columns] of shares) {
        const path = pathOf(look).all;
        for (let x = 0; x < size; x++) {
          if (!columns[x]) continue;
          const height = Math.min(Math.max(columns[x] * full, LEAST), full - filled[x]);
          filled[x] += height;
          path.push(view.left + x / ratio, row.y + full - filled[x], 1 / ratio, height);
        }
      }
      shares.clear();
    };
    return { add, flush };
  };

  // The ink of a box is its busy time: a wide one has that share of its row's height, narrow ones go
  // into the columns.
  const boxes = (pen, data, view, shown, looks) => {
    const paths = new Map(), ratio = pen.getTransform().a, columns = columnsOf(view, ratio);
    const pathOf = (look) => {
      if (!paths.has(look)) paths.set(look, { all: [], wide: new Path2D() });
      return paths.get(look);
    };
    const place = (box, row) => {
      const path = pathOf(box.look);
      const left = Math.max(view.x(box.start), view.left - 2), right = Math.min(view.x(box.end), view.left + view.width + 2);
      const width = right - left, share = box.busy / Math.max(box.end - box.start, 1);
      if (width * ratio < (box.count > 1 ? WIDE : 1)) { columns.add(box.look, left, right, share); return; }
      const full = row.height - 1, height = Math.max(share * full, LEAST), y = row.y + full - height;
      // Whole pixels: neighbours that share one would be painted over each other there.
      const [low, high] = [left, right].map((each) => Math.round(each * ratio) / ratio);
      path.all.push(low, y, Math.max(high - low, 1 / ratio), height);
      if (width >= WIDE && height > 1) path.wide.rect(left + 0.5, y + 0.5, width - 1, height - 1);
    };
    let row = null;
    for (const box of shown.boxes) {
      if (row && row.lane !== box.lane) columns.flush(row, pathOf);
      row = view.rows.byLane.get(box.lane);
      place(box, row);
    }
    if (row) columns.flush(row, pathOf);
    for (const [place, path] of paths) fillPaths(pen, looks[place], path);
  };

  const fillPaths = (pen, look, path) => {
    pen.fillStyle = look.fill;
    // Far faster than one path of all of them.
    for (let i = 0; i < path.all.length; i += 4) pen.fillRect(path.all[i], path.all[i + 1], path.all[i + 2], path.all[i + 3]);
    if (look.pattern) { pen.fillStyle = texture(pen, look.pattern, look.ink); pen.fill(path.wide); }
    pen.strokeStyle = look.outline || colour("--ground");
    pen.lineWidth = look.outline ? 1 : 0.5;
    pen.stroke(path.wide);
  };

  // Counters as bars from 0 to the most in view; the least of each is darker.
  const counters = (pen, view, marks) => {
    for (const [part, fill] of [["most", "--host-op"], ["least", "--host-call"]]) {
      pen.fillStyle = colour(fill);
      for (const mark of marks) {
        if (mark.waits) continue;
        const row = view.rows.byLane.get(mark.lane), height = Math.max((row.height - 1) * mark[part] / mark.top, part === "most" ? LEAST / 2 : 0);
        // From pixel to pixel: between two parts of one the ground would shine through.
        const [left, right] = [mark.start, mark.end].map((at) => Math.round(view.x(at)));
        pen.fillRect(left, row.y + row.height - height, Math.max(right - left, 1), height);
      }
    }
    for (const mark of marks.filter(({ lane, waits }, place) => !waits && marks[place - 1]?.lane !== lane)) {
      tag(pen, `max ${amount(mark, mark.top)}`, view.left + 2, view.rows.byLane.get(mark.lane).y + 9);
    }
  };

  // How busy devices are, by component, in each column of pixels.
  const occupancy = (pen, data, view, source) => {
    for (const row of view.seen.filter(({ lane }) => lane <= BUSY)) {
      const stacked = curves(data, source, data.device_of_group[row.group]), apart = (view.to - view.from) / view.width;
      const drawn = new Float64Array(Math.ceil(view.width));
      stacked.forEach((curve, part) => {
        pen.fillStyle = data.looks[part][1];
        let last = before(curve, view.from);
        for (let x = 0; x < drawn.length; x++) {
          const sum = before(curve, view.from + (x + 1) * apart), height = (sum - last) / apart * row.height;
          if (height > drawn[x]) pen.fillRect(view.left + x, row.y + row.height - height, 1, height - drawn[x]);
          drawn[x] = Math.max(drawn[x], height);
          last = sum;
        }
      });
      pen.fillStyle = colour("--line");
      pen.fillRect(view.left, row.y + row.height, view.width, 1);
    }
  };

  // A text on a ground of its own.
  const tag = (pen, text, x, y) => {
    pen.font = "10px system-ui, sans-serif";
    pen.fillStyle = colour("--ground");
    pen.fillRect(x - 2, y - 9, pen.measureText(text).width + 4, 12);
    pen.fillStyle = colour("--ink");
    pen.fillText(text, x, y);
  };

  const labels = (pen, view) => {
    for (const { label, y } of view.rows.heads) {
      pen.font = "600 12px system-ui, sans-serif";
      pen.fillStyle = colour("--ink");
      pen.fillText(label, 0, y + HEAD - 5, view.left + view.width);
    }
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = colour("--soft");
    for (const row of view.rows.rows) {
      if (row.label) pen.fillText(row.label, 0, row.y + row.height - (row.height > ROW ? 5 : 3), view.left - 6);
    }
  };

  Object.assign(traceflops.timeline, { AXIS, colour, shortened, tag, arrange, fit, axis, steps, labels, occupancy, boxes, names, counters, looksOf });
})();
