// Draws every section.attn of a page from the JSON inside it. No network, no library.
(function () {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  const ROW = 20; // pixels a token

  function make(parent, name, attributes, text) {
    const svg = parent.namespaceURI === SVG || name === "svg";
    const node = svg ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  }

  const percent = (weight) => (100 * weight).toFixed(weight < 0.1 ? 1 : 0) + " %";

  class AttentionMap {
    constructor(section) {
      this.section = section;
      const data = JSON.parse(section.querySelector("script").textContent);
      this.tokens = data.tokens;
      this.segments = data.segments;
      this.layers = data.layers;
      this.heads = data.heads;
      this.size = data.tokens.length;
      const bytes = atob(data.weights);
      // A byte holds the square root of a weight, so that small ones keep their digits.
      this.values = Float32Array.from(bytes, (one) => (one.charCodeAt(0) / 255) ** 2);
      this.layer = data.layer;
      this.head = data.head;
      this.token = null; // [side, number] that is looked at
      this.pinned = false;
      this.build();
      this.paintGrid();
      this.select(this.layer, this.head);
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
      new MutationObserver(() => this.recolour()).observe(document.documentElement, {
        attributes: true,
        attributeFilter: ["data-theme"],
      });
    }

    // Weights (T, T) of a head; -1 stands for the mean over layers or heads.
    weights(layer, head) {
      const area = this.size * this.size;
      const found = new Float32Array(area);
      let count = 0;
      for (let l = 0; l < this.layers; l++) {
        if (layer >= 0 && l !== layer) continue;
        for (let h = 0; h < this.heads; h++) {
          if (head >= 0 && h !== head) continue;
          const start = (l * this.heads + h) * area;
          for (let i = 0; i < area; i++) found[i] += this.values[start + i];
          count++;
        }
      }
      for (let i = 0; i < area; i++) found[i] /= count;
      return found;
    }

    build() {
      const bar = make(this.section, "div", { class: "attn-bar" });
      this.layerChoice = this.choice(bar, "Layer", this.layers, () => this.chosen());
      this.headChoice = this.choice(bar, "Head", this.heads, () => this.chosen());
      this.readout = make(this.section, "p", { class: "attn-readout", role: "status" });
      const body = make(this.section, "div", { class: "attn-body" });
      const left = make(body, "div", { class: "attn-left" });
      this.buildGrid(this.panel(left, "All heads"));
      this.matrix = this.panel(left, "Row looks at column");
      this.links = this.panel(body, "Who looks (left) at whom (right)");
      this.buildTokens();
      this.buildMatrix();
    }

    panel(body, title) {
      const panel = make(body, "div", { class: "attn-panel" });
      make(panel, "h3", {}, title);
      return panel;
    }

    choice(bar, name, count, changed) {
      const label = make(bar, "label", {}, name + " ");
      const select = make(label, "select");
      make(select, "option", { value: -1 }, "mean");
      for (let i = 0; i < count; i++) make(select, "option", { value: i }, i + 1);
      select.addEventListener("change", changed);
      return select;
    }

    chosen() {
      this.select(Number(this.layerChoice.value), Number(this.headChoice.value));
    }

    buildGrid(panel) {
      const table = make(panel, "table", { class: "attn-grid" });
      const header = make(table, "tr");
      make(header, "td");
      for (let h = 0; h < this.heads; h++) {
        const name = (this.heads > 6 && h ? "" : "head ") + (h + 1); // of many the first says it
        make(header, "th", { scope: "col" }, name);
      }
      const side = Math.max(28, Math.min(96, Math.floor(420 / this.heads)));
      this.cells = [];
      for (let l = 0; l < this.layers; l++) {
        const row = make(table, "tr");
        make(row, "th", { scope: "row" }, "layer " + (l + 1));
        for (let h = 0; h < this.heads; h++) {
          const name = "Layer " + (l + 1) + ", head " + (h + 1);
          const button = make(make(row, "td"), "button", {
            type: "button", "aria-label": name, title: name,
          });
          const style = "width:" + side + "px;height:" + side + "px";
          const canvas = make(button, "canvas", { width: this.size, height: this.size, style });
          button.addEventListener("click", () => this.select(l, h));
          button.addEventListener("keydown", (event) => this.moveHead(event, l, h));
          this.cells.push({ button, canvas, l, h });
        }
      }
    }

    moveHead(event, l, h) {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      if (!(event.key in step)) return;
      event.preventDefault();
      const layer = Math.min(this.layers - 1, Math.max(0, l + step[event.key][0]));
      const head = Math.min(this.heads - 1, Math.max(0, h + step[event.key][1]));
      this.select(layer, head);
      this.cells[layer * this.heads + head].button.focus();
    }

    buildTokens() {
      const longest = Math.max(...this.tokens.map((token) => token.length));
      this.width = Math.min(26, longest) * 8 + 12;
      this.gap = 130;
      const total = 2 * this.width + this.gap;
      const svg = make(this.links, "svg", {
        width: total, height: this.size * ROW + 4, role: "group",
        "aria-label": "Tokens; arrow keys move, Enter keeps one in view, Escape lets it go",
      });
      this.lines = make(svg, "g", { class: "attn-links" });
      this.sides = ["from", "to"].map((side, number) =>
        this.tokens.map((token, place) => this.buildToken(svg, token, place, number))
      );
      svg.addEventListener("mouseleave", () => this.look(null));
    }

    buildToken(svg, token, place, side) {
      const left = side === 0;
      const x = left ? 0 : this.width + this.gap;
      const second = this.segments[place] ? " attn-second" : "";
      const node = make(svg, "g", {
        class: "attn-token" + second, tabindex: place || side ? -1 : 0, role: "button",
      });
      const box = { x: x + 2, y: place * ROW + 2, width: this.width - 4, height: ROW - 2, rx: 4 };
      const mark = make(node, "rect", { ...box, class: "attn-mark", "fill-opacity": 0 });
      const shown = token.length > 26 ? token.slice(0, 25) + "…" : token;
      make(node, "text", {
        x: left ? x + this.width - 8 : x + 8, y: place * ROW + ROW * 0.75,
        "text-anchor": left ? "end" : "start",
      }, shown);
      node.setAttribute("aria-label", token + (left ? ", looks" : ", is looked at"));
      const look = () => this.pinned || this.look([side, place]);
      node.addEventListener("mouseenter", look);
      node.addEventListener("focus", () => this.look([side, place]));
      node.addEventListener("click", () => this.pin(side, place));
      node.addEventListener("keydown", (event) => this.moveToken(event, side, place));
      return { node, mark };
    }

    pin(side, place) {
      const same = this.token && this.token[0] === side && this.token[1] === place;
      this.pinned = !(this.pinned && same);
      this.look([side, place], true);
    }

    moveToken(event, side, place) {
      const last = this.size - 1;
      const target = {
        ArrowUp: [side, Math.max(0, place - 1)], ArrowDown: [side, Math.min(last, place + 1)],
        ArrowLeft: [0, place], ArrowRight: [1, place], Home: [side, 0], End: [side, last],
      }[event.key];
      if (event.key === "Enter" || event.key === " ") this.pin(side, place);
      else if (event.key === "Escape") { this.pinned = false; this.look(null); }
      else if (target) this.sides[target[0]][target[1]].node.focus();
      else return;
      event.preventDefault();
    }

    buildMatrix() {
      const cell = Math.max(5, Math.min(18, Math.floor(520 / this.size)));
      const labels = cell >= 11;
      const longest = Math.max(...this.tokens.map((token) => token.length));
      const margin = labels ? Math.min(16, longest) * 7 + 10 : 4;
      const span = cell * this.size;
      const svg = make(this.matrix, "svg", {
        width: margin + span + 4, height: margin + span + 4, class: "attn-matrix", role: "img",
        "aria-label": "Matrix of attention weights; the token list beside it reads them out",
      });
      this.image = make(svg, "image", {
        x: margin, y: margin, width: span, height: span, style: "image-rendering: pixelated",
        preserveAspectRatio: "none",
      });
      make(svg, "rect", { x: margin, y: margin, width: span, height: span, class: "attn-frame" });
      this.cursor = make(svg, "rect", { class: "attn-cursor", visibility: "hidden" });
      if (labels) this.labelMatrix(svg, margin, cell);
      this.layout = { margin, cell, span };
      svg.addEventListener("mousemove", (event) => this.overMatrix(svg, event));
      svg.addEventListener("mouseleave", () => this.pinned || this.look(null));
    }

    labelMatrix(svg, margin, cell) {
      this.tokens.forEach((token, place) => {
        const shown = token.length > 16 ? token.slice(0, 15) + "…" : token;
        const middle = margin + (place + 0.5) * cell;
        make(svg, "text", { x: margin - 5, y: middle + 4, "text-anchor": "end" }, shown);
        make(svg, "text", {
          transform: "translate(" + (middle + 4) + "," + (margin - 5) + ") rotate(-90)",
        }, shown);
      });
    }

    overMatrix(svg, event) {
      const { margin, cell } = this.layout;
      const box = svg.getBoundingClientRect();
      const column = Math.floor((event.clientX - box.left - margin) / cell);
      const row = Math.floor((event.clientY - box.top - margin) / cell);
      if (row < 0 || column < 0 || row >= this.size || column >= this.size) return;
      if (!this.pinned) this.look([0, row]);
      this.mark(row, column, 1, 1);
      const weight = this.current[row * this.size + column];
      this.say([["", this.tokens[row]], [" gives ", this.tokens[column]], [" " + percent(weight)]]);
    }

    mark(row, column, rows, columns) {
      const { margin, cell } = this.layout;
      const at = {
        x: margin + column * cell, y: margin + row * cell,
        width: columns * cell, height: rows * cell, visibility: "visible",
      };
      for (const [key, value] of Object.entries(at)) this.cursor.setAttribute(key, value);
    }

    select(layer, head) {
      this.layer = layer;
      this.head = head;
      this.current = this.weights(layer, head);
      this.layerChoice.value = layer;
      this.headChoice.value = head;
      for (const { button, l, h } of this.cells) {
        const on = (layer < 0 || l === layer) && (head < 0 || h === head);
        button.setAttribute("aria-pressed", on);
        // One stop for the Tab key; the arrow keys move inside.
        button.tabIndex = l === Math.max(0, layer) && h === Math.max(0, head) ? 0 : -1;
      }
      this.paintMatrix();
      this.look(this.token, true);
    }

    // The colours of the page have changed; those of a canvas do not by themselves.
    recolour() {
      this.paintGrid();
      this.paintMatrix();
    }

    paintGrid() {
      for (const { canvas, l, h } of this.cells) this.fill(canvas, this.weights(l, h));
    }

    paintMatrix() {
      const canvas = document.createElement("canvas");
      canvas.width = canvas.height = this.size;
      this.fill(canvas, this.current);
      this.image.setAttribute("href", canvas.toDataURL());
    }

    fill(canvas, weights) {
      const colour = getComputedStyle(this.section).getPropertyValue("--attn-rgb").split(",");
      const context = canvas.getContext("2d");
      const image = context.createImageData(this.size, this.size);
      weights.forEach((weight, i) => {
        image.data.set([+colour[0], +colour[1], +colour[2], 255 * Math.sqrt(weight)], 4 * i);
      });
      context.putImageData(image, 0, 0);
    }

    // Shows what one token looks at (side 0) or is looked at by (side 1); null shows all.
    look(token, again) {
      const same = String(token) === String(this.token);
      if (same && !again) return;
      if (this.pinned && token === null) return;
      this.token = token;
      this.drawLinks();
      this.cursor.setAttribute("visibility", "hidden");
      if (token === null) {
        this.say([["Point at a token, or go to one with the Tab and arrow keys, to see what it looks at."]]);
        return;
      }
      const [side, place] = token;
      if (side === 0) this.mark(place, 0, 1, this.size);
      else this.mark(0, place, this.size, 1);
      const order = this.tokens.map((_, i) => [this.weightOf(side, place, i), i]);
      order.sort((a, b) => b[0] - a[0]);
      const parts = [["", this.tokens[place]], [side ? " is looked at by" : " looks at"]];
      for (const [weight, i] of order.slice(0, 6)) {
        parts.push([" ", this.tokens[i]], [" " + percent(weight) + ","]);
      }
      parts[parts.length - 1][0] = parts[parts.length - 1][0].slice(0, -1);
      if (this.pinned) parts.push([" (kept in view; Escape lets go)"]);
      this.say(parts);
    }

    weightOf(side, place, other) {
      return this.current[side ? other * this.size + place : place * this.size + other];
    }

    drawLinks() {
      this.lines.replaceChildren();
      const most = [new Float32Array(this.size), new Float32Array(this.size)];
      for (let from = 0; from < this.size; from++) {
        for (let to = 0; to < this.size; to++) {
          const weight = this.current[from * this.size + to];
          const [side, place] = this.token || [0, -1];
          if (this.token && (side ? to : from) !== place) continue;
          if (this.token) most[1 - side][side ? from : to] = weight;
          if (weight < (this.token ? 0.005 : 0.03)) continue;
          make(this.lines, "line", {
            x1: this.width, y1: (from + 0.5) * ROW + 1, x2: this.width + this.gap,
            y2: (to + 0.5) * ROW + 1, "stroke-opacity": Math.min(1, weight * 0.9 + 0.05),
          });
        }
      }
      this.sides.forEach((tokens, side) => tokens.forEach(({ node, mark }, place) => {
        const here = this.token && this.token[0] === side && this.token[1] === place;
        node.classList.toggle("attn-here", Boolean(here));
        mark.setAttribute("fill-opacity", here ? 0.2 : 0.6 * Math.sqrt(most[side][place]));
      }));
    }

    say(parts) {
      this.readout.replaceChildren();
      for (const [text, token] of parts) {
        this.readout.append(text);
        if (token !== undefined) make(this.readout, "b", {}, token);
      }
    }
  }

  document.querySelectorAll("section.attn").forEach((section) => {
    if (section.dataset.drawn) return;
    section.dataset.drawn = "yes";
    new AttentionMap(section);
  });
})();
