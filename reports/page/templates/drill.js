"use strict";
// Rows that unfold, names that can be copied, and links into tables: #kernel=, #op=, #category=,
// #step=, #rank=. What unfolds lies in a list below its table, for readers without scripts.
(() => {
  const { copy, nameOf, panelOf, rowsOf, select, showCategory } = traceflops.tables;

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
      said.textContent = await copy(nameOf(row), name) ? "Copied." : "Selected: copy it with the keyboard.";
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
    const toggle = button("", `What is behind ${first.textContent.trim()}`, () =>
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

  const decoded = (text) => { try { return decodeURIComponent(text); } catch { return text; } };
  const KINDS = { kernel: "kernel-table", op: "operator-table", step: "step-table", rank: "rank-table" };

  const mark = (row) => {
    document.querySelectorAll("tr.wanted").forEach((each) => each.classList.remove("wanted"));
    row?.classList.add("wanted");
  };
  const say = (table, text) => {
    const status = document.querySelector(`.tools[data-table=${table}] [role=status]`);
    if (status) status.textContent = text;
  };
  const goTo = (kind, name) => {
    const id = KINDS[kind];
    const table = document.getElementById(id);
    if (!table) return;
    for (let each = table.closest("details"); each; each = each.parentElement.closest("details")) each.open = true;
    const row = rowsOf(table).find((each) => each.id.startsWith(`${kind}=`) && nameOf(each) === name);
    mark(row);
    if (!row) return say(id, `This ${kind} is not among the rows shown.`);
    if (row.hidden) showCategory(table, null);
    unfold(row, true);
    // A step leads to its place on the timeline where there is one.
    if (kind !== "step" || !document.getElementById("timeline")) row.scrollIntoView({ block: "center" });
  };
  const follow = () => {
    const hash = location.hash.slice(1);
    const at = hash.indexOf("=");
    if (at < 0) return;
    const [kind, name] = [hash.slice(0, at), decoded(hash.slice(at + 1))];
    if (Object.hasOwn(KINDS, kind)) return goTo(kind, name);
    const table = document.getElementById("kernel-table");
    if (kind !== "category" || !table) return;
    showCategory(table, name);
    document.getElementById("kernels").scrollIntoView();
  };

  document.querySelectorAll("tr[data-about]").forEach(makeUnfold);
  document.querySelectorAll("[data-jump]").forEach(makeJump);
  // Following the link that is in the address bar already is no change of it.
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='#']");
    if (link && link.hash === location.hash) follow();
  });
  addEventListener("hashchange", follow);
  follow();
})();
