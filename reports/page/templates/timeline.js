"use strict";
// The timeline put together: its view, what it says, its lists, and links that lead to places.
(async () => {
  const {
    read, viewOf, drawn, described, cells, actionsOf, takeKeys, takePointers, takeWheel, takeStrip, made, show: tell, asMarkdown,
    figuresOf, hitsOf, listed, facts, number, counted, time, place, linkOf, stateOf, remember, save, copy, picture, asTrace, levelFor,
  } = traceflops.timeline;
  const LISTED = 20, QUIET_MS = 500, INSTANCES = 1000;
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
  const lines = (box) =>
    described(data, view.state.shown.source, box, view.labelOf(box)).map(([name, text]) => made("p", name, text));

  // Those who listen to the page hear it once it rests, not at every frame of a drag.
  // So does the address, and without a selection the figures are those of what is seen.
  let waits = 0, told = null, last = "", anew = false;
  const figures = () => {
    const { selected, from, to } = view.state;
    told = figuresOf(data, ...(selected ? [selected.from, selected.to] : [from, to]));
    tell(find("figures"), data, told, selected ? "Selection" : "In view");
  };
  const here = () => linkOf(view.state);
  const rests = () => {
    find("said").textContent = status.textContent;
    if (!view.state.selected) figures();
    // The address stays as it is until something is done here.
    if (last !== here()) remember(here(), anew);
    last = here();
    anew = false;
  };
  let before = "", toldOf = null;
  const tellSteps = () => {
    const { selected } = view.state;
    dispatchEvent(new CustomEvent("steps-selected", { detail: selected ? stepsIn(selected) : [] }));
  };
  // The steps chart may be drawn after the selection of the address.
  addEventListener("steps-linked", tellSteps);
  const say = (text) => {
    const now = `${text} ${here()}`, { selected } = view.state;
    if (now === before) return;
    before = now;
    if (selected?.from !== toldOf?.from || selected?.to !== toldOf?.to) {
      if (selected) figures();
      tellSteps();
    }
    toldOf = selected;
    status.textContent = text;
    clearTimeout(waits);
    waits = setTimeout(rests, QUIET_MS);
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
    same(box);
    hide();
  };

  // All events called like the chosen one, and those that a search finds: one after the other.
  let instances = null;
  const every = data.lanes.map((_, lane) => lane);
  const rowsOf = ({ lane }) => (data.lanes[lane][1] ? every.filter((each) => data.lanes[each][1]) : every.filter((each) => view.state.rows.byLane.has(each) && !data.lanes[each][1]));
  const same = (box) => {
    const group = find("instances");
    group.hidden = !box || !box.count || box.count > 1;
    group.open &&= !group.hidden;
    if (group.hidden) { instances = null; return; }
    const { name } = facts(data, view.state.shown.source, box);
    if (instances?.name !== name) {
      const { boxes, exact } = listed(data, hitsOf(data, (text) => text === name), rowsOf(box), ...data.whole);
      instances = { name, boxes, exact };
      find("instances-list").replaceChildren();
    }
    const { boxes, exact } = instances, at = boxes.findIndex((each) => each.start === box.start && each.lane === box.lane);
    const sum = boxes.reduce((all, each) => all + each.busy, 0);
    group.firstElementChild.textContent = `${exact ? "" : "at least "}${counted(boxes.length, "instance")}, ${time(sum, 4)} in all${at >= 0 ? `; this is number ${number(at + 1)}` : ""}`;
    if (group.open) listInstances();
  };
  const reach = (box) => {
    const { from, to } = view.state, length = Math.min(to - from, Math.max((box.end - box.start) * 50, 2000)), middle = (box.start + box.end) / 2;
    if (box.start < from || box.end > to) view.look(middle - (to - from) / 2, middle + (to - from) / 2);
    if (box.end - box.start < (to - from) / 2000) view.look(middle - length / 2, middle + length / 2);
    elsewhere();
    requestAnimationFrame(() => requestAnimationFrame(() => {
      const shown = view.state.shown.boxes.find((each) => each.lane === box.lane && each.start <= box.start && each.end >= box.end && each.count === 1);
      choose(shown || box);
      view.reveal(box.lane);
    }));
  };
  const listInstances = () => {
    const list = find("instances-list");
    if (!instances || list.childElementCount) return;
    list.append(...instances.boxes.slice(0, INSTANCES).map((box) => {
      const button = made("button", "", `${place(box.start, box.end - box.start)} · ${time(box.busy, 4)}`);
      button.type = "button";
      button.addEventListener("click", () => reach(box));
      const item = made("li", "", button);
      return item;
    }));
    if (instances.boxes.length > INSTANCES) list.append(made("li", "", `${number(instances.boxes.length - INSTANCES)} more`));
  };
  // The next of some events after the chosen one or the middle of the view.
  const onward = (boxes, by) => {
    const { chosen, from, to } = view.state, at = chosen ? chosen.start : (from + to) / 2;
    const beside = by > 0 ? boxes.find((each) => each.start > at) || boxes[0] : boxes.findLast((each) => each.start < at) || boxes.at(-1);
    if (beside) reach(beside);
  };

  const searchField = find("search"), searched = find("searched");
  let hits = null;
  const search = () => {
    const text = searchField.value.trim().toLowerCase();
    const found = text ? hitsOf(data, (name) => name.toLowerCase().includes(text)) : null;
    hits = found && listed(data, found, every.filter((lane) => view.state.rows.byLane.has(lane)), ...data.whole);
    searched.textContent = hits ? `${hits.exact ? "" : "at least "}${counted(hits.boxes.length, "hit")}` : "";
    view.search(found);
  };
  const clear = () => { searchField.value = ""; search(); };
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
  const restore = (link) => {
    const state = stateOf(link);
    if (!state) return false;
    if (hostList && has(hostList, String(state.host)) && Number(hostList.value) !== state.host) { hostList.value = state.host; setHost(); }
    view.look(state.from, state.to);
    view.select(...(state.selected ? [state.selected.from, state.selected.to] : []));
    elsewhere();
    return true;
  };
  const go = (link) => {
    const place = /^(step|gap)=(-?\d{1,15})$/.exec(link), range = /^t=(-?\d{1,19})-(-?\d{1,19})(?:,(\d{1,9}))?$/.exec(link);
    if (place) return place[1] === "step" ? goStep(Number(place[2])) : goGap(Number(place[2]));
    if (range) return goTime(range[1], range[2], range[3]);
    if (link === "whole") whole();
    else if (link === "window") view.frame(...data.start);
    else return false;
    view.select();
    return true;
  };
  const follow = (link) => {
    const there = restore(link);
    if (!there && !go(link)) return false;
    last = here();
    if (!there) named(link);
    if (!there || !section.matches(":focus-within")) section.scrollIntoView();
    return true;
  };

  // Taking it elsewhere: what was done is said beside the buttons.
  const done = find("done");
  const address = () => `${location.href.split("#")[0]}#${here()}`;
  const stem = () => `timeline ${told ? `${told.from}-${told.to}` : ""} ns`.replaceAll(" ", "-");
  const canvases = () => [...section.querySelectorAll(".timeline-strip canvas, .timeline-view canvas")];
  const copied = async (text, words) => {
    try { await copy(text); done.textContent = words; } catch { done.textContent = "This browser lets nothing be copied here."; }
  };
  const shares = {
    link: () => copied(address(), "Link copied."),
    markdown: () => copied(asMarkdown(data, told, location.protocol === "file:" ? "" : address()), "Figures copied as Markdown."),
    picture: () => picture(canvases(), (blob) => { save(blob, `${stem()}.png`); done.textContent = "Picture saved."; }),
    trace: () => {
      const text = asTrace(data, levelFor(data, told.from, told.to), told.from, told.to);
      save(new Blob([text], { type: "application/json" }), `${stem()}.trace.json`);
      done.textContent = "Trace saved. In ui.perfetto.dev choose Open trace file.";
    },
  };
  const askStep = () => {
    const found = stepField.value !== "" && go(`step=${Number(stepField.value)}`);
    stepField.setCustomValidity(found ? "" : "This step is not in the timeline.");
    if (found) elsewhere(); else stepField.reportValidity();
  };

  takeKeys(area, section.querySelectorAll("[data-do]"), actionsOf(view, {
    whole, choose, follow: followArrow, clear, search: () => searchField.focus(),
    later: () => instances && onward(instances.boxes, 1), earlier: () => instances && onward(instances.boxes, -1),
    ...shares,
  }), elsewhere);
  takePointers(area, view, { show, hide, choose, left: elsewhere, selected: () => { anew = true; } });
  takeWheel(area, view, elsewhere);
  takeStrip(find("strip"), view, data.whole, elsewhere);
  find("table").addEventListener("toggle", () => { if (find("table").open && view.state.shown) list(); });
  find("instances").addEventListener("toggle", listInstances);
  searchField.addEventListener("input", search);
  searchField.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && hits) onward(hits.boxes, event.shiftKey ? -1 : 1);
    if (event.key === "Escape") { clear(); area.focus(); }
  });
  area.addEventListener("scroll", view.ask);
  hostList?.addEventListener("change", setHost);
  placeList.addEventListener("change", () => { go(placeList.value); anew = true; });
  stepField?.addEventListener("change", askStep);

  // The chart of steps selects whole steps, and hears which are selected here.
  const stepsIn = ({ from, to }) => data.steps.filter(([, start, end]) =>
    2 * (Math.min(end, to) - Math.max(start, from)) > Math.min(end - start, to - from)).map(([step]) => step);
  addEventListener("steps-asked", ({ detail: [first, last] }) => {
    const asked = data.steps.filter(([step]) => step >= first && step <= last);
    const span = asked.length ? [Math.min(...asked.map(([, start]) => start)), Math.max(...asked.map(([, , end]) => end))] : [];
    if (asked.length) view.frame(...span);
    view.select(...span);
    anew = true;
  });

  setHost();
  view.frame(...data.start);
  last = here();
  traceflops.follows(follow, "timeline");
  new ResizeObserver(view.ask).observe(area);
  new MutationObserver(view.ask).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  section.classList.add("live");
})();
