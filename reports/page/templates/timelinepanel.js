"use strict";
// What the page says of a stretch: its components, kernels and causes of idle time; as Markdown too.
(() => {
  const { time, range, number, flop, amount, shortened } = traceflops.timeline;
  const SHOWN = 5, DEVICES = 8;

  const made = (tag, className, ...inside) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    element.append(...inside);
    return element;
  };

  const rows = (list) => {
    const rest = list.slice(SHOWN), ns = rest.reduce((sum, [, each]) => sum + each, 0);
    return rest.length ? [...list.slice(0, SHOWN), [`${number(rest.length)} more`, ns]] : list;
  };

  // Lists of a name, a time and a number each, of all devices together.
  const tables = (data, { devices, from, to }) => {
    const several = devices.length > 1, shown = devices.slice(0, DEVICES);
    const sum = (lists) => {
      const sums = new Map();
      for (const [text, ns, count] of lists.flat()) {
        const [before, begun] = sums.get(text) || [0, 0];
        sums.set(text, [before + ns, begun + count]);
      }
      return [...sums].map(([text, [ns, count]]) => [text, ns, count]).sort((a, b) => b[1] - a[1]);
    };
    const kernels = sum(devices.map((each) => each.kernels.map(([text, { ns, count }]) => [text, ns, count])));
    const idle = sum(devices.map((each) => each.idle.map(([kind, text, ns]) => [text || kind, ns, 0])));
    const unknown = devices.reduce((all, each) => all + each.components.at(-1) - each.idle.reduce((told, [, , ns]) => told + ns, 0), 0);
    if (unknown > 0 && idle.length) idle.push(["No culprit", unknown, 0]);
    const counted = devices.flatMap(({ flops }) => (flops === null ? [] : [flops]));
    const flops = counted.length ? counted.reduce((all, each) => all + each, 0n) : null;
    return { several, shown, kernels, idle, unknown, flops, length: to - from };
  };

  // As many digits as make it exact: what is called so can be copied.
  const exactly = (ns) => `${number(ns)} ns`;

  const bar = (data, { label, components }, length) => {
    const element = made("div", "timeline-bar");
    components.forEach((ns, part) => {
      const piece = made("i");
      piece.style.cssText = `flex-grow: ${ns / Math.max(length, 1)}; background: ${data.looks[part][1]}`;
      if (ns > 0) element.append(piece);
    });
    element.setAttribute("role", "img");
    element.setAttribute("aria-label", `${label}: ${components.map((ns, part) => [data.looks[part][0], ns]).filter(([, ns]) => ns > 0).map(([name, ns]) => `${name} ${time(ns)}`).join(", ")}`);
    return element;
  };
  const listOf = (list) => made("ul", "", ...list.map(([text, ns, count]) => {
    const value = made("b", "", time(ns, 4)), label = made("span", "", shortened(text, 60) || text, count ? made("i", "", ` ×${number(count)}`) : "");
    value.title = exactly(ns);
    value.dataset.ns = ns;
    label.title = text;
    return made("li", "", label, value);
  }));

  const countWords = ({ what, least, most, merged }) =>
    `${what}: ${merged ? "about " : ""}${least < most ? `${amount({ what }, least)} to ` : ""}${amount({ what }, most)}`;
  const how = ({ bin }) => (bin ? `Edges snapped to ${time(bin)} bins; events are merged.` : "Exact: every event is in the page.");

  // Shows figures in four columns; "whose" says what stretch it is.
  const show = (panel, data, figures, whose) => {
    const { several, shown, kernels, idle, unknown, flops, length } = tables(data, figures), [what, parts, top, why] = panel.children;
    const words = (name) => (data.looks[name][0]);
    const said = made("p", "big", time(length, 4));
    said.dataset.ns = length;
    const rate = made("p", "", flops === null ? "" : `${flop(flops)}, ${flop(Number(flops) * 1e9 / Math.max(length, 1))}/s`);
    if (flops !== null) {
      rate.dataset.flops = flops;
      rate.title = `${number(flops)} known FLOP of kernels that begin here`;
    }
    what.replaceChildren(made("h3", "", whose), said, made("p", "", range(figures.from, figures.to)), rate, ...figures.counts.map((one) => made("p", "", countWords(one))), made("p", "exact", how(figures)));
    parts.replaceChildren(...shown.flatMap((each) => [
      made("h3", "", each.label), bar(data, each, length),
      ...(several ? [] : [listOf(each.components.map((ns, part) => [words(part), ns]).filter(([, ns]) => ns > 0))]),
    ]), ...(figures.devices.length > DEVICES ? [made("p", "", `${number(figures.devices.length - DEVICES)} more`)] : []));
    top.replaceChildren(made("h3", "", "Top kernels"), kernels.length ? listOf(rows(kernels)) : made("p", "", "The GPU ran nothing."));
    why.replaceChildren(made("h3", "", "Why idle"), idle.length ? listOf(rows(idle)) : made("p", "", unknown > 0 ? "Nothing is known." : "No idle time."));
  };

  // The same as a text that can be pasted into an issue.
  const asMarkdown = (data, figures, link) => {
    const { kernels, idle, flops, length } = tables(data, figures);
    const cell = (text) => text.replace(/[|\\`*_<>[\]]/g, "\\$&").replace(/\s+/g, " ");
    const table = (heads, lines) => [`| ${heads.join(" | ")} |`, `| --- |${" ---: |".repeat(heads.length - 1)}`, ...lines.map((line) => `| ${line.join(" | ")} |`), ""];
    const share = (ns) => `${(100 * ns / Math.max(length, 1)).toFixed(1)} %`;
    return [
      `**${time(length, 4)}**, ${range(figures.from, figures.to)} after the first ${data.zero}. ${how(figures)}${flops === null ? "" : ` ${number(flops)} known FLOP of kernels that begin here.`}`, "",
      ...figures.counts.flatMap((one) => [cell(countWords(one)), ""]),
      ...figures.devices.flatMap(({ label, components }) => table([cell(label), "ns", "share"], components.map((ns, part) => [data.looks[part][0], ns, share(ns)]).filter(([, ns]) => ns > 0))),
      ...table(["kernel", "ns"], rows(kernels).map(([text, ns]) => [cell(text), ns])),
      ...(idle.length ? table(["why idle", "ns"], rows(idle).map(([text, ns]) => [cell(text), ns])) : []),
      ...(link ? [link, ""] : []),
    ].join("\n");
  };

  Object.assign(traceflops.timeline, { made, show, asMarkdown });
})();
