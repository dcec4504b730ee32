"use strict";
// Rows that unfold, names that can be copied, and links into tables: #kernel=, #op=, #category=,
// #tree=, #step=, #rank=. What unfolds lies in a list below its table, for readers without scripts.
(() => {
  const { allRowsOf, copy, nameOf, panelOf, select, showOnly, isOf } = traceflops.tables;

  const shownName = (row) => (row.cells[0].querySelector("code") ?? row.cells[0]).textContent.trim();
  const button = (text, label, act) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    if (label) made.setAttribute("aria-label", label);
    made.addEventListener("click", act);
    return made;
  };

  // The whole name, to be copied or linked to; what follows # in the link names the row.
  const nameBar = (row) => {
    const bar = document.createElement("div");
    bar.className = "whole";
    const name = document.createElement("code");
    name.textContent = nameOf(row);
    const said = document.createElement("span");
    said.setAttribute("role", "status");
    const link = document.createElement("a");
    link.href = `#${row.id}`;
    link.textContent = "Link to this row";
    const copies = button("Copy name", "", async () => {
      said.textContent = await copy(nameOf(row), name) ? "Copied." : "Selected; press Ctrl+C to copy.";
    });
    bar.append(name, copies, link, said);
    return bar;
  };

  const unfolded = (row) => {
    const about = document.getElementById(row.dataset.about);
    const made = document.createElement("tr");
    made.className = "unfolded";
    made.id = `${row.dataset.about}-row`;
    const cell = document.createElement("td");
    cell.colSpan = row.cells.length;
    if (row.id.startsWith("kernel=")) cell.append(nameBar(row));
    cell.append(about.querySelector(".panel"));
    made.append(cell);
    row.after(made);
    return made;
  };

  const unfold = (row, open) => {
    const toggle = row.querySelector("button.unfold");
    if (!toggle) return;
    const panel = panelOf(row) ?? unfolded(row);
    panel.hidden = !open;
    if (open) panel.dataset.open = ""; else delete panel.dataset.open;
    toggle.setAttribute("aria-expanded", String(open));
    toggle.setAttribute("aria-controls", panel.id);
  };

  const makeUnfold = (row) => {
    const first = row.cells[0];
    const toggle = button("", `Details of ${shownName(row)}`, () =>
      unfold(row, toggle.getAttribute("aria-expanded") !== "true"));
    toggle.className = "unfold";
    toggle.setAttribute("aria-expanded", "false");
    first.classList.add("unfolds");
    first.prepend(toggle);
  };

  const makeJump = (element) => {
    const link = document.createElement("a");
    link.href = `#${element.dataset.jump}`;
    const text = element.firstChild;
    text.replaceWith(link);
    link.append(text);
  };

  const { decoded } = traceflops;
  const KINDS = { kernel: "kernel-table", op: "operator-table", step: "step-table", rank: "rank-table" };

  const mark = (row) => {
    document.querySelectorAll("tr.wanted").forEach((each) => each.classList.remove("wanted"));
    row?.classList.add("wanted");
  };
  const say = (table, text) => {
    const status = document.querySelector(`.tools[data-table=${table}] [role=status]`);
    if (status) status.textContent = text;
  };
  // The row of a name; of kernels and operators also the first one that has the text in its name.
  const rowOf = (table, kind, name) => {
    const rows = allRowsOf(table), named = rows.filter((each) => each.id.startsWith(`${kind}=`));
    const exact = named.find((each) => nameOf(each) === name);
    if (exact || !["kernel", "op"].includes(kind) || !name) return { row: exact, like: 0 };
    const short = rows.filter((each) => shownName(each) === name);
    const like = short.length ? short : named.filter((each) => nameOf(each).includes(name));
    return { row: like[0], like: like.length };
  };
  // The headings stay at the top of the frame of a table, which has to be in view for that.
  let shown = null;
  const show = (row) => {
    shown = row;
    row.scrollIntoView({ block: "center" });
    const frame = row.closest(".tall");
    if (frame && getComputedStyle(frame).overflowY !== "visible") frame.scrollIntoView({ block: "nearest" });
  };
  // While a page is loaded the browser goes to the row by itself, after its scripts.
  addEventListener("load", () => requestAnimationFrame(() => { if (shown) show(shown); }));
  const goTo = (kind, name) => {
    const table = document.getElementById(KINDS[kind]);
    if (!table) return false;
    const { row, like } = rowOf(table, kind, name);
    mark(row);
    if (!row) return false;
    for (let each = row.closest("details"); each; each = each.parentElement.closest("details")) each.open = true;
    if (row.hidden) showOnly(table, null);
    say(KINDS[kind], like > 1 ? `${like} rows match “${name}”; showing the first.` : "");
    unfold(row, true);
    // A step leads to its place on the timeline where there is one.
    if (kind !== "step" || !document.getElementById("timeline")) show(row);
    return true;
  };
  const goToCategory = (name) => {
    const table = document.getElementById("kernel-table");
    const wanted = name.replace(".", "/");
    if (!table || !showOnly(table, { words: `category ${wanted}`, keeps: (row) => isOf(row, wanted) })) return false;
    document.getElementById("kernels").scrollIntoView();
    return true;
  };
  // A box of the tree: its lens is chosen; the table of kernels and the roofline have those that ran
  // in it, until that is cleared here or there.
  const said = document.getElementById("tree-found"), kernels = document.getElementById("kernel-table");
  const dim = (keeps) => {
    const rows = new Set(kernels ? allRowsOf(kernels).filter(keeps).map((row) => `#${row.id}`) : []);
    document.querySelectorAll("svg.roofline a").forEach((dot) => dot.classList.toggle("dim", !rows.has(dot.getAttribute("href"))));
  };
  const ring = (box) => document.querySelectorAll(".icicle a").forEach((each) => each.classList.toggle("chosen", each === box));
  let choosing = false;
  const choose = (one) => {
    choosing = true;
    const found = Boolean(kernels) && showOnly(kernels, one);
    choosing = false;
    return found;
  };
  const clear = () => {
    if (choosing || !said) return;
    said.hidden = true;
    ring(null);
    dim(() => true);
    if (location.hash.startsWith("#tree=")) history.replaceState(null, "", "#attribution");
  };
  const goToBox = (link) => {
    const box = document.getElementById(link);
    if (!box) return false;
    const words = box.querySelector("title").textContent, mine = new Set(box.dataset.kernels.split(" "));
    const keeps = (row) => mine.has(row.dataset.about?.slice("about-kernel-".length));
    document.getElementById(`lens-${box.closest(".lens").dataset.lens}`).checked = true;
    const some = choose({ words: words.split(": ")[0], keeps });
    if (!some) choose(null);
    ring(box);
    dim(some ? keeps : () => true);
    said.hidden = false;
    said.firstElementChild.textContent = words;
    said.lastElementChild.hidden = !some;
    return true;
  };
  kernels?.addEventListener("chosen", clear);
  said?.querySelector("button").addEventListener("click", () => { choose(null); clear(); });
  const follow = (link) => {
    const at = link.indexOf("="), [kind, name] = [link.slice(0, Math.max(at, 0)), decoded(link.slice(at + 1))];
    if (kind === "category") return goToCategory(name);
    if (kind === "tree") return goToBox(link);
    return Object.hasOwn(KINDS, kind) && goTo(kind, name);
  };

  document.querySelectorAll("tr[data-about]").forEach(makeUnfold);
  document.querySelectorAll("[data-jump]").forEach(makeJump);
  traceflops.follows(follow);
})();
