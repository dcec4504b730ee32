
"use strict";
(() => {
  const root = document.documentElement;

  // Bytes that the page carries, packed, in an element of their own.
  const unpacked = async (id) => {
    const packed = atob(document.getElementById(id).textContent), bytes = new Uint8Array(packed.length);
    for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).arrayBuffer();
  };
  window.traceflops = { unpacked };

  const show = (theme) => { root.dataset.theme = theme; };

  document.getElementById("theme").addEventListener("click", () => {
    const theme = root.dataset.theme === "dark" ? "light" : "dark";
    show(theme);
    try { localStorage.setItem("traceflops-theme", theme); } catch { /* files may have no storage */ }
  });

  // Links to rows and places: #kernel=, #step=, #gap= ... Who follows links is given each of them and
  // returns true if it leads somewhere. What nobody finds is said at the top of what is seen.
  const KINDS = new Map(Object.entries({ kernel: "kernel", op: "operator", category: "category", step: "step", rank: "rank", tree: "box", gap: "gap", t: "time range", view: "time range" }));
  const SHOWN = 80;
  const followers = [], waiting = new Set();
  const missed = document.getElementById("missed");
  let found = false;

  const decoded = (text) => { try { return decodeURIComponent(text); } catch { return text; } };
  const target = () => location.hash.slice(1);
  const isThere = (link) => Boolean(document.getElementById(link) ?? document.getElementById(decoded(link)));
  const whatIsMissed = (link) => {
    const at = link.indexOf("="), kind = KINDS.get(link.slice(0, Math.max(at, 0)));
    const name = decoded(kind ? link.slice(at + 1) : link);
    const shown = name.length > SHOWN ? `${name.slice(0, SHOWN)}…` : name;
    if (kind === KINDS.get("t")) return `Time range “${shown}” is not in this recording; the link may belong to another report.`;
    return `No ${kind ?? "section"} “${shown}” on this page; the link may belong to another report.`;
  };
  const say = (text) => {
    missed.replaceChildren();
    if (!text) return;
    const words = document.createElement("span"), close = document.createElement("button");
    words.textContent = text;
    close.type = "button";
    close.textContent = "×";
    close.setAttribute("aria-label", "Dismiss");
    close.addEventListener("click", () => missed.replaceChildren());
    missed.append(words, close);
  };
  const judge = () => {
    const link = target();
    say(!link || found || waiting.size || isThere(link) ? "" : whatIsMissed(link));
  };
  // What is folded away opens for a link into it.
  const unfold = (link) => {
    const place = document.getElementById(link) ?? document.getElementById(decoded(link));
    let opened = false;
    for (let each = place?.closest("details"); each; each = each.parentElement.closest("details")) {
      opened ||= !each.open;
      each.open = true;
    }
    if (opened) place.scrollIntoView();
  };
  const follow = () => {
    unfold(target());
    found = followers.map((one) => one(target())).includes(true);
    judge();
  };
  // Someone who can follow links only later is waited for.
  Object.assign(window.traceflops, {
    decoded,
    waitFor: (who) => waiting.add(who),
    follows: (one, who = "") => {
      followers.push(one);
      waiting.delete(who);
      if (target()) found = one(target()) || found;
      judge();
    },
    gone: (who) => { waiting.delete(who); judge(); },
  });
  addEventListener("hashchange", follow);
  // A page in a frame without an address of its own takes links for places in the page around it.
  const hasNoAddress = location.protocol === "about:";
  for (const name of ["click", "auxclick"]) {
    document.addEventListener(name, (event) => {
      const link = event.target.closest?.("a[href^='#']");
      if (!link) return;
      // Following the link that is in the address bar already is no change of it.
      const again = link.hash === location.hash;
      if (hasNoAddress) {
        event.preventDefault();
        if (again) (document.getElementById(target()) ?? document.getElementById(decoded(target())))?.scrollIntoView();
        else location.hash = link.hash;
      }
      if (again) follow();
    });
  }
  addEventListener("DOMContentLoaded", () => { unfold(target()); judge(); });

  // The entry of the navigation that leads to what is seen.
  const entries = [...document.querySelectorAll("nav [data-sections]")];
  const places = entries.flatMap((entry) => entry.dataset.sections.split(" ").map((id) => [document.getElementById(id), entry]));
  const mark = () => {
    const above = places.filter(([place]) => place && place.getBoundingClientRect().top < innerHeight / 3);
    const current = (above.at(-1) ?? places[0])?.[1];
    for (const entry of entries) entry.toggleAttribute("aria-current", entry === current);
    current?.setAttribute("aria-current", "true");
  };
  let asked = 0;
  addEventListener("scroll", () => { asked ||= requestAnimationFrame(() => { asked = 0; mark(); }); }, { passive: true });
  addEventListener("DOMContentLoaded", mark);

  // Paper is white.
  let before = null;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    show("light");
  });
  addEventListener("afterprint", () => { if (before) show(before); });
})();
