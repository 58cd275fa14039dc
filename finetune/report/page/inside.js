// Figures over the layers of a net: lines or bars with deviations; the table beside has the numbers.
"use strict";
(() => {
  const { make, swatch, whenSized, put, quiet, tipStyle } = report;

  const legend = (figure, spec) => {
    const keys = spec.series.map((one) => make("span", {}, swatch(one.colour, one.dashed), one.name));
    for (const rule of spec.rules ?? []) {
      keys.push(make("span", {}, make("span", { class: "swatch rule" }), `${rule.label} ${shown(spec, rule.y)}`));
    }
    figure.querySelector("figcaption").after(make("div", { class: "key-marks", "aria-hidden": "true" }, ...keys));
  };
  const shown = (spec, value) => (spec.percent ? report.percent(value) : d3.format(".3f")(value).replace("-", "−"));
  const pointsOf = (spec) =>
    spec.series.flatMap((one) => one.points.map(([at, mean, std]) => ({ name: one.name, colour: one.colour, at, mean, std })));
  const title = (spec) => (point) =>
    `${point.name}\n${point.at}: ${shown(spec, point.mean)}${point.std ? ` ± ${shown(spec, point.std)}` : ""}`;
  // Names along the axis, in a short form where the long ones would run into each other.
  const named = (spec, width) => {
    const room = (width - 56) / spec.names.length;
    const fits = d3.max(spec.names, (name) => name.length) * 5.8 + 6 < room;
    return (name) => (fits ? name : spec.short[spec.names.indexOf(name)]);
  };
  const frame = (spec, width) => ({ width, height: 230, marginLeft: 42, marginRight: 10, marginTop: 8, marginBottom: 26, style: quiet });
  const axisY = (range) => [
    Plot.gridY({ ticks: 5, stroke: "var(--line)", strokeOpacity: 1 }),
    Plot.axisY({ tickSize: 0, ticks: 5, tickFormat: report.ticks(range), label: null, fill: "var(--muted)" }),
  ];

  const layers = (figure, spec) => {
    const box = figure.querySelector(".plot");
    const scale = spec.percent ? 100 : 1;
    const points = pointsOf(spec);
    const rules = spec.rules ?? [];
    const [low, high] = d3.extent([...points.flatMap((p) => [p.mean - p.std, p.mean + p.std]), ...rules.map((rule) => rule.y)]);
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    const range = spec.domain ?? [low - room, high + room].map((value) => (value || 0) * scale);
    legend(figure, spec);
    whenSized(box, (width) => {
      // Side by side by a little: bars of equal means would hide each other.
      const gap = Math.min(7, (0.5 * (width - 56)) / spec.names.length / spec.series.length);
      const marks = spec.series.flatMap((one, n) => {
        const own = points.filter((point) => point.name === one.name);
        const place = { x: "at", dx: gap * (n - (spec.series.length - 1) / 2) };
        const y = (point) => point.mean * scale;
        return [
          Plot.lineY(own.filter((point) => point.at !== spec.apart), { ...place, y, stroke: one.colour, strokeWidth: 1.6, strokeDasharray: one.dashed ? "5 3" : undefined }),
          Plot.ruleX(own.filter((point) => point.std), { ...place, y1: (p) => (p.mean - p.std) * scale, y2: (p) => (p.mean + p.std) * scale, stroke: one.colour, strokeWidth: 1.6 }),
          Plot.dot(own, { ...place, y, r: 3.4, stroke: one.colour, strokeWidth: 1.6, fill: one.dashed ? "var(--sheet)" : one.colour }),
        ];
      });
      put(box, Plot.plot({
        ...frame(spec, width), x: { type: "point", domain: spec.names, padding: 0.5 }, y: { domain: range },
        marks: [
          ...axisY(range),
          Plot.axisX({ tickSize: 0, label: null, tickFormat: named(spec, width), fill: "var(--muted)" }),
          ...rules.map((rule) => Plot.ruleY([rule.y * scale], { stroke: "var(--muted)", strokeDasharray: "4 3" })),
          ...marks,
          Plot.tip(points, Plot.pointer({ x: "at", y: (point) => point.mean * scale, title: title(spec), ...tipStyle })),
        ],
      }));
    });
  };

  // Bars of a layer stand together, as wide as seven tenths of its room.
  const shares = (figure, spec) => {
    const box = figure.querySelector(".plot");
    const scale = spec.percent ? 100 : 1;
    const count = spec.series.length;
    const points = pointsOf(spec).map((point) => {
      const from = spec.names.indexOf(point.at) - 0.35 + (0.7 * spec.series.findIndex((one) => one.name === point.name)) / count;
      return { ...point, from, to: from + 0.7 / count };
    });
    const most = d3.max(points, (point) => point.mean + point.std) * scale || 1;
    const middle = (point) => (point.from + point.to) / 2;
    const inset = count > 1 ? 1 : 0;
    legend(figure, spec);
    whenSized(box, (width) => put(box, Plot.plot({
      ...frame(spec, width), x: { domain: [-0.5, spec.names.length - 0.5] }, y: { domain: [0, most * 1.04] },
      marks: [
        ...axisY([0, most]),
        Plot.axisX(d3.range(spec.names.length), { tickSize: 0, label: null, tickFormat: (n) => named(spec, width)(spec.names[n]), fill: "var(--muted)" }),
        Plot.rect(points, { x1: "from", x2: "to", y1: 0, y2: (point) => point.mean * scale, fill: (point) => point.colour, insetLeft: inset, insetRight: inset }),
        Plot.ruleX(points.filter((point) => point.std), { x: middle, y1: (p) => Math.max(0, p.mean - p.std) * scale, y2: (p) => (p.mean + p.std) * scale, stroke: "var(--ink)", strokeWidth: 1.2 }),
        Plot.ruleY([0], { stroke: "var(--strong-line)" }),
        Plot.tip(points, Plot.pointerX({ x: middle, y: (point) => point.mean * scale, title: title(spec), ...tipStyle })),
      ],
    })));
  };

  Object.assign(report.kinds, { layers, shares });
})();
