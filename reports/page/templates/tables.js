"use strict";
(() => {
  const sortable = (table) => {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];
    const value = (row, column) => {
      const cell = row.cells[column];
      return cell.dataset.value === undefined ? cell.textContent.trim() : Number(cell.dataset.value);
    };
    const sort = (column, sign) => {
      rows.sort((a, b) => {
        const x = value(a, column), y = value(b, column);
        return (x > y ? 1 : x < y ? -1 : 0) * sign;
      });
      body.append(...rows);
    };
    heads.forEach((head, column) => {
      if (head.tagName !== "TH") return;
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const numeric = rows.length && rows[0].cells[column].dataset.value !== undefined;
        const now = head.getAttribute("aria-sort");
        const next = now ? (now === "descending" ? "ascending" : "descending")
                         : (numeric ? "descending" : "ascending");
        heads.forEach((each) => each.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", next);
        sort(column, next === "ascending" ? 1 : -1);
      });
    });
    return rows;
  };

  const table = document.getElementById("kernel-table");
  if (table) {
    const rows = sortable(table);
    const found = document.getElementById("kernel-found");
    document.getElementById("kernel-filter").addEventListener("input", (event) => {
      const wanted = event.target.value.toLowerCase();
      let shown = 0;
      rows.forEach((row) => {
        const text = `${row.textContent} ${row.querySelector("[title]")?.title ?? ""}`.toLowerCase();
        row.hidden = !text.includes(wanted);
        shown += !row.hidden;
      });
      found.textContent = wanted ? `${shown} of ${rows.length}` : "";
    });
  }
})();
