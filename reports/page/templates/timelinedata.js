"use strict";
// The boxes of the timeline: unpacking them, and choosing and merging those of a view.
(() => {
  const MOST_BOXES = 6000;

  // A column holds the lowest byte of all its numbers, then the next one, and so on.
  const column = (bytes, [offset, width], count) => {
    const values = new Float64Array(count);
    for (let plane = width - 1; plane >= 0; plane--) {
      const from = offset + plane * count;
      for (let i = 0; i < count; i++) values[i] = values[i] * 256 + bytes[from + i];
    }
    return values;
  };

  // The box of the launch call of each event, -1 where it has none of its own.
  const launches = (values) => {
    let last = 0;
    return values.map((value) => {
      if (!value) return -1;
      return last += value % 2 ? (value - 1) / 2 : -value / 2;
    });
  };

  // A number in stretches that follow one another; "top" is the most that it ever is.
  const counts = (header, bytes) => {
    const read = (name) => column(bytes, header[name], header.count);
    const end = read("length"), start = new Float64Array(header.count), most = read("most"), falls = read("falls");
    for (let i = 0, last = header.base; i < header.count; i++) {
      start[i] = last;
      last = end[i] += last;
    }
    return { start, end, most, least: most.map((each, i) => each - falls[i]), top: most.reduce((a, b) => Math.max(a, b), 1) };
  };

  // Pieces of time with what each is of, and sums of bins; see figures.
  const figures = (header, bytes) => {
    const pieces = ({ base, count, ...columns }) => {
      const [start, ns, key] = ["after", "ns", "key"].map((name) => column(bytes, columns[name], count));
      for (let i = 0, last = base; i < count; i++) last = start[i] += last;
      return { start, ns, key, end: start.map((each, i) => each + (header.bin || ns[i])) };
    };
    const read = (name) => Object.fromEntries(Object.entries(header[name]).map(([device, each]) => [device, pieces(each)]));
    return { bin: header.bin, idle: read("idle"), kernels: read("kernels"), parts: read("parts"), flops: read("flops") };
  };

  // How much there was up to each box, from 0 on: what lies between two of them is a difference.
  const running = (count, of) => {
    const sums = new Float64Array(count + 1);
    for (let i = 0; i < count; i++) sums[i + 1] = sums[i] + of(i);
    return sums;
  };

  // The busy time of a lane up to each of its boxes, by look.
  const sumsOf = (source, lane) => {
    const from = source.first[lane], count = source.first[lane + 1] - from, sums = [];
    const { look, start, end, idle } = source;
    for (const each of new Set(look.subarray(from, from + count))) {
      sums.push([each, running(count, (i) => (look[from + i] === each ? end[from + i] - start[from + i] - idle[from + i] : 0))]);
    }
    return sums;
  };

  const level = (header, bytes, whats) => {
    const count = header.lanes.reduce((sum, each) => sum + each, 0);
    const read = (name) => column(bytes, header[name], count);
    const start = read("gap"), end = read("length"), first = [0];
    for (const each of header.lanes) {
      const from = first[first.length - 1];
      for (let i = from, last = header.base; i < from + each; i++) {
        start[i] += last;
        last = end[i] += start[i];
      }
      first.push(from + each);
    }
    const more = read("more"), what = Int32Array.from(read("what")), path = header.path ? read("path") : null;
    return {
      span: header.span, first, start, end, more, what, path, idle: read("idle"),
      look: Uint8Array.from(what, (each) => whats[each][1]),
      single: more.every((each) => each === 0),
      events: running(count, (i) => more[i] + 1), merged: running(count, (i) => (more[i] ? more[i] + 1 : 0)),
      paths: path && running(count, (i) => path[i]), sums: [],
      cause: read("cause"), launch: launches(read("launch")), figures: figures(header.figures, bytes),
      counters: header.counters.map((each) => counts(each, bytes)),
    };
  };

  const read = (buffer) => {
    const length = new DataView(buffer).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
    const bytes = new Uint8Array(buffer, 4 + length);
    // From fine to coarse: the shortest range is told in most detail.
    const levels = header.levels.map((each) => level(each, bytes, header.whats));
    levels.sort((a, b) => (a.span[1] - a.span[0]) - (b.span[1] - b.span[0]));
    return { ...header, levels };
  };

  // The finest level that holds all of a view: of single events if there is one.
  const levelFor = (data, from, to) => {
    const whole = data.levels[data.levels.length - 1];
    const low = Math.max(from, whole.span[0]), high = Math.min(to, whole.span[1]);
    const holding = data.levels.filter((each) => each.span[0] <= low && each.span[1] >= high);
    return holding.find((each) => each.single) || holding[0] || whole;
  };

  // The first box of a lane that ends at a time or later.
  const firstEnding = (ends, low, high, time) => {
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ends[middle] < time) low = middle + 1; else high = middle;
    }
    return low;
  };

  // The first box from a place on that begins at a time or later; near ones are found first.
  const firstStarting = (starts, low, high, time) => {
    let far = low;
    for (let by = 1; far < high && starts[far] < time; by *= 2) { low = far + 1; far += by; }
    for (far = Math.min(far, high); low < far;) {
      const middle = (low + far) >> 1;
      if (starts[middle] < time) low = middle + 1; else far = middle;
    }
    return low;
  };

  // Neighbours as one box, whose look is the one with the most time. "merged" is how many of its
  // events the page does not hold one by one; "last" is the last of its boxes, "box" the first.
  const merge = (source, lane, box, last) => {
    const { start, end, first, events, merged } = source;
    const found = { lane, box, last, start: start[box], end: end[last], look: source.look[box], busy: 0, count: events[last + 1] - events[box], merged: merged[last + 1] - merged[box] };
    if (box === last) return { ...found, busy: found.end - found.start - source.idle[box] };
    source.sums[lane] ||= sumsOf(source, lane);
    let most = -1;
    for (const [look, sums] of source.sums[lane]) {
      const time = sums[last + 1 - first[lane]] - sums[box - first[lane]];
      found.busy += time;
      if (time > most) { most = time; found.look = look; }
    }
    return found;
  };

  // The boxes of a lane in a view; those shorter than a cell that start in the same one are merged.
  // They do not overlap, so only the last one of a cell can be as long as a cell.
  const laneBoxes = (source, lane, from, to, cell, keep) => {
    const { start, end, first } = source, stop = first[lane + 1], limit = Math.floor(to) + 1;
    for (let i = firstEnding(end, first[lane], stop, from), next; i < stop && start[i] <= to; i = next) {
      const edge = (Math.floor(start[i] / cell) + 1) * cell;
      next = firstStarting(start, i + 1, stop, Math.min(edge, limit));
      const alone = next - i > 1 && end[next - 1] - start[next - 1] >= cell;
      keep(merge(source, lane, i, next - (alone ? 2 : 1)));
      if (alone) keep(merge(source, lane, next - 1, next - 1));
    }
  };

  // The stretches of a number in a view, those shorter than a cell together.
  const countsIn = (queue, lane, from, to, cell) => {
    const found = [];
    let open = null;
    for (let i = firstEnding(queue.end, 0, queue.end.length, from); i < queue.end.length && queue.start[i] <= to; i++) {
      if (!open || Math.max(open.end - open.start, queue.end[i] - queue.start[i]) >= cell) found.push(open = { lane, start: queue.start[i], least: Infinity, most: 0, top: queue.top, count: 0 });
      open.end = queue.end[i];
      open.least = Math.min(open.least, queue.least[i]);
      open.most = Math.max(open.most, queue.most[i]);
    }
    return found;
  };

  // What is on rows beside events: outstanding launches, and the longest gaps on the first row of
  // their device. A row of a counter has a number below 0.
  const marksIn = (data, source, lanes, from, to, cell) => {
    const counted = lanes.filter((lane) => lane < 0 && lane > -1e6).flatMap((lane) =>
      countsIn(source.counters[-1 - lane], lane, from, to, cell).map((mark) => ({ ...mark, what: data.counted[-1 - lane][1] })));
    const seen = new Set(lanes);
    const gaps = data.waits.filter(([start, end]) => start <= to && end >= from).map(([start, end, device, ...waits]) =>
      ({ lane: data.groups[data.device_of_group.indexOf(device)][2][0], start, end, waits, count: 0 })).filter(({ lane }) => seen.has(lane));
    return [...counted, ...gaps];
  };

  // All boxes of a view, in at most so many: the cells widen from a pixel on until that is so.
  const inView = (data, lanes, from, to, pixels) => {
    const source = levelFor(data, from, to);
    for (let cell = Math.max((to - from) / pixels, 1e-3); ; cell *= 2) {
      const boxes = [];
      for (const lane of lanes.filter((each) => each >= 0)) {
        laneBoxes(source, lane, from, to, cell, (box) => boxes.push(box));
        if (boxes.length > MOST_BOXES) break;
      }
      if (boxes.length <= MOST_BOXES) {
        const sum = (name) => boxes.reduce((all, each) => all + each[name], 0);
        const marks = marksIn(data, source, lanes, from, to, cell);
        return { source, boxes, marks, events: sum("count"), merged: sum("merged") };
      }
    }
  };

  const laneOf = (source, place) => source.first.findIndex((first) => first > place) - 1;

  // The boxes at the other ends of the arrows of an event: its launch call, or what it launched.
  const linked = (data, source, box) => {
    if (box.count !== 1) return [];
    const call = source.launch[box.box], found = call < 0 ? [] : [call];
    if (call < 0) source.launch.forEach((each, place) => { if (each === box.box) found.push(place); });
    return found.map((place) => merge(source, laneOf(source, place), place, place));
  };

  // What is known of a box, in words of the trace; of several the longest one with its look tells.
  const facts = (data, source, { box, last, look }) => {
    let told = box;
    const busy = (i) => (source.look[i] === look ? source.end[i] - source.start[i] - source.idle[i] : -1);
    for (let i = box + 1; i <= last; i++) if (busy(i) > busy(told)) told = i;
    const [name, , category] = data.whats[source.what[told]];
    const [op, shapes] = data.causes[source.cause[told]];
    return {
      name: data.texts[name], look, category: data.texts[category],
      op: op < 0 ? "" : data.texts[op], shapes: shapes < 0 ? "" : data.texts[shapes],
    };
  };

  traceflops.timeline = { read, inView, facts, linked, merge, laneOf, levelFor, firstEnding, firstStarting };
})();
