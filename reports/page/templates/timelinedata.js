"use strict";
// The boxes of the timeline: unpacking them, and choosing and merging those of a view.
(() => {
  const MOST_BOXES = 10000;

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

  const level = (header, bytes) => {
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
    const single = read("more").every((each) => each === 0);
    return {
      span: header.span, first, start, end, single, more: read("more"), idle: read("idle"),
      path: header.path ? read("path") : null, what: read("what"), cause: read("cause"), launch: launches(read("launch")),
      queues: Object.fromEntries(Object.entries(header.queues).map(([device, each]) => [device, counts(each, bytes)])),
    };
  };

  const read = (buffer) => {
    const length = new DataView(buffer).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
    const bytes = new Uint8Array(buffer, 4 + length);
    // From fine to coarse: the shortest range is told in most detail.
    const levels = header.levels.map((each) => level(each, bytes));
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

  // Collects neighbours into one box; the look with the most time is that of the box. "merged" is
  // how many of its events the page does not hold one by one.
  const merger = (data, source) => {
    const busyOf = new Float64Array(data.looks.length), longestOf = new Float64Array(data.looks.length);
    const boxOf = new Int32Array(data.looks.length);
    return (lane, from, to) => {
      if (from === to) {
        const start = source.start[from], end = source.end[from];
        const count = source.more[from] + 1;
        return { lane, start, end, count, busy: end - start - source.idle[from], box: from, merged: count > 1 ? count : 0 };
      }
      busyOf.fill(-1); longestOf.fill(-1);
      let count = 0, merged = 0, busy = 0, most = -1;
      for (let i = from; i <= to; i++) {
        const look = data.whats[source.what[i]][1], time = source.end[i] - source.start[i] - source.idle[i];
        busyOf[look] += time; busy += time; count += source.more[i] + 1;
        if (source.more[i]) merged += source.more[i] + 1;
        if (time > longestOf[look]) { longestOf[look] = time; boxOf[look] = i; }
        if (most < 0 || busyOf[look] > busyOf[most]) most = look;
      }
      return { lane, start: source.start[from], end: source.end[to], count, busy, box: boxOf[most], merged };
    };
  };

  // The boxes of a lane in a view; those shorter than a cell that start in the same one are merged.
  const laneBoxes = (source, merge, lane, from, to, cell, keep) => {
    const stop = source.first[lane + 1];
    let open = -1, openCell = 0, last = -1;
    const close = () => { if (open >= 0) keep(merge(lane, open, last)); open = -1; };
    for (let i = firstEnding(source.end, source.first[lane], stop, from); i < stop && source.start[i] <= to; i++) {
      const long = source.end[i] - source.start[i] >= cell, place = Math.floor(source.start[i] / cell);
      if (long || open < 0 || place !== openCell) close();
      if (long) keep(merge(lane, i, i));
      else if (open < 0) { open = i; openCell = place; }
      last = i;
    }
    close();
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
  // their device. A row of launches has a number below 0.
  const marksIn = (data, source, lanes, from, to, cell) => {
    const launches = lanes.filter((lane) => lane < 0).flatMap((lane) =>
      countsIn(source.queues[data.device_of_group[-1 - lane]], lane, from, to, cell));
    const gaps = data.waits.filter(([start, end]) => start <= to && end >= from).map(([start, end, device, ...waits]) =>
      ({ lane: data.groups[data.device_of_group.indexOf(device)][2][0], start, end, waits, count: 0 }));
    return [...launches, ...gaps];
  };

  // All boxes of a view, in at most so many: the cells widen from a pixel on until that is so.
  const inView = (data, lanes, from, to, pixels) => {
    const source = levelFor(data, from, to), merge = merger(data, source);
    for (let cell = Math.max((to - from) / pixels, 1e-3); ; cell *= 2) {
      const boxes = [];
      for (const lane of lanes.filter((each) => each >= 0)) {
        laneBoxes(source, merge, lane, from, to, cell, (box) => boxes.push(box));
        if (boxes.length > MOST_BOXES) break;
      }
      if (boxes.length <= MOST_BOXES) {
        const sum = (name) => boxes.reduce((all, each) => all + each[name], 0);
        const marks = marksIn(data, source, lanes, from, to, cell);
        return { source, boxes, marks, events: sum("count"), merged: sum("merged") };
      }
    }
  };

  // The boxes at the other ends of the arrows of an event: its launch call, or what it launched.
  const linked = (data, source, box) => {
    if (box.count !== 1) return [];
    const call = source.launch[box.box], merge = merger(data, source), found = call < 0 ? [] : [call];
    if (call < 0) source.launch.forEach((each, place) => { if (each === box.box) found.push(place); });
    return found.map((place) => merge(source.first.findIndex((first) => first > place) - 1, place, place));
  };

  // What is known of a box, in words of the trace.
  const facts = (data, source, box) => {
    const [name, look, category] = data.whats[source.what[box.box]];
    const [op, shapes] = data.causes[source.cause[box.box]];
    return {
      name: data.texts[name], look, category: data.texts[category],
      op: op < 0 ? "" : data.texts[op], shapes: shapes < 0 ? "" : data.texts[shapes],
    };
  };

  traceflops.timeline = { read, inView, facts, linked };
})();
