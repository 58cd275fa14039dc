// Plots: each figure holds what it shows as JSON; here it is drawn, with a table of its data.
"use strict";
const report = (() => {
  const quiet = { fontFamily: "inherit", overflow: "visible" };
  const tipStyle = { fill: "var(--sheet)", stroke: "var(--strong-line)", fontSize: 11.5, lineHeight: 1.35 };

  const number = (value) => {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size >= 1000) return d3.format(",.0f")(value);
    if (size > 0 && size < 0.001) return d3.format(".2~e")(value);
    return d3.format(".4~g")(value);
  };
  const percent = (value) => d3.format(".2f")(100 * value).replace("-", "−");
  // Ticks of one axis all in one form: thousands as k, very small ones with an exponent.
  const ticks = ([low, high]) => {
    const size = Math.max(Math.abs(low), Math.abs(high));
    if (size >= 10000) return d3.format("~s");
    if (size > 0 && size < 0.005) return (value) => (value === 0 ? "0" : d3.format("~e")(+value.toPrecision(6)));
    return (value) => d3.format(",~r")(+value.toPrecision(6));
  };

  const make = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };
  const swatch = (colour, hollow = false) => {
    const dot = make("span", { class: hollow ? "swatch hollow" : "swatch", "aria-hidden": "true" });
    dot.style.setProperty("--colour", colour);
    return dot;
  };

  // A table of what a plot shows, made when it is opened.
  const dataTable = (figure, columns, rows) => {
    const fold = make("details", {}, make("summary", {}, "Data as a table"));
    fold.addEventListener("toggle", () => {
      if (!fold.open || fold.children.length > 1) return;
      const title = figure.querySelector(".figure-title").textContent;
      const head = make("tr", {}, ...columns.map((name) => make("th", { scope: "col", class: "number" }, name)));
      const body = rows().map((cells) =>
        make("tr", {}, ...cells.map((cell, n) =>
          make(n ? "td" : "th", n ? { class: "number" } : { scope: "row", class: "number" },
            typeof cell === "number" ? number(cell) : cell ?? "–"))));
      const table = make("table", { class: "data" }, make("caption", {}, title), make("thead", {}, head), make("tbody", {}, ...body));
      fold.append(make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, table));
    });
    figure.append(fold);
  };

  const put = (box, plot) => {
    plot.setAttribute("aria-hidden", "true");
    box.replaceChildren(plot);
    return plot;
  };

  // Draw at the width there is, and again when that changes.
  const whenSized = (box, draw) => {
    let width = 0;
    new ResizeObserver(() => {
      const now = Math.floor(box.clientWidth);
      if (now > 0 && now !== width) draw((width = now));
    }).observe(box);
  };

  // The place for names beside a plot: as wide as they are, up to a limit; longer ones lose their middle.
  const gutter = (box, names, most) => {
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = `12px ${getComputedStyle(box).fontFamily}`;
    const wide = (name) => pen.measureText(name).width;
    const marginLeft = Math.min(most, 16 + d3.max(names, wide));
    const shortened = (name) => {
      let kept = name.length;
      let text = name;
      while (kept > 2 && wide(text) > marginLeft - 12) {
        kept -= 1;
        text = `${name.slice(0, Math.ceil(kept / 2))}…${name.slice(name.length - Math.floor(kept / 2))}`;
      }
      return text;
    };
    const axis = Plot.axisY({ tickSize: 0, label: null, fontSize: 12, fill: "var(--ink)", tickFormat: shortened });
    return { marginLeft, axis };
  };

  // Headline metrics: a row a task with its runs above one another; many runs have a row each.
  const dots = (figure, spec) => {
    const box = figure.querySelector(".plot");
    const most = d3.max(spec.rows, (row) => row.runs.length);
    const each = most > 3;
    const runs = spec.rows.flatMap((row) => row.runs.map((run, n) => ({ ...run, task: row.task, metric: row.metric, row: each ? run.name : row.task, slot: each ? 0 : n - (row.runs.length - 1) / 2 })));
    const labels = [...new Set(runs.map((run) => run.row))];
    const gap = 11;
    const height = each ? 22 : most * gap + 20;
    const low = Math.min(0, d3.min(runs.flatMap((run) => run.values)) * 100);
    const title = (run) => run.model ? `${run.model}, published\n${percent(run.value)} (${run.split})` : `${run.name}\n${run.task}, ${run.metric}\n${percent(run.mean)}${run.std === null ? "" : ` ± ${percent(run.std)} over ${run.values.length} seeds`}`;
    const anchors = spec.rows.flatMap((row) => row.anchors.map((one) => ({ ...one, row: each ? row.runs[0].name : row.task })));
    const constant = spec.rows.filter((row) => row.constant !== null).flatMap((row) => (each ? row.runs.map((run) => run.name) : [row.task]).map((name) => ({ row: name, value: row.constant })));
    const elementary = spec.rows.filter((row) => row.elementary).flatMap((row) => (each ? row.runs.map((run) => run.name) : [row.task]).map((name) => ({ row: name, ...row.elementary })));
    const breaks = each ? spec.rows.slice(1).map((row) => row.runs[0].name) : labels.slice(1);
    whenSized(box, (width) => {
      const names = gutter(box, labels, width / 2.5);
      put(box, Plot.plot({
        width, height: labels.length * height + 36, marginLeft: names.marginLeft, marginRight: 14, marginBottom: 30, marginTop: 4, style: quiet,
        x: { domain: [low, 100] }, y: { domain: labels, padding: 0 },
        marks: [
          Plot.gridX({ ticks: 6, stroke: "var(--line)", strokeOpacity: 1 }),
          Plot.axisX({ ticks: 6, tickSize: 0, label: null, fill: "var(--muted)" }),
          names.axis,
          Plot.ruleY(breaks, { y: (name) => name, dy: -height / 2, stroke: "var(--line)" }),
          Plot.tickX(constant, { x: (one) => one.value * 100, y: "row", stroke: "var(--muted)", strokeWidth: 1.5, insetTop: each ? 0 : 7, insetBottom: each ? 0 : 7 }),
          Plot.tickX(elementary, { x: (one) => one.value * 100, y: "row", stroke: "var(--ink)", strokeWidth: 1.5, strokeDasharray: "3,2", insetTop: each ? 0 : 7, insetBottom: each ? 0 : 7, title: (one) => `${one.name}: ${percent(one.value)}` }),
          Plot.dot(anchors, { x: (one) => one.value * 100, y: "row", symbol: "diamond", r: 4.5, stroke: "var(--muted)", fill: "var(--sheet)" }),
          ...d3.groups(runs, (run) => run.slot).flatMap(([slot, group]) => [
            Plot.dot(group.flatMap((run) => run.values.map((value) => ({ ...run, value }))), { x: (run) => run.value * 100, y: "row", dy: slot * gap, r: 1.8, fill: (run) => run.colour, fillOpacity: 0.65 }),
            Plot.ruleY(group.filter((run) => run.std !== null), { x1: (run) => (run.mean - run.std) * 100, x2: (run) => (run.mean + run.std) * 100, y: "row", dy: slot * gap, stroke: (run) => run.colour, strokeWidth: 2 }),
            Plot.dot(group, { x: (run) => run.mean * 100, y: "row", dy: slot * gap, r: 4.5, stroke: (run) => run.colour, strokeWidth: 1.8, fill: (run) => (run.hollow ? "var(--sheet)" : run.colour) }),
          ]),
          Plot.tip([...runs, ...anchors], Plot.pointer({ x: (one) => (one.model ? one.value : one.mean) * 100, y: "row", title, ...tipStyle })),
        ],
      }));
    });
    dataTable(figure, ["run", "task", "metric", "mean", "sd", "each seed"], () =>
      runs.map((run) => [run.name, run.task, run.metric, percent(run.mean), run.std === null ? null : percent(run.std), run.values.map(percent).join(", ")]));
  };

  const forest = (figure, spec) => {
    const box = figure.querySelector(".plot");
    const colours = { better: "var(--good)", worse: "var(--bad)" };
    const colour = (row) => colours[row.outcome] ?? "var(--baseline)";
    const title = (row) => `${row.label} less ${row.baseline}\n${row.metric}: ${row.words}\n95 % interval ${d3.format("+.2f")(row.low)} to ${d3.format("+.2f")(row.high)}`;
    // A pair of seeds without agreement may have an interval that dwarfs all others.
    const reach = d3.quantile(spec.rows.flatMap((row) => [Math.abs(row.low), Math.abs(row.high)]).sort(d3.ascending), 0.75) * 4;
    const [least, most] = d3.extent(spec.rows.flatMap((row) => [row.low, row.high, row.value, 0]));
    const clamp = (value) => Math.max(-reach, Math.min(reach, value));
    whenSized(box, (width) => {
      const names = gutter(box, spec.rows.map((row) => row.label), width / 3);
      put(box, Plot.plot({
        width, height: spec.rows.length * 26 + 44, marginLeft: names.marginLeft, marginRight: 16, marginBottom: 30, marginTop: 4, style: quiet,
        x: { domain: [clamp(least), clamp(most)], nice: true, clamp: true }, y: { domain: spec.rows.map((row) => row.label) },
        marks: [
          Plot.gridX({ stroke: "var(--line)", strokeOpacity: 1 }),
          Plot.axisX({ tickSize: 0, label: null, fill: "var(--muted)", tickFormat: (value) => (value === 0 ? "0" : d3.format("+~r")(value).replace("-", "−")) }),
          names.axis,
          Plot.ruleX([0], { stroke: "var(--muted)", strokeWidth: 1.2 }),
          Plot.ruleY(spec.rows, { y: "label", x1: "low", x2: "high", stroke: colour, strokeWidth: 2.5, strokeLinecap: "round" }),
          Plot.text(spec.rows.filter((row) => row.high > reach), { y: "label", frameAnchor: "right", text: () => "▸", dx: 12, fill: colour }),
          Plot.text(spec.rows.filter((row) => row.low < -reach), { y: "label", frameAnchor: "left", text: () => "◂", dx: -4, fill: colour }),
          Plot.dot(spec.rows, { y: "label", x: "value", fill: colour, stroke: "var(--sheet)", r: 5, title, tip: tipStyle }),
        ],
      }));
    });
    dataTable(figure, ["run", "baseline", "metric", "difference", "low", "high", "verdict"], () =>
      spec.rows.map((row) => [row.label, row.baseline, row.metric, row.value, row.low, row.high, row.outcome]));
  };

  // Predicted numbers against the gold ones, both on the same scale.
  const scatter = (figure, spec) => {
    const box = figure.querySelector(".plot");
    const [low, high] = d3.extent(spec.points.flatMap((point) => [point.gold, point.predicted]));
    const domain = low === high ? [low - 1, high + 1] : [low, high];
    const title = (point) => `${point.id}\ngold ${number(point.gold)}\npredicted ${number(point.predicted)}`;
    whenSized(box, (width) => {
      const size = Math.min(width, 420);
      put(box, Plot.plot({
        width: size, height: size, marginLeft: 48, marginBottom: 40, marginTop: 20, marginRight: 16, style: quiet,
        x: { domain, nice: true }, y: { domain, nice: true },
        marks: [
          Plot.gridX({ ticks: 6, stroke: "var(--line)", strokeOpacity: 1 }),
          Plot.gridY({ ticks: 6, stroke: "var(--line)", strokeOpacity: 1 }),
          Plot.axisX({ ticks: 6, tickSize: 0, label: "gold", labelAnchor: "right", labelArrow: "none", fill: "var(--muted)", tickFormat: ticks(domain) }),
          Plot.axisY({ ticks: 6, tickSize: 0, label: "predicted", labelArrow: "none", fill: "var(--muted)", tickFormat: ticks(domain) }),
          Plot.line([[domain[0], domain[0]], [domain[1], domain[1]]], { stroke: "var(--muted)", strokeWidth: 1.2 }),
          Plot.dot(spec.points, { x: "gold", y: "predicted", r: 2.5, fill: spec.colour, fillOpacity: 0.6 }),
          Plot.tip(spec.points, Plot.pointer({ x: "gold", y: "predicted", title, ...tipStyle })),
        ],
      }));
    });
    dataTable(figure, ["example", "gold", "predicted"], () =>
      spec.points.map((point) => [point.id, point.gold, point.predicted]));
  };

  // Fractions of right answers against confidence or coverage, a line a run.
  const trust = (figure, spec) => {
    const box = figure.querySelector(".plot");
    const points = spec.series.flatMap((one) => one.points.map(([x, y, answers]) => ({ ...one, x: 100 * x, y: 100 * y, answers })));
    const low = spec.diagonal ? 0 : Math.min(90, Math.floor(d3.min(points, (point) => point.y) / 10) * 10);
    const most = d3.max(points, (point) => point.answers);
    const size = (point) => (spec.diagonal ? 2 + 4 * Math.sqrt(point.answers / most) : 0);
    const title = (point) => `${point.run}\n${spec.x} ${d3.format(".1f")(point.x)} %\n${spec.y} ${d3.format(".1f")(point.y)} %\n${number(point.answers)} answers`;
    const axis = { ticks: 6, tickSize: 0, labelArrow: "none", fill: "var(--muted)", tickFormat: (value) => `${value}` };
    whenSized(box, (width) => put(box, Plot.plot({
      width, height: 260, marginLeft: 40, marginBottom: 40, marginTop: 20, marginRight: 16, style: quiet,
      x: { domain: [0, 100] }, y: { domain: [low, 100] }, r: { type: "identity" },
      marks: [
        Plot.gridX({ ticks: 6, stroke: "var(--line)", strokeOpacity: 1 }),
        Plot.gridY({ ticks: 6, stroke: "var(--line)", strokeOpacity: 1 }),
        Plot.axisX({ ...axis, label: `${spec.x}, percent`, labelAnchor: "right" }),
        Plot.axisY({ ...axis, label: `${spec.y}, percent` }),
        ...(spec.diagonal ? [Plot.line([[0, 0], [100, 100]], { stroke: "var(--muted)", strokeWidth: 1.2 })] : []),
        ...spec.series.map((one) => Plot.line(points.filter((point) => point.run === one.run), { x: "x", y: "y", stroke: one.colour, strokeWidth: 1.6, strokeDasharray: one.hollow ? "4 3" : null })),
        Plot.dot(points, { x: "x", y: "y", r: size, fill: (point) => point.colour, fillOpacity: 0.7 }),
        Plot.tip(points, Plot.pointer({ x: "x", y: "y", title, ...tipStyle })),
      ],
    })));
    dataTable(figure, ["run", `${spec.x} (%)`, `${spec.y} (%)`, "answers"], () =>
      points.map((point) => [point.run, point.x, point.y, point.answers]));
  };

  const stack = (figure, spec) => {
    const box = figure.querySelector(".plot");
    const parts = [...new Set(spec.rows.map((row) => row.part))];
    const sums = d3.rollup(spec.rows, (rows) => d3.sum(rows, (row) => row.value), (row) => row.measure);
    const share = (row) => row.value / (sums.get(row.measure) || 1);
    const colour = (row) => `var(--c${parts.indexOf(row.part) + 1})`;
    const legend = make("div", { class: "key-marks", "aria-hidden": "true" }, ...parts.map((part, n) => make("span", {}, swatch(`var(--c${n + 1})`), part)));
    figure.querySelector("figcaption").after(legend);
    whenSized(box, (width) => put(box, Plot.plot({
      width, height: 96, marginLeft: 80, marginRight: 10, marginTop: 2, marginBottom: 24, style: quiet,
      x: { percent: true }, y: { domain: ["parameters", "operations"] },
      marks: [
        Plot.axisX({ tickSize: 0, label: null, ticks: 5, tickFormat: (value) => `${value} %`, fill: "var(--muted)" }),
        Plot.axisY({ tickSize: 0, label: null, fontSize: 12, fill: "var(--ink)" }),
        Plot.barX(spec.rows, Plot.stackX({ x: share, y: "measure", fill: colour, insetLeft: 0.5, insetRight: 0.5, title: (row) => `${row.part}\n${number(row.value)}, ${d3.format(".1%")(share(row))}`, tip: tipStyle })),
      ],
    })));
  };

  const phases = (figure, spec) => {
    const box = figure.querySelector(".plot");
    const last = d3.max(spec.cells, (cell) => cell.end ?? cell.begin) || 1;
    const cells = spec.cells.map((cell) => ({ ...cell, end: cell.end ?? last, peak: cell.peak ?? null }));
    const [least, most] = d3.extent(cells, (cell) => cell.peak);
    const opacity = (cell) => cell.peak === null || least === most ? 0.8 : 0.3 + 0.65 * (Math.log(cell.peak / least) / Math.log(most / least) || 0);
    whenSized(box, (width) => put(box, Plot.plot({
      width, height: spec.groups.length * 24 + 40, marginLeft: 92, marginRight: 14, marginTop: 4, style: quiet,
      x: { domain: [0, last] }, y: { domain: spec.groups, padding: 0.14 }, opacity: { type: "identity" },
      marks: [
        Plot.axisX({ tickSize: 4, stroke: "var(--strong-line)", label: "epoch", labelArrow: "none", fill: "var(--muted)" }),
        Plot.axisY({ tickSize: 0, label: null, fontSize: 12, fill: "var(--ink)" }),
        Plot.barX(cells, { x1: "begin", x2: "end", y: "group", fill: spec.colour, fillOpacity: opacity, insetLeft: 0.75, insetRight: 0.75, rx: 2, title: (cell) => `${cell.group}\nphase ${cell.phase}, epochs ${number(cell.begin)} to ${number(cell.end)}\npeak rate ${number(cell.peak)}`, tip: tipStyle }),
      ],
    })));
  };

  return { make, swatch, number, percent, ticks, dataTable, whenSized, put, quiet, tipStyle, kinds: { dots, forest, scatter, trust, stack, phases } };
})();
