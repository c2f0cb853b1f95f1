/* SPDX-License-Identifier: Apache-2.0 */
/* format.js - numbers with units, and the few ways in which this page touches the document.
 *
 * All text goes through textContent, so whatever an adviser or a client managed to put into a
 * label or a reason is shown as the characters it is. The Content-Security-Policy forbids the
 * rest: no markup is ever parsed here, and no script but this page's own can run.
 *
 * Nodes are kept and updated in place (keyed), never rebuilt: the page is refreshed every second
 * and must not take the focus or the selection away from whoever uses it.
 */
"use strict";

const NARROW = "\u202f"; /* between a number and its unit */
const NONE = "\u2013";

const byId = (id) => document.getElementById(id);

/* An element with properties (class, text, anything else an attribute) and children. */
function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "text")
      node.textContent = value;
    else if (name === "click")
      node.addEventListener("click", value);
    else
      node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function svg(tag, attributes = {}) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function setTag(node, text, tone = "") {
  setText(node, text);
  node.className = tone ? "tag " + tone : "tag";
}

/* Makes the children of `parent` those of `items`, in their order; make(item) once for a new key,
 * update(node, item) every time. */
function keyed(parent, items, key, make, update) {
  const old = parent.kept || new Map();
  const kept = new Map();
  let at = parent.firstChild;
  for (const item of items) {
    const k = key(item);
    const node = old.get(k) || make(item);
    old.delete(k);
    kept.set(k, node);
    if (node === at)
      at = at.nextSibling;
    else
      parent.insertBefore(node, at);
    update(node, item);
  }
  for (const node of old.values()) node.remove();
  parent.kept = kept;
}

/* ---- numbers --------------------------------------------------------------------------------- */

const isNumber = (v) => typeof v === "number" && Number.isFinite(v);

/* Three digits that matter. */
function digits(v) {
  const a = Math.abs(v);
  return v.toFixed(a >= 100 || a === 0 ? 0 : a >= 10 ? 1 : 2);
}

function count(v) {
  return isNumber(v) ? Math.round(v).toLocaleString("en-US").replace(/,/g, NARROW) : NONE;
}

function withPrefix(v, unit, prefixes, step = 1000) {
  if (!isNumber(v)) return NONE;
  let i = 0;
  while (Math.abs(v) >= step && i < prefixes.length - 1) {
    v /= step;
    i++;
  }
  return digits(v) + NARROW + prefixes[i] + unit;
}

const bytes = (v) => withPrefix(v, "B", ["", "k", "M", "G", "T"]);

function seconds(v) {
  if (!isNumber(v)) return NONE;
  if (v === 0) return "0" + NARROW + "s";
  if (v < 1e-3) return digits(v * 1e6) + NARROW + "\u00b5s";
  if (v < 1) return digits(v * 1e3) + NARROW + "ms";
  if (v < 120) return digits(v) + NARROW + "s";
  if (v < 7200) return Math.round(v / 60) + NARROW + "min";
  if (v < 172800) return digits(v / 3600) + NARROW + "h";
  return digits(v / 86400) + NARROW + "d";
}

const percent = (v, places = 1) => isNumber(v) ? (v * 100).toFixed(places) + NARROW + "%" : NONE;

const signed = (v) =>
  isNumber(v) ? (v < 0 ? "\u2212" : "+") + Math.abs(v * 100).toFixed(1) + NARROW + "%" : NONE;

/* A gain's interval; a bound of a thousand per cent says that nothing could be said. */
function interval(g) {
  return g.high > 10 || g.low <= -1 ? "cannot say yet" : `${signed(g.low)} to ${signed(g.high)}`;
}

/* ---- time ------------------------------------------------------------------------------------ */

const clockFormat = new Intl.DateTimeFormat(
  undefined, {hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23"});
const dayFormat = new Intl.DateTimeFormat(undefined, {month: "short", day: "numeric"});

const clock = (at) => clockFormat.format(new Date(at * 1000));

/* Time of day; with the day unless it was within the last twelve hours. */
function moment(at, now) {
  return now - at < 43200 ? clock(at) : dayFormat.format(new Date(at * 1000)) + " " + clock(at);
}

function ago(at, now) {
  const s = Math.max(0, now - at);
  return s < 5 ? "now" : s < 120 ? Math.round(s) + NARROW + "s ago" : seconds(s) + " ago";
}
