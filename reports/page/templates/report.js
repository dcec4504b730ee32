
"use strict";
(() => {
  const root = document.documentElement;

  // Bytes that the page carries, packed, in an element of their own.
  const unpacked = async (id) => {
    const packed = atob(document.getElementById(id).textContent);
    const bytes = Uint8Array.from(packed, (char) => char.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).arrayBuffer();
  };
  window.traceflops = { unpacked };

  // Bokeh reads the colours of its axes from the style sheet only when it paints.
  const repaint = () => {
    const walk = (view) => {
      if (view.request_repaint) view.request_repaint();
      (view.child_views || []).forEach(walk);
    };
    if (window.Bokeh) [...Bokeh.index.roots].forEach(walk);
  };

  const show = (theme) => { root.dataset.theme = theme; repaint(); };

  document.getElementById("theme").addEventListener("click", () => {
    const theme = root.dataset.theme === "dark" ? "light" : "dark";
    show(theme);
    try { localStorage.setItem("traceflops-theme", theme); } catch { /* files may have no storage */ }
  });

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

  // Paper is white and cannot be unfolded.
  let before = null;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    document.querySelectorAll("details").forEach((each) => { each.open = true; });
    show("light");
  });
  addEventListener("afterprint", () => { if (before) show(before); });
})();
