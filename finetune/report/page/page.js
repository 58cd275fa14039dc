// Draws the figures; tables that sort, light and dark, the place in the contents, and folded parts in print.
"use strict";
(() => {
  for (const figure of document.querySelectorAll("figure.chart")) {
    const spec = JSON.parse(figure.querySelector("script.spec").textContent);
    report.kinds[figure.dataset.kind](figure, spec);
  }

  const announce = document.getElementById("announce");

  // Tables: numbers by data-value, other cells by their text; what has none comes last either way.
  const valueOf = (cell) => {
    if (!cell) return null;
    const raw = cell.dataset.value ?? cell.textContent.trim();
    if (raw === "" || raw === "–") return null;
    const number = Number(raw.replace(/,/g, "").replace("−", "-"));
    return Number.isNaN(number) ? raw.toLowerCase() : number;
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));

  const sortBy = (table, column, direction) => {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [valueOf(row.cells[column]), row]);
    rows.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return direction * compare(a, b);
    });
    body.append(...rows.map(([, row]) => row));
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      head.setAttribute("aria-sort", "none");
      head.querySelector("button").addEventListener("click", () => {
        const numeric = head.classList.contains("number");
        const now = head.getAttribute("aria-sort");
        const first = numeric ? "descending" : "ascending";
        const other = numeric ? "ascending" : "descending";
        const next = now === first ? other : first;
        heads.forEach((one) => one.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", next);
        sortBy(table, column, next === "ascending" ? 1 : -1);
        announce.textContent = `Sorted by ${head.textContent.trim()}, ${next}`;
      });
    });
  }

  // Light and dark: as the system says, until one says otherwise.
  const root = document.documentElement;
  const button = document.querySelector(".theme");
  const stored = () => {
    try { return localStorage.getItem("finetune-report-theme"); } catch { return null; }
  };
  const keep = (theme) => {
    try { localStorage.setItem("finetune-report-theme", theme); } catch { /* a file of its own */ }
  };
  const show = (theme) => {
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
    button.dataset.state = theme;
  };
  const themes = ["auto", "light", "dark"];
  show(themes.includes(stored()) ? stored() : "auto");
  button.hidden = false;
  button.addEventListener("click", () => {
    const next = themes[(themes.indexOf(button.dataset.state) + 1) % themes.length];
    show(next);
    keep(next);
  });

  // Which part is read is marked in the contents.
  const links = new Map(
    [...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]),
  );
  const seen = new Set();
  const mark = () => {
    const first = [...links.keys()].find((key) => seen.has(key));
    for (const [key, link] of links) {
      if (key === first) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  };
  const observer = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        if (isIntersecting) seen.add(target.id);
        else seen.delete(target.id);
      }
      mark();
    },
    { rootMargin: "-10% 0px -70% 0px" },
  );
  document.querySelectorAll("main > section").forEach((part) => observer.observe(part));

  // Paper cannot be unfolded.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("main details:not([open])")].filter(
      (one) => !one.closest(".chart"),
    );
    folded.forEach((one) => (one.open = true));
  });
  addEventListener("afterprint", () => folded.forEach((one) => (one.open = false)));
})();
