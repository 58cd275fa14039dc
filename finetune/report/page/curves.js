// Curves of training: hover, zoom, seeds as bands, phases shaded; all by keyboard as well.
"use strict";
(() => {
  const { make, swatch, number, percent, ticks, dataTable, whenSized, put, quiet } = report;

  // Curves of one task share their scale, their cursor and which runs are hidden.
  class Curves {
    constructor(box) {
      this.axis = "step";
      this.domain = null;
      this.hidden = new Set();
      this.focus = null;
      this.charts = [];
      if (box) this.wire(box);
    }

    get at() {
      return this.axis === "epoch" ? 1 : 0;
    }

    wire(box) {
      for (const key of box.querySelectorAll(".key")) {
        key.addEventListener("click", () => {
          const run = key.dataset.run;
          if (!this.hidden.delete(run)) this.hidden.add(run);
          key.setAttribute("aria-pressed", String(!this.hidden.has(run)));
          this.draw();
        });
        const focus = (run) => () => { this.focus = run; this.draw(); };
        key.addEventListener("pointerenter", focus(key.dataset.run));
        key.addEventListener("pointerleave", focus(null));
      }
      const scales = box.querySelectorAll("[data-axis]");
      for (const button of scales) {
        button.addEventListener("click", () => {
          this.axis = button.dataset.axis;
          scales.forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
          this.zoom(null);
        });
      }
      this.reset = box.querySelector(".reset");
      this.reset.addEventListener("click", () => this.zoom(null));
    }

    zoom(domain) {
      this.domain = domain;
      if (this.reset) this.reset.disabled = domain === null;
      this.draw();
    }

    draw() {
      this.charts.forEach((chart) => chart.draw());
    }

    point(x) {
      this.charts.forEach((chart) => chart.point(x));
    }
  }

  class Lines {
    constructor(figure, spec, curves) {
      this.spec = spec;
      this.curves = curves;
      this.box = figure.querySelector(".plot");
      this.readout = make("span", { class: "readout", "aria-live": "off" });
      figure.querySelector("figcaption").append(this.readout);
      this.box.tabIndex = 0;
      this.box.title = "Drag to zoom, double-click to reset; arrow keys move, + and − zoom, Esc resets";
      curves.charts.push(this);
      whenSized(this.box, (width) => { this.width = width; this.draw(); });
      this.listen();
      dataTable(figure, ["step", "epoch", ...this.titles()], () => this.rows());
    }

    titles() {
      return this.spec.series.map((one) => [one.run, one.label].filter(Boolean).join(" "));
    }

    rows() {
      const places = new Map();
      this.spec.series.forEach((one, n) => {
        for (const point of one.points) {
          if (!places.has(point[0])) places.set(point[0], [String(point[0]), point[1]]);
          const value = this.shown(point[2]);
          const band = point.length > 3 ? ` (${this.shown(point[3])} to ${this.shown(point[4])})` : "";
          places.get(point[0])[n + 2] = value + band;
        }
      });
      const width = this.spec.series.length + 2;
      return [...places.values()].sort((a, b) => a[0] - b[0]).map((row) => Array.from({ length: width }, (_, n) => row[n]));
    }

    shown(value) {
      return this.spec.percent ? percent(value) : number(value);
    }

    visible() {
      return this.spec.series.filter((one) => !this.curves.hidden.has(one.run));
    }

    phases() {
      const named = Object.entries(this.spec.phases).find(([run]) => !this.curves.hidden.has(run));
      const side = this.curves.axis === "epoch" ? "epochs" : "steps";
      return named ? named[1].map((one) => ({ begin: one[side][0], end: one[side][1], label: one.label })) : [];
    }

    extent() {
      const { at } = this.curves;
      const [low, high] = d3.extent(this.visible().flatMap((one) => one.points), (point) => point[at]);
      return low === undefined ? [0, 1] : [Math.min(low, 0), high > 0 ? high : low + 1];
    }

    draw() {
      if (!this.width) return;
      const { at } = this.curves;
      const scale = this.spec.percent ? 100 : 1;
      const series = this.visible();
      const domain = this.curves.domain ?? this.extent();
      const inside = (point) => point[at] >= domain[0] && point[at] <= domain[1];
      const near = series.flatMap((one) => one.points.filter(inside));
      const rules = this.spec.rules;
      const heights = (near.length ? near : series.flatMap((one) => one.points))
        .flatMap((point) => point.slice(2)).concat(rules.map((rule) => rule.y)).map((value) => value * scale);
      const range = this.padded(heights);
      const phases = this.phases().filter((one) => one.end > domain[0] && one.begin < domain[1]);
      const marks = [
        ...phases.map((one, n) => Plot.rect([one], {
          x1: Math.max(one.begin, domain[0]), x2: Math.min(one.end, domain[1]),
          fill: "var(--phase)", fillOpacity: n % 2 ? 0.025 : 0.075,
        })),
        Plot.gridY({ ticks: 5, stroke: "var(--line)", strokeOpacity: 1 }),
        Plot.axisY({ tickSize: 0, ticks: 5, tickFormat: ticks(range), label: null, fill: "var(--muted)" }),
        Plot.axisX({ tickSize: 4, stroke: "var(--strong-line)", ticks: Math.max(2, Math.floor(this.width / 80)), tickFormat: ticks(domain), label: this.curves.axis, labelArrow: "none", fill: "var(--muted)" }),
        ...this.labels(phases, domain),
        ...rules.map((rule) => Plot.ruleY([rule.y], { stroke: "var(--muted)", strokeDasharray: "4 3" })),
        ...rules.map((rule) => Plot.text([rule], { y: "y", frameAnchor: "right", textAnchor: "end", dy: -7, text: "label", fill: "var(--muted)", fontSize: 10.5 })),
        ...series.flatMap((one) => this.curve(one, at, scale)),
      ];
      this.plot = put(this.box, Plot.plot({
        width: this.width, height: 210, marginLeft: 46, marginTop: phases.length ? 18 : 8, marginRight: 10, marginBottom: 32,
        x: { domain }, y: { domain: range }, style: quiet, marks,
      }));
      this.overlay();
      this.point(null);
    }

    padded(heights) {
      const [low, high] = d3.extent(heights);
      if (low === undefined) return [0, 1];
      const room = (high - low || Math.abs(high) || 1) * 0.05;
      return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
    }

    labels(phases, domain) {
      const room = (one) => ((Math.min(one.end, domain[1]) - Math.max(one.begin, domain[0])) / (domain[1] - domain[0])) * (this.width - 56);
      const fitting = phases.filter((one) => room(one) > one.label.length * 5.2);
      const middle = (one) => (Math.min(one.end, domain[1]) + Math.max(one.begin, domain[0])) / 2;
      return [Plot.text(fitting, { x: middle, frameAnchor: "top", dy: -11, text: "label", fill: "var(--muted)", fontSize: 10 })];
    }

    curve(one, at, scale) {
      const x = (point) => point[at];
      const clip = this.curves.domain !== null;
      const pale = this.curves.focus !== null && this.curves.focus !== one.run && !this.curves.hidden.has(this.curves.focus);
      const strength = (one.strength ?? 1) * (pale ? 0.15 : 1);
      const style = { clip, stroke: one.colour, strokeWidth: 1.6, strokeOpacity: strength, strokeLinejoin: "round", strokeDasharray: one.dashed ? "5 3" : undefined };
      const marks = [Plot.lineY(one.points, { x, y: (point) => point[2] * scale, ...style })];
      if (one.points[0].length > 3) {
        marks.unshift(Plot.areaY(one.points, { x, y1: (point) => point[3] * scale, y2: (point) => point[4] * scale, fill: one.colour, fillOpacity: pale ? 0.03 : 0.16, clip }));
      }
      if (one.points.length <= 14) {
        marks.push(Plot.dot(one.points, { x, y: (point) => point[2] * scale, fill: one.colour, fillOpacity: strength, r: 2.4, clip }));
      }
      return marks;
    }

    overlay() {
      const top = d3.select(this.plot).append("g");
      this.band = top.append("rect").attr("class", "zoom").attr("y", 0).attr("height", 178).attr("visibility", "hidden");
      this.cursor = top.append("line").attr("class", "cursor").attr("y1", 8).attr("y2", 178).attr("visibility", "hidden");
      this.dots = top.append("g").attr("pointer-events", "none");
    }

    place(event) {
      const box = this.plot.getBoundingClientRect();
      const [low, high] = this.plot.scale("x").range;
      const pixel = ((event.clientX - box.left) * this.width) / box.width;
      return this.plot.scale("x").invert(Math.max(low, Math.min(high, pixel)));
    }

    listen() {
      let from = null;
      const reset = () => { this.curves.zoom(null); };
      this.box.addEventListener("pointermove", (event) => {
        const x = this.place(event);
        this.curves.point(x);
        if (from !== null) this.select(from, x);
      });
      this.box.addEventListener("pointerleave", () => { if (from === null) this.curves.point(null); });
      this.box.addEventListener("pointerdown", (event) => {
        if (event.button || event.pointerType === "touch") return;
        from = this.place(event);
        this.box.setPointerCapture(event.pointerId);
      });
      this.box.addEventListener("pointerup", (event) => {
        if (from === null) return;
        const ends = [from, this.place(event)].sort((a, b) => a - b);
        from = null;
        const apply = this.plot.scale("x").apply;
        if (apply(ends[1]) - apply(ends[0]) > 6) this.curves.zoom(ends);
        else this.band.attr("visibility", "hidden");
      });
      this.box.addEventListener("pointercancel", () => { from = null; this.band.attr("visibility", "hidden"); });
      this.box.addEventListener("dblclick", reset);
      this.box.addEventListener("focus", () => this.readout.setAttribute("aria-live", "polite"));
      this.box.addEventListener("blur", () => { this.readout.setAttribute("aria-live", "off"); this.curves.point(null); });
      this.box.addEventListener("keydown", (event) => this.key(event, reset));
    }

    select(from, to) {
      const [a, b] = [from, to].map(this.plot.scale("x").apply).sort((one, other) => one - other);
      this.band.attr("x", a).attr("width", b - a).attr("visibility", "visible");
    }

    key(event, reset) {
      const { at } = this.curves;
      const domain = this.curves.domain ?? this.extent();
      const grid = (d3.greatest(this.visible(), (one) => one.points.length)?.points ?? []).map((point) => point[at]).filter((x) => x >= domain[0] && x <= domain[1]);
      const index = this.x === null || this.x === undefined ? -1 : d3.bisectCenter(grid, this.x);
      const middle = this.x ?? (domain[0] + domain[1]) / 2;
      const half = (domain[1] - domain[0]) / 4;
      const steps = {
        ArrowRight: () => this.curves.point(grid[Math.min(grid.length - 1, index + 1)]),
        ArrowLeft: () => this.curves.point(grid[Math.max(0, index - 1)]),
        Home: () => this.curves.point(grid[0]),
        End: () => this.curves.point(grid.at(-1)),
        "+": () => this.zoomAround(middle, half),
        "-": () => this.zoomAround(middle, half * 4),
        Escape: reset,
      };
      if (!(event.key in steps)) return;
      event.preventDefault();
      steps[event.key]();
    }

    zoomAround(middle, half) {
      const [low, high] = this.extent();
      const ends = [Math.max(low, middle - half), Math.min(high, middle + half)];
      this.curves.zoom(ends[0] <= low && ends[1] >= high ? null : ends);
      this.curves.point(middle);
    }

    // What every curve is nearest to the cursor, in the line below the title.
    point(x) {
      this.x = x ?? null;
      if (!this.plot) return;
      this.cursor.attr("visibility", x === null || x === undefined ? "hidden" : "visible");
      if (x === null || x === undefined) {
        this.dots.selectAll("*").remove();
        this.readout.replaceChildren();
        return;
      }
      const { at } = this.curves;
      const found = this.visible().map((one) => [one, one.points[d3.bisectCenter(one.points.map((point) => point[at]), x)]]);
      const place = this.plot.scale("x").apply;
      const height = this.plot.scale("y").apply;
      const scale = this.spec.percent ? 100 : 1;
      const nearest = d3.least(found, ([, point]) => Math.abs(point[at] - x))?.[1];
      const shown = nearest ? nearest[at] : x;
      this.cursor.attr("x1", place(shown)).attr("x2", place(shown));
      this.dots.selectAll("circle").data(found).join("circle")
        .attr("r", 3).attr("cx", ([, point]) => place(point[at])).attr("cy", ([, point]) => height(point[2] * scale))
        .style("fill", ([one]) => one.colour).style("stroke", "var(--sheet)");
      const entries = found.map(([one, point]) => make("span", {}, swatch(one.colour, one.dashed), `${[one.run, one.label].filter(Boolean).join(" ")} `, make("b", {}, this.shown(point[2]))));
      this.readout.replaceChildren(make("span", {}, `${this.curves.axis} ${number(shown)}`), ...entries);
    }
  }

  const groups = new Map();
  const curvesOf = (figure) => {
    const box = figure.closest(".curves");
    if (!box) return new Curves(null);
    if (!groups.has(box)) groups.set(box, new Curves(box));
    return groups.get(box);
  };
  report.kinds.lines = (figure, spec) => new Lines(figure, spec, curvesOf(figure));
})();
