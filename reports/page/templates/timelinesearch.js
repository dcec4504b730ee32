"use strict";
// Events of the timeline by name: what a search finds, and all that are called the same.
(() => {
  const { levelFor, merge } = traceflops.timeline;

  // All events whose name is wanted; lane by lane, as views of a level ask for them.
  const hitsOf = (data, wanted) => {
    const isWanted = data.whats.map(([text]) => wanted(data.texts[text])), known = new Map();
    const of = (source, lane) => {
      if (!known.has(source)) known.set(source, []);
      const lanes = known.get(source);
      if (!lanes[lane]) {
        const places = [];
        for (let i = source.first[lane]; i < source.first[lane + 1]; i++) if (isWanted[source.what[i]]) places.push(i);
        const column = (name) => Float64Array.from(places, (place) => source[name][place]);
        lanes[lane] = { places, starts: column("start"), ends: column("end") };
      }
      return lanes[lane];
    };
    return { of };
  };

  // Those of some lanes in the order of their starts, as boxes; "exact" says whether that is all.
  const listed = (data, hits, lanes, from, to) => {
    const source = levelFor(data, from, to);
    const found = lanes.flatMap((lane) => hits.of(source, lane).places.map((place) => [lane, place]));
    found.sort(([, a], [, b]) => source.start[a] - source.start[b]);
    return { boxes: found.map(([lane, place]) => merge(source, lane, place, place)), exact: source.single };
  };

  Object.assign(traceflops.timeline, { hitsOf, listed });
})();
