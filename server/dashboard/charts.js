/* SPDX-License-Identifier: Apache-2.0 */
/* charts.js - the last minutes of serving as two charts on one time axis.
 *
 * The server keeps the seconds (a quarter of an hour of them), this page only asks for those it
 * has not seen; so a page that was just opened shows what a page that was always open shows.
 * Bars of single seconds jump with the arrival of requests, so the line is a mean over five.
 *
 * A swap is a mark with a shape of its own as well as a colour. The line under the title says in
 * words what the pointer or the arrow keys are on; that line is the charts' text alternative.
 */
"use strict";

const KEPT_SECONDS = 900;
const MARK_KINDS = {
  active: "up",
  restored: "same",
  rolled_back: "down",
  disabled: "down",
  retired: "down"
};
const MARK_WORDS = {
  active: "published",
  restored: "restored",
  rolled_back: "rolled back",
  disabled: "disabled",
  retired: "taken out"
};

const series = {
  seconds: new Map(), /* unix second -> one value of each series */
  to: 0,

  clear() {
    this.seconds.clear();
    this.to = 0;
  },

  /* How many seconds to ask for. */
  wanted(now) {
    return this.to ? Math.min(KEPT_SECONDS, Math.max(3, Math.ceil(now - this.to) + 3)) :
                     KEPT_SECONDS;
  },

  add(h) {
    if (!h || !h.generated) return;
    const n = h.generated.length;
    for (let i = 0; i < n; i++)
      this.seconds.set(h.to - n + 1 + i, {
        generated: h.generated[i],
        prompt: h.prompt[i],
        running: h.running[i],
        p50: h.gap_p50_ms[i],
        p99: h.gap_p99_ms[i]
      });
    this.to = h.to;
    for (const at of this.seconds.keys())
      if (at <= this.to - KEPT_SECONDS) this.seconds.delete(at);
  },

  /* Mean of the tokens of the five seconds that end with `at`; null before the server was there. */
  rate(at) {
    let sum = 0, n = 0;
    for (let t = at - 4; t <= at; t++) {
      const s = this.seconds.get(t);
      if (s) sum += s.generated, n++;
    }
    return n && this.seconds.has(at) ? sum / n : null;
  },
};

const charts = {
  window: 300,
  marks: [],
  cursor: null,

  /* ---- geometry ------------------------------------------------------------------------------ */

  left: 46,
  right: 10,

  x(at) { return this.left + (at - (series.to - this.window)) / this.window * this.plot; },

  at(x) {
    const t = Math.round((x - this.left) / this.plot * this.window) + series.to - this.window;
    return Math.min(series.to, Math.max(series.to - this.window + 1, t));
  },

  /* A round number at or above v. */
  round(v) {
    const p = 10 ** Math.floor(Math.log10(v));
    return [1, 2, 3, 4, 6, 8, 10].find((m) => m * p >= v * 0.9999) * p;
  },

  /* ---- drawing ------------------------------------------------------------------------------- */

  path(points, y) {
    let d = "", pen = "M";
    for (const [at, v] of points) {
      if (v === null) {
        pen = "M";
        continue;
      }
      d += pen + this.x(at).toFixed(1) + " " + y(v).toFixed(1);
      pen = "L";
    }
    return d;
  },

  /* Grid, labels and the empty frame of one chart; returns y(value). */
  frame(root, height, top, bottom, most, lines) {
    root.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    root.replaceChildren();
    const y = (v) => height - bottom - Math.min(v, most) / most * (height - top - bottom);
    for (let i = 0; i <= lines; i++) {
      const v = most * i / lines;
      root.append(svg(
        "line", {class: "grid", x1: this.left, x2: this.width - this.right, y1: y(v), y2: y(v)}));
      const label = svg("text", {x: this.left - 8, y: y(v) + 4, "text-anchor": "end"});
      label.textContent = String(Number(digits(v)));
      root.append(label);
    }
    return y;
  },

  timeLabels(root, y) {
    const wide = this.plot > 420 ? 1 : 2;
    const step = wide * (this.window <= 120 ? 30 : this.window <= 300 ? 60 : 180);
    for (let back = 0; back <= this.window; back += step) {
      const end = back === 0;
      const label = svg("text", {
        x: end ? this.width - this.right : this.x(series.to - back),
        y,
        "text-anchor": end     ? "end" :
          back === this.window ? "start" :
                                 "middle"
      });
      label.textContent = end ? "now" : "\u2212" + (step < 60 ? back + " s" : back / 60 + " min");
      root.append(label);
    }
  },

  flag(kind, x, y) {
    const d = {
      up: `M${x - 5} ${y + 4}h10l-5 -9z`,
      down: `M${x - 5} ${y - 4}h10l-5 9z`,
      same: `M${x} ${y - 5}l5 5l-5 5l-5 -5z`
    }[kind];
    return svg("path", {class: "flag " + kind, d});
  },

  drawMarks(root, height, withFlags) {
    for (const m of this.marks) {
      if (m.at <= series.to - this.window || m.at > series.to + 1) continue;
      const kind = MARK_KINDS[m.event], x = Math.min(this.x(m.at), this.width - this.right);
      root.append(svg("line", {class: "mark " + kind, x1: x, x2: x, y1: 14, y2: height - 20}));
      if (withFlags) root.append(this.flag(kind, x, 8));
    }
  },

  drawCursor(root, height) {
    if (this.cursor === null) return;
    const x = this.x(this.cursor);
    root.append(svg("line", {class: "cursor", x1: x, x2: x, y1: 14, y2: height - 20}));
  },

  drawRate(times) {
    const root = byId("rate"), height = 210;
    const points = times.map((at) => [at, series.rate(at)]);
    const most = this.round(Math.max(4, ...points.map(([, v]) => v || 0)) * 1.08);
    const thirds = /^0?\.?[36]/.test(String(most)); /* so that the labels are round too */
    const y = this.frame(root, height, 18, 20, most, thirds ? 3 : 4);
    const line = this.path(points, y);
    const known = points.filter(([, v]) => v !== null);
    if (known.length > 1) {
      const close = `L${this.x(known[known.length - 1][0]).toFixed(1)} ${y(0)}L${
        this.x(known[0][0]).toFixed(1)} ${y(0)}Z`;
      root.append(svg("path", {class: "area", d: line + close}));
    }
    this.drawMarks(root, height, true);
    root.append(svg("path", {class: "rate", d: line}));
    this.drawCursor(root, height);
    this.timeLabels(root, height - 4);
    root.setAttribute("aria-label", "Tokens per second. " + this.summary(times));
  },

  /* One stalled second must not flatten the rest: the scale is made for nineteen of twenty. */
  drawGaps(times) {
    const root = byId("gaps"), height = 96;
    const value = (at, which) => (series.seconds.get(at) || {})[which] || null;
    const tails = times.map((at) => value(at, "p99")).filter(Boolean).sort((a, b) => a - b);
    const most = this.round(Math.max(1, tails[Math.floor(tails.length * 0.95)] || 1) * 1.1);
    const y = this.frame(root, height, 10, 20, most, 2);
    this.drawMarks(root, height, false);
    root.append(
      svg("path", {class: "tail", d: this.path(times.map((at) => [at, value(at, "p99")]), y)}));
    root.append(
      svg("path", {class: "median", d: this.path(times.map((at) => [at, value(at, "p50")]), y)}));
    this.drawCursor(root, height);
    this.timeLabels(root, height - 4);
    root.setAttribute(
      "aria-label",
      tails.length ? `Latency between two tokens, 99th percentile of a second: ${
                       digits(tails[0])} to ${digits(tails[tails.length - 1])} ms` :
                     "Latency between two tokens: no tokens in this window");
  },

  draw() {
    this.width = Math.max(280, byId("chart").clientWidth);
    this.plot = this.width - this.left - this.right;
    const times = [];
    for (let at = series.to - this.window + 1; at <= series.to; at++) times.push(at);
    this.drawRate(times);
    this.drawGaps(times);
    this.say(times);
  },

  /* ---- words --------------------------------------------------------------------------------- */

  summary(times) {
    const known = times.map((at) => series.seconds.get(at)).filter(Boolean);
    const tokens = known.reduce((sum, s) => sum + s.generated, 0);
    const swaps = this.marks.filter((m) => m.at > series.to - this.window).length;
    if (!tokens) return "No tokens in this window" + (swaps ? `, ${swaps} swaps.` : ".");
    const busy = known.filter((s) => s.generated > 0).length;
    return `${count(tokens)} tokens in ${times.length / 60} min, ${
             digits(tokens / busy)} a busy second, ` +
      `${swaps} ${swaps === 1 ? "swap" : "swaps"}.`;
  },

  say(times) {
    const out = byId("readout"), s = series.seconds.get(this.cursor);
    if (this.cursor === null || !s) {
      setText(out, this.summary(times));
      return;
    }
    const near = this.marks.filter((m) => Math.abs(m.at - this.cursor) <= this.window / 120);
    out.replaceChildren(
      clock(this.cursor) + "  ", el("b", {text: digits(series.rate(this.cursor)) + " tok/s"}),
      `, ${s.running} running` +
        (s.p50 ? `, ${digits(s.p50)} ms median, ${digits(s.p99)} ms p99` : ""));
    for (const m of near)
      out.append(
        "  ", el("b", {text: `${m.slot || ""} ${MARK_WORDS[m.event]}`}), " " + (m.text || ""));
  },

  /* ---- the pointer and the keyboard ---------------------------------------------------------- */

  moveTo(at) {
    this.cursor = at;
    this.draw();
  },

  open() {
    const box = byId("chart");
    box.addEventListener("pointermove", (e) => {
      if (series.to) this.moveTo(this.at(e.clientX - box.getBoundingClientRect().left));
    });
    box.addEventListener("pointerleave", () => this.moveTo(null));
    box.addEventListener("blur", () => this.moveTo(null));
    box.addEventListener("keydown", (e) => {
      const step = {ArrowLeft: -1, ArrowRight: 1, PageUp: -15, PageDown: 15}[e.key];
      if (e.key === "Escape") this.moveTo(null);
      if (!step || !series.to) return;
      e.preventDefault();
      const from = this.cursor === null ? series.to + (step > 0 ? -1 : 1) : this.cursor;
      this.moveTo(Math.min(series.to, Math.max(series.to - this.window + 1, from + step)));
    });
    for (const button of document.querySelectorAll("[data-window]"))
      button.addEventListener("click", () => {
        this.window = Number(button.dataset.window);
        for (const other of document.querySelectorAll("[data-window]"))
          other.setAttribute("aria-pressed", String(other === button));
        this.draw();
      });
    new ResizeObserver(() => series.to && this.draw()).observe(box);
  },

  /* `marks`: newest first or not, of the specializer. */
  update(doc) {
    const s = doc.specializer || {};
    this.marks = (s.marks || []).slice().sort((a, b) => a.at - b.at);
    series.add(doc.history);
    if (series.to) this.draw();
  },
};
