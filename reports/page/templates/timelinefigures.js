"use strict";
// Figures of any stretch of the timeline: components, kernels and idle time of each device. Exact
// where the page holds every event; else between the edges of bins, whose sums it holds.
(() => {
  const { firstEnding } = traceflops.timeline;
  const PARTS = 5; // looks from 0 on are components, the first that applies has the time; then start-up and idle

  // Time that adds up: "sum" of it was before "at"; between two of these it grows evenly or not.
  const before = ({ at, sum }, time) => {
    const next = firstEnding(at, 0, at.length, time);
    if (next === at.length) return at.length ? sum[next - 1] : 0;
    if (at[next] === time || next === 0) return sum[next];
    return sum[next - 1] + (time - at[next - 1]) * ((sum[next] - sum[next - 1]) / (at[next] - at[next - 1]));
  };

  const lanesOf = (data, device) =>
    data.groups.flatMap(([, , lanes], group) => (data.device_of_group[group] === device ? lanes : []));

  // The boxes of a device in the order of their starts.
  const ordered = (source, lanes) => {
    const places = lanes.flatMap((lane) => Array.from({ length: source.first[lane + 1] - source.first[lane] }, (_, i) => source.first[lane] + i));
    return lanes.length > 1 ? places.sort((a, b) => source.start[a] - source.start[b]) : places;
  };

  // The time that components up to one have together: the union of their events.
  const united = (source, places, part) => {
    const at = [], sum = [];
    let end = -Infinity, total = 0;
    for (const place of places) {
      if (source.look[place] > part || source.end[place] <= end) continue;
      const start = Math.max(source.start[place], end);
      if (start > end) { at.push(start); sum.push(total); } else { at.pop(); sum.pop(); }
      total += source.end[place] - start;
      end = source.end[place];
      at.push(end); sum.push(total);
    }
    return { at, sum };
  };
  const summed = ({ bin }, pieces, part) => {
    const at = [], sum = [];
    let total = 0;
    pieces.start.forEach((start, i) => {
      if (pieces.key[i] > part) return;
      if (at[at.length - 1] !== start + bin) {
        if (at[at.length - 1] !== start) { at.push(start); sum.push(total); }
        at.push(start + bin);
        sum.push(total);
      }
      sum[sum.length - 1] = total += pieces.ns[i];
    });
    return { at, sum };
  };

  // What the components of a device add up to, that of each with those before it.
  const curves = (data, source, device) => {
    source.curves ||= {};
    if (!source.curves[device]) {
      const { figures } = source, places = figures.bin ? [] : ordered(source, lanesOf(data, device));
      source.curves[device] = Array.from({ length: PARTS }, (_, part) =>
        (figures.bin ? summed(figures, figures.parts[device], part) : united(source, places, part)));
    }
    return source.curves[device];
  };

  // The time of each component in a stretch; the last two are start-up and idle.
  const componentsOf = (data, source, device, from, to, startUp) => {
    const sums = curves(data, source, device).map((curve) => before(curve, to) - before(curve, from));
    return [...sums.map((sum, part) => sum - (sums[part - 1] || 0)), startUp, to - from - sums[PARTS - 1] - startUp];
  };

  // Pieces of time in a stretch by key, the longest first.
  const largest = (sums) => [...sums].filter(([, { ns }]) => ns > 0).sort((a, b) => b[1].ns - a[1].ns);
  const added = (sums, key, ns, begins) => {
    const known = sums.get(key);
    if (known) { known.ns += ns; known.count += begins; } else sums.set(key, { ns, count: begins });
  };
  const within = ({ bin }, pieces, from, to) => {
    const sums = new Map();
    if (!pieces) return [];
    const { start, ns, key } = pieces;
    for (let i = bin ? 0 : firstEnding(pieces.end, 0, start.length, from); i < start.length && start[i] < to; i++) {
      if (bin && start[i] < from) continue;
      added(sums, key[i], bin ? ns[i] : Math.min(start[i] + ns[i], to) - Math.max(start[i], from), 0);
    }
    return largest(sums);
  };
  const kernelsOf = (data, source, device, from, to) => {
    const { figures, start, end, what, first } = source;
    if (figures.bin) return within(figures, figures.kernels[device], from, to).map(([key, sum]) => [data.texts[data.keys[key][1]], sum]);
    const sums = new Map();
    for (const lane of lanesOf(data, device)) {
      const stop = first[lane + 1];
      for (let i = firstEnding(end, first[lane], stop, from); i < stop && start[i] < to; i++) {
        added(sums, data.whats[what[i]][0], Math.min(end[i], to) - Math.max(start[i], from), start[i] >= from ? 1 : 0);
      }
    }
    return largest(sums).map(([text, sum]) => [data.texts[text], sum]);
  };

  // FLOPs of what begins in a stretch, exact: their sums may be beyond 2^53. None where none is known.
  const flopsOf = ({ figures }, device, from, to) => {
    const { start, ns } = figures.flops[device];
    figures.flopSums ||= {};
    const sums = figures.flopSums[device] ||= ns.length ? [...ns].reduce((all, each) => { all.push(all.at(-1) + BigInt(each)); return all; }, [0n]) : null;
    const [first, last] = [from, to].map((time) => firstEnding(start, 0, start.length, time));
    return sums && sums[last] - sums[first];
  };

  // The least and the most of what is counted of devices, by what; "merged" where parts of it are of
  // a time that begins before or ends after the stretch.
  const countsOf = (data, source, from, to) => {
    const found = new Map();
    source.counters.forEach(({ start, end, least, most }, place) => {
      const what = data.counted[place][1], sum = found.get(what) || { what, least: Infinity, most: -Infinity, merged: false };
      for (let i = firstEnding(end, 0, end.length, from + 1); i < end.length && start[i] < to; i++) {
        sum.merged ||= least[i] < most[i] && (start[i] < from || end[i] > to);
        sum.least = Math.min(sum.least, least[i]);
        sum.most = Math.max(sum.most, most[i]);
      }
      if (sum.most >= 0) found.set(what, sum);
    });
    return [...found.values()];
  };

  // A stretch of which figures are known, and where they are: as asked where all its events are
  // there, else from edge to edge of bins.
  const known = (data, low, high) => {
    const [first, last] = data.whole, whole = data.levels[data.levels.length - 1];
    const [from, to] = [low, high].map((each) => Math.min(Math.max(Math.round(each), first), last));
    const source = data.levels.find((each) => !each.figures.bin && each.span[0] <= from && each.span[1] >= to) || whole;
    const { bin } = source.figures;
    if (!bin) return { source, from, to, bin };
    const edge = Math.floor(from / bin) * bin;
    return { source, from: edge, to: Math.max(Math.ceil(to / bin) * bin, edge + bin), bin };
  };
  const figuresOf = (data, low, high) => {
    const stretch = known(data, low, high), { source, from, to } = stretch;
    const devices = Object.keys(data.origins).map((name) => {
      const device = Number(name);
      const why = within(source.figures, source.figures.idle[device], from, to)
        .map(([key, sum]) => [...data.keys[key].map((text) => data.texts[text]), sum.ns]);
      const isStart = ([kind]) => kind === data.looks[PARTS][0];
      const startUp = why.filter(isStart).reduce((all, [, , ns]) => all + ns, 0);
      return {
        device, label: data.groups[data.device_of_group.indexOf(device)][0],
        components: componentsOf(data, source, device, from, to, startUp),
        kernels: kernelsOf(data, source, device, from, to),
        flops: flopsOf(source, device, from, to),
        idle: why.filter((each) => !isStart(each)),
      };
    });
    return { ...stretch, devices, counts: countsOf(data, source, from, to) };
  };

  Object.assign(traceflops.timeline, { known, figuresOf, curves, before });
})();
