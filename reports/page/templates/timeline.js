"use strict";
// The timeline put together: its view, what it says, its lists, and links that lead to places.
(async () => {
  const { read, viewOf, drawn, described, cells, actionsOf, takeKeys, takePointers, takeWheel, takeStrip } = traceflops.timeline;
  const LISTED = 20, QUIET_MS = 500;
  const find = (name) => document.getElementById(`timeline-${name}`);
  const section = document.getElementById("timeline"), area = find("view"), tip = find("tip"), status = find("status");
  const hostList = find("host"), placeList = find("place"), stepField = find("step");

  let data;
  traceflops.waitFor("timeline");
  try {
    data = read(await traceflops.unpacked("timeline-data"));
  } catch (error) {
    section.classList.add("failed");
    console.warn("traceflops: the timeline cannot be drawn", error);
    traceflops.gone("timeline");
    return;
  }

  // What it says: how much is drawn, and the events as lines or as a table.
  const made = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    element.textContent = text;
    return element;
  };
  const lines = (box) =>
    described(data, view.state.shown.source, box, view.labelOf(box)).map(([name, text]) => made("p", name, text));

  // Those who listen to the page hear it once it rests, not at every frame of a drag.
  let waits = 0;
  const say = (text) => {
    if (status.textContent === text) return;
    status.textContent = text;
    clearTimeout(waits);
    waits = setTimeout(() => { find("said").textContent = text; }, QUIET_MS);
  };
  const list = () => {
    const { boxes, marks, source } = view.state.shown;
    const longest = [...boxes, ...marks.filter(({ waits }) => waits)].sort((a, b) => (b.end - b.start) - (a.end - a.start)).slice(0, LISTED);
    find("table").querySelector("tbody").replaceChildren(...longest.map((box) => {
      const row = document.createElement("tr");
      row.append(...cells(data, source, box, view.labelOf(box)).map((text, place) =>
        made("td", place === 2 || place === 3 ? "n" : "", text || "–")));
      return row;
    }));
  };
  const painted = () => {
    // Up to the first painting the height was kept free, so that what is below did not move.
    area.style.minHeight = "";
    hide();
    say(drawn(view.state, data, status.dataset.details));
    if (find("table").open) list();
  };

  const hide = () => { tip.hidden = true; };
  const show = (event, box) => {
    tip.hidden = !box;
    if (!box) return;
    tip.replaceChildren(...lines(box));
    const { width, height } = tip.getBoundingClientRect();
    const x = Math.min(event.clientX + 14, innerWidth - width - 8), below = event.clientY + 18;
    tip.style.left = `${Math.max(x, 8)}px`;
    tip.style.top = `${below + height < innerHeight ? below : Math.max(event.clientY - height - 12, 8)}px`;
  };
  const choose = (box) => {
    view.choose(box);
    const panel = find("chosen");
    panel.hidden = !box;
    if (box) panel.lastElementChild.replaceChildren(...lines(box));
    find("follow").hidden = !view.state.chosen?.others.length;
    hide();
  };
  // To the other end of the first arrow, both ends in view.
  const followArrow = () => {
    const { chosen, from, to } = view.state, [other] = chosen?.others || [];
    if (!other) return;
    const start = Math.min(chosen.start, other.start), end = Math.max(chosen.end, other.end), room = (end - start) / 10;
    choose(other);
    if (start < from || end > to) view.look(start - room, end + room);
  };

  const view = viewOf(data, area, find("strip"), painted);

  // Places: the list names one until something leads away from it.
  const has = (chooser, value) => [...chooser.options].some((each) => each.value === value);
  const named = (link) => { placeList.value = has(placeList, link) ? link : ""; };
  const elsewhere = () => named("");
  const whole = () => { view.frame(...data.whole); named("whole"); };
  const groupsOf = (device) => data.device_of_group.flatMap((one, group) => (one === device ? [group] : []));
  const setHost = () => { view.setHost(hostList ? Number(hostList.value) : -1); choose(null); };

  // The threads beside a device, where they are drawn at all.
  const showHostOf = (device) => {
    const process = String(data.process_of_device[device]);
    if (!hostList || hostList.value === process || !has(hostList, process)) return;
    hostList.value = process;
    setHost();
  };
  const goGap = (place) => {
    const gap = data.gaps[place - 1];
    if (!gap) return false;
    const [from, to, low, high, device] = gap;
    view.mark(from, to, groupsOf(device));
    showHostOf(device);
    view.look(low, high);
    return true;
  };
  const goStep = (wanted) => {
    const found = data.steps.find(([step]) => step === wanted);
    if (found) view.frame(found[1], found[2]);
    return Boolean(found);
  };
  // Times of the trace are larger than what a number counts exactly.
  const goTime = (start, end, device) => {
    const origin = device === undefined ? Object.values(data.origins)[0] : data.origins[device];
    if (origin === undefined) return false;
    const [from, to] = [start, end].map((each) => Number(BigInt(each) - BigInt(origin)));
    // A link may be of another recording: what is wholly beside this one is not a place of it.
    const [first, last] = data.whole;
    if (!(to >= from) || to < first || from > last) return false;
    view.mark(from, to, device === undefined ? [] : groupsOf(Number(device)));
    if (device !== undefined) showHostOf(Number(device));
    view.look(from - (to - from || view.LEAST), to + (to - from || view.LEAST));
    return true;
  };
  const go = (link) => {
    const place = /^(step|gap)=(-?\d{1,15})$/.exec(link), range = /^t=(-?\d{1,19})-(-?\d{1,19})(?:,(\d{1,9}))?$/.exec(link);
    if (place) return place[1] === "step" ? goStep(Number(place[2])) : goGap(Number(place[2]));
    if (range) return goTime(range[1], range[2], range[3]);
    if (link === "whole") whole();
    else if (link === "window") view.frame(...data.start);
    else return false;
    return true;
  };
  const follow = (link) => {
    if (!go(link)) return false;
    named(link);
    section.scrollIntoView();
    return true;
  };
  const askStep = () => {
    const found = stepField.value !== "" && go(`step=${Number(stepField.value)}`);
    stepField.setCustomValidity(found ? "" : "This step is not in the timeline.");
    if (found) elsewhere(); else stepField.reportValidity();
  };

  takeKeys(area, section.querySelectorAll("[data-do]"), actionsOf(view, { whole, choose, follow: followArrow }), elsewhere);
  takePointers(area, view, { show, hide, choose, left: elsewhere });
  takeWheel(area, view, elsewhere);
  takeStrip(find("strip"), view, data.whole, elsewhere);
  find("table").addEventListener("toggle", () => { if (find("table").open && view.state.shown) list(); });
  hostList?.addEventListener("change", setHost);
  placeList.addEventListener("change", () => go(placeList.value));
  stepField?.addEventListener("change", askStep);

  setHost();
  view.frame(...data.start);
  traceflops.follows(follow, "timeline");
  new ResizeObserver(view.ask).observe(area);
  new MutationObserver(view.ask).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  section.classList.add("live");
})();
