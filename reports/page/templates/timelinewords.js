"use strict";
// What the timeline says: numbers, places in time, events, and how much of them is drawn.
(() => {
  const { facts, linked } = traceflops.timeline;
  const UNITS = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]];
  const SHORT = 1e4;

  const number = (value) => value.toLocaleString("en-US");
  const counted = (value, one) => (value === 1 ? `one ${one}` : `${number(value)} ${one}${one.endsWith("x") ? "es" : "s"}`);

  const time = (ns, digits = 3) => {
    const [name, unit] = UNITS.find(([, one]) => Math.abs(ns) >= one) || UNITS[3];
    return `${Number((ns / unit).toPrecision(digits)).toLocaleString("en-US", { maximumFractionDigits: 3 })} ${name}`;
  };

  const flop = (count) => {
    const thousands = Math.min(Math.floor(Math.log10(Math.max(Number(count), 1)) / 3), 6);
    return `${Number((Number(count) / 1e3 ** thousands).toPrecision(3))} ${["", "k", "M", "G", "T", "P", "E"][thousands]}FLOP`;
  };

  // A place in time, to be found again: to the microsecond, or where what is there is short or
  // the place is early to the nanosecond. The server writes places in the same way.
  const place = (ns, length) => {
    const finest = Math.abs(ns) < 1e6 || length < SHORT ? 1 : 1e3;
    const rounded = Math.round(Math.abs(ns) / finest) * finest;
    const [name, unit] = UNITS.find(([, one]) => rounded >= one) || UNITS[3];
    const digits = Math.max(Math.round(Math.log10(unit / finest)), 0);
    const text = (rounded / unit).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
    return `${ns < 0 && rounded ? "−" : ""}${text} ${name}`;
  };

  // A stretch of time in one unit, with as many digits at both ends: a ten-thousandth of it is seen.
  // The server writes stretches in the same way.
  const range = (from, to) => {
    const largest = Math.max(Math.abs(from), Math.abs(to));
    const [name, unit] = UNITS.find(([, one]) => largest >= one) || UNITS[3];
    const finest = 10 ** Math.max(Math.ceil(Math.log10(Math.max(to - from, 1)) - 1e-9) - 5, 0);
    const digits = Math.max(Math.round(Math.log10(unit / finest)), 0);
    const [low, high] = [from, to].map((ns) => {
      const text = (Math.abs(ns) / unit).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
      return `${ns < 0 && /[1-9]/.test(text) ? "−" : ""}${text}`;
    });
    return `${low} to ${high} ${name}`;
  };

  // How busy the streams in view are, the busiest first; not of those whose work overlaps.
  const MOST_BUSY = 3;
  const busyWords = ({ from, to, rows }, { boxes }, data) => {
    const busy = new Map();
    for (const { lane, start, end, busy: ns } of boxes) {
      const inside = (Math.min(end, to) - Math.max(start, from)) / Math.max(end - start, 1);
      busy.set(lane, (busy.get(lane) || 0) + ns * Math.max(Math.min(inside, 1), 0));
    }
    const seen = Math.max(Math.min(to, data.whole[1]) - Math.max(from, data.whole[0]), 1);
    const streams = rows.rows.filter(({ lane, label }, place) =>
      data.lanes[lane]?.[1] && label && (rows.rows[place + 1]?.label ?? "none"));
    const shares = streams.map(({ lane, group, label }) => ({ group, label, share: (busy.get(lane) || 0) / seen }));
    shares.sort((a, b) => b.share - a.share);
    const several = new Set(shares.map(({ group }) => group)).size > 1;
    const name = ({ group, label }) => (several ? `${rows.heads.find((each) => each.group === group).label} · ${label}` : label);
    const words = shares.slice(0, MOST_BUSY).map((each) => `${name(each)} ${(100 * each.share).toFixed(1)} %`);
    return words.length ? ` ${shares.length > MOST_BUSY ? "Busiest" : "Busy"}: ${words.join(", ")}.` : "";
  };

  // How much is drawn, of which stretch; what the page holds only in boxes of several is counted.
  const drawn = (state, data, details) => {
    const { from, to, shown: { boxes, events, merged } } = state, { whole } = data;
    const what = events ? `${counted(events, "event")} drawn as ${counted(boxes.length, "box")}` : "No event";
    const where = details ? `; single events are kept ${details}` : "";
    const more = merged ? ` ${number(merged)} of these events are merged${where}.` : "";
    return `${what}, ${range(Math.max(from, whole[0]), Math.min(to, whole[1]))} after the first ${data.zero}.${busyWords(state, state.shown, data)}${more}`;
  };

  const busyShare = ({ start, end, busy }) => `${(100 * busy / Math.max(end - start, 1)).toFixed(1)} %`;

  // How much a counter counts, in its unit.
  const SIZES = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["bytes", 1]];
  const amount = ({ what }, value) => {
    if (what !== "memory") return number(value);
    const [name, unit] = SIZES.find(([, one]) => Math.abs(value) >= one) || SIZES[3];
    return `${Number((value / unit).toPrecision(3))} ${name}`;
  };

  // What a mark on a row says.
  const marked = ({ waits, what, least, most }) => {
    if (waits) return `GPU waits on: ${waits[0] || waits[1]}`;
    if (what === "memory") return `${least < most ? `${amount({ what }, least)} to ` : ""}${amount({ what }, most)} allocated`;
    const [text, unit] = what === "outstanding" ? ["outstanding launch", most === 1 ? "" : "es"] : [what, ""];
    return `${least < most ? `${number(least)} to ` : ""}${number(most)} ${text}${unit}`;
  };

  // How long before an event it was launched, or how long after a call that began.
  const launched = (data, source, box) => {
    const others = linked(data, source, box);
    if (!others.length) return [];
    const first = others.reduce((a, b) => (b.start < a.start ? b : a)), away = time(Math.abs(box.start - first.start), 4);
    if (source.launch[box.box] >= 0) return [["", `launch: ${facts(data, source, first).name}, ${away} before`]];
    return [["", `launches ${counted(others.length, "GPU operation")}, ${others.length > 1 ? "the first " : ""}${away} later`]];
  };

  // An event in lines of a class and a text; "on" is the lane it is on.
  const described = (data, source, box, on) => {
    if (!box.count) return [["name", marked(box)], ["time", `${time(box.end - box.start, 4)} at ${place(box.start, box.end - box.start)} · ${on}`], ["", box.waits?.[0] ? box.waits[1] : ""]];
    const known = facts(data, source, box), length = box.end - box.start, many = box.count > 1;
    const lines = [
      ["name", many ? `${number(box.count)} events, mostly ${known.category}` : known.name],
      ["time", `${time(length, 4)} at ${place(box.start, length)} · ${on}`],
    ];
    if (many) lines.push(["", `busy ${busyShare(box)}; longest of that category:`], ["name", known.name]);
    else lines.push(["", known.category]);
    if (known.op) lines.push(["", `launched by ${known.op}`]);
    if (known.shapes) lines.push(["shapes", `shapes ${known.shapes}`]);
    return [...lines, ...launched(data, source, box)];
  };

  // The same as the cells of a row.
  const cells = (data, source, box, on) => {
    if (!box.count) return [marked(box), on, place(box.start, box.end - box.start), time(box.end - box.start, 4), box.waits[1], ""];
    const known = facts(data, source, box), length = box.end - box.start;
    const name = box.count > 1 ? `${number(box.count)} events, busy ${busyShare(box)}, longest: ${known.name}` : known.name;
    const launched = [known.op, known.shapes].filter(Boolean).join(" ");
    return [name, on, place(box.start, length), time(length, 4), known.category, launched];
  };

  Object.assign(traceflops.timeline, { flop, UNITS, amount, number, counted, time, range, place, drawn, described, cells });
})();
