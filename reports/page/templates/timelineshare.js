"use strict";
// The timeline elsewhere: in the address, on the clipboard, as a picture, as a trace for Perfetto.
(() => {
  const { facts, merge } = traceflops.timeline;
  const FORMAT = /^view=(-?\d{1,16})-(-?\d{1,16})(?:&sel=(-?\d{1,16})-(-?\d{1,16}))?(?:&cpu=(-?\d{1,9}))?$/;

  // What is seen and selected as the end of an address, and back. Times count from the page's 0.
  const linkOf = ({ from, to, selected, host }) =>
    `view=${Math.floor(from)}-${Math.ceil(to)}${selected ? `&sel=${selected.from}-${selected.to}` : ""}${host >= 0 ? `&cpu=${host}` : ""}`;
  const stateOf = (link) => {
    const found = FORMAT.exec(link);
    if (!found) return null;
    const [from, to, low, high, host] = found.slice(1).map((each) => (each === undefined ? null : Number(each)));
    if (!(to > from)) return null;
    return { from, to, selected: high > low ? { from: low, to: high } : null, host: host ?? -1 };
  };

  // A frame without an address of its own keeps none.
  const remember = (link, anew) => {
    if (location.hash === `#${link}`) return;
    try { history[anew ? "pushState" : "replaceState"](null, "", `#${link}`); } catch { /* as it was */ }
  };

  const save = (blob, name) => {
    const url = URL.createObjectURL(blob), link = document.createElement("a");
    link.href = url;
    link.download = name;
    link.click();
    // The browser reads the bytes after this returns.
    setTimeout(() => URL.revokeObjectURL(url), 60000);
  };

  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      if (!done) throw new Error("not copied");
    }
  };

  // Both canvases, one below the other, on the ground of the page.
  const picture = (canvases, done) => {
    const sheet = document.createElement("canvas"), pen = sheet.getContext("2d"), space = 16;
    sheet.width = Math.max(...canvases.map(({ width }) => width)) + 2 * space;
    sheet.height = canvases.reduce((sum, { height }) => sum + height + space, space);
    pen.fillStyle = getComputedStyle(document.body).backgroundColor;
    pen.fillRect(0, 0, sheet.width, sheet.height);
    canvases.reduce((y, each) => { pen.drawImage(each, space, y); return y + each.height + space; }, space);
    sheet.toBlob(done);
  };

  // The events that touch a range in the trace-event format; times in µs, exact to the ns.
  const asTrace = (data, source, from, to) => {
    const events = [], micro = (ns) => Number((ns / 1000).toFixed(3));
    data.groups.forEach(([label, , lanes], group) => {
      const pid = group + 1;
      events.push({ ph: "M", pid, name: "process_name", args: { name: label } });
      for (const lane of lanes) {
        const tid = lane + 1;
        events.push({ ph: "M", pid, tid, name: "thread_name", args: { name: data.lanes[lane][0] || "…" } });
        for (let i = source.first[lane]; i < source.first[lane + 1] && source.start[i] < to; i++) {
          if (source.end[i] < from) continue;
          const box = merge(source, lane, i, i), { name, category, op, shapes } = facts(data, source, box);
          const args = { ...(op && { op }), ...(shapes && { shapes }), ...(box.count > 1 && { events: box.count }) };
          events.push({ ph: "X", pid, tid, name, cat: category, ts: micro(box.start), dur: micro(box.end - box.start), args });
        }
      }
    });
    return JSON.stringify({ displayTimeUnit: "ns", traceEvents: events });
  };

  Object.assign(traceflops.timeline, { linkOf, stateOf, remember, save, copy, picture, asTrace });
})();
