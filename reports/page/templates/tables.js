"use strict";
// Tables that sort, filter and go into a CSV. A number is in its cell's data-value; an empty one
// is not known and stays last, whichever way the column is sorted.
(() => {
  // By a table the one that goes on with its rows.
  const also = new Map();
  const panelOf = (row) => {
    const next = row.nextElementSibling;
    return next?.classList.contains("unfolded") ? next : null;
  };
  const rowsOf = (table) => [...table.tBodies[0].rows].filter((row) => !row.classList.contains("unfolded"));
  const headsOf = (table) => [...table.tHead.rows[0].cells];
  // What a row is called, whole: after the first = of its id, as in a link.
  const nameOf = (row) => row.id ? decodeURIComponent(row.id.slice(row.id.indexOf("=") + 1)) : null;

  const compared = (a, b, sign) => {
    if (a === b) return 0;
    if (a === null || b === null) return a === null ? 1 : -1;
    return (a > b ? 1 : -1) * sign;
  };
  const valueOf = (row, column) => {
    const cell = row.cells[column];
    const value = cell.dataset.value;
    if (value === undefined) return (cell.querySelector("code") ?? cell).textContent.trim();
    return value === "" ? null : Number(value);
  };
  const sort = (table, column, sign) => {
    const keyed = rowsOf(table).map((row) => [valueOf(row, column), row, panelOf(row)]);
    keyed.sort((a, b) => compared(a[0], b[0], sign));
    table.tBodies[0].append(...keyed.flatMap(([, row, panel]) => panel ? [row, panel] : [row]));
  };

  const makeSortable = (table) => headsOf(table).forEach((head, column, heads) => {
    if (head.tagName !== "TH" || head.dataset.plain !== undefined) return;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const first = head.classList.contains("n") ? "descending" : "ascending";
      const other = first === "descending" ? "ascending" : "descending";
      const next = head.getAttribute("aria-sort") === first ? other : first;
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", next);
      sort(table, column, next === "ascending" ? 1 : -1);
    });
  });

  // A text of a trace must not become a formula in a spreadsheet.
  const asText = (text) => {
    const safe = /^[=+\-@\t\r\n\uFF0B\uFF0D\uFF1D\uFF20]/.test(text) ? `'${text}` : text;
    return `"${safe.replaceAll('"', '""')}"`;
  };
  const csvCell = (row, column) => {
    const cell = row.cells[column];
    const value = cell.dataset.value;
    if (value !== undefined) return cell.dataset.most === undefined ? value : asText(`<= ${value}`);
    const whole = column === 0 ? nameOf(row) : null;
    const text = whole ?? cell.querySelector("code")?.title ?? cell.textContent.trim();
    return asText(text === "\u2013" ? "" : text);
  };
  const columnsOf = (table) =>
    new Map(headsOf(table).flatMap((head, column) => (head.dataset.csv ? [[head.dataset.csv, column]] : [])));
  // A table, and what is behind it as another one, which may lack columns.
  const allRowsOf = (table) => [table, also.get(table)].flatMap((each) => (each ? rowsOf(each) : []));
  const csvOf = (table) => {
    const columns = new Map([table, also.get(table)].flatMap((each) => (each ? [[each, columnsOf(each)]] : [])));
    const names = [...new Set([...columns.values()].flatMap((each) => [...each.keys()]))];
    const cellOf = (row, column) => (column === undefined ? "" : csvCell(row, column));
    const rows = allRowsOf(table).filter((row) => !row.hidden);
    const lines = rows.map((row) => names.map((name) => cellOf(row, columns.get(row.closest("table")).get(name))).join(","));
    return { rows: rows.length, text: [names.join(","), ...lines, ""].join("\r\n") };
  };

  const save = (text, file) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob(["\uFEFF", text], { type: "text/csv;charset=utf-8" }));
    link.download = file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  };
  const select = (element) => {
    const range = document.createRange();
    range.selectNodeContents(element);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
  };
  // True once the text is copied; where that is forbidden the element is selected instead.
  const copy = async (text, element) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      if (element) select(element);
      return false;
    }
  };

  // A frame without rights, as a notebook makes it, may neither save nor copy.
  const framed = window !== window.top;
  const makeCsv = (tools, table, say) => {
    const [copies, saves] = ["copy", "save"].map((what) => tools.querySelector(`button[data-csv=${what}]`));
    copies.hidden = framed || !navigator.clipboard;
    saves.hidden = framed;
    copies.addEventListener("click", async () => {
      const { rows, text } = csvOf(table);
      say(await copy(text) ? `Copied ${rows} rows.` : "The browser blocked copying.");
    });
    saves.addEventListener("click", () => {
      const { rows, text } = csvOf(table);
      save(text, saves.dataset.file);
      say(`Saved ${rows} rows.`);
    });
  };

  const filter = (table, keeps) => {
    const rows = allRowsOf(table);
    let shown = 0;
    rows.forEach((row) => {
      row.hidden = !keeps(row);
      const panel = panelOf(row);
      if (panel) panel.hidden = row.hidden || panel.dataset.open === undefined;
      shown += !row.hidden;
    });
    return `${shown} of ${rows.length}`;
  };
  const searched = (row) => `${row.textContent} ${nameOf(row) ?? ""}`.toLowerCase();
  const isOf = (row, category) => category === row.dataset.category || row.dataset.category?.endsWith(`/${category}`);
  const makeFilter = (input, table, say) => {
    const texts = new Map(allRowsOf(table).map((row) => [row, searched(row)]));
    let only = null;
    const apply = () => {
      const wanted = input.value.toLowerCase();
      const found = filter(table, (row) => (only?.keeps(row) ?? true) && texts.get(row).includes(wanted));
      const behind = also.get(table);
      if (behind && wanted && rowsOf(behind).some((row) => !row.hidden)) behind.closest("details").open = true;
      say(only ? `${found} in ${only.words}` : wanted ? found : "");
      every.hidden = !only;
      table.classList.toggle("filtered", Boolean(only || wanted));
    };
    const every = document.createElement("button");
    every.type = "button";
    every.hidden = true;
    every.textContent = "Show all";
    every.addEventListener("click", () => show(null));
    // Returns whether there is any such row; without one all rows stay as they are.
    const show = (one) => {
      if (one && !rowsOf(table).some(one.keeps)) return false;
      only = one;
      input.value = "";
      apply();
      table.dispatchEvent(new Event("chosen"));
      return true;
    };
    input.addEventListener("input", apply);
    input.after(every);
    return show;
  };

  const shows = new Map();
  document.querySelectorAll(".tools").forEach((tools) => {
    const table = document.getElementById(tools.dataset.table);
    const status = tools.querySelector("[role=status]");
    const say = (text) => { status.textContent = text; };
    if (tools.dataset.also) also.set(table, document.getElementById(tools.dataset.also));
    const input = tools.querySelector("input");
    if (input) shows.set(table, makeFilter(input, table, say));
    makeCsv(tools, table, say);
  });
  document.querySelectorAll("table.sortable").forEach(makeSortable);

  // For the script that unfolds rows and follows links.
  traceflops.tables = { allRowsOf, copy, nameOf, panelOf, select, showOnly: (table, one) => shows.get(table)?.(one), isOf };
})();
