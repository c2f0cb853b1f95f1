/* SPDX-License-Identifier: Apache-2.0 */
/* panels.js - everything below the chart, drawn from one answer of GET /specializer.
 *
 * Each function draws one panel and remembers nothing but nodes. What operators can do is not
 * decided here: buttons call actions (app.js) with the slot or kernel they stand beside.
 */
"use strict";

/* ---- tiles ----------------------------------------------------------------------------------- */

function tile(name, value, unit, sub) { return {name, value, unit, sub}; }

/* How much faster the time of all slots passes than with eager kernels everywhere. */
function overEager(slots) {
  let now = 0, eager = 0;
  for (const s of slots) {
    now += s.share;
    eager += s.share * (1 + s.gain_over_eager);
  }
  return now > 0 ? eager / now : 1;
}

function drawTiles(doc) {
  const e = doc.engine, s = doc.specializer || {}, slots = s.slots || [], a = doc.server.answers;
  const special = slots.filter((p) => p.kernel.origin !== "eager").length;
  const ms = (v) => (v > 0 ? digits(v) : NONE);
  const items = [
    tile("Throughput", digits(e.tokens_per_s), "tok/s", "last 5 s"),
    tile("Between tokens", ms(e.gap_p50_ms), "ms", `p99 ${ms(e.gap_p99_ms)} ms, last 10 s`),
    tile("First token", ms(e.first_p50_ms), "ms", `p99 ${ms(e.first_p99_ms)} ms, last 60 s`),
    tile("Step", ms(e.step_p50_ms), "ms", `p99 ${ms(e.step_p99_ms)} ms, last 5 s`),
    tile(
      "Requests", count(e.running), "running",
      `${count(e.waiting)} waiting, ${count(a.ok)} done, ${count(a.server_error)} failed`),
    tile(
      "KV cache", percent(e.kv_pages_used / e.kv_pages, 0).replace(/\D+$/, ""), "%",
      `${count(e.kv_pages_used)} of ${count(e.kv_pages)} pages`),
    tile(
      "Over eager kernels", overEager(slots).toFixed(2), "\u00d7",
      `${special} of ${slots.length} slots, ${seconds(s.time_saved_s || 0)} saved`),
  ];
  keyed(
    byId("tiles"), items, (t) => t.name,
    (t) => {
      const big = el("span"), unit = el("small", {text: t.unit});
      const node = el(
        "div", {}, el("dt", {text: t.name}), el("dd", {class: "big"}, big, unit),
        el("dd", {class: "sub"}));
      node.big = big;
      return node;
    },
    (node, t) => {
      setText(node.big, t.value);
      setText(node.lastChild, t.sub);
    });
}

/* ---- the step -------------------------------------------------------------------------------- */

/* Region totals only grow, so two answers give what lay between. The oldest of the last fifteen
 * seconds is compared with; without steps in between it is the whole time since the start. */
const stepHistory = {
  seen: [],

  since(doc) {
    const now = {time: doc.server.time, steps: doc.engine.steps, regions: doc.engine.regions};
    this.seen = this.seen.filter((s) => now.time - s.time <= 15 && s.steps <= now.steps);
    const old = this.seen.find((s) => s.steps < now.steps);
    this.seen.push(now);
    return {now, old: old || null};
  },
};

function regionRows(doc) {
  const {now, old} = stepHistory.since(doc);
  const steps = now.steps - (old ? old.steps : 0);
  const rows = now.regions.map((r, i) => {
    const before = old ? old.regions[i] : {seconds: 0, bytes: 0, roofline: 0};
    const time = Math.max(0, r.seconds - before.seconds);
    const least = Math.max(0, r.seconds * r.roofline - before.seconds * before.roofline);
    return {
      name: r.region,
      time: time / steps,
      bytes: Math.max(0, r.bytes - before.bytes) / steps,
      bandwidth: time > 0 ? (r.bytes - before.bytes) / time : 0,
      roofline: time > 0 ? Math.min(1, least / time) : 0
    };
  });
  const total = rows.reduce((sum, r) => sum + r.time, 0);
  for (const r of rows) r.share = total > 0 ? r.time / total : 0;
  return {
    rows: steps > 0 ? rows : [],
    total,
    steps,
    span: old ? Math.round(now.time - old.time) : 0
  };
}

function drawStep(doc) {
  const {rows, total, steps, span} = regionRows(doc);
  setText(
    byId("step-note"),
    !rows.length ? "No step has run yet." :
                   `${seconds(total)} in kernels, mean of ${count(steps)} steps ` +
        (span ? `in the last ${span} s` : "since the start"));
  const bar = byId("step-bar");
  for (const node of [bar, byId("step-legend"), byId("step-table")]) node.hidden = !rows.length;
  bar.setAttribute(
    "aria-label",
    "Time of a step by region: " +
      rows.map((r) => `${r.name} ${percent(r.share, 0)}, ${percent(r.roofline, 0)} of the roofline`)
        .join("; "));
  keyed(
    bar, rows, (r) => r.name, (r) => el("div", {}, el("i"), el("span", {text: r.name})),
    (node, r) => {
      node.style.flex = `${r.share} 1 0`;
      node.title = `${r.name}: ${seconds(r.time)} a step, ${percent(r.roofline)} of the roofline`;
      node.firstChild.style.width = percent(r.roofline).replace(NARROW, "");
      node.lastChild.hidden = r.share * bar.clientWidth < r.name.length * 7.5 + 24;
    });
  keyed(
    byId("step-table").tBodies[0], rows, (r) => r.name,
    (r) => {
      const cell = (c = "n") => el("td", {class: c});
      const gauge = el("i"), roof = el("span");
      const row = el(
        "tr", {}, el("th", {scope: "row", text: r.name}), cell(), cell(), cell(), cell("n wide"),
        el("td", {class: "n"}, roof, el("span", {class: "gauge"}, gauge)));
      row.gauge = gauge;
      row.roof = roof;
      return row;
    },
    (row, r) => {
      const c = row.cells;
      setText(c[1], seconds(r.time));
      setText(c[2], percent(r.share));
      setText(c[3], bytes(r.bytes));
      setText(c[4], bytes(r.bandwidth) + "/s");
      setText(row.roof, percent(r.roofline));
      row.gauge.style.width = r.roofline * 100 + "%";
    });
}

/* ---- the dispatch table ---------------------------------------------------------------------- */

/* A gain with its interval, as text and drawn on a scale that all rows share. */
function gainCell(scale) {
  const draw = svg("svg", {class: "interval", "aria-hidden": "true", viewBox: "0 0 132 14"});
  const zero = svg("line", {class: "zero", y1: 1, y2: 13});
  const whisker = svg("line", {y1: 7, y2: 7}), dot = svg("circle", {cy: 7, r: 3.5});
  draw.append(zero, whisker, dot);
  const mean = el("span", {class: "gain"}), bound = el("span", {class: "bound dim"});
  const cell = el("td", {}, mean, draw, bound);
  cell.set = (g) => {
    const known = g && g.pairs > 0;
    setText(mean, known ? signed(g.mean) : "");
    cell.classList.toggle("none", !known);
    setText(bound, known ? interval(g) : "");
    draw.style.display = known && scale.high > scale.low ? "" : "none";
    if (!known) return;
    const x = (v) => 4 +
      (Math.min(scale.high, Math.max(scale.low, v)) - scale.low) / (scale.high - scale.low || 1) *
        124;
    for (const [node, a, b] of [[zero, 0, 0], [whisker, g.low, g.high]]) {
      node.setAttribute("x1", x(a));
      node.setAttribute("x2", x(b));
    }
    dot.setAttribute("cx", x(g.mean));
    cell.title = `${g.pairs} pairs, ${interval(g)}`;
  };
  return cell;
}

const gainScale = {
  low: 0,
  high: 0
};

function setGainScale(slots) {
  const all = slots.flatMap((s) => [s.bench, s.canary]).filter((g) => g && g.pairs > 0);
  gainScale.low = Math.max(-0.5, Math.min(-0.05, ...all.map((g) => g.low)));
  gainScale.high = Math.min(3, Math.max(0.1, ...all.map((g) => g.high)));
}

const panelOpen = new Set(); /* names of slots whose controls are unfolded */
let showQuiet = false;

function slotRow(slot) {
  const toggle = el(
    "button", {
      type: "button",
      class: "bare",
      click: () => {
        if (!panelOpen.delete(slot.slot)) panelOpen.add(slot.slot);
        actions.redraw();
      }
    },
    "Manage");
  const label = (text, node) => (node.setAttribute("data-label", text), node);
  const name = el("span", {class: "name"}), id = el("span", {class: "mono dim"});
  const origin = el("span"), share = el("span"), gauge = el("i"),
        over = el("span", {class: "gain"});
  const row = el(
    "tr", {}, el("th", {scope: "row", class: "mono", text: slot.slot}),
    label("Kernel", el("td", {class: "kernel full"}, name, origin, " ", id)),
    label("Share of time", el("td", {class: "n"}, share, el("span", {class: "gauge"}, gauge))),
    label("One run", el("td", {class: "n"})), label("Roofline", el("td", {class: "n"})),
    label("Over eager", el("td", {class: "n"}, over)),
    label("Last win: bench", gainCell(gainScale)), label("Whole step", gainCell(gainScale)),
    label("Tried", el("td", {class: "n"})), el("td", {class: "n"}, toggle));
  row.parts = {name, id, origin, share, gauge, over, toggle};
  return row;
}

function updateSlot(row, s) {
  const p = row.parts, c = row.cells, eager = s.kernel.origin === "eager";
  setText(p.name, eager ? "eager" : s.kernel.name);
  p.name.title = s.kernel.name;
  setText(p.id, eager ? s.why || "" : s.kernel.id);
  p.id.classList.toggle("mono", !eager);
  setTag(p.origin, s.pinned ? "pinned" : s.kernel.origin, s.pinned ? "warn" : "good");
  p.origin.hidden = eager && !s.pinned;
  setText(p.share, percent(s.share));
  p.gauge.style.width = Math.min(100, s.share * 100) + "%";
  setText(c[3], seconds(s.run_s));
  setText(c[4], percent(s.roofline));
  setText(p.over, eager ? "" : signed(s.gain_over_eager));
  p.over.className = "gain" + (eager ? "" : s.gain_over_eager >= 0 ? " up" : " down");
  c[6].set(eager ? null : s.bench);
  c[7].set(eager ? null : s.canary);
  setText(c[8], s.candidates ? `${s.candidates}, ${s.refusals} refused` : "");
  c[5].classList.toggle("none", eager);
  c[8].classList.toggle("none", !s.candidates);
  const open = panelOpen.has(s.slot);
  p.toggle.setAttribute("aria-expanded", String(open));
  setText(p.toggle, open ? "Close" : "Manage");
  p.toggle.setAttribute("aria-label", `${p.toggle.textContent} ${s.slot}`);
}

/* The unfolded part: what can be done with the slot, and what was tried there. */
function slotPanel() {
  const box = el("div"), row = el("tr", {class: "more"}, el("td", {colspan: "10"}, box));
  const knobs = el("p", {class: "mono knobs"}), label = el("p", {class: "dim"});
  const button = (text, run) => el("button", {type: "button", text, click: () => run(row.shown)});
  const b = {
    pin: button("Pin this kernel", (p) => actions.pin(p.slot, p.kernel.id)),
    eager: button("Pin eager", (p) => actions.pin(p.slot, "eager")),
    unpin: button("Unpin", (p) => actions.unpin(p.slot)),
    back: button("Roll back", (p) => actions.rollback(p.slot, p.kernel)),
    disable:
      button("Disable this kernel\u2026", (p) => actions.disable(p.kernel.id, p.kernel.name)),
    show: button("Source and build log", (p) => actions.showKernel(p.kernel.id)),
    tried: button("What was tried here", (p) => actions.showTried(p.slot, row)),
  };
  row.tried = el("div");
  box.append(knobs, label, el("div", {class: "actions"}, ...Object.values(b)), row.tried);
  row.set = (p) => {
    const eager = p.kernel.origin === "eager";
    row.shown = p;
    setText(
      knobs, eager ? "The eager kernel, always loaded" + (p.why ? `: ${p.why}.` : ".") : p.kernel.name);
    setText(label, p.label ? `Adviser (${p.label_by || "heuristic"}): ${p.label}` : "");
    b.pin.hidden = Boolean(p.pinned) || eager;
    b.eager.hidden = p.pinned === "eager";
    b.unpin.hidden = !p.pinned;
    b.back.hidden = eager || Boolean(p.pinned);
    b.disable.hidden = b.show.hidden = eager;
    for (const node of Object.values(b)) node.disabled = !actions.possible();
  };
  return row;
}

function drawSlots(doc) {
  const all = (doc.specializer.slots || []).slice().sort((a, b) => b.share - a.share);
  const loud = all.filter((s) => s.share >= 0.005 || s.pinned || s.kernel.origin !== "eager");
  const shown = showQuiet ? all : loud;
  setGainScale(shown);
  setText(
    byId("slots-note"),
    all.length ? `${shown.length} of ${all.length} slots in use, by share of the recent time` : "");
  byId("slots-all").hidden = all.length === loud.length;
  byId("slots-all").setAttribute("aria-pressed", String(showQuiet));
  setText(byId("slots-all"), showQuiet ? "Hide quiet slots" : "Show quiet slots");
  byId("slots-empty").hidden = shown.length > 0;
  byId("slots-table").hidden = shown.length === 0;
  const rows =
    shown.flatMap((s) => [{slot: s}].concat(panelOpen.has(s.slot) ? [{slot: s, more: true}] : []));
  keyed(
    byId("slots-table").tBodies[0], rows, (r) => r.slot.slot + (r.more ? " more" : ""),
    (r) => (r.more ? slotPanel() : slotRow(r.slot)),
    (node, r) => (r.more ? node.set(r.slot) : updateSlot(node, r.slot)));
  drawDisabled(doc.specializer.disabled || []);
}

function drawDisabled(disabled) {
  byId("disabled").hidden = disabled.length === 0;
  keyed(
    byId("disabled").lastElementChild, disabled, (d) => d.kernel,
    (d) => el(
      "li", {}, el("span", {class: "mono", text: d.kernel}), el("span", {class: "dim"}),
      el("button", {
        type: "button",
        text: "Enable",
        "aria-label": `Enable ${d.kernel}`,
        click: () => actions.enable(d.kernel)
      })),
    (node, d) => {
      setText(node.children[1], d.reason);
      node.children[2].disabled = !actions.possible();
    });
}

/* ---- candidates ------------------------------------------------------------------------------ */

const STAGES = ["build", "probe", "load", "bench", "shadow", "canary"];

function drawFunnel(doc) {
  const s = doc.specializer, n = s.counts;
  setText(
    byId("funnel-note"),
    `${count(n.published)} published, ${count(n.restored)} restored, ` +
      `${count(n.rolled_back)} rolled back; ${count(n.audit_comparisons)} audits, ` +
      `${count(n.audit_mismatches)} found wrong`);
  const rows = STAGES.map((name) => ({name, ...s.funnel[name]}));
  const most = Math.max(1, ...rows.map((r) => r.pass + r.refuse + r.retry));
  keyed(
    byId("funnel").tBodies[0], rows, (r) => r.name,
    (r) => {
      const stack = el("span", {class: "stack", "aria-hidden": "true"}, el("i"), el("i"), el("i"));
      const row = el(
        "tr", {}, el("th", {scope: "row", text: r.name}), el("td", {}, stack),
        el("td", {class: "n"}), el("td", {class: "n"}), el("td", {class: "n"}));
      row.stack = stack;
      return row;
    },
    (row, r) => {
      [r.pass, r.refuse, r.retry].forEach((v, i) => {
        row.stack.children[i].style.width = v / most * 100 + "%";
        setText(row.cells[i + 2], count(v));
      });
    });
  drawRows("refusals", s.refusals.slice().sort((x, y) => y.id - x.id), doc.server.time, (r) => {
    const stage = /^(\w+): /.exec(r.text || "");
    return {
      tag: stage ? stage[1] : "refused",
      tone: "bad",
      slot: r.slot,
      name: r.name,
      text: stage ? r.text.slice(stage[0].length) : r.text
    };
  });
}

/* A list of trace rows: tag, slot, time, then the words. */
function drawRows(id, rows, now, view) {
  byId(id + "-empty").hidden = rows.length > 0;
  byId(id).hidden = rows.length === 0;
  keyed(byId(id), rows, (r) => r.id, (r) => {
    const v = view(r), tag = el("span");
    setTag(tag, v.tag, v.tone);
    return el(
      "li", {},
      el(
        "div", {class: "line"}, tag, el("span", {class: "mono", text: v.slot || ""}),
        el("time", {datetime: new Date(r.at * 1000).toISOString()})),
      el("div", {text: v.text || ""}), el("div", {class: "mono dim", text: v.name || ""}));
  }, (node, r) => setText(node.querySelector("time"), ago(r.at, now)));
}

/* ---- the adviser ----------------------------------------------------------------------------- */

function drawFacts(list, facts) {
  keyed(
    list, facts, (f) => f[0], (f) => el("div", {}, el("dt", {text: f[0]}), el("dd")),
    (node, f) => setText(node.lastChild, f[1]));
}

/* Questions, what they took, by task: "advice 8: 17 k, 1.4 k, 0.07". */
function spentOn(tasks) {
  return tasks
    .map((t) => {
      const money = t.cost > 0 ? `, ${t.cost.toFixed(2)}` : "";
      return `${t.task} ${t.usable + t.unusable}: ${count(t.tokens_in)}, ${count(t.tokens_out)}${money}`;
    })
    .join("; ");
}

function drawAdviser(doc) {
  const a = doc.specializer.adviser, remote = a.source !== "heuristic";
  const reasons = Object.entries({...a.faults, ...a.held}).map(([k, v]) => `${k} ${v}`).join(", ");
  setText(
    byId("adviser-note"),
    remote ? `${a.source}, breaker ${a.breaker.replace("_", " ")}` :
             "the built-in heuristic; no language model is configured");
  drawFacts(byId("adviser-counts"), [
    ["Accepted", count(a.accepted)], ["Rejected", count(a.rejected)], ["Failed", count(a.failed)],
    ["By the heuristic", count(a.heuristic)],
    ["Tokens in, out", `${count(a.tokens_in)}, ${count(a.tokens_out)}`],
    ["Rejected advice, moves", `${count(a.advice.rejected)}, ${count(a.moves.rejected)}`],
    ["Changes legal, dropped", `${count(a.changes_kept)}, ${count(a.changes_dropped)}`],
    ["Late replies used, dropped", `${count(a.late_used)}, ${count(a.late_dropped)}`],
    ["Repairs right, refused", a.texts ? `${count(a.texts.repaired)}, ${count(a.texts.not_repaired)}` : NONE],
    ["Tokens in, out, money by task", spentOn(a.tasks) || NONE], ["Why not", reasons || NONE]
  ]);
  const labels = (doc.specializer.slots || []).filter((s) => s.label);
  byId("labels-empty").hidden = labels.length > 0;
  keyed(
    byId("labels"), labels, (s) => s.slot,
    (s) => el(
      "li", {},
      el(
        "div", {class: "line"}, el("span", {class: "mono", text: s.slot}),
        el("span", {class: "dim"})),
      el("div")),
    (node, s) => {
      setText(node.firstChild.lastChild, s.label_by || "");
      setText(node.lastChild, s.label);
    });
  const verdicts = a.verdicts.slice().sort((x, y) => y.id - x.id);
  drawRows(
    "verdicts", verdicts, doc.server.time,
    (r) => ({
      tag: {advice: "accepted", advice_rejected: "rejected"}[r.event] || "failed",
      tone: r.event === "advice" ? "good" : "bad",
      slot: r.slot,
      text: r.text
    }));
}

/* ---- the fleet ------------------------------------------------------------------------------- */

/* Rows of a line and words below it; what may change is written every time. The answer has the
 * newest of `all`. */
function drawLines(id, rows, all, key, line, words) {
  byId(id).hidden = rows.length === 0;
  setText(byId(id + "-of"), all > rows.length ? `: the newest ${rows.length} of ${all}` : "");
  const empty = byId(id + "-empty");
  if (empty) empty.hidden = rows.length > 0;
  keyed(
    byId(id), rows, key,
    () => el(
      "li", {}, el("div", {class: "line"}, el("span", {class: "mono"}), el("span", {class: "dim"})),
      el("div")),
    (node, r) => {
      const [first, second] = line(r);
      setText(node.firstChild.firstChild, first);
      setText(node.firstChild.lastChild, second);
      setText(node.lastChild, words(r));
    });
}

function drawFleet(doc) {
  const f = doc.specializer.fleet, on = f && f.state !== "off";
  byId("fleet").hidden = !on;
  if (!on) return;
  const seconds = (s) => `${Math.max(0, Math.round(s))} s`;
  setText(
    byId("fleet-note"),
    (f.state === "online" ? "connected for " : "no database for ") + seconds(f.since_s) +
      (f.state === "online" && !f.listed ? "; not listed there yet, others do not see it" : "") +
      (f.read_only ? "; the database can only be read, another host is looked for" : "") +
      (f.troubled ? "; something failed, see the log" : ""));
  drawFacts(byId("fleet-counts"), [
    ["This server", f.name], ["Searches", f.lease || NONE], ["Told", count(f.sent)],
    ["Heard", count(f.taken)], ["Refused", count(f.refused)], ["Distrusted", count(f.distrusted.length)]
  ]);
  drawLines(
    "fleet-servers", f.servers, f.totals.servers, (r) => r.server,
    (r) => [r.name, r.stopped ? "stopped" : `seen ${seconds(r.seen_s)} ago`],
    (r) => `whet ${r.version}, ${r.device}`);
  drawLines(
    "fleet-leases", f.leases, f.totals.leases, (r) => r.slot,
    (r) => [r.slot, r.left_s >= 0 ? `for ${seconds(r.held_s)}` : "not renewed"],
    (r) => r.name || r.server);
  drawLines(
    "fleet-winners", f.winners, f.totals.winners, (r) => r.slot,
    (r) => [r.slot, `+${((r.speed - 1) * 100).toFixed(0)} %, on ${r.servers}`], (r) => r.kernel);
  drawLines(
    "fleet-retractions", f.retractions, f.totals.retractions, (r) => r.key,
    (r) => [`${r.slot} ${r.key}`, `by ${r.name} ${seconds(r.at_s)} ago`],
    (r) => `${r.reason}; heard by ${r.heard_by} of ${r.heard_of}, ` +
      `wrong on ${r.confirmed_by} more, right on ${r.refuted_by}`);
}

/* ---- the trace ------------------------------------------------------------------------------- */

const EVENT_TONES = {
  active: "good",
  restored: "good",
  refused: "bad",
  deferred: "warn",
  retried: "warn",
  rolled_back: "bad",
  disabled: "bad",
  disable: "bad",
  not_restored: "bad",
  pin: "warn",
  unpin: "warn",
  pause: "warn",
  freeze: "warn",
  advice_rejected: "bad",
  advice_failed: "bad"
};

function drawTrace(doc) {
  const rows = doc.specializer.trace, select = byId("trace-slot");
  const slots = [...new Set(rows.map((r) => r.slot).filter(Boolean))].sort();
  if (select.value && !slots.includes(select.value)) slots.push(select.value);
  keyed(
    select, ["", ...slots], (s) => s, (s) => el("option", {value: s, text: s || "all"}), () => {});
  const shown = rows.filter((r) => !select.value || r.slot === select.value);
  byId("trace-empty").hidden = shown.length > 0;
  byId("trace").hidden = shown.length === 0;
  keyed(byId("trace").tBodies[0], shown, (r) => r.id, (r) => {
    const tag = el("span");
    setTag(tag, r.event.replace(/_/g, " "), EVENT_TONES[r.event]);
    return el(
      "tr", {}, el("td", {text: moment(r.at, doc.server.time)}),
      el("td", {class: "mono", text: r.slot || ""}), el("td", {}, tag),
      el("td", {class: "mono dim full", text: r.name || r.kernel || ""}),
      el("td", {class: "full", text: r.text || ""}),
      el("td", {class: "mono dim full", text: r.who || ""}));
  }, () => {});
}
